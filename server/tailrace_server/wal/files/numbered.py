"""Sequences of numbered objects; each object is complete, and the newest one counts.

``<folder>/1.json, 2, 3, …`` are dense and created exclusively, by any process, at any time. Each carries the
CRC of the one before. Of two processes that change something at once one gets the number; the other reads it
and decides again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from tailrace.errors import CatalogReplaced, LogCorrupted
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.sealed import object_name, object_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from tailrace_server.wal.files.object_store import ObjectStore


class NumberedDocument(Protocol):
    """The common fields of the objects of such a sequence."""

    @property
    def number(self) -> int:
        """Its place in the sequence, from 1."""

    @property
    def uuid(self) -> UUID:
        """The log's."""

    @property
    def previous_crc32c(self) -> int:
        """CRC-32C of the object before; 0 for the first."""


_N = TypeVar("_N", bound=NumberedDocument)


def numbered_path(folder: str, number: int) -> str:
    """Return the path of an object of a sequence."""
    return f"{folder}/{object_name(number)}"


def newest_number(store: ObjectStore, folder: str) -> int:
    """Return the number of the newest object; 0 where there is none."""
    return max(object_numbers(store.names(folder)), default=0)


def read_numbered(
    store: ObjectStore, folder: str, number: int, uuid: UUID, kind: type[_N]
) -> tuple[_N, int]:
    """Return an object of a sequence and its CRC.

    Raises:
        CatalogReplaced: It is of another log.
        LogCorrupted: It is damaged or missing.
        LogUnreadable: It has a newer format version.
    """
    path = numbered_path(folder, number)
    found = documents.read(store, path, kind)
    if found is None:
        raise LogCorrupted(path, 0, f"the {folder} are missing")
    document, crc = found
    if document.uuid != uuid:
        raise CatalogReplaced(path, uuid, document.uuid)
    if document.number != number:
        raise LogCorrupted(path, 0, f"it says that it is number {document.number}")
    return document, crc


def check_numbered(
    store: ObjectStore, folder: str, uuid: UUID, kind: type[NumberedDocument], mend: str
) -> Iterator[LogCorrupted]:
    """Yield the faults of a sequence; continue behind each.

    Args:
        store: The catalog's objects.
        folder: Of the sequence.
        uuid: The log's.
        kind: What its objects are.
        mend: What to do about a fault.
    """
    before: int | None = 0
    for number in range(1, newest_number(store, folder) + 1):
        path = numbered_path(folder, number)
        try:
            found = documents.read(store, path, kind)
            if found is None:
                raise LogCorrupted(path, 0, f"the {folder} are missing")
        except LogCorrupted as error:
            yield LogCorrupted(path, error.offset, f"{error.reason}; {mend}")
            before = None  # nothing is known of what it would be continued with
            continue
        document, crc = found
        if (document.number, document.uuid) != (number, uuid):
            yield LogCorrupted(
                path, 0, f"it is number {document.number} of {document.uuid}; {mend}"
            )
        elif before is not None and document.previous_crc32c != before:
            yield LogCorrupted(path, 0, f"it does not continue the {folder} before it; {mend}")
        before = crc
