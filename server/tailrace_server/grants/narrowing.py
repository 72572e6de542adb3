"""Effective criteria: what was asked for ∩ what is granted, computed before a publisher is looked up.

::

    asked                       granted                      effective
    (nothing: every record)     orders, key 7                orders 7; SCHEMA of orders; leads
    entity type orders          orders, key 7                orders 7; SCHEMA of orders
    entity type orders, key 7   orders, key 7                orders 7
    entity type users           orders                       NOT_PERMITTED

What a request leaves open is narrowed. A name that is not granted is refused, in the same words whether or not
the log has it. Equal effective criteria are equal values, so they share a publisher and its frames, whoever
asks. Leads are for everybody who may read anything of the catalog; images.py cuts their counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.criteria import Area, ContainerType, Content, Criteria, Operation, canonical
from tailrace.errors import NotPermitted
from tailrace_server.filters.binding import bind
from tailrace_server.filters.tree import ConditionRefused
from tailrace_server.grants.shown import refuse_mixed, shown_of, takes_leads
from tailrace_server.rows.lens import unfit
from tailrace_server.rows.row_condition import ConditionText, RowCondition, condition_of, filtered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace_server.filters.tree import Condition
    from tailrace_server.grants.grant import Action, Allowance, Grant
    from tailrace_server.grants.shown import Visibility
    from tailrace_server.wal.state.view import LogView

_LEADS: Final = Criteria(area=Area.INFRASTRUCTURE)


class Narrowed(NamedTuple):
    """A request, narrowed to its grants."""

    criteria: tuple[Criteria, ...]
    """Canonical."""
    shown: Visibility | None
    """The visible part of the matches; None: all of it."""
    is_whole: bool
    """True if all of the catalog is granted, so that nothing was narrowed."""


def narrowed(
    asked: tuple[Criteria, ...],
    content: Content,
    grant: Grant,
    action: Action,
    *,
    judges_rows: bool = False,
    view: LogView | None = None,
) -> Narrowed:
    """Return what was asked for, canonical, ∩ what is granted for an action.

    Args:
        asked: What was asked for.
        content: The bodies that captures are to carry.
        grant: What is granted.
        action: What it is asked for to do.
        judges_rows: Whether whoever asks applies the conditions of rules to rows. Else criteria have them.
        view: The log, by whose columns conditions are bound; None: they cannot be.

    Raises:
        NotPermitted: The request names what is not granted, or nothing of it is. Or rows are granted by a
            condition which cannot be applied here.
    """
    allowances = grant.of(action)
    # 1. Nearly every caller may read all, and pays nothing for this.
    if any(each.is_whole for each in allowances):
        return Narrowed(asked, None, is_whole=True)
    if not allowances:
        raise NotPermitted(f"{action} is not granted for this catalog")
    if content and not any(each.bodies for each in allowances):
        raise NotPermitted("bodies are not granted")
    # 2. Each alternative meets each allowance. Some may come to nothing; all of them may not.
    found: list[Criteria] = []
    for one in asked:
        _refuse_named(one, allowances)
        for allowance in allowances:
            met = [*common(one, allowance)]
            if allowance.rows is not None and not judges_rows:
                if view is None:
                    _refuse_rows(met, allowance)
                else:
                    met = [new for old in met for new in conditioned(old, allowance.rows, view)]
            found.extend(met)
        if takes_leads(one):
            found.append(_LEADS)
    if not found:
        raise NotPermitted("nothing of what is asked for is granted")
    effective = canonical(found)
    shown = shown_of(allowances, effective)
    for name, rules in shown.by_type if shown is not None else ():
        refuse_mixed(name, rules)
    if not judges_rows and any(map(condition_of, effective)):
        # The criteria have chosen the rows. Frames of what is shown are shared by all conditions then.
        shown = shown_of(allowances, effective, with_rows=False)
    return Narrowed(effective, shown, is_whole=False)


def _refuse_rows(met: Sequence[Criteria], allowance: Allowance) -> None:
    """Refuse rows of a condition where it is not applied: to show them all would be wrong.

    Raises:
        NotPermitted: There are some among what a request and an allowance have in common.
    """
    if any(each.area is not Area.SCHEMA for each in met):
        names = ", ".join(sorted(allowance.entity_types or ()))
        raise NotPermitted(
            f"rows of {names} are granted by a condition, which is not applied here: read them as state, or "
            "ask for other entity types"
        )


def _refuse_named(asked: Criteria, allowances: Sequence[Allowance]) -> None:
    """Refuse a name that no allowance has; the error repeats it, and says nothing of the log.

    Raises:
        NotPermitted: It is the first of them.
    """
    for name in asked.entity_type:
        if not any(each.takes_type(name) for each in allowances):
            raise NotPermitted(f"entity type {name!r} is not granted")
    # Keys and columns may be granted for one of the types only; the others get less.
    of_types = [
        each
        for each in allowances
        if not asked.entity_type or any(map(each.takes_type, asked.entity_type))
    ]
    if asked.primary_key and not any(each.primary_keys is None for each in of_types):
        # There may be 100,000 keys, so they are looked up in sets.
        listed = [
            each.primary_keys for each in of_types if isinstance(each.primary_keys, frozenset)
        ]
        others = set(asked.primary_key).difference(*listed)
        patterns = [each.primary_keys for each in of_types if each.primary_keys not in listed]
        for key in sorted(others):
            if not any(key in each for each in patterns if each is not None):
                raise NotPermitted(f"primary key {key!r} is not granted")
    for name in asked.container_name:
        if not any(each.columns.shows(name) for each in of_types):
            raise NotPermitted(f"column {name!r} is not granted")


def common(asked: Criteria, allowance: Allowance) -> Iterator[Criteria]:
    """Yield what an alternative and an allowance have in common, without leads."""
    if asked.area is Area.INFRASTRUCTURE or asked.operation == (Operation.TRANSACTION,):
        return
    # 1. Entity types. An alternative that names none gets those of the allowance.
    types = asked.entity_type
    if allowance.entity_types is not None:
        granted = allowance.entity_types
        types = tuple(name for name in types if name in granted) if types else tuple(granted)
        if not types:
            return
    # 2. Names of columns. What asks for no column by name is left to `Visibility`, which knows every row's.
    names = tuple(filter(allowance.columns.shows, asked.container_name))
    if asked.container_name and not names:
        if ContainerType.ENTITY not in asked.container_type:
            return
        asked = replace(asked, container_type=(ContainerType.ENTITY,), container_name=())
    one = replace(asked, container_name=names) if names != asked.container_name else asked
    # 3. Keys of the allowance. Criteria with keys take rows alone, so records of the schema come beside them.
    #    Without keys, leads are left out by naming the entity types, or an area where there are none to name.
    granted_keys = allowance.primary_keys
    if not isinstance(granted_keys, frozenset):
        yield from _of_types(one, types)
        return
    keys = tuple(granted_keys)
    if one.primary_key:
        keys = tuple(key for key in one.primary_key if key in granted_keys)
    if keys and (rows := _rows_of(one)) is not None:
        yield replace(rows, entity_type=types, primary_key=keys)
    if not one.primary_key and (records := _schema_records_of(one)) is not None:
        yield replace(records, entity_type=types)


def _of_types(one: Criteria, types: tuple[str, ...]) -> Iterator[Criteria]:
    yield one if types == one.entity_type else replace(one, entity_type=types)


def _rows_of(asked: Criteria) -> Criteria | None:
    """Return what an alternative takes of rows, to be narrowed to keys; None if it takes none."""
    if asked.area is Area.SCHEMA or asked.container_type == (ContainerType.CATALOG,):
        return None
    kinds = tuple(kind for kind in asked.container_type if kind is not ContainerType.CATALOG)
    operations = tuple(kind for kind in asked.operation if kind is not Operation.TRANSACTION)
    columns_only = bool(asked.wants_columns) and ContainerType.ENTITY not in kinds
    if columns_only and operations and Operation.UPSERT not in operations:
        return None
    return replace(asked, container_type=kinds, operation=operations)


def _schema_records_of(asked: Criteria) -> Criteria | None:
    """Return what an alternative without keys takes of the schema's records; None if it takes none."""
    if asked.area is Area.DATA:
        return None
    kinds = asked.container_type
    if (kinds or asked.container_name) and ContainerType.CATALOG not in kinds:
        return None
    if asked.operation and not {Operation.UPSERT, Operation.REMOVE}.intersection(asked.operation):
        return None
    operations = tuple(
        kind for kind in asked.operation if kind in (Operation.UPSERT, Operation.REMOVE)
    )
    return Criteria(area=Area.SCHEMA, operation=operations)


def conditioned(met: Criteria, rows: Condition, view: LogView) -> Iterator[Criteria]:
    """Yield criteria with the condition of a grant, one for each entity type.

    Args:
        met: What a request and an allowance have in common; names entity types.
        rows: The allowance's condition.
        view: The log, whose newest columns the condition names.

    Raises:
        NotPermitted: The condition does not fit an entity type, or it is not there.
    """
    if met.area is Area.SCHEMA:
        yield met
        return
    types = view.schema_of(view.published).entity_types
    for name in met.entity_type:
        if name not in types:
            raise NotPermitted(
                f"entity type {name!r}, whose rows are granted by a condition, is not there yet: ask for "
                "others by name, or come again once it is"
            )
        columns = types[name]
        try:
            bind(rows, columns, {})
        except ConditionRefused as error:
            raise unfit(name, str(error)) from None
        one = replace(met, entity_type=(name,))
        held = condition_of(met)
        parts = (*(() if held is None else held.parts), ConditionText(rows, is_granted=True))
        yield filtered(one, RowCondition(parts, columns, view.published))
