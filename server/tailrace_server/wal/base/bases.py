"""The list of a log's bases: the newest object of a sequence of its own (files/numbered.py).

The list is not part of the checkpoints: an older tailrace, which does not know bases, can read a checkpoint and
does not lose the list when it writes one (docs/adr/0086).

Each object lists all current bases. A base can be used at a version if the log has every record after the base,
up to that version.

Bases and checkpoints are two sequences, so a checkpoint that gives records up relies on a base which another
process may drop at the same moment. Three rules prevent that:

1. Before the checkpoint with the number k + 1, an object of this sequence reserves the base for k + 1.
2. An object keeps what the one before it reserves, for as long as the checkpoint does not exist.
3. A process that drops bases reads the newest checkpoint after the newest object of this sequence. So it has
   read either the checkpoint or its reservation.
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
"""Lists that a process caches; the list that was read first is evicted first."""

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
        """Versions of bases, each with the number of the checkpoint that it is reserved for."""
        return () if self.document is None else self.document.reserved

    def below(self, view: LogView, version: int) -> BaseDocument | None:
        """Return the newest base after which the log has all records up to a version; None if there is none."""
        found = [each for each in self.bases if view.oldest.version - 1 <= each.version <= version]
        return found[-1] if found else None

    def first_readable(self, oldest: Position) -> int | None:
        """Return the first version with readable state in a log that begins at a position; None if none has."""
        if oldest == FIRST:
            return 0
        found = [each.version for each in self.bases if each.version >= oldest.version - 1]
        return found[0] if found else None


def newest_bases(store: ObjectStore, uuid: UUID) -> KnownBases:
    """Return the bases that a log has now.

    Raises:
        CatalogReplaced: The bases are of another log.
        LogCorrupted: The object is damaged.
        LogUnreadable: The object has a newer format version.
    """
    sequence = base_sequence(store, uuid)
    number = sequence.newest_number()
    if not number:
        return KnownBases()
    path = bases_path(number)
    key = (uuid, path, store.stamp(path))
    known = _read.get(key)
    if known is None:
        known = KnownBases(sequence.read())
        if known.number != number:
            return known  # a newer one came between, whose stamp is unknown
        with suppress(KeyError, StopIteration, RuntimeError):  # another thread may do the same
            while len(_read) >= _DOCUMENTS_MAX:
                del _read[next(iter(_read))]
        _read[key] = known
    return known


def base_sequence(store: ObjectStore, uuid: UUID) -> NumberedSequence[BasesDocument]:
    """Return the sequence of the objects that list the bases."""
    return NumberedSequence(store, BASES, BasesDocument, uuid, "base")


_read: Final[dict[Hashable, KnownBases]] = {}
"""Cache of the lists, since every read of a state needs one. An object changes only by being superseded."""


def write_bases(
    store: ObjectStore,
    uuid: UUID,
    known: KnownBases,
    bases: Sequence[BaseDocument],
    reserved: Iterable[tuple[int, int]],
    now: int,
) -> bool:
    """Create the object after the newest one; return False if another process took its number.

    Args:
        store: The catalog's objects.
        uuid: The catalog's uuid.
        known: The list that the new object follows.
        bases: All current bases from now on, by version.
        reserved: Versions of bases to retain until a checkpoint exists, each with the checkpoint's number.
        now: µs since the epoch; from then on, files of bases that are not listed any more count as unnamed.

    Raises:
        LogFull: No room.
    """
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
    """Return the bytes to which an object is reduced once a later object has replaced it."""
    stub = msgspec.structs.replace(document, bases=[], removed=[], reserved=[], superseded=True)
    return documents.sealed(stub)[0]


def bases_path(number: int) -> str:
    """Return the path of an object of the sequence."""
    return numbered_path(BASES, number)


def paths_in(bases: Iterable[BaseDocument]) -> list[str]:
    """Return the paths of the files of bases; a file of several bases is repeated."""
    return [file.path for base in bases for table in base.tables for file in table.files]


def table_in(base: BaseDocument | None, entity_type: str | None) -> BaseTableDocument | None:
    """Return a base's table of an entity type, by the name at the base's version; None if there is none."""
    tables = () if base is None else base.tables
    return next((each for each in tables if each.entity_type == entity_type), None)
