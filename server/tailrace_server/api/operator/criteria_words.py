"""Criteria in words, for people: ``order or product, key 17``, ``everything``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.criteria import Criteria

_VALUES_SHOWN: Final = 3
"""Of each list, and of the alternatives."""
_TEXT_MAX: Final = 40
"""Characters of a value."""


def in_words(criteria: Sequence[Criteria]) -> str:
    """Return what criteria select; of long lists the first values and how many more there are."""
    words = [_one_in_words(each) for each in criteria[:_VALUES_SHOWN]] or ["everything"]
    if len(criteria) > _VALUES_SHOWN:
        words.append(f"{len(criteria) - _VALUES_SHOWN:,} more")
    return "; or ".join(words)


def _one_in_words(one: Criteria) -> str:
    parts = [
        _any_of(one.entity_type),
        "" if one.area is None else f"area {one.area.name}",
        _any_of([each.name for each in one.operation]),
        _named("key", one.primary_key),
        _any_of([each.name for each in one.container_type]),
        _named("column", one.container_name),
    ]
    return ", ".join(filter(None, parts)) or "everything"


def _named(noun: str, values: Sequence[str]) -> str:
    return f"{noun} {_any_of(values)}" if values else ""


def _any_of(values: Sequence[str]) -> str:
    shown = [
        each if len(each) <= _TEXT_MAX else f"{each[: _TEXT_MAX - 1]}…"
        for each in values[:_VALUES_SHOWN]
    ]
    if len(values) > _VALUES_SHOWN:
        shown.append(f"{len(values) - _VALUES_SHOWN:,} more")
    return " or ".join(shown)
