"""Criteria as people are shown them: in the form of requests, long lists cut short."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.criteria import Criteria

_VALUES_SHOWN: Final = 20
"""Of each list, where a caller says nothing: criteria may name 100,000 keys."""


def criteria_form(
    criteria: Sequence[Criteria], *, values_shown: int = _VALUES_SHOWN
) -> list[dict[str, object]]:
    """Return criteria as requests have them in JSON; of a long list the first values and their number."""
    shown = []
    for one in criteria[:values_shown]:
        form: dict[str, object] = {} if one.area is None else {"area": one.area.name}
        lists: dict[str, Sequence[str]] = {
            "entityType": one.entity_type,
            "primaryKey": one.primary_key,
            "operation": [each.name for each in one.operation],
            "containerType": [each.name for each in one.container_type],
            "containerName": one.container_name,
        }
        for name, values in lists.items():
            if values:
                form[name] = list(values[:values_shown])
            if len(values) > values_shown:
                form[f"{name}Count"] = len(values)
        shown.append(form)
    return shown
