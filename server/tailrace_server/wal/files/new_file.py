"""A local file that gets its name only when it is complete.

Exclusive creation::

    open a file without a name (O_TMPFILE) in the folder of the final name, write, fsync
    link(it, final); fsync the folder

    where the file system has no files without a name (NFS and others), and for entries that publish themselves:
    write a temporary name, fsync; link(it, final); fsync the folder of final; unlink the temporary name

``link`` fails if the name exists, on every file system and over NFS. The mutual exclusion between writers
relies on this alone. A writer that gets no answer (a time-out) reads the object back and compares. A file
without a name ends with the process that made it, so a crash leaves nothing behind. A reader that waits for a
file can read it ahead by its temporary name (local_files.py).
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from tailrace.errors import LogError
from tailrace_server.failpoints import reach
from tailrace_server.wal.files.system_errors import is_full, os_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

TEMPORARY_FOLDER: Final = "tmp"
"""Folder of a catalog for files with temporary names."""

WRITE_BUFFERS_MAX: Final = 512
"""Maximum number of buffers per write call; the system's bound is 1,024."""

UNNAMED_FILES: Final = hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd")
"""True if the operating system supports files without a name. A file system may still not; this shows when a
file is opened."""

_NO_UNNAMED_FILES: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
"""Error numbers by which file systems, and kernels before 3.11, report that they have no unnamed files."""

_NO_FOLDER_SYNC: Final = frozenset({errno.EINVAL, errno.EROFS, errno.ENOTSUP})

_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
"""The Linux call of this name; None on other systems."""
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_SYNC_FILE_RANGE_WRITE: Final = 2


class NewFile:
    """A file that is being written. It gets its name when it is complete, and only if the name is free.

    End the writing with ``close``, which discards a file that was not linked.
    """

    __slots__ = ("_path", "_temporary", "descriptor")

    def __init__(self, path: str, temporary: str, *, unnamed: bool = True) -> None:
        """Open a file whose final path is to be ``path``.

        Args:
            path: Final path.
            temporary: Temporary path, used if the file system has no unnamed files.
            unnamed: Use an unnamed file if possible; False: use ``temporary`` if possible.

        Raises:
            OSError: The folder is missing or may not be written to, or the file system is full.
        """
        self._path = path
        self._temporary: str | None = None
        if not unnamed and self._open_named(temporary, optional=UNNAMED_FILES):
            return
        if UNNAMED_FILES:
            try:
                flags = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC
                self.descriptor = os.open(os.path.dirname(path), flags, 0o666)
            except OSError as error:
                if error.errno not in _NO_UNNAMED_FILES:
                    raise
            else:
                return
        self._open_named(temporary, optional=False)

    def _open_named(self, temporary: str, *, optional: bool) -> bool:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self.descriptor = os.open(temporary, flags, 0o666)
        except OSError as error:
            if optional and not is_full(error):
                return False  # the caller can do without a temporary name
            raise
        self._temporary = temporary
        return True

    def write(self, chunks: list[Any]) -> None:
        """Append any number of buffers."""
        for place in range(0, len(chunks), WRITE_BUFFERS_MAX):
            write_all(self.descriptor, chunks[place : place + WRITE_BUFFERS_MAX])

    def begin_sync(self, start: int, length: int) -> None:
        """Ask the system to start writing a range of bytes to the device, so that a later sync is fast.

        This makes nothing durable. It does nothing on systems without such a call.
        """
        if _sync_file_range is not None:
            _sync_file_range(self.descriptor, start, length, _SYNC_FILE_RANGE_WRITE)

    def sync(self) -> None:
        """Make the content durable."""
        os.fsync(self.descriptor)

    def link(self, *, sync: bool = True, failpoint: str = "") -> None:
        """Give the file its final name, durably unless ``sync`` is False. Call ``sync`` first.

        Others see the name before it is durable; ``failpoint`` is reached between the two.

        Raises:
            FileExistsError: Another file has the name.
            OSError: The device failed; the name may exist or not.
        """
        folder = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # With a descriptor of the folder Python calls linkat, which follows the link in /proc to the
            # unnamed file.
            source = self._temporary or f"/proc/self/fd/{self.descriptor}"
            os.link(source, os.path.basename(self._path), dst_dir_fd=folder)
            reach(failpoint)
            if sync:
                os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Close the file and delete its temporary name. Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        if self._temporary is not None:
            with suppress(OSError):  # what cannot be deleted now is a leftover for later
                os.unlink(self._temporary)
            self._temporary = None


def write_all(descriptor: int, chunks: list[Any]) -> None:
    """Write up to WRITE_BUFFERS_MAX buffers completely, in as many calls as the system needs."""
    total = sum(map(len, chunks))
    written = os.writev(descriptor, chunks)
    if written == total:
        return
    # The system wrote only a part: skip the written bytes, which may end inside a buffer, and continue.
    views = [memoryview(chunk).cast("B") for chunk in chunks]
    while True:
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if not views:
            return
        views[0] = views[0][written:]
        written = os.writev(descriptor, views)


def write_durably(path: Path, chunks: Iterable[bytes | memoryview], *, new: bool = False) -> None:
    """Write a file, and make its content durable; its name is durable once the folder is synced.

    Raises:
        FileExistsError: The file has to be ``new``, and exists.
    """
    with path.open("xb" if new else "wb") as file:
        file.writelines(chunks)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write a file in place of any file of that name; both content and name are durable on return.

    Raises:
        LogFull: The disk is full.
        LogError: The file cannot be written, or the catalog is gone.
    """
    aside = path.with_name(f"{path.name}.tmp")
    with os_errors(f"cannot write {path}"):
        make_folder_of(path)
        write_durably(aside, chunks)
        # Rename only now: a crash before this line leaves the name as it was, without a part of a file.
        aside.rename(path)
        sync_folder(path.parent)


@contextmanager
def changed_in_place(path: Path) -> Iterator[BinaryIO]:
    """Open a file that no reader knows yet, to change bytes of it; the changes are durable at the end.

    Raises:
        LogFull: The file system is full.
        LogError: The file is missing or cannot be changed.
    """
    with os_errors(f"cannot write {path}"), path.open("r+b") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def make_folder_of(path: str | Path) -> None:
    """Create the folder of a new file; the folder above it must exist.

    Raises:
        LogError: The folder above is missing. Every catalog has it, so the catalog was dropped while this
            writer wrote to it, and must not be created again.
    """
    try:
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(path))
    except FileNotFoundError:
        raise LogError(
            f"cannot write {path}: its catalog no longer exists; it was probably dropped while a "
            "writer was running; start the writer again"
        ) from None


def sync_names(path: str) -> None:
    """Make the names in a folder durable for a reader, whose permissions may be fewer than a writer's.

    Folders that cannot be synced (a read-only image, some FUSE file systems) are ignored.
    """
    try:
        sync_folder(path)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def sync_folder(path: str | Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
