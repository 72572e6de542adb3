"""Entity types whose updates do not say which columns change, although criteria ask for columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.criteria import Criteria
    from tailrace_server.wal.state.view import LogView

_TYPES_MAX: Final = 100
"""Most entity types that are reported."""


def unknown_changes(view: LogView, criteria: Sequence[Criteria]) -> tuple[str, ...]:
    """Return the entity types, sorted, whose every update matches, whatever it changed.

    They have a column that the criteria ask for, and their updates come without ``before``.
    """
    left = set(view.unknown_changes)
    types = view.schema_of(view.published).entity_types
    found: set[str] = set()
    for each in criteria:
        if not left:
            break
        if each.wants_columns:
            # The names may be 100,000, so they are looked up and never searched.
            names = set(each.container_name)
            asked = left.intersection(each.entity_type) if each.entity_type else left
            found |= {
                name
                for name in asked
                if not names or any(column.name in names for column in types.get(name, ()))
            }
            left -= found
    return tuple(sorted(found)[:_TYPES_MAX])
