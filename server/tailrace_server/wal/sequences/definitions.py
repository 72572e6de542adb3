"""The definitions of a catalog, views and change tables, as a sequence of numbered objects (files/numbered.py).

If another process defines something at the same time, the change is decided again on top of the other process's
definitions: a name may be taken by then.
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
    """Returns the definitions that replace the present ones. It may be called several times, and may raise."""

_COUNT_MAX: Final = 1_000
"""Maximum number of views and change tables of a catalog."""


@dataclass(frozen=True, slots=True)
class Definitions:
    """The definitions of a catalog."""

    number: int = 0
    """Number of the object with these definitions; 0: none."""
    views: Mapping[str, ViewDocument] = field(default_factory=dict)
    """Views by name. A name is either a view's or a change table's."""
    change_tables: Mapping[str, ChangeTableDocument] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of definitions."""
        return len(self.views) + len(self.change_tables)

    def with_view(self, view: ViewDocument) -> Definitions:
        """Return the definitions with a view added, or replaced if it exists."""
        return replace(self, views={**self.views, view.name: view})

    def with_change_table(self, table: ChangeTableDocument) -> Definitions:
        """Return the definitions with a change table added, or replaced if it exists."""
        return replace(self, change_tables={**self.change_tables, table.name: table})

    def without(self, name: str) -> Definitions:
        """Return the definitions without the one of this name."""
        return replace(
            self,
            views={key: each for key, each in self.views.items() if key != name},
            change_tables={key: each for key, each in self.change_tables.items() if key != name},
        )


def newest_definitions(
    store: ObjectStore, uuid: UUID, known: Definitions | None = None
) -> Definitions:
    """Return the newest definitions of a catalog; ``known`` itself if they have not changed since.

    Raises:
        CatalogReplaced: The definitions belong to another log.
        LogCorrupted: The object is damaged.
        LogUnreadable: The object has a newer format version.
    """
    sequence = definition_sequence(store, uuid)
    if known is not None and known.number == sequence.newest_number():
        return known
    return _definitions_in(sequence.read())


def change_definitions(
    store: ObjectStore, uuid: UUID, decide: Decide, now: int
) -> tuple[Definitions, Definitions]:
    """Replace the definitions of a catalog, as decided by ``decide``; return the old and the new definitions.

    If another process changes them at the same time, ``decide`` is called again.

    Args:
        store: The catalog's objects.
        uuid: Uuid of the log.
        decide: Given the definitions, returns those that replace them; if they are equal, nothing is written.
        now: Present time, in microseconds since 1970.

    Raises:
        InvalidRequest: There would be too many definitions.
        LogFull: The file system is full; nothing was changed.
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
                f"a catalog can have at most {_COUNT_MAX:,} views and change tables; drop some"
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
    """Return the sequence of a catalog's definitions."""
    return NumberedSequence(store, DEFINITIONS, DefinitionsDocument, uuid, "definitions")


def _definitions_in(newest: Newest[DefinitionsDocument]) -> Definitions:
    if newest.document is None:
        return Definitions()
    return Definitions(
        newest.number,
        {each.name: each for each in newest.document.views},
        {each.name: each for each in newest.document.change_tables},
    )
