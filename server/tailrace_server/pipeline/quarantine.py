"""Lines that could not be used: one file for each batch, one JSON object for each line.

``<catalog>/quarantine/<writer>-<batch id>.jsonl``::

    {"file": "shop.order-00001.json", "line": 17, "reason": "no key: …", "raw": "…"}

``raw`` is the line as it was. A line that is not UTF-8 is in ``raw_base64`` instead. A batch that is tried
again writes the same lines under the same name.
"""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING

import orjson

from tailrace.errors import TailraceError
from tailrace_server.wal.files.new_file import sync_folder
from tailrace_server.wal.files.system_errors import os_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tailrace_server.pipeline.changes import Change


class LineRefused(TailraceError):
    """A line cannot be used and ``--strict`` was given. The source's doing; nothing of its batch was kept."""

    code = "LINE_REFUSED"

    def __init__(self, file: str, line: int, reason: str, option: str = "--strict") -> None:
        """Store the place of the line and the reason of its refusal."""
        super().__init__(f"{file} line {line}: {reason}; without {option} it goes to quarantine")
        self.file = file
        self.line = line
        self.reason = reason

    @classmethod
    def first(
        cls, lines: Iterable[Change], blocks: Mapping[tuple[str, int], int], option: str
    ) -> LineRefused:
        """Return the refusal of the first of some QUARANTINED changes; ``blocks`` as in `write_quarantine`."""
        first = min(lines, key=lambda change: change.place)
        before = blocks.get((first.file or "", first.block or 0), 0)
        return cls(first.file or "", before + (first.line or 0), first.reason or "", option)

    def figures(self) -> dict[str, str]:
        """Return file, line and reason."""
        return {"file": self.file, "line": str(self.line), "reason": self.reason}


def write_quarantine(
    folder: Path, name: str, lines: Iterable[Change], blocks: Mapping[tuple[str, int], int]
) -> Path:
    """Write the quarantined lines of a batch and make them durable.

    Args:
        folder: The catalog's quarantine folder.
        name: Of the file, without its ending.
        lines: QUARANTINED changes.
        blocks: (file, block) → lines of the file before the block.

    Raises:
        LogFull: No room.
    """
    final = folder / f"{name}.jsonl"
    aside = folder / f".{name}.tmp"
    ordered = sorted(lines, key=lambda change: change.place)
    with os_errors(f"cannot write {final}"):
        folder.mkdir(exist_ok=True)
        with aside.open("wb") as file:
            for change in ordered:
                file.write(_line(change, blocks))
            file.flush()
            os.fsync(file.fileno())
        aside.rename(final)
        sync_folder(folder)
    return final


def _line(change: Change, blocks: Mapping[tuple[str, int], int]) -> bytes:
    assert change.file is not None
    assert change.block is not None
    assert change.line is not None
    raw = change.raw or b""
    try:
        text = {"raw": raw.decode()}
    except UnicodeDecodeError:
        text = {"raw_base64": base64.b64encode(raw).decode()}
    number = blocks.get((change.file, change.block), 0) + change.line
    body = {"file": change.file, "line": number, "reason": change.reason, **text}
    return orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE)
