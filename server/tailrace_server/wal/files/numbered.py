"""Sequences of numbered objects: each object is complete, and only the newest one is valid.

Any process may create the next of ``<folder>/1.json, 2, 3, …`` at any time, by exclusive creation. Each object
has the CRC of the previous one. If two processes change something at once, one of them creates number n + 1.
The other reads that object, decides again, and creates n + 2.

A sequence whose old objects are deleted (``retained``) needs more care. A writer that was paused for long might
create a number that was used before. So it checks after the creation that its object is the newest. If not, it
decides again: the newer objects include its change, or another writer came first. The numbers of such a
sequence may have gaps, and its objects have no CRC of the previous one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from tailrace.errors import CatalogReplaced, LogCorrupted, LogError
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.sealed import object_name, object_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from tailrace_server.wal.files.object_store import ObjectStore

_ATTEMPTS: Final = 256


class NumberedDocument(Protocol):
    """The common fields of the objects of a sequence; chained objects also have ``previous_crc32c``."""

    @property
    def number(self) -> int:
        """Number in the sequence, from 1; in a document to be created, the lowest permitted number."""

    @property
    def uuid(self) -> UUID:
        """Uuid of the log."""


_N = TypeVar("_N", bound=NumberedDocument)


class Newest(NamedTuple, Generic[_N]):
    """The newest object of a sequence; number 0 if the sequence is empty."""

    number: int = 0
    crc: int = 0
    document: _N | None = None


def numbered_path(folder: str, number: int) -> str:
    """Return the path of an object of a sequence."""
    return f"{folder}/{object_name(number)}"


def newest_number(store: ObjectStore, folder: str) -> int:
    """Return the number of the newest object; 0 if the sequence is empty."""
    return max(object_numbers(store.names(folder)), default=0)


@dataclass(frozen=True, slots=True)
class NumberedSequence(Generic[_N]):
    """One sequence of a log. Thread-safe; every method does I/O."""

    store: ObjectStore
    """The catalog's objects."""
    folder: str
    kind: type[_N]
    """Type of the objects."""
    uuid: UUID
    """Uuid of the log."""
    failpoint: str
    retained: int | None = None
    """Number of superseded objects to retain, so that a concurrent listing names at least one that still
    exists. None: all are retained."""

    def newest_number(self) -> int:
        """Return the number of the newest object; 0 if the sequence is empty."""
        return newest_number(self.store, self.folder)

    def read(self) -> Newest[_N]:
        """Return the newest object.

        Raises:
            CatalogReplaced: The object belongs to another log.
            LogCorrupted: The object is damaged or missing.
            LogUnreadable: The object has a newer format version.
        """
        for _ in range(_ATTEMPTS):
            number = self.newest_number()
            if not number:
                return Newest()
            found = self._at(number)
            if found is not None:
                return found
            # If old objects are deleted, several newer objects were created since the listing: list again.
            if self.retained is None:
                raise LogCorrupted(
                    numbered_path(self.folder, number), 0, f"the {self.folder} are missing"
                )
        raise self._contended()

    def change(self, decide: Callable[[Newest[_N]], _N | None]) -> Newest[_N]:
        """Create the next object, as decided by ``decide``; return the newest object.

        If another process creates an object first, this reads it and calls ``decide`` again.

        Args:
            decide: Returns the next object, given the newest one; None: no change. It may be called several
                times, and may raise.

        Raises:
            LogFull: The file system is full; nothing was changed.
            LogError: Other processes came first in all attempts.
            TailraceError: As ``read`` and ``decide``.
        """
        for _ in range(_ATTEMPTS):
            newest = self.read()
            wanted = decide(newest)
            if wanted is None:
                return newest
            if (created := self.create_after(newest, wanted)) is not None:
                return created
        raise self._contended()

    def create_after(self, newest: Newest[_N], document: _N) -> Newest[_N] | None:
        """Create the object after the newest one; return None if another process came first."""
        # 1. Exclusive creation decides between processes.
        number = max(newest.number + 1, document.number)
        fields: dict[str, Any] = {"number": number}
        if self.retained is None:
            fields["previous_crc32c"] = newest.crc
        created: Any = msgspec.structs.replace(document, **fields)  # type: ignore[type-var]
        data, crc = documents.sealed(created)
        if (
            not newest.number
        ):  # a folder that is gone later was removed with all that a caller has read
            self.store.make_folder(self.folder)
        path = numbered_path(self.folder, number)
        if not self.store.create(path, data, failpoint=self.failpoint):
            return None
        if self.retained is not None:
            # 2. The number may have been free only because its first object was deleted. A newer object exists
            #    then, and this object has no effect.
            numbers = object_numbers(self.store.names(self.folder))
            for each in numbers:
                if each <= numbers[-1] - self.retained:
                    self.store.delete(numbered_path(self.folder, each))
            if not numbers or numbers[-1] != number:
                return None
        return Newest(number, crc, created)

    def check(self, remedy: str, *, chained: bool = True) -> Iterator[LogCorrupted]:
        """Yield the faults of a sequence whose objects are never deleted; continue after each fault.

        Args:
            remedy: Advice to append to each fault.
            chained: False if old objects may have been replaced, so that the CRC of the previous object may
                differ.
        """
        before: int | None = 0
        for number in range(1, self.newest_number() + 1):
            path = numbered_path(self.folder, number)
            try:
                found = documents.read(self.store, path, self.kind)
                if found is None:
                    raise LogCorrupted(path, 0, f"the {self.folder} are missing")
            except LogCorrupted as error:
                yield LogCorrupted(path, error.offset, f"{error.reason}; {remedy}")
                before = None  # its CRC is unknown, so the next object cannot be compared with it
                continue
            document: Any = found[0]
            if (document.number, document.uuid) != (number, self.uuid):
                yield LogCorrupted(
                    path, 0, f"it is number {document.number} of {document.uuid}; {remedy}"
                )
            elif chained and before is not None and document.previous_crc32c != before:
                yield LogCorrupted(
                    path, 0, f"it does not continue the previous one of the {self.folder}; {remedy}"
                )
            before = found[1]

    def _at(self, number: int) -> Newest[_N] | None:
        """Return the object of a number; None if it does not exist."""
        path = numbered_path(self.folder, number)
        found = documents.read(self.store, path, self.kind)
        if found is None:
            return None
        document, crc = found
        if document.uuid != self.uuid:
            raise CatalogReplaced(path, self.uuid, document.uuid)
        if document.number != number:
            raise LogCorrupted(path, 0, f"it has the number {document.number} in it")
        return Newest(number, crc, document)

    def _contended(self) -> LogError:
        return LogError(
            f"other processes changed {self.folder} in each of {_ATTEMPTS} attempts; try again"
        )
