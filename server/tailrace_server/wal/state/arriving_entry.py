"""An entry that is read while its writer makes it durable, and used once it has its final name.

A reader that follows a log gets an event when a file with a temporary name was written. The writer then waits
half a millisecond for the disk, and meanwhile the reader reads and checks the file. The file has no effect
until it is linked among the entries. Then the reader only has to check that it is the same file::

    writer   write tmp/12.json.x ──── fsync ────── link log/12.json ── fsync the folder ── mark ── unlink
    reader                │ read, check, decode          │ same inode?                        │ show
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tailrace_server.wal.files.documents import ENTRIES, ReadEntry, entry_in
from tailrace_server.wal.files.sealed import object_name

if TYPE_CHECKING:
    from tailrace_server.wal.files.object_store import Arrivals, ArrivingObject

BYTES_MAX: Final = 1 << 20
"""A larger entry is read after it has its name: a commit of many segments takes more than a millisecond."""


class ArrivingEntry:
    """An entry under its temporary name. Its object stays open, so that no other is mistaken for it."""

    __slots__ = ("_object", "read")

    def __init__(self, object: ArrivingObject, read: ReadEntry) -> None:
        """Store the object and the entry read from it; callers use ``find``."""
        self._object = object
        self.read = read

    @classmethod
    def find(cls, arrivals: Arrivals | None, name: str, number: int) -> ArrivingEntry | None:
        """Read the entry of a number by its temporary name; None if it is another entry, or incomplete.

        Call this only with a name for which ``may_be`` returns True.
        """
        # Whatever is wrong with it (half written, damaged, of a newer format) is no error yet: it may never
        # become an entry. If it does, it is read again by its name, and then the error is raised.
        with suppress(Exception):
            found = None if arrivals is None else arrivals.open(name, BYTES_MAX)
            if found is not None:
                read = entry_in(f"{ENTRIES}/{object_name(number)}", found.content)
                if read.entry.number == number:
                    return cls(found, read)
        return None

    @staticmethod
    def may_be(name: str, number: int) -> bool:
        """Return True if a temporary name is that of the entry with a number."""
        return name.startswith(f"{object_name(number)}.")

    def arrived(self) -> ReadEntry | None:
        """Return the entry if it has its final name; None if not yet, or if another object has that name."""
        timestamp = self.read.entry.timestamp
        found = self._object.content_at(self.read.path, timestamp)
        return None if found is None else self.read._replace(marked=found.mark == timestamp)
