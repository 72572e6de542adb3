"""The quarantine: files with the lines that could not be used.

The quarantine of a batch is ``<catalog>/quarantine/<writer>-<batch id>.jsonl``, with one JSON object for each
line that could not be used::

    {"file": "shop.order-00001.json", "line": 17, "reason": "no key: …", "raw": "…"}

``raw`` is the original line. A line that is not UTF-8 is in ``raw_base64`` instead. A repeated batch writes the
same lines to a file of the same name.

Each task of a large batch writes a file of its own, with ``-task<number>`` at the end of the name. Spark may
run a task more than once, so each attempt writes another file, and the driver gives the final name to those
whose results Spark returns (`adopt_parts`). The driver gets only a summary of the lines, a `SetAside`.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import orjson

from tailrace.errors import TailraceError
from tailrace_server.wal.files.new_file import replace_durably, sync_folder
from tailrace_server.wal.files.system_errors import os_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tailrace_server.pipeline.input.change import Change
    from tailrace_server.pipeline.run.set_aside import SetAside, SetAsideLines


class LineRefused(TailraceError):
    """A line of the source cannot be used, and the options say to stop at it. Its batch is not committed."""

    code = "LINE_REFUSED"

    def __init__(self, file: str, line: int, reason: str, option: str = "--strict") -> None:
        """Store the place of the line and the reason why it cannot be used."""
        super().__init__(f"{file} line {line}: {reason}; without {option} it goes to quarantine")
        self.file = file
        self.line = line
        self.reason = reason

    @classmethod
    def first(
        cls, lines: SetAsideLines, blocks: Mapping[tuple[str, int], int], option: str
    ) -> LineRefused:
        """Return the error for the first of some lines; ``blocks`` is as in `write_quarantine`."""
        before = blocks.get((lines.file, lines.block), 0)
        return cls(lines.file, before + lines.line, lines.reason, option)

    def figures(self) -> dict[str, str]:
        """Return file, line and reason."""
        return {"file": self.file, "line": str(self.line), "reason": self.reason}


def check_stop(
    found: SetAside, blocks: Mapping[tuple[str, int], int], *, strict: bool, incompatible: bool
) -> None:
    """Raise for the first quarantined line at which the options say to stop.

    Args:
        found: The lines.
        blocks: As in `write_quarantine`.
        strict: True to stop at any line.
        incompatible: True to stop at a value that its declared type cannot hold.

    Raises:
        LineRefused: There is such a line.
    """
    lines, option = found.together if strict else None, "--strict"
    if not strict and incompatible:
        lines, option = found.incompatible, "--on-incompatible stop"
    if lines is not None:
        raise LineRefused.first(lines, blocks, option)


def write_quarantine(
    path: Path, lines: Iterable[Change], blocks: Mapping[tuple[str, int], int]
) -> None:
    """Write quarantined lines to a file and make them durable. Runs in tasks and in the driver.

    Args:
        path: The file; a file of that name is replaced.
        lines: The QUARANTINED changes.
        blocks: (file, block) → number of lines of the file before the block.

    Raises:
        LogFull: The disk is full.
    """
    # Once the entry marks these lines as consumed, no other copy of them is guaranteed.
    replace_durably(path, (_line(change, blocks) for change in lines))


def adopt_parts(path: Path, parts: Sequence[Path]) -> None:
    """Let the files that the tasks of a batch wrote be its quarantine, durably.

    The files of other attempts of these tasks, and those of an earlier attempt of the batch, are deleted.

    Args:
        path: The batch's file, as `write_quarantine` writes it without tasks.
        parts: The files, in the order of their new names; empty if the driver has written ``path``.
    """
    with os_errors(f"cannot write {path}"):
        found = {*path.parent.glob(f"{path.stem}-task*"), *([path] if parts else [])}
        for stale in found.difference(parts):
            stale.unlink(missing_ok=True)
        for number, part in enumerate(parts):
            part.rename(path.with_name(f"{path.stem}-task{number}.jsonl"))
        sync_folder(path.parent)


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
