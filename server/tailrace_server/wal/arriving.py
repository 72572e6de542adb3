"""The entry that is on its way: read while its writer makes it durable, taken once it has its name.

Who follows a log is told that a file in the catalog's folder for temporary names was written, and has the half
millisecond that its writer waits for the disk to read and check it. It counts for nothing until it is linked
among the entries: then it is the same file, which is all that is left to see::

    writer   write tmp/12.json.x ──── fsync ────── link log/12.json ── fsync the folder ── mark ── unlink
    reader                │ read, check, decode          │ same inode?                        │ show
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from tailrace.errors import TailraceError
from tailrace_server.wal.documents import ENTRIES, ReadEntry, entry_in
from tailrace_server.wal.objects import (
    TEMPORARY_FOLDER,
    content_of,
    is_mark,
    object_name,
    open_file,
)

if TYPE_CHECKING:
    from tailrace_server.wal.objects import FileContent

BYTES_MAX: Final = 1 << 20
"""A larger entry is read once it is there: a commit of many segments is no matter of a millisecond."""


class ArrivingEntry:
    """An entry under its temporary name. Its file stays open, so that no other can have its inode."""

    __slots__ = ("_catalog", "_descriptor", "_file", "read")

    def __init__(self, catalog: str, descriptor: int, file: FileContent, read: ReadEntry) -> None:
        """Take over a descriptor; use ``find``."""
        self._catalog = catalog
        self._descriptor = descriptor
        self._file = file
        self.read = read

    def __del__(self) -> None:
        os.close(self._descriptor)

    @classmethod
    def find(cls, catalog: str, name: str, number: int) -> ArrivingEntry | None:
        """Return the entry of a number by its temporary name; None if it is another, or not whole."""
        final = object_name(number)
        if not name.startswith(f"{final}."):
            return None
        path = os.path.join(catalog, TEMPORARY_FOLDER, name)
        try:
            descriptor = open_file(path)
        except TailraceError:
            return None
        if descriptor is None:
            return None
        try:
            file = content_of(descriptor, path, BYTES_MAX + 1)
            if len(file.data) <= BYTES_MAX:
                read = entry_in(f"{ENTRIES}/{final}", file)
                descriptor, taken = -1, descriptor
                return cls(catalog, taken, file, read)
        except Exception:  # what is wrong with it is said if it becomes an entry
            return None
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return None

    def arrived(self) -> ReadEntry | None:
        """Return the entry if it has got its name; None if it has not, or another has."""
        try:
            status = os.stat(os.path.join(self._catalog, self.read.path))
        except OSError:
            return None
        marked = is_mark(status.st_mtime_ns, self.read.entry.timestamp)
        untouched = marked or status.st_mtime_ns == self._file.modified_ns
        same = (status.st_dev, status.st_ino) == self._file.inode
        if not same or not untouched or status.st_size != len(self.read.data):
            return None
        return self.read._replace(marked=marked)
