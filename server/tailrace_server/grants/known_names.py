"""Which views a caller knows: those that grants name, and those that need nothing that is hidden from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace_server.grants.schemas import granted_schema
from tailrace_server.grants.view_grants import names_view, view_grant, view_names
from tailrace_server.wal.sequences.definitions import Definitions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.schema import Schema
    from tailrace_server.grants.grant import Allowance
    from tailrace_server.grants.view_grants import ViewGrant
    from tailrace_server.sql.defined_names import DefinedNames
    from tailrace_server.wal.files.sequence_documents import ViewDocument
    from tailrace_server.wal.state.view import LogView


@dataclass(frozen=True, slots=True)
class KnownView:
    """A view as a caller knows it."""

    document: ViewDocument
    """Its definition; of one that is granted by its name what is granted of it."""
    names: DefinedNames
    """The meaning of its names for the caller; nothing else is defined there."""
    by_view: ViewGrant | None
    """The rights from grants that name it; None: the grants of its entity type apply."""


def known_view(
    document: ViewDocument, allowances: Sequence[Allowance], view: LogView
) -> KnownView | None:
    """Return a view as a caller knows it; None: it does not.

    Raises:
        InvalidRequest: An entity type has the name as well; or a column that grants need is gone.
        NotPermitted: As ``view_grant``.
    """
    # Beside what SQL parses with, which a server has in memory once somebody asks for a view.
    from tailrace_server.sql.defined_names import DefinedNames

    # 1. Grants that name it say by themselves what is shown: nothing that they need has to be granted too.
    if any(names_view(each, document.name) for each in allowances):
        found = view_names(document, view)
        given = None if found is None else view_grant(found, allowances)
        if given is not None:
            kept = Definitions(views={document.name: given.document})
            names = DefinedNames(view, view.schema_of, kept)
            names.definition(document.name, quoted=True)  # refuses the name of an entity type
            return KnownView(given.document, names, given)
    # 2. Else it is known by what is granted of its entity type.
    with_bodies = [each for each in allowances if each.bodies]
    schema_of: Callable[[int], Schema] = view.schema_of
    if not any(each.is_whole for each in allowances):
        schema_of = lambda version: granted_schema(view.schema_of(version), with_bodies)  # noqa: E731
    names = DefinedNames(view, schema_of, Definitions(views={document.name: document}))
    if names.definition(document.name, quoted=True) is None:
        return None
    return KnownView(document, names, None)
