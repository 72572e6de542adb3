"""Which views a caller knows: those that need nothing that is hidden from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.capture.granting.schemas import granted_schema
from tailrace_server.wal.definitions.kept import Definitions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.schema import Schema
    from tailrace_server.capture.grant import Allowance
    from tailrace_server.sql.defined_names import DefinedNames
    from tailrace_server.wal.files.definition_documents import ViewDocument
    from tailrace_server.wal.state.view import LogView


def known_names(
    document: ViewDocument, allowances: Sequence[Allowance], view: LogView
) -> DefinedNames | None:
    """Return the names that a caller knows, of what is defined one view alone; None: it does not know it.

    Raises:
        InvalidRequest: An entity type has the name as well.
    """
    # Beside what SQL parses with, which a server has in memory once somebody asks for a view.
    from tailrace_server.sql.defined_names import DefinedNames

    with_bodies = [each for each in allowances if each.bodies]
    schema_of: Callable[[int], Schema] = view.schema_of
    if not any(each.is_whole for each in allowances):
        schema_of = lambda version: granted_schema(view.schema_of(version), with_bodies)  # noqa: E731
    names = DefinedNames(view, schema_of, Definitions(views={document.name: document}))
    return names if names.definition(document.name, quoted=True) is not None else None
