"""Grants for tests: generated ones, and what they show of captures, written as plainly as the contract."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from tailrace.criteria import Area, Operation
from tailrace_server.grants.grant import READING, Allowance, Columns, Grant
from tests.support.model import COLUMNS, ENTITY_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tailrace.criteria import Criteria

_types = st.none() | st.frozensets(st.sampled_from(ENTITY_TYPES), min_size=1, max_size=2)
_keys = st.none() | st.frozensets(st.sampled_from(["1", "2", "ключ"]), min_size=1, max_size=2)
_columns = st.builds(
    Columns, st.frozensets(st.sampled_from(COLUMNS), max_size=2), listed=st.booleans()
)
allowances = st.builds(
    Allowance, _types, _keys, _columns, st.booleans() | st.just(True), st.just(READING)
)
grants = st.lists(allowances, min_size=1, max_size=3).map(lambda listed: Grant(tuple(listed)))


def names_what_is_not_granted(grant: Grant, asked: Iterable[Criteria]) -> bool:
    """Return whether criteria name an entity type, a key or a column that no allowance has."""
    for one in asked:
        if not all(
            any(_for_type(each, name) for each in grant.allowances) for name in one.entity_type
        ):
            return True
        of_types = [
            each
            for each in grant.allowances
            if not one.entity_type or any(_for_type(each, name) for name in one.entity_type)
        ]
        if not all(any(_for_key(each, key) for each in of_types) for key in one.primary_key):
            return True
        if not all(
            any(each.columns.shows(name) for each in of_types) for name in one.container_name
        ):
            return True
    return False


def shown(
    grant: Grant, captures: Iterable[dict[str, Any]], asked: Sequence[Criteria] = ()
) -> list[dict[str, Any]]:
    """Return what is granted of captures in their JSON form, which came for some criteria."""
    found = []
    for each in captures:
        allowances: Sequence[Allowance] = grant.allowances
        if each["area"] == "DATA" and each["primaryKey"] is None:
            allowances = [one for one in allowances if _has_keys_of(one, asked, each["entityType"])]
        if (cut := _shown(allowances, each)) is not None:
            found.append(cut)
    return found


def _has_keys_of(allowance: Allowance, asked: Sequence[Criteria], entity_type: str) -> bool:
    """Return whether criteria that take a truncate have a key that an allowance has."""
    keys = allowance.primary_keys
    if keys is None:
        return True
    takers = [
        one
        for one in asked
        if (not one.entity_type or entity_type in one.entity_type)
        and (not one.operation or Operation.REMOVE in one.operation)
        and (one.wants_entities or not one.wants_columns)
        and one.area in (None, Area.DATA)
    ]
    return not asked or any(
        not one.primary_key or any(key in keys for key in one.primary_key) for one in takers
    )


def _for_type(allowance: Allowance, entity_type: str) -> bool:
    return allowance.entity_types is None or entity_type in allowance.entity_types


def _for_key(allowance: Allowance, key: str | None) -> bool:
    keys = allowance.primary_keys
    return keys is None or key is None or key in keys


def _shown(allowances: Sequence[Allowance], capture: dict[str, Any]) -> dict[str, Any] | None:
    if capture["area"] == "INFRASTRUCTURE":
        if "after" not in capture:
            return capture
        return {**capture, "after": _lead(allowances, capture["after"])}
    held = [
        each
        for each in allowances
        if _for_type(each, capture["entityType"]) and _for_key(each, capture["primaryKey"])
    ]
    changed = capture["changed"]
    kept = [name for name in changed or () if _any_shows(held, name)]
    if not held or (changed and not kept):
        return None
    if capture.get("containerType", "ENTITY") != "ENTITY" and not _any_shows(
        held, capture["containerName"]
    ):
        return None
    cut = {**capture, "changed": None if changed is None else kept}
    imaged = [each for each in held if each.bodies]
    for body in ("change", "before", "after"):
        value = capture.get(body)
        if value is None:
            continue
        if capture["area"] == "SCHEMA":
            cut[body] = _schema(held, value)
        elif not imaged:
            cut[body] = None
        else:
            cut[body] = {name: each for name, each in value.items() if _any_shows(imaged, name)}
    return cut


def _any_shows(held: Sequence[Allowance], name: str) -> bool:
    return any(each.columns.shows(name) for each in held)


def _schema(held: Sequence[Allowance], value: dict[str, Any]) -> dict[str, Any]:
    cut = dict(value)
    if "columns" in value:
        cut["columns"] = [each for each in value["columns"] if _any_shows(held, each["name"])]
    if "changes" in value:
        cut["changes"] = [
            each
            for each in value["changes"]
            if "column" not in each or _any_shows(held, each["column"])
        ]
    return cut


def _lead(allowances: Sequence[Allowance], after: dict[str, Any]) -> dict[str, Any]:
    def counts(entity_type: str) -> bool:
        return any(
            _for_type(each, entity_type) and _gives_every_record(each) for each in allowances
        )

    whole = [each for each in allowances if _gives_every_record(each)]
    if any(each.entity_types is None for each in whole):
        return after
    cut = {"transaction_id": after["transaction_id"]}
    cut["counts"] = {name: count for name, count in after["counts"].items() if counts(name)}
    if all(each.entity_types and all(map(counts, each.entity_types)) for each in allowances):
        cut["mutation_count"] = sum(cut["counts"].values())
    return cut


def _gives_every_record(allowance: Allowance) -> bool:
    return allowance.primary_keys is None and allowance.rows is None and allowance.columns.are_all


def moved(
    capture: dict[str, Any], is_in: Callable[[dict[str, Any]], bool]
) -> dict[str, Any] | None:
    """Return a change of a row as it concerns who sees the rows that are in: it enters, stays or leaves."""
    before, after = capture["before"], capture["after"]
    was, now = before is not None and is_in(before), after is not None and is_in(after)
    if was and now:
        return {**capture, "transition": "UPDATE"}
    untold = {"change": None, "changed": None}
    if now:
        return {**capture, **untold, "before": None, "transition": "ENTER"}
    if was:
        return {**capture, **untold, "after": None, "transition": "LEAVE"}
    return None


def plain(data: bytes) -> list[dict[str, Any]]:
    """Return the captures of JSON frames."""
    found: list[dict[str, Any]] = json.loads(b"[" + data[:-1] + b"]")
    return found
