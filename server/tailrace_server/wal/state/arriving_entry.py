"""The entry that is on its way: read while its writer makes it durable, taken once it has its name.

A reader that follows a log gets an event when a file with a temporary name was written. Its writer then waits
half a millisecond for the disk, in which the reader reads and checks the file. It counts for nothing until it
is linked among the entries. Then the reader only has to see that it is the same file::

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
"""A larger entry is read only once it has its name: a commit of many segments takes no mere millisecond."""


class ArrivingEntry:
    """An entry under its temporary name. Its object is held, so that no other can be taken for it."""

    __slots__ = ("_object", "read")

    def __init__(self, object: ArrivingObject, read: ReadEntry) -> None:
        """Hold what was read; use ``find``."""
        self._object = object
        self.read = read

    @classmethod
    def find(cls, arrivals: Arrivals | None, name: str, number: int) -> ArrivingEntry | None:
        """Return the entry of a number by its temporary name; None if it is another, or not whole.

        Only of a name that ``may_be`` that entry's.
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
        """Whether a temporary name is that of an entry of a number."""
        return name.startswith(f"{object_name(number)}.")

    def arrived(self) -> ReadEntry | None:
        """Return the entry if it has got its name; None if it has not, or another has."""
        timestamp = self.read.entry.timestamp
        found = self._object.content_at(self.read.path, timestamp)
        return None if found is None else self.read._replace(marked=found.mark == timestamp)
