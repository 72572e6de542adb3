"""What we need to know of Spark's checkpoint: whose it is, how far it went, how large a batch is.

Layout, of Spark's structured streaming::

    <checkpoint>/metadata                {"id": "<query id>"}: read at start if there, else written
                 offsets/<batch id>      written before the batch runs
                 sources/0/<n>           a line "v1", then {"path", "timestamp", "batchId"} a file

The query id is the writer's name in the log. We write it ourselves before the query starts, so that
the log can be opened under it first.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit
from uuid import UUID, uuid4

from tailrace.errors import LogUnreadable, TailraceError
from tailrace_server.wal.files.system_errors import os_errors

if TYPE_CHECKING:
    from pathlib import Path


_PACKED: Final = (".gz", ".bz2", ".deflate", ".snappy", ".lz4", ".zst")
"""What the names of files end in that Spark unpacks as it reads them."""
_PACKED_MAX: Final = 100
"""How much larger such a file may be unpacked: messages that each bring their schema shrink to a hundredth."""

_PLAN_LINES: Final = 3
"""Of a planned batch: the version of the format, settings, and how far each source goes."""

ANOTHER_SOURCE: Final = (
    "another source feeds this catalog; --take-over fences it, and goes on behind it"
)


class InputGone(TailraceError):
    """A file of the input that was to be read next is not there. The source's doing; nothing is lost yet."""

    code = "INPUT_GONE"

    def __init__(self, path: str) -> None:
        """Keep which."""
        super().__init__(
            f"{path} was to be read next and is not there; put it back and run again, or to go on without "
            "it an empty file of that name"
        )
        self.path = path

    def figures(self) -> dict[str, str]:
        """Return which."""
        return {"path": self.path}


def is_query_id(writer: str) -> bool:
    """Whether a writer's name is one that Spark's checkpoints give; other writers have names of words."""
    try:
        return str(UUID(writer)) == writer
    except ValueError:
        return False


class Checkpoint:
    """A folder that Spark keeps a query's progress in."""

    def __init__(self, folder: Path) -> None:
        """Take the folder; it may not exist yet."""
        self.folder = folder

    def query_id(self) -> str:
        """Return the id of the query, made and kept on first use.

        Raises:
            LogUnreadable: The file is there and is not what Spark writes, or there is no permission.
            LogFull: No room.
        """
        with os_errors(f"cannot use the checkpoint {self.folder}"):
            return self._query_id()

    def _query_id(self) -> str:
        file = self.folder / "metadata"
        try:
            return str(UUID(json.loads(file.read_text())["id"]))
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            raise LogUnreadable(f"{file} is damaged: {error}; see --take-over") from error
        query_id = str(uuid4())
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = self.folder / f".metadata.{query_id}.tmp"
        with aside.open("w") as out:
            out.write(json.dumps({"id": query_id}))
            out.flush()
            os.fsync(out.fileno())
        try:
            # A link, unlike a rename, replaces nothing: of two ingests that start at once one makes it.
            os.link(aside, file)
        except FileExistsError:
            return self._query_id()
        finally:
            aside.unlink()
        return query_id

    def last_batch(self) -> int:
        """Return the last batch id that Spark has planned; -1 for none."""
        return max(
            (int(name) for name in _names(self.folder / "offsets") if name.isdigit()), default=-1
        )

    def check(self) -> None:
        """Make sure that Spark can go on from here: it has written what it planned last.

        Raises:
            LogUnreadable: It has not, or somebody has taken a part away.
        """
        last = self.last_batch()
        if last < 0:
            return
        planned = self.folder / "offsets" / str(last)
        with os_errors(f"cannot use the checkpoint {self.folder}"):
            if len(planned.read_bytes().split(b"\n")) < _PLAN_LINES:
                raise LogUnreadable(f"{planned} is damaged: it ends too early; see --take-over")
            if not any(name.split(".")[0].isdigit() for name in _names(self.folder / "sources/0")):
                raise LogUnreadable(
                    f"{self.folder} is damaged: it has planned batch {last} and does not say of which files; "
                    "see --take-over"
                )

    def set_aside(self) -> None:
        """Move the folder out of the way, under a name that is kept."""
        number = 1
        while (moved := self.folder.with_name(f"{self.folder.name}-{number}")).exists():
            number += 1
        self.folder.rename(moved)

    def plan(self, batch_id: int) -> BatchPlan:
        """Return what Spark noted of a batch before it ran."""
        sources = self.folder / "sources" / "0"
        for name in (f"{batch_id}", f"{batch_id}.compact"):
            try:
                lines = (sources / name).read_text().splitlines()
                entries = [json.loads(line) for line in lines[1:]]
                files = [local_path(e["path"]) for e in entries if e["batchId"] == batch_id]
                return BatchPlan(files)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError):
                break
        return BatchPlan(None)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The input of one batch."""

    files: list[str] | None
    """Paths; None where Spark has noted none, or in another format."""

    def bytes(self) -> int | None:
        """Return the size of the files; packed ones count as if unpacked.

        None where it cannot be told: the files are not known, or not on this machine.
        """
        try:
            return None if self.files is None else sum(map(_unpacked_bytes, self.files))
        except OSError:
            return None

    def check(self) -> None:
        """Make sure that the files are there: Spark passes over those that are not, in silence.

        Raises:
            InputGone: One is not.
        """
        for path in self.files or ():
            if path.startswith("/") and not os.path.exists(path):
                raise InputGone(path)


def local_path(uri: str) -> str:
    """Return the path of a ``file:`` URI as Spark writes it, percent-encoded."""
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else unquote(uri)


def _unpacked_bytes(path: str) -> int:
    size = os.stat(path).st_size
    return size * _PACKED_MAX if path.endswith(_PACKED) else size


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
