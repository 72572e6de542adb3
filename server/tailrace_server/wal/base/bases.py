"""The list of a log's bases: the newest object in a sequence of numbered objects (files/numbered.py).

The list is not part of the checkpoints. So an older tailrace, which does not know bases, can read a checkpoint
and write the next one without losing the list (docs/adr/0086).

Each object lists all current bases. The state at a version can be read from a base if the log has all records
after the base, up to that version.

A checkpoint that removes old records relies on a base. But bases and checkpoints are two sequences, so another
process may drop that base at the same moment. Three rules prevent this:

1. Before checkpoint k + 1 is created, an object of this sequence reserves the base for k + 1.
2. Each new object retains the reservations of the object before it until their checkpoint exists.
3. A process that drops bases reads the newest object of this sequence first and the newest checkpoint second.
   So it sees either the checkpoint or the reservation for it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.position import FIRST
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.documents import FORMAT_VERSION
from tailrace_server.wal.files.numbered import Newest, NumberedSequence, numbered_path
from tailrace_server.wal.files.sequence_documents import (
    BASES,
    BaseDocument,
    BasesDocument,
    BaseTableDocument,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence
    from uuid import UUID

    from tailrace.position import Position
    from tailrace_server.wal.files.object_store import ObjectStore
    from tailrace_server.wal.state.view import LogView

_DOCUMENTS_MAX: Final = 64
"""The most lists of bases that a process caches. The list that was read first is evicted first."""

_NONE: Final[Newest[BasesDocument]] = Newest()


@dataclass(frozen=True, slots=True)
class KnownBases:
    """The bases that the newest object of the sequence names."""

    newest: Newest[BasesDocument] = _NONE

    @property
    def number(self) -> int:
        """The number of the sequence's newest object; 0 if there is none."""
        return self.newest.number

    @property
    def document(self) -> BasesDocument | None:
        """The sequence's newest object; None if there is none."""
        return self.newest.document

    @property
    def bases(self) -> Sequence[BaseDocument]:
        """The current bases, by version."""
        return () if self.document is None else self.document.bases

    @property
    def reserved(self) -> Sequence[tuple[int, int]]:
        """The reserved bases: pairs of a base's version and the number of the checkpoint that relies on it."""
        return () if self.document is None else self.document.reserved

    def below(self, view: LogView, version: int) -> BaseDocument | None:
        """Return the newest base after which the log has all records up to a version; None if there is none."""
        # Records from version base + 1 on are needed, so the log may begin one version after the base at most.
        found = [each for each in self.bases if view.oldest.version - 1 <= each.version <= version]
        return found[-1] if found else None

    def first_readable(self, oldest: Position) -> int | None:
        """Return the first version whose state is readable in a log that begins at ``oldest``, or None."""
        if oldest == FIRST:
            return 0
        found = [each.version for each in self.bases if each.version >= oldest.version - 1]
        return found[0] if found else None


def newest_bases(store: ObjectStore, uuid: UUID) -> KnownBases:
    """Return the current bases of a log.

    Raises:
        CatalogReplaced: The list belongs to another log.
        LogCorrupted: The list is damaged.
        LogUnreadable: The list has a newer format version.
    """
    sequence = base_sequence(store, uuid)
    number = sequence.newest_number()
    if not number:
        return KnownBases()
    # The stamp tells an object from another one that was created under the same path, as in a restored log.
    path = bases_path(number)
    key = (uuid, path, store.stamp(path))
    known = _read.get(key)
    if known is None:
        known = KnownBases(sequence.read())
        if known.number != number:
            return known  # a newer list was created meanwhile; its stamp is unknown, so it is not cached
        # Another thread may evict at the same time.
        with suppress(KeyError, StopIteration, RuntimeError):
            while len(_read) >= _DOCUMENTS_MAX:
                del _read[next(iter(_read))]
        _read[key] = known
    return known


def base_sequence(store: ObjectStore, uuid: UUID) -> NumberedSequence[BasesDocument]:
    """Return the sequence of the objects that list the bases."""
    return NumberedSequence(store, BASES, BasesDocument, uuid, "base")


_read: Final[dict[Hashable, KnownBases]] = {}
"""Cache of lists by log, path and stamp, since each read of a state needs the list."""


def write_bases(
    store: ObjectStore,
    uuid: UUID,
    known: KnownBases,
    bases: Sequence[BaseDocument],
    reserved: Iterable[tuple[int, int]],
    now: int,
) -> bool:
    """Create the next list of bases; return False if another process has created that object first.

    Args:
        store: The catalog's objects.
        uuid: The catalog's uuid.
        known: The list that the new one follows.
        bases: All bases of the new list, by version.
        reserved: Versions of bases to retain until a checkpoint exists, each with the checkpoint's number.
        now: Current time, µs since the epoch. The grace period of files that only dropped bases name begins.

    Raises:
        LogFull: The device has no room.
    """
    # Files of dropped bases are listed until they are deleted, each with the time from which it is unnamed.
    # Bases may share files, so a file is unnamed only if no remaining base has it.
    named = set(paths_in(bases))
    before = dict(known.document.removed) if known.document is not None else {}
    removed = {path: since for path, since in before.items() if store.exists(path)}
    removed |= {path: now for path in paths_in(known.bases) if path not in named}
    document = BasesDocument(
        format_version=FORMAT_VERSION,
        number=0,
        uuid=uuid,
        previous_crc32c=0,
        timestamp=now,
        bases=list(bases),
        removed=list(removed.items()),
        reserved=sorted(reserved),
    )
    return base_sequence(store, uuid).create_after(known.newest, document) is not None


def superseded(document: BasesDocument) -> bytes:
    """Return the bytes of the stub that replaces an old list of bases, once a later list exists."""
    stub = msgspec.structs.replace(document, bases=[], removed=[], reserved=[], superseded=True)
    return documents.sealed(stub)[0]


def bases_path(number: int) -> str:
    """Return the path of the list of bases with a number."""
    return numbered_path(BASES, number)


def paths_in(bases: Iterable[BaseDocument]) -> list[str]:
    """Return the paths of all files of some bases; a file that several bases share is repeated."""
    return [file.path for base in bases for table in base.tables for file in table.files]


def table_in(base: BaseDocument | None, entity_type: str | None) -> BaseTableDocument | None:
    """Return a base's table of an entity type, given its name at the base's version; None if it has none."""
    tables = () if base is None else base.tables
    return next((each for each in tables if each.entity_type == entity_type), None)
