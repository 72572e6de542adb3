"""Spark's checkpoint of a stream of files: its query, its batches, their files, and checks of its integrity.

Layout, of Spark's structured streaming::

    <checkpoint>/metadata            {"id": "<query id>"}: read at the start, written if missing
                 sources/0/<n>       "v1", then a line {"path", "timestamp", "batchId": n} for each new file
                 sources/0/<n>.compact    like <n>, with the lines of all earlier files too
                 offsets/<batch id>  "v1", settings, {"logOffset": n}: the batch has the files of the lists up
                                     to n that no earlier batch has. Written before the batch runs
                 commits/<batch id>  "v1", …: written after the batch has run
                 **/.<name>.crc      checksums of the file <name>, which Spark verifies

To start, Spark needs the newest two files of ``offsets``, the newest compact file of ``sources/0``, and all
later files there. Spark deletes older files. If the commit of the newest batch is missing, Spark runs the batch
again.

The query id is the writer's name in the log. We write ``metadata`` before the query starts, since the log is
opened under that name first.
"""

from __future__ import annotations

import json
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit
from uuid import UUID, uuid4

from tailrace.errors import LogUnreadable, TailraceError
from tailrace_server.wal.files.new_file import write_durably
from tailrace_server.wal.files.system_errors import os_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_PACKED: Final = (".gz", ".bz2", ".deflate", ".snappy", ".lz4", ".zst")
"""Endings of the names of compressed files, which Spark unpacks when it reads them."""
_PACKED_MAX: Final = 100
"""Assumed ratio of unpacked to packed size. Messages that each carry their schema shrink that much."""

_SUMS_HEAD: Final = b"crc\0"
"""First bytes of a file of checksums. Four bytes follow for the bytes of a piece, and four for the CRC-32 of
each piece.
"""
_PARTS: Final = ("offsets", "sources/0", "commits")
_WAY_OUT: Final = "restore it, or run again with --take-over: lines that are in the log are skipped"

QUERY_ID: Final = "sql.streaming.queryId"
"""Name of the local property of Spark's jobs and tasks that has the id of their query, also in
``foreachBatch``.
"""

ANOTHER_SOURCE: Final = (
    "another source writes to this catalog; --take-over fences that source, and continues after "
    "its rows"
)


class InputGone(TailraceError):
    """An input file of the next batch is missing.

    The source removed it. Nothing is lost if the file is put back.
    """

    code = "INPUT_GONE"

    def __init__(self, path: str) -> None:
        """Store the path of the file."""
        super().__init__(
            f"{path} has to be read next, but does not exist; restore it and run again, or create "
            "an empty file of that name to continue without it"
        )
        self.path = path

    def figures(self) -> dict[str, str]:
        """Return the path."""
        return {"path": self.path}


def is_query_id(writer: str) -> bool:
    """Return True if a writer's name is the id of a Spark query. Other writers have words as names."""
    try:
        return str(UUID(writer)) == writer
    except ValueError:
        return False


class Checkpoint:
    """The folder in which Spark keeps the progress of a query."""

    def __init__(self, folder: Path) -> None:
        """Bind to a folder; it need not exist yet."""
        self.folder = folder

    def query_id(self) -> str:
        """Return the id of the query; on first use, create and store it.

        Raises:
            LogUnreadable: The file is damaged, or cannot be read or written.
            LogFull: There is no space for the file.
        """
        with os_errors(f"cannot use the checkpoint {self.folder}"):
            return self._query_id()

    def _query_id(self) -> str:
        # 1. Use the stored id, as Spark does. Create an id only for a new checkpoint.
        file = self.folder / "metadata"
        try:
            data = file.read_bytes()
            if not _has_its_sums(file, data):
                raise LogUnreadable(f"{file} is damaged; {_WAY_OUT}")
            return str(UUID(json.loads(data)["id"]))
        except FileNotFoundError:
            if any(_numbered(self.folder / name) for name in _PARTS):
                raise LogUnreadable(f"{file} is missing; {_WAY_OUT}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise LogUnreadable(f"{file} is damaged: {error}; {_WAY_OUT}") from error
        # 2. Write a temporary file and make it durable. The log is opened under this name next: if a crash lost
        #    the file, the log would belong to an unknown writer.
        query_id = str(uuid4())
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = self.folder / f".metadata.{query_id}.tmp"
        write_durably(aside, [json.dumps({"id": query_id}).encode()])
        try:
            # 3. Link it, since a link, unlike a rename, never replaces a file. If two ingests start at once,
            #    one creates the file and the other reads it.
            os.link(aside, file)
        except FileExistsError:
            return self._query_id()
        finally:
            aside.unlink()
        return query_id

    def stored_query_id(self) -> str:
        """Return the id of the query that Spark has stored; empty if there is none, or it cannot be read."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return str(UUID(json.loads((self.folder / "metadata").read_text())["id"]))
        return ""

    def last_batch(self) -> int:
        """Return the id of the last batch that Spark has planned; -1 if there is none."""
        return max(_numbered(self.folder / "offsets"), default=-1)

    def check(self) -> None:
        """Check that Spark can continue from this checkpoint.

        Spark's own error would name neither the file nor a way out.

        Raises:
            LogUnreadable: A part that Spark needs is missing or damaged; the message names the part.
        """
        with os_errors(f"cannot use the checkpoint {self.folder}"):
            self._check()

    def _check(self) -> None:
        plans, files, commits = (_numbered(self.folder / name) for name in _PARTS)
        last, newest_files = max(plans, default=-1), max(files, default=-1)
        # 1. The newest plan, and the plan before it: the files of the newest batch follow those of the one
        # before.
        planned = -1
        for batch_id in range(max(last - 1, 0), last + 1):
            path = self.folder / "offsets" / str(batch_id)
            planned = _offset_of(path, self._sound(path))
        # Spark writes the list of files before the plan of the batch, and may stop in between: so the list may
        # be one ahead.
        if max(commits, default=-1) > last or newest_files > planned + 1:
            raise LogUnreadable(f"{self.folder / 'offsets'} lacks its newest files; {_WAY_OUT}")
        # 2. The newest compact list and all later lists. Without one of them Spark would read files twice, or
        #    skip new files.
        compact = (number for number, name in files.items() if name.endswith(".compact"))
        for number in range(max(compact, default=0), max(newest_files, planned) + 1):
            path = self.folder / "sources/0" / files.get(number, str(number))
            for _ in _entries(path, self._sound(path)):
                pass
        # 3. The newest commit, if there is one.
        if commits:
            self._sound(self.folder / "commits" / str(max(commits)))

    def _sound(self, path: Path) -> str:
        """Return the text of a file that Spark needs.

        Raises:
            LogUnreadable: The file is missing or truncated, or its checksums differ.
        """
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise LogUnreadable(f"{path} is missing; {_WAY_OUT}") from None
        if not data.startswith(b"v1") or not _has_its_sums(path, data):
            raise LogUnreadable(f"{path} is damaged; {_WAY_OUT}")
        return data.decode(errors="replace")

    def marks(self) -> CheckpointMarks:
        """Return the identity of the checkpoint's parts, for `check_kept` during a running query."""
        parts = ("metadata", *_PARTS)
        return CheckpointMarks(
            {name: _inode(self.folder / name) for name in parts}, self.last_batch()
        )

    def check_kept(self, before: CheckpointMarks) -> CheckpointMarks:
        """Check that no part was removed while the query ran; return the new marks.

        Spark would not notice a removal: it creates missing folders again, but could not start from them.

        Raises:
            LogUnreadable: A part was removed or replaced; the message names the part.
        """
        now = self.marks()
        for name, inode in before.inodes.items():
            if inode is not None and now.inodes[name] != inode:
                path = self.folder / name
                raise LogUnreadable(f"{path} was removed while the ingest ran; {_WAY_OUT}")
        if now.last_batch < before.last_batch:
            path = self.folder / "offsets" / str(before.last_batch)
            raise LogUnreadable(f"{path} was removed while the ingest ran; {_WAY_OUT}")
        return now

    def set_aside(self) -> None:
        """Rename the folder, so that a new checkpoint can be created and this one is preserved."""
        number = 1
        while (moved := self.folder.with_name(f"{self.folder.name}-{number}")).exists():
            number += 1
        self.folder.rename(moved)

    def changed_files(self) -> list[str]:
        """Return the files on this machine that have changed since Spark listed them, sorted.

        Spark reads a path only once, so it has not read the present contents of these files.
        """
        changed: set[str] = set()
        for _, name in sorted(_numbered(self.folder / "sources/0").items()):
            path = self.folder / "sources/0" / name
            # Ignore damage here, since `check` reports it, and missing lists, since Spark deletes old ones.
            with suppress(OSError, LogUnreadable):
                for file, noted_ms, _ in _entries(path, path.read_text()):
                    # A later entry for the same file means that Spark has read it again.
                    (changed.add if _is_other(file, noted_ms) else changed.discard)(file)
        return sorted(changed)

    def plan(self, batch_id: int) -> BatchPlan:
        """Return the input of a batch, from the lists that Spark wrote before the batch ran."""
        sources = self.folder / "sources/0"

        def last_list(number: int) -> int:
            path = self.folder / "offsets" / str(number)
            return _offset_of(path, path.read_text())

        try:
            # A batch has several lists if Spark stopped after it wrote a list and before it wrote the plan.
            before, last = last_list(batch_id - 1) if batch_id else -1, last_list(batch_id)
            names = _numbered(sources)
            files = []
            for number in range(before + 1, last + 1):
                path = sources / names.get(number, str(number))
                entries = _entries(path, path.read_text())
                files += [file for file, _, of in entries if of == number]
        except (OSError, LogUnreadable):
            return BatchPlan(None)
        return BatchPlan(files)


class CheckpointMarks(NamedTuple):
    """The identity of a checkpoint's parts at one moment."""

    inodes: dict[str, int | None]
    """The inode of each part; None if the part does not exist yet."""
    last_batch: int


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The input of one batch."""

    files: list[str] | None
    """Paths of the files; None if Spark has listed none, or in an unknown format."""

    def bytes(self) -> int | None:
        """Return the total size of the files, with an estimate of the unpacked size of compressed files.

        Returns None if the size is unknown, as the files are unknown or not on this machine.
        """
        try:
            return None if self.files is None else sum(map(_unpacked_bytes, self.files))
        except OSError:
            return None

    def size(self) -> int:
        """Return the total size of those files that exist on this machine, without unpacking."""
        total = 0
        for path in self.files or ():
            with suppress(OSError):
                total += os.stat(path).st_size
        return total

    def check(self) -> None:
        """Check that the files exist, as Spark skips missing files silently.

        Raises:
            InputGone: A file is missing.
        """
        for path in self.files or ():
            if path.startswith("/") and not os.path.exists(path):
                raise InputGone(path)


def local_path(uri: str) -> str:
    """Return the path in a ``file:`` URI, which Spark percent-encodes."""
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else unquote(uri)


def _is_other(path: str, noted_ms: int) -> bool:
    """Return True if a file's modification time is not ``noted_ms`` (ms since 1970), be it later or earlier."""
    try:
        found_ms = os.stat(path).st_mtime_ns // 1_000_000
    except OSError:
        return False
    # On some file systems Java returns whole seconds: then compare seconds only.
    return found_ms != noted_ms and (noted_ms % 1_000 > 0 or found_ms // 1_000 != noted_ms // 1_000)


def _unpacked_bytes(path: str) -> int:
    size = os.stat(path).st_size
    return size * _PACKED_MAX if path.endswith(_PACKED) else size


def _numbered(folder: Path) -> dict[int, str]:
    """Return the names of the numbered files in a folder, by number; empty if the folder is missing."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    return {int(name.split(".")[0]): name for name in names if name.split(".")[0].isdigit()}


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _offset_of(path: Path, plan: str) -> int:
    """Return the number of the last list of files in a plan.

    Raises:
        LogUnreadable: The text is not a complete plan; the message names its path.
    """
    try:
        return int(json.loads(plan.splitlines()[2])["logOffset"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise LogUnreadable(f"{path} is damaged: {error}; {_WAY_OUT}") from error


def _entries(path: Path, text: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, time (ms since 1970) and batch number of the files in one of Spark's lists.

    Raises:
        LogUnreadable: A line is damaged; the message names the list.
    """
    for line in text.splitlines()[1:]:
        try:
            found: dict[str, Any] = json.loads(line)
            entry = local_path(found["path"]), int(found.get("timestamp", 0)), int(found["batchId"])
        except (ValueError, KeyError, TypeError) as error:
            raise LogUnreadable(f"{path} is damaged: {error}; {_WAY_OUT}") from error
        yield entry


def _has_its_sums(path: Path, data: bytes) -> bool:
    """Return True if the file matches the checksums in Spark's `.crc` file, or if no `.crc` file is usable."""
    try:
        sums = path.with_name(f".{path.name}.crc").read_bytes()
    except FileNotFoundError:
        return True
    piece = int.from_bytes(sums[4:8])
    if sums[:4] != _SUMS_HEAD or piece < 1:
        return True  # Spark ignores such a file too
    pieces = (data[at : at + piece] for at in range(0, len(data), piece))
    return sums[8:] == b"".join(zlib.crc32(each).to_bytes(4) for each in pieces)
