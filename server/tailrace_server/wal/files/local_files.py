"""The store of a catalog as a folder of a local or mounted file system: the only store there is.

An object is a file. It is created by a link from a file that is already durable; see new_file.py. Only
retention replaces objects, by a part of themselves: an entry by its lines once nothing names the records that
it carries, an old checkpoint by its header.

``LocalArrivals`` reads objects whose names are not durable yet. The mark of such an object is its file's time
of modification, set to a time that the object itself states. A file without a mark has the time of its last
write, to the nanosecond.
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
    """A descriptor that closes with its last reader, even if a cache has dropped it meanwhile."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)

    def read_into(self, data: memoryview, offset: int) -> int:
        """Fill memory with the bytes from an offset on; return how many there were.

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
        """Return the file's bytes."""
        return os.fstat(self.descriptor).st_size


def open_file(path: str) -> int | None:
    """Open a file to be read; None where there is none. Errors as of ``read_open``."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise translated(error, f"cannot read {path}") from error


def read_open(descriptor: int, path: str, limit: int | None = None) -> tuple[bytes, os.stat_result]:
    """Return what is in an open file, its first ``limit`` bytes only if given, and its status just before.

    Args:
        descriptor: Of the file, read from its beginning.
        path: What to call it in an error.
        limit: Bytes to read at most; None: all.

    Raises:
        LogUnreadable: It may not be read.
        LogError: The device failed.
    """
    try:
        status = os.fstat(descriptor)
        length = status.st_size if limit is None else min(status.st_size, limit)
        data = os.read(descriptor, length)
        while len(data) < length and (more := os.read(descriptor, length - len(data))):
            data += more
    except OSError as error:
        raise translated(error, f"cannot read {path}") from error
    return data, status


_LEFTOVER_AGE_S: Final = 3_600.0
"""Objects on their way take milliseconds; deleting one too early would cost its writer a retry."""


def mark_in(modified_ns: int) -> int | None:
    """Return the mark that a time of modification may be; None where it cannot be one."""
    mark, rest = divmod(modified_ns, 1_000)
    return None if rest else mark


def set_mark(path: str, mark: int) -> None:
    """Mark a file; where that cannot be done its readers do without."""
    with suppress(OSError):
        os.utime(path, ns=(1_000 * mark, 1_000 * mark))


class LocalArrivals:
    """The arrivals of one catalog's folder; see ``Arrivals``."""

    __slots__ = ("_folder",)

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def mark_of(self, path: str) -> int | None:
        """Return the mark that a file has now; None where it has none, or is gone."""
        try:
            return mark_in(os.stat(f"{self._folder}/{path}").st_mtime_ns)
        except OSError:
            return None

    def open(self, name: str, bytes_max: int) -> ArrivingFile | None:
        """Return the file of a temporary name; None where there is none, or it is larger than ``bytes_max``."""
        path = f"{self._folder}/{TEMPORARY_FOLDER}/{name}"
        descriptor = open_file(path)
        if descriptor is None:
            return None
        file = OpenFile(descriptor)
        if file.size() > bytes_max:
            return None
        return ArrivingFile(self._folder, file, *read_open(descriptor, path))

    def delete_leftovers(self) -> None:
        """Delete the temporary names that are older than an hour: their writers were killed."""
        limit = time.time() - _LEFTOVER_AGE_S
        folder = f"{self._folder}/{TEMPORARY_FOLDER}"
        with os_errors(f"cannot delete from {self._folder}"):
            for name in os.listdir(folder):
                with suppress(FileNotFoundError):
                    if os.stat(f"{folder}/{name}").st_mtime < limit:
                        os.unlink(f"{folder}/{name}")


class ArrivingFile:
    """A file under its temporary name. It stays open, so no other file can have its inode meanwhile."""

    __slots__ = ("_file", "_folder", "_inode", "_modified_ns", "content")

    def __init__(self, folder: str, file: OpenFile, data: bytes, status: os.stat_result) -> None:
        self._folder = folder
        self._file = file
        self._inode = (status.st_dev, status.st_ino)
        self._modified_ns = status.st_mtime_ns
        self.content = ObjectContent(data, mark_in(status.st_mtime_ns))

    def content_at(self, path: str, mark: int) -> ObjectContent | None:
        """Return the content with its mark of now if the file has got a name; None if not, or another has.

        The same inode alone is not enough: the file may have been written to since it was read. Then it has
        another length or another time, unless that time is ``mark``, which only its writer sets.
        """
        try:
            status = os.stat(f"{self._folder}/{path}")
        except OSError:
            return None
        modified_ns = status.st_mtime_ns
        if (
            (status.st_dev, status.st_ino) != self._inode
            or status.st_size != len(self.content.data)
            or modified_ns not in (self._modified_ns, 1_000 * mark)
        ):
            return None
        return self.content._replace(mark=mark_in(modified_ns))


_RANDOM: Final = os.urandom(4).hex()
"""Tells this process from one of the same number on another machine."""
_numbers = itertools.count()
_BESIDE_SUFFIX: Final = ".tmp"
"""Ends the temporary name of a file that is written in parts; it is beside the final name."""


class LocalFiles:
    """The objects of one catalog as files below its folder; ``ObjectStore`` says what each method promises."""

    __slots__ = ("_folder", "arrivals")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Bind to a catalog's folder; nothing is opened."""
        self._folder = os.fspath(path)
        self.arrivals = LocalArrivals(self._folder)

    def create(
        self, path: str, data: bytes, *, failpoint: str = "", mark: int | None = None
    ) -> bool:
        """Create a file durably, unless one of that name exists; return whether it was created.

        A file with a mark is awaited by readers: it has a temporary name first, by which it can be read ahead.
        """
        final = f"{self._folder}/{path}"
        with os_errors(f"cannot write {path}"):
            file = NewFile(final, self._temporary_path(path), unnamed=mark is None)
            try:
                # 1. The content is durable before the name exists: what is visible is whole, after a power
                #    cut too.
                file.write([data])
                file.sync()
                reach(f"{failpoint}.before_link")
                # 2. The link decides between writers. The loser has changed nothing.
                try:
                    file.link(failpoint=f"{failpoint}.linked")
                except FileExistsError:
                    return False
                # 3. Readers are told only of a name that no power cut can take back.
                if mark is not None:
                    set_mark(final, mark)
            finally:
                file.close()
        reach(f"{failpoint}.after_link")
        return True

    def begin(self, path: str) -> NewFile:
        """Begin a file that is written in parts, in a folder that is made if it is missing."""
        final = f"{self._folder}/{path}"
        temporary = final + _BESIDE_SUFFIX
        with os_errors(f"cannot write {final}"):
            try:
                return NewFile(final, temporary)
            except FileNotFoundError:
                make_folder_of(final)
                return NewFile(final, temporary)

    def replace(self, path: str, data: bytes) -> None:
        """Put a file in the place of another. The new one is durable before it takes the name."""
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
            os.replace(temporary, f"{self._folder}/{path}")

    def read(self, path: str, limit: int | None = None) -> ObjectContent | None:
        """Return what is in a file, its first ``limit`` bytes only if given; None where there is none."""
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
        """Return a file that is open for reading; None where there is none."""
        descriptor = open_file(f"{self._folder}/{path}")
        return None if descriptor is None else OpenFile(descriptor)

    def size(self, path: str) -> int | None:
        """Return a file's bytes; None where there is none."""
        status = self._status(path)
        return None if status is None else status.st_size

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder; one that cannot be looked at counts as missing."""
        return os.path.exists(f"{self._folder}/{path}")

    def stamp(self, path: str) -> tuple[int, int] | None:
        """Return inode and time of modification of a file; None where there is none."""
        status = self._status(path)
        return None if status is None else (status.st_ino, status.st_mtime_ns)

    def names(self, folder: str, *, after: str = "") -> list[str]:
        """Return the names in a folder that come after one, sorted; none where there is no folder."""
        path = f"{self._folder}/{folder}"
        with os_errors(f"cannot read {path}"):
            try:
                return sorted(name for name in os.listdir(path) if name > after)
            except (FileNotFoundError, NotADirectoryError):
                return []

    def delete(self, path: str) -> bool:
        """Delete a file; return whether there was one."""
        with os_errors(f"cannot delete from {self._folder}"):
            try:
                os.unlink(f"{self._folder}/{path}")
            except FileNotFoundError:
                return False
        return True

    def move(self, path: str, to: str) -> bool:
        """Link a file to another name and unlink the first: a name that is taken is refused, not replaced."""
        with os_errors(f"cannot write {to}"):
            try:
                os.link(f"{self._folder}/{path}", f"{self._folder}/{to}")
            except FileNotFoundError:
                return False
            os.unlink(f"{self._folder}/{path}")
        return True

    def make_folder(self, path: str) -> None:
        """Make a folder durably, if it is missing."""
        folder = f"{self._folder}/{path}"
        with os_errors(f"cannot write {folder}"):
            with suppress(FileExistsError):
                os.mkdir(folder)
            sync_folder(os.path.dirname(folder))

    def remove_folder(self, path: str) -> None:
        """Remove a folder that is empty; one that is not, or is not there, stays as it is."""
        with suppress(OSError):
            os.rmdir(f"{self._folder}/{path}")

    def make_durable(self, folder: str) -> None:
        """Make the names in a folder durable, where the file system lets a reader do that."""
        path = f"{self._folder}/{folder}"
        with os_errors(f"cannot make {path} durable"):
            sync_names(path)

    def watch(self, watcher: ChangeWatcher, owner: Hashable) -> ChangeWatch:
        """Have a watcher report, by ``owner``, all changes of the folders of the log."""
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
