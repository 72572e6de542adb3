"""An entry that is read while its writer makes it durable, and used once it has its final name.

A reader that follows a log gets an event when a file with a temporary name has been written. The writer then
waits about half a millisecond for the disk. In that time the reader reads and checks the file. The file has no
effect until it is linked among the entries. Then the reader only has to check that it is the same file::

    writer   write tmp/12.json.x ──── fsync ────── link log/12.json ── fsync the folder ── mark ── unlink
    reader                │ read, check, decode          │ same inode?                        │ make visible
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tailrace_server.wal.files.documents import ENTRIES, ReadEntry, entry_in
from tailrace_server.wal.files.sealed import object_name

if TYPE_CHECKING:
    from tailrace_server.wal.files.object_store import Arrivals, ArrivingObject

BYTES_MAX: Final = 1 << 20
"""The largest entry that is read ahead, in bytes. A larger one is read under its final name: its commit has
many segments and takes more than a millisecond, so reading ahead would save little."""


class ArrivingEntry:
    """An entry that was read under its temporary name.

    Its file stays open, so that the file's inode is not used again: no other file can be mistaken for it.
    """

    __slots__ = ("_object", "read")

    def __init__(self, object: ArrivingObject, read: ReadEntry) -> None:
        """Store the object and the entry read from it; callers use ``find``."""
        self._object = object
        self.read = read

    @classmethod
    def find(cls, arrivals: Arrivals | None, name: str, number: int) -> ArrivingEntry | None:
        """Read the entry with a number under its temporary name; return None if it cannot be read ahead.

        That is so if the file is incomplete, damaged, too large or another entry, or if it is gone.

        Args:
            arrivals: Opens files by their temporary names; None if the store has no such names.
            name: A temporary name for which ``may_be`` returns True.
            number: The number of the entry.
        """
        # A fault of the file (half written, damaged, of a newer format) is no error yet: the file may never
        # become an entry. If it does, it is read again under its final name, and then the error is raised.
        with suppress(Exception):
            found = None if arrivals is None else arrivals.open(name, BYTES_MAX)
            if found is not None:
                read = entry_in(f"{ENTRIES}/{object_name(number)}", found.content)
                if read.entry.number == number:
                    return cls(found, read)
        return None

    @staticmethod
    def may_be(name: str, number: int) -> bool:
        """Return True if a temporary name belongs to the entry with a number."""
        return name.startswith(f"{object_name(number)}.")

    def arrived(self) -> ReadEntry | None:
        """Return the entry if it has its final name now; None if no file, or another file, has that name."""
        timestamp = self.read.entry.timestamp
        found = self._object.content_at(self.read.path, timestamp)
        return None if found is None else self.read._replace(marked=found.mark == timestamp)
