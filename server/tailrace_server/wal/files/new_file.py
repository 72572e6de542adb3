"""A local file that gets its name when it is whole.

Exclusive creation::

    open a file without a name (O_TMPFILE) in the folder of the final name, write, fsync
    link(it, final); fsync the folder

    where the file system has no files without a name (NFS and others), and for entries that publish themselves:
    write a temporary name, fsync; link(it, final); fsync the folder of final; unlink the temporary name

``link`` fails if the name exists, on every file system and over NFS, which is the whole of the mutual exclusion
between writers. A writer without an answer (a time-out) reads the object back and compares. A file without a
name ends with the process that made it: a crash leaves nothing behind. One with a temporary name can be read
meanwhile by a reader that waits for it (local_files.py).
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import LogError
from tailrace_server.failpoints import reach
from tailrace_server.wal.files.system_errors import is_full

if TYPE_CHECKING:
    from pathlib import Path

TEMPORARY_FOLDER: Final = "tmp"
"""Folder of a catalog for temporary names."""

WRITE_BUFFERS_MAX: Final = 512
"""Buffers in one write; the system's bound is 1,024."""

UNNAMED_FILES: Final = hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd")
"""True if the system can give a name to a file without one; file systems that cannot are asked each time."""

_NO_UNNAMED_FILES: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
"""How file systems, and kernels before 3.11, say that they have none."""

_NO_FOLDER_SYNC: Final = frozenset({errno.EINVAL, errno.EROFS, errno.ENOTSUP})

_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
"""Of Linux."""
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_SYNC_FILE_RANGE_WRITE: Final = 2


class NewFile:
    """A file that is being written: it gets its name when it is whole, and only if the name is free.

    End it with ``close``; what has not been linked by then is gone.
    """

    __slots__ = ("_path", "_temporary", "descriptor")

    def __init__(self, path: str, temporary: str, *, unnamed: bool = True) -> None:
        """Open a file that is to become ``path``.

        Args:
            path: Its name, once it has one.
            temporary: Its name until then, where the file system cannot do without.
            unnamed: Do without where it can.

        Raises:
            OSError: The folder is missing, may not be written, or there is no room.
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
        """Append buffers, however many."""
        for place in range(0, len(chunks), WRITE_BUFFERS_MAX):
            write_all(self.descriptor, chunks[place : place + WRITE_BUFFERS_MAX])

    def begin_sync(self, start: int, length: int) -> None:
        """Have the system begin to write some bytes to the device, so that a later sync finds little to do.

        Makes nothing durable, and where the system has no such call it does nothing.
        """
        if _sync_file_range is not None:
            _sync_file_range(self.descriptor, start, length, _SYNC_FILE_RANGE_WRITE)

    def sync(self) -> None:
        """Make the content durable."""
        os.fsync(self.descriptor)

    def link(self, *, sync: bool = True, failpoint: str = "") -> None:
        """Give the file its name, durably unless ``sync`` is False. Sync its content before.

        Others see the name before it is durable; ``failpoint`` is reached between the two.

        Raises:
            FileExistsError: Another has the name.
            OSError: The device failed; the name may or may not be there.
        """
        folder = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Given a descriptor of the folder, Python calls linkat and has it follow the link in /proc.
            source = self._temporary or f"/proc/self/fd/{self.descriptor}"
            os.link(source, os.path.basename(self._path), dst_dir_fd=folder)
            reach(failpoint)
            if sync:
                os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Close the file and delete its temporary name; idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        if self._temporary is not None:
            with suppress(OSError):  # what cannot be deleted now is a leftover for later
                os.unlink(self._temporary)
            self._temporary = None


def write_all(descriptor: int, chunks: list[Any]) -> None:
    """Write all buffers, at most WRITE_BUFFERS_MAX of them, however many calls it takes."""
    total = sum(map(len, chunks))
    written = os.writev(descriptor, chunks)
    if written == total:
        return
    views = [memoryview(chunk).cast("B") for chunk in chunks]
    while True:
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if not views:
            return
        views[0] = views[0][written:]
        written = os.writev(descriptor, views)


def make_folder_of(path: str | Path) -> None:
    """Make the folder of a new file, one level below what a catalog has always.

    Raises:
        LogError: That level is missing: the catalog was dropped while this writer fed it, and is not made anew.
    """
    try:
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(path))
    except FileNotFoundError:
        raise LogError(
            f"cannot write {path}: the catalog is gone, as where it is dropped while something feeds it; "
            "start anew"
        ) from None


def sync_names(path: str) -> None:
    """Make the names in a folder durable for a reader, whose file system may allow less than a writer's.

    A folder that cannot be synced (a read-only image, some file systems in user space) needs no wait.
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
