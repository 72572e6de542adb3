"""The definitions of a catalog, views and change tables: a sequence of numbered objects (files/numbered.py).

A process that finds its number taken reads the other's definitions, and decides again: a name may no longer be
free.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest
from tailrace_server.wal.files.documents import FORMAT_VERSION
from tailrace_server.wal.files.numbered import NumberedSequence
from tailrace_server.wal.files.sequence_documents import (
    DEFINITIONS,
    ChangeTableDocument,
    DefinitionsDocument,
    ViewDocument,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from tailrace_server.wal.files.numbered import Newest
    from tailrace_server.wal.files.object_store import ObjectStore

    Decide = Callable[["Definitions"], "Definitions"]
    """Returns what is to be defined instead of what is. It may be asked several times, and may raise."""

_COUNT_MAX: Final = 1_000
"""Views and change tables of a catalog."""


@dataclass(frozen=True, slots=True)
class Definitions:
    """The definitions of a catalog."""

    number: int = 0
    """Of the object that says it; 0 for none."""
    views: Mapping[str, ViewDocument] = field(default_factory=dict)
    """By name, as ``change_tables``; a name is of one of them alone."""
    change_tables: Mapping[str, ChangeTableDocument] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.views) + len(self.change_tables)

    def with_view(self, view: ViewDocument) -> Definitions:
        """Return these and a view, in place of one of its name."""
        return replace(self, views={**self.views, view.name: view})

    def with_change_table(self, table: ChangeTableDocument) -> Definitions:
        """Return these and a change table, in place of one of its name."""
        return replace(self, change_tables={**self.change_tables, table.name: table})

    def without(self, name: str) -> Definitions:
        """Return these without one of them."""
        return replace(
            self,
            views={key: each for key, each in self.views.items() if key != name},
            change_tables={key: each for key, each in self.change_tables.items() if key != name},
        )


def newest_definitions(
    store: ObjectStore, uuid: UUID, known: Definitions | None = None
) -> Definitions:
    """Return the definitions of a catalog now: ``known`` itself, unless they were changed since.

    Raises:
        CatalogReplaced: The definitions are of another log.
        LogCorrupted: The object is damaged.
        LogUnreadable: It has a newer format version.
    """
    sequence = definition_sequence(store, uuid)
    if known is not None and known.number == sequence.newest_number():
        return known
    return _definitions_in(sequence.read())


def change_definitions(
    store: ObjectStore, uuid: UUID, decide: Decide, now: int
) -> tuple[Definitions, Definitions]:
    """Define what is decided, whoever else defines something meanwhile; return the old and the new definitions.

    Args:
        store: The catalog's objects.
        uuid: The log's.
        decide: Given the definitions, returns those that replace them; if they are equal, nothing is written.
        now: µs since the epoch.

    Raises:
        InvalidRequest: There would be too many.
        LogFull: No room; nothing was changed.
        LogCorrupted: The newest definitions are damaged.
        TailraceError: As ``decide``.
    """
    known = Definitions()

    def next_document(newest: Newest[DefinitionsDocument]) -> DefinitionsDocument | None:
        nonlocal known
        known = _definitions_in(newest)
        wanted = decide(known)
        if wanted == known:
            return None
        if len(wanted) > max(_COUNT_MAX, len(known)):
            raise InvalidRequest(
                f"a catalog has {_COUNT_MAX:,} views and change tables at most; drop some"
            )
        return DefinitionsDocument(
            format_version=FORMAT_VERSION,
            number=0,
            uuid=uuid,
            previous_crc32c=0,
            timestamp=now,
            views=list(wanted.views.values()),
            change_tables=list(wanted.change_tables.values()),
        )

    after = definition_sequence(store, uuid).change(next_document)
    return known, _definitions_in(after)


def definition_sequence(store: ObjectStore, uuid: UUID) -> NumberedSequence[DefinitionsDocument]:
    """Return the sequence of the objects."""
    return NumberedSequence(store, DEFINITIONS, DefinitionsDocument, uuid, "definitions")


def _definitions_in(newest: Newest[DefinitionsDocument]) -> Definitions:
    if newest.document is None:
        return Definitions()
    return Definitions(
        newest.number,
        {each.name: each for each in newest.document.views},
        {each.name: each for each in newest.document.change_tables},
    )
