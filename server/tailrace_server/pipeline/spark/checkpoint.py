"""What we read from Spark's checkpoint: its query, its last batch, and the size of a batch.

Layout, of Spark's structured streaming::

    <checkpoint>/metadata                {"id": "<query id>"}: read at the start, written if missing
                 offsets/<batch id>      written before the batch runs
                 sources/0/<n>           a line "v1", then {"path", "timestamp", "batchId"} a file

The query id is the writer's name in the log. We write it before the query starts, since the log is opened
under that name first.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit
from uuid import UUID, uuid4

from tailrace.errors import LogUnreadable, TailraceError
from tailrace_server.wal.files.system_errors import os_errors

if TYPE_CHECKING:
    from pathlib import Path


_PACKED: Final = (".gz", ".bz2", ".deflate", ".snappy", ".lz4", ".zst")
"""Endings of files that Spark unpacks when it reads them."""
_PACKED_MAX: Final = 100
"""Assumed growth of such a file when unpacked: messages that each carry their schema shrink that much."""

_PLAN_LINES: Final = 3
"""Least lines of a planned batch: version of the format, settings, and the end of each source."""

QUERY_ID: Final = "sql.streaming.queryId"
"""The local property of Spark's jobs and tasks that names their query, also of those in ``foreachBatch``."""

ANOTHER_SOURCE: Final = (
    "another source feeds this catalog; --take-over fences it, and goes on behind it"
)


class InputGone(TailraceError):
    """An input file of the next batch is missing. The source's doing; nothing is lost yet."""

    code = "INPUT_GONE"

    def __init__(self, path: str) -> None:
        """Keep its path."""
        super().__init__(
            f"{path} was to be read next and is not there; put it back and run again, or to go on without "
            "it an empty file of that name"
        )
        self.path = path

    def figures(self) -> dict[str, str]:
        """Return the path."""
        return {"path": self.path}


def is_query_id(writer: str) -> bool:
    """Whether a writer's name is the id of a Spark query; other writers have words for names."""
    try:
        return str(UUID(writer)) == writer
    except ValueError:
        return False


class Checkpoint:
    """The folder in which Spark keeps the progress of a query."""

    def __init__(self, folder: Path) -> None:
        """Take the folder; it may not exist yet."""
        self.folder = folder

    def query_id(self) -> str:
        """Return the id of the query; make and store it on first use.

        Raises:
            LogUnreadable: The file is damaged, or may not be read or written.
            LogFull: No room.
        """
        with os_errors(f"cannot use the checkpoint {self.folder}"):
            return self._query_id()

    def _query_id(self) -> str:
        # 1. Spark keeps the id that it finds, and so do we.
        file = self.folder / "metadata"
        try:
            return str(UUID(json.loads(file.read_text())["id"]))
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            raise LogUnreadable(f"{file} is damaged: {error}; see --take-over") from error
        # 2. Written aside and made durable first: the log is opened under this name next, and a crash that lost
        #    the file would leave a log that belongs to an unknown writer.
        query_id = str(uuid4())
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = self.folder / f".metadata.{query_id}.tmp"
        with aside.open("w") as out:
            out.write(json.dumps({"id": query_id}))
            out.flush()
            os.fsync(out.fileno())
        try:
            # 3. A link, unlike a rename, replaces nothing: of two ingests that start at once, one makes the
            #    file and the other reads it.
            os.link(aside, file)
        except FileExistsError:
            return self._query_id()
        finally:
            aside.unlink()
        return query_id

    def stored_query_id(self) -> str:
        """Return the id of the query as Spark has stored it; empty where there is none to read."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return str(UUID(json.loads((self.folder / "metadata").read_text())["id"]))
        return ""

    def last_batch(self) -> int:
        """Return the last batch id that Spark has planned; -1 for none."""
        return max(
            (int(name) for name in _names(self.folder / "offsets") if name.isdigit()), default=-1
        )

    def check(self) -> None:
        """Make sure that Spark can go on from here: the newest plan is whole and names its files.

        Raises:
            LogUnreadable: A part is missing or cut off.
        """
        last = self.last_batch()
        if last < 0:
            return
        # Spark writes a plan before it runs the batch. If the machine stops in between, the file may be cut.
        # Spark would fail on it with an error that names neither the file nor a way out.
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
        """Rename the folder, so that a new checkpoint can be made and this one is kept."""
        number = 1
        while (moved := self.folder.with_name(f"{self.folder.name}-{number}")).exists():
            number += 1
        self.folder.rename(moved)

    def changed_files(self) -> list[str]:
        """Return the files that have changed since Spark noted them, in order; those not on this machine aside.

        Spark takes a file once, by its path. What was added to it later is not read.
        """
        noted: dict[str, int] = {}
        sources = self.folder / "sources" / "0"
        for name in _names(sources):
            if not name.partition(".")[0].isdigit():
                continue
            with suppress(OSError, ValueError, KeyError, TypeError):  # plan() says what is damaged
                for line in (sources / name).read_text().splitlines()[1:]:
                    entry = json.loads(line)
                    noted[local_path(entry["path"])] = entry["timestamp"]
        return sorted(path for path, written_ms in noted.items() if _is_newer(path, written_ms))

    def plan(self, batch_id: int) -> BatchPlan:
        """Return the input of a batch, as Spark noted it before the batch ran."""
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
    """Paths; None if Spark has noted none, or in an unknown format."""

    def bytes(self) -> int | None:
        """Return the size of the files, of packed ones an estimate of the unpacked size.

        None if it is unknown: the files are not known, or not on this machine.
        """
        try:
            return None if self.files is None else sum(map(_unpacked_bytes, self.files))
        except OSError:
            return None

    def size(self) -> int:
        """Return the size of the files as they are, as far as it is known."""
        total = 0
        for path in self.files or ():
            with suppress(OSError):
                total += os.stat(path).st_size
        return total

    def check(self) -> None:
        """Make sure that the files exist: Spark silently skips missing ones.

        Raises:
            InputGone: One is missing.
        """
        for path in self.files or ():
            if path.startswith("/") and not os.path.exists(path):
                raise InputGone(path)


def local_path(uri: str) -> str:
    """Return the path of a ``file:`` URI as Spark writes it, percent-encoded."""
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else unquote(uri)


def _is_newer(path: str, written_ms: int) -> bool:
    """Whether a file was written to after that time, in ms since 1970."""
    try:
        return os.stat(path).st_mtime_ns // 1_000_000 > written_ms
    except OSError:
        return False


def _unpacked_bytes(path: str) -> int:
    size = os.stat(path).st_size
    return size * _PACKED_MAX if path.endswith(_PACKED) else size


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
