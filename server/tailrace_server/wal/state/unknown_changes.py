"""Entity types whose source sends updates without the row before: their changed columns are unknown.

PostgreSQL does so with its default replica identity. Such a record names every column of ``after`` as changed.
The writer notes it among the source positions of the commit that shows it, and again when it is over::

    before:orders  missing        before:orders  sent

Only the newest note counts. An entity type without one has had no such update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_BEFORE: Final = "before:"
_MISSING: Final = "missing"
_SENT: Final = "sent"


def unknown_changes_after(
    known: tuple[str, ...], source_positions: Mapping[str, int | str]
) -> tuple[str, ...]:
    """Return the entity types, sorted, after the source positions of a commit; the same object if none is new.

    Args:
        known: Those before the commit.
        source_positions: What the commit advances; or all of a log, with ``known`` empty.
    """
    notes = {
        name.removeprefix(_BEFORE): state
        for name, state in source_positions.items()
        if name.startswith(_BEFORE)
    }
    if not notes:
        return known
    missing = {name for name, state in notes.items() if state == _MISSING}
    return tuple(sorted(missing.union(known).difference(notes.keys() - missing)))


def notes_after(updates: Mapping[str, bool], known: Collection[str]) -> dict[str, int | str]:
    """Return as source positions what the updates of a commit change.

    Args:
        updates: Entity types with updates; True if any of them came without ``before``.
        known: The entity types whose newest updates came without.
    """
    return {
        f"{_BEFORE}{entity_type}": _MISSING if missing else _SENT
        for entity_type, missing in updates.items()
        if missing != (entity_type in known)
    }
