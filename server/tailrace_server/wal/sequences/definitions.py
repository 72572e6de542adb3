"""The definitions of a catalog: a sequence of numbered objects; each is complete.

Any process may add the next object at any time, whoever writes the log. A process that finds its number taken
reads the other's definitions, and decides again: a name may no longer be free.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.documents import FORMAT_VERSION
from tailrace_server.wal.files.numbered import newest_number, numbered_path, read_numbered
from tailrace_server.wal.files.sequence_documents import (
    DEFINITIONS,
    ChangeTableDocument,
    DefinitionsDocument,
    ViewDocument,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

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
    crc: int = 0
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
    """Return what is defined of a catalog now: ``known`` itself, unless something was defined since.

    Raises:
        CatalogReplaced: The definitions are of another log.
        LogCorrupted: The object is damaged.
        LogUnreadable: It has a newer format version.
    """
    number = newest_number(store, DEFINITIONS)
    if known is not None and known.number == number:
        return known
    if not number:
        return Definitions()
    document, crc = read_numbered(store, DEFINITIONS, number, uuid, DefinitionsDocument)
    return Definitions(
        number,
        crc,
        {each.name: each for each in document.views},
        {each.name: each for each in document.change_tables},
    )


def change_definitions(
    store: ObjectStore, uuid: UUID, decide: Decide, now: int
) -> tuple[Definitions, Definitions]:
    """Define what is decided, whoever else defines something meanwhile; return what was and what is defined.

    Args:
        store: The catalog's objects.
        uuid: The log's.
        decide: Given what is defined, returns what is to be; equal to it: nothing is written.
        now: µs since the epoch.

    Raises:
        InvalidRequest: There would be too many.
        LogFull: No room; nothing was changed.
        LogCorrupted: The newest definitions are damaged.
        TailraceError: What ``decide`` raises.
    """
    while True:
        known = newest_definitions(store, uuid)
        wanted = decide(known)
        if wanted == known:
            return known, known
        if len(wanted) > max(_COUNT_MAX, len(known)):
            raise InvalidRequest(
                f"a catalog has {_COUNT_MAX:,} views and change tables at most; drop some"
            )
        document = DefinitionsDocument(
            format_version=FORMAT_VERSION,
            number=known.number + 1,
            uuid=uuid,
            previous_crc32c=known.crc,
            timestamp=now,
            views=list(wanted.views.values()),
            change_tables=list(wanted.change_tables.values()),
        )
        data, crc = documents.sealed(document)
        store.make_folder(DEFINITIONS)
        path = numbered_path(DEFINITIONS, document.number)
        if store.create(path, data, failpoint="definitions"):
            return known, replace(wanted, number=document.number, crc=crc)
