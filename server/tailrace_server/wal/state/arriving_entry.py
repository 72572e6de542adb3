"""The entry that is on its way: read while its writer makes it durable, taken once it has its name.

Who follows a log is told that a file in the catalog's folder for temporary names was written, and has the half
millisecond that its writer waits for the disk to read and check it. It counts for nothing until it is linked
among the entries: then it is the same file, which is all that is left to see::

    writer   write tmp/12.json.x ──── fsync ────── link log/12.json ── fsync the folder ── mark ── unlink
    reader                │ read, check, decode          │ same inode?                        │ show
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tailrace_server.wal.files.documents import ENTRIES, ReadEntry, entry_in
from tailrace_server.wal.files.objects import (
    TEMPORARY_FOLDER,
    OpenFile,
    content_of,
    is_mark,
    object_name,
    open_file,
)

if TYPE_CHECKING:
    from tailrace_server.wal.files.objects import FileContent

BYTES_MAX: Final = 1 << 20
"""A larger entry is read once it is there: a commit of many segments is no matter of a millisecond."""


class ArrivingEntry:
    """An entry under its temporary name. Its file stays open, so that no other can have its inode."""

    __slots__ = ("_catalog", "_content", "_file", "read")

    def __init__(self, catalog: str, file: OpenFile, content: FileContent, read: ReadEntry) -> None:
        """Hold what was read; use ``find``."""
        self._catalog = catalog
        self._file = file
        self._content = content
        self.read = read

    @classmethod
    def find(cls, catalog: str, name: str, number: int) -> ArrivingEntry | None:
        """Return the entry of a number by its temporary name; None if it is another, or not whole.

        Only of a name that ``may_be`` that entry's.
        """
        final = object_name(number)
        path = os.path.join(catalog, TEMPORARY_FOLDER, name)
        with suppress(Exception):  # what is wrong with it is said if it becomes an entry
            descriptor = open_file(path)
            if descriptor is None:
                return None
            file = OpenFile(descriptor)
            if os.fstat(descriptor).st_size > BYTES_MAX:
                return None
            content = content_of(descriptor, path)
            read = entry_in(f"{ENTRIES}/{final}", content)
            if read.entry.number == number:
                return cls(catalog, file, content, read)
        return None

    @staticmethod
    def may_be(name: str, number: int) -> bool:
        """Whether a file's temporary name is that of an entry of a number."""
        return name.startswith(f"{object_name(number)}.")

    def arrived(self) -> ReadEntry | None:
        """Return the entry if it has got its name; None if it has not, or another has."""
        try:
            status = os.stat(os.path.join(self._catalog, self.read.path))
        except OSError:
            return None
        marked = is_mark(status.st_mtime_ns, self.read.entry.timestamp)
        untouched = marked or status.st_mtime_ns == self._content.modified_ns
        same = (status.st_dev, status.st_ino) == self._content.inode
        if not same or not untouched or status.st_size != len(self.read.data):
            return None
        return self.read._replace(marked=marked)
