"""The store of a catalog in a folder of a local or mounted file system; the only store so far.

An object is a file. It is created by a link to a file that is durable already; see new_file.py. Only retention
replaces objects, by a part of themselves: an entry by its lines once no object names the records that it
carries, and an old checkpoint by its header.

``LocalArrivals`` reads objects whose names are not durable yet. The mark of such an object is the file's
modification time, set to a time that the object itself states, in whole microseconds. A file without a mark has
the time of its last write, to the nanosecond.
"""

from __future__ import annotations

import itertools
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tailrace_server.failpoints import reach
from tailrace_server.wal.files.new_file import (
    TEMPORARY_FOLDER,
    NewFile,
    make_folder_of,
    sync_folder,
    sync_names,
    write_all,
)
from tailrace_server.wal.files.object_store import ObjectContent
from tailrace_server.wal.files.system_errors import os_errors, translated

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tailrace_server.wal.files.object_store import ChangeWatch, ChangeWatcher


class OpenFile:
    """A file descriptor that closes with its last reader, even if a cache has dropped it before."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)

    def read_into(self, data: memoryview, offset: int) -> int:
        """Fill ``data`` with the bytes from an offset on; return the number of bytes read.

        Raises:
            OSError: The device failed.
        """
        done, length = 0, len(data)
        while done < length:
            read = os.preadv(self.descriptor, [data[done:]], offset + done)
            if not read:
                break
            done += read
        return done

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return os.fstat(self.descriptor).st_size


def open_file(path: str) -> int | None:
    """Open a file for reading; return its descriptor, or None if it does not exist. Errors as ``read_open``."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise translated(error, f"cannot read {path}") from error


def read_open(descriptor: int, path: str, limit: int | None = None) -> tuple[bytes, os.stat_result]:
    """Return the content of an open file, and the file's status just before the read.

    Args:
        descriptor: The file's descriptor, at the beginning of the file.
        path: The file's path, for error messages.
        limit: Most bytes to read; None: all.

    Raises:
        LogUnreadable: Permission is missing.
        LogError: The device failed.
    """
    try:
        # Take the status before the read: a write during the read then shows as a later modification time.
        status = os.fstat(descriptor)
        length = status.st_size if limit is None else min(status.st_size, limit)
        data = os.read(descriptor, length)
        while len(data) < length and (more := os.read(descriptor, length - len(data))):
            data += more
    except OSError as error:
        raise translated(error, f"cannot read {path}") from error
    return data, status


_LEFTOVER_AGE_S: Final = 3_600.0
"""Age from which a temporary file is a leftover. Writers need milliseconds; deleting a file too early would
cost its writer a retry."""


def mark_in(modified_ns: int) -> int | None:
    """Return a modification time as a mark; None if it has nanoseconds, so that it cannot be a mark."""
    mark, rest = divmod(modified_ns, 1_000)
    return None if rest else mark


def set_mark(path: str, mark: int) -> None:
    """Mark a file; ignore failures, as readers work without marks."""
    with suppress(OSError):
        os.utime(path, ns=(1_000 * mark, 1_000 * mark))


class LocalArrivals:
    """The arrivals in one catalog's folder; see ``Arrivals``."""

    __slots__ = ("_folder",)

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def mark_of(self, path: str) -> int | None:
        """Return a file's present mark; None if it has none, or does not exist."""
        try:
            return mark_in(os.stat(f"{self._folder}/{path}").st_mtime_ns)
        except OSError:
            return None

    def open(self, name: str, bytes_max: int) -> ArrivingFile | None:
        """Return the file of a temporary name; None if it does not exist or is larger than ``bytes_max``."""
        path = f"{self._folder}/{TEMPORARY_FOLDER}/{name}"
        descriptor = open_file(path)
        if descriptor is None:
            return None
        file = OpenFile(descriptor)
        if file.size() > bytes_max:
            return None
        return ArrivingFile(self._folder, file, *read_open(descriptor, path))

    def delete_leftovers(self) -> None:
        """Delete temporary files older than an hour: their writers were killed."""
        limit = time.time() - _LEFTOVER_AGE_S
        folder = f"{self._folder}/{TEMPORARY_FOLDER}"
        with os_errors(f"cannot delete from {self._folder}"):
            for name in os.listdir(folder):
                with suppress(FileNotFoundError):
                    if os.stat(f"{folder}/{name}").st_mtime < limit:
                        os.unlink(f"{folder}/{name}")


class ArrivingFile:
    """A file with a temporary name. It stays open, so that its inode number cannot be reused."""

    __slots__ = ("_file", "_folder", "_inode", "_modified_ns", "content")

    def __init__(self, folder: str, file: OpenFile, data: bytes, status: os.stat_result) -> None:
        self._folder = folder
        self._file = file
        self._inode = (status.st_dev, status.st_ino)
        self._modified_ns = status.st_mtime_ns
        self.content = ObjectContent(data, mark_in(status.st_mtime_ns))

    def content_at(self, path: str, mark: int) -> ObjectContent | None:
        """Return the content and the present mark, if this file is at ``path`` now; else None.

        The same inode is not enough: the file may have been written to since it was read. It then has another
        length or another modification time, unless that time is ``mark``, which only its writer sets.
        """
        try:
            status = os.stat(f"{self._folder}/{path}")
        except OSError:
            return None
        modified_ns = status.st_mtime_ns
        # Compare identity and length with what was read, and the time, which changes with every write.
        if (
            (status.st_dev, status.st_ino) != self._inode
            or status.st_size != len(self.content.data)
            or modified_ns not in (self._modified_ns, 1_000 * mark)
        ):
            return None
        return self.content._replace(mark=mark_in(modified_ns))


_RANDOM: Final = os.urandom(4).hex()
"""Distinguishes this process from one with the same process id on another machine."""
_numbers = itertools.count()
_BESIDE_SUFFIX: Final = ".tmp"
"""Suffix of the temporary name of a file that is written in parts, in the folder of the final name."""


class LocalFiles:
    """The objects of one catalog as files below its folder; ``ObjectStore`` documents the methods."""

    __slots__ = ("_folder", "arrivals")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Bind to a catalog's folder; nothing is opened."""
        self._folder = os.fspath(path)
        self.arrivals = LocalArrivals(self._folder)

    def create(
        self, path: str, data: bytes, *, failpoint: str = "", mark: int | None = None
    ) -> bool:
        """Create a file durably unless one of that name exists; return True if it was created.

        A file with a mark first has a temporary name, by which waiting readers can read it ahead.
        """
        final = f"{self._folder}/{path}"
        with os_errors(f"cannot write {path}"):
            file = NewFile(final, self._temporary_path(path), unnamed=mark is None)
            try:
                # 1. Make the content durable before the name exists: a visible file is complete, even after a
                #    power cut.
                file.write([data])
                file.sync()
                reach(f"{failpoint}.before_link")
                # 2. The link decides between writers. The loser has changed nothing.
                try:
                    file.link(failpoint=f"{failpoint}.linked")
                except FileExistsError:
                    return False
                # 3. Mark the file only once no power cut can take its name back.
                if mark is not None:
                    set_mark(final, mark)
            finally:
                file.close()
        reach(f"{failpoint}.after_link")
        return True

    def begin(self, path: str) -> NewFile:
        """Begin a file that is written in parts; create its folder if it is missing."""
        final = f"{self._folder}/{path}"
        temporary = final + _BESIDE_SUFFIX
        with os_errors(f"cannot write {final}"):
            try:
                return NewFile(final, temporary)
            except FileNotFoundError:
                make_folder_of(final)
                return NewFile(final, temporary)

    def replace(self, path: str, data: bytes) -> None:
        """Replace a file atomically. The new file is durable before it takes the name."""
        with os_errors(f"cannot write {path}"):
            temporary = self._temporary_path(path)
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
            )
            try:
                write_all(descriptor, [data])
                os.fsync(descriptor)
            except OSError:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
            finally:
                os.close(descriptor)
            # A crash before this line leaves the old object; after it, the new one. Both are valid.
            os.replace(temporary, f"{self._folder}/{path}")

    def read(self, path: str, limit: int | None = None) -> ObjectContent | None:
        """Return the content of a file, or its first ``limit`` bytes; None if it does not exist."""
        name = f"{self._folder}/{path}"
        descriptor = open_file(name)
        if descriptor is None:
            return None
        try:
            data, status = read_open(descriptor, name, limit)
        finally:
            os.close(descriptor)
        return ObjectContent(data, mark_in(status.st_mtime_ns))

    def open(self, path: str) -> OpenFile | None:
        """Return a file opened for reading; None if it does not exist."""
        descriptor = open_file(f"{self._folder}/{path}")
        return None if descriptor is None else OpenFile(descriptor)

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""
        status = self._status(path)
        return None if status is None else status.st_size

    def exists(self, path: str) -> bool:
        """Return True if a file or folder exists; False also if permission to look at it is missing."""
        return os.path.exists(f"{self._folder}/{path}")

    def stamp(self, path: str) -> tuple[int, int] | None:
        """Return inode and modification time of a file; None if it does not exist."""
        status = self._status(path)
        return None if status is None else (status.st_ino, status.st_mtime_ns)

    def names(self, folder: str, *, after: str = "") -> list[str]:
        """Return the names in a folder that sort after ``after``, sorted; empty if there is no folder."""
        path = f"{self._folder}/{folder}"
        with os_errors(f"cannot read {path}"):
            try:
                return sorted(name for name in os.listdir(path) if name > after)
            except (FileNotFoundError, NotADirectoryError):
                return []

    def delete(self, path: str) -> bool:
        """Delete a file; return True if it existed."""
        with os_errors(f"cannot delete from {self._folder}"):
            try:
                os.unlink(f"{self._folder}/{path}")
            except FileNotFoundError:
                return False
        return True

    def move(self, path: str, to: str) -> bool:
        """Rename a file without replacing another: link it to the new name, then unlink the old one."""
        with os_errors(f"cannot write {to}"):
            try:
                # ``rename`` would replace an existing file silently; ``link`` fails.
                os.link(f"{self._folder}/{path}", f"{self._folder}/{to}")
            except FileNotFoundError:
                return False
            os.unlink(f"{self._folder}/{path}")
        return True

    def make_folder(self, path: str) -> None:
        """Create a folder durably, if it is missing."""
        folder = f"{self._folder}/{path}"
        with os_errors(f"cannot write {folder}"):
            with suppress(FileExistsError):
                os.mkdir(folder)
            # Sync even if the folder exists: the process that made it may not have synced it yet.
            sync_folder(os.path.dirname(folder))

    def remove_folder(self, path: str) -> None:
        """Remove a folder if it is empty; ignore a folder that has content or does not exist."""
        with suppress(OSError):
            os.rmdir(f"{self._folder}/{path}")

    def make_durable(self, folder: str) -> None:
        """Make the names in a folder durable, as far as the file system permits this to a reader."""
        path = f"{self._folder}/{folder}"
        with os_errors(f"cannot make {path} durable"):
            sync_names(path)

    def watch(self, watcher: ChangeWatcher, owner: Hashable) -> ChangeWatch:
        """Let a watcher report all changes of the log's folders, under ``owner``."""
        return watcher.add(self._folder, owner)

    def _status(self, path: str) -> os.stat_result | None:
        try:
            return os.stat(f"{self._folder}/{path}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise translated(error, f"cannot read {self._folder}/{path}") from error

    def _temporary_path(self, path: str) -> str:
        unique = f"{os.getpid()}-{_RANDOM}-{next(_numbers)}"
        return f"{self._folder}/{TEMPORARY_FOLDER}/{os.path.basename(path)}.{unique}"
