"""Warnings for criteria that may never match.

Criteria may name an entity type or a column that the log does not have, perhaps because the name is misspelt.
They may also request columns of an entity type whose updates do not say which columns have changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.criteria import Criteria
    from tailrace_server.wal.state.view import LogView

_NAMES_MAX: Final = 100
"""The most names that are reported."""


def unknown_names(view: LogView, criteria: Sequence[Criteria]) -> tuple[str, ...]:
    """Return the entity types that no published version has, and the columns that no requested entity type has.

    The names are in the order of the criteria, each once. Dropped columns count as existing.
    """
    found: dict[str, None] = {}
    for name, is_type in _unknown_now(view, criteria):
        # An entity type that was renamed has records under its old name.
        if is_type and view.had_entity_type(name):
            continue
        found[name] = None
        if len(found) == _NAMES_MAX:
            break
    return tuple(found)


def _unknown_now(view: LogView, criteria: Sequence[Criteria]) -> Iterator[tuple[str, bool]]:
    """Yield each name that the newest schema lacks, with True for an entity type and False for a column."""
    types = view.schema_of(view.published).entity_types
    for one in criteria:
        for entity_type in one.entity_type:
            if entity_type not in types:
                yield entity_type, True
        if one.container_name:
            asked = [types[name] for name in one.entity_type or types if name in types]
            columns = {column.name for each in asked for column in each}
            for name in one.container_name:
                # The columns of an unknown entity type are not reported in addition to its name.
                if name not in columns and (asked or not one.entity_type):
                    yield name, False


_TYPES_MAX: Final = 100
"""The most entity types that are reported."""


def unknown_changes(view: LogView, criteria: Sequence[Criteria]) -> tuple[str, ...]:
    """Return the entity types, sorted, whose updates all match, whichever columns they changed.

    They have a requested column, and their updates come without ``before``.
    """
    left = set(view.unknown_changes)
    types = view.schema_of(view.published).entity_types
    found: set[str] = set()
    for each in criteria:
        if not left:
            break
        if each.wants_columns:
            # There may be 100,000 names, so each column is looked up in a set instead of a list.
            names = set(each.container_name)
            asked = left.intersection(each.entity_type) if each.entity_type else left
            found |= {
                name
                for name in asked
                if not names or any(column.name in names for column in types.get(name, ()))
            }
            left -= found
    return tuple(sorted(found)[:_TYPES_MAX])
