"""Criteria in forms for people: as JSON like that of requests, or in words. Long lists are cut short.

Examples of the words: ``order or product, key 17``, ``everything``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.conditions import read_where
from tailrace.criteria import parameter_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.criteria import Criteria

_VALUES_SHOWN: Final = 20
"""Default maximum of values of each list in JSON, since criteria may name 100,000 keys."""
_IN_WORDS: Final = 3
"""The most values of each list, and the most alternatives, in the words for a page."""
_TEXT_MAX: Final = 40
"""The most characters of a value in the words for a page."""


def criteria_form(
    criteria: Sequence[Criteria], *, values_shown: int = _VALUES_SHOWN
) -> list[dict[str, object]]:
    """Return criteria in the JSON form of requests.

    A list of more than ``values_shown`` values is cut, and an entry named ``…Count`` has its full length.
    """
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
        shown.append({**form, **where_form(one)})
    return shown


def where_form(one: Criteria) -> dict[str, object]:
    """Return the condition of criteria and its parameters in the JSON form of requests; {} if there is none."""
    where = read_where(one.where)
    if where is None:
        return {}
    form: dict[str, object] = (
        {"where": where} if isinstance(where, str) else {"whereTree": where.form}
    )
    if parameters := parameter_texts(one.parameters):
        form["whereParameter"] = [f"{name}={value}" for name, value in parameters]
    if one.where_version is not None:
        form["whereVersion"] = one.where_version
    return form


def in_words(criteria: Sequence[Criteria]) -> str:
    """Describe criteria in words for a page; a long list becomes its first values and the count of the rest."""
    words = [
        one_in_words(each, values_shown=_IN_WORDS, text_max=_TEXT_MAX)
        for each in criteria[:_IN_WORDS]
    ] or ["everything"]
    if len(criteria) > _IN_WORDS:
        words.append(f"{len(criteria) - _IN_WORDS:,} more")
    return "; or ".join(words)


def one_in_words(one: Criteria, *, values_shown: int, text_max: int | None = None) -> str:
    """Describe one alternative in words.

    Args:
        one: The alternative.
        values_shown: The most values of each list.
        text_max: The most characters of each value; None: no limit.
    """

    def any_of(values: Sequence[str], noun: str = "") -> str:
        shown = [
            each if text_max is None or len(each) <= text_max else f"{each[: text_max - 1]}…"
            for each in values[:values_shown]
        ]
        if len(values) > values_shown:
            shown.append(f"{len(values) - values_shown:,} more")
        return f"{noun} {' or '.join(shown)}".strip() if shown else ""

    parts = [
        any_of(one.entity_type),
        "" if one.area is None else f"area {one.area.name}",
        any_of([each.name for each in one.operation]),
        any_of(one.primary_key, "key"),
        any_of([each.name for each in one.container_type]),
        any_of(one.container_name, "column"),
        "" if one.where is None else any_of([str(one.where)], "where"),
    ]
    return ", ".join(filter(None, parts)) or "everything"
