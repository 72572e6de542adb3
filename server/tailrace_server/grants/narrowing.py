"""Effective criteria: the intersection of request and grant, computed before a publisher is looked up.

::

    requested                   granted                      effective
    (nothing: every record)     orders, key 7                orders 7; SCHEMA of orders; TRANSACTION
    entity type orders          orders, key 7                orders 7; SCHEMA of orders
    entity type orders, key 7   orders, key 7                orders 7
    entity type users           orders                       NOT_PERMITTED

If a request leaves something open, it is narrowed to what is granted. If it names something that is not
granted, it is refused, with the same error whether or not the log has the name. Callers with equal effective
criteria share a publisher and its frames. TRANSACTION records are visible to every caller who may read anything
of the catalog; ``codecs/column_cut.py`` removes the counts of hidden records from them.
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
    """The effective criteria, canonical."""
    shown: Visibility | None
    """The visible part of the matching records; None: all of them, with all columns."""
    is_whole: bool
    """True if the whole catalog is granted, so that the criteria are those of the request."""


def narrowed(
    asked: tuple[Criteria, ...],
    content: Content,
    grant: Grant,
    action: Action,
    *,
    judges_rows: bool = False,
    view: LogView | None = None,
) -> Narrowed:
    """Return the intersection of a request and what is granted for an action.

    Args:
        asked: The requested criteria, canonical.
        content: The requested bodies of captures.
        grant: The caller's grant.
        action: The action that the criteria are requested for.
        judges_rows: True if the caller of this function filters rows by the conditions of ``Rule`` itself.
            False: the effective criteria have these conditions.
        view: The log to whose columns conditions are bound; None: a condition of a grant is an error.

    Raises:
        NotPermitted: The request names something that is not granted, or nothing of it is granted. Or rows are
            granted by a condition which cannot be applied here.
    """
    allowances = grant.of(action)
    # 1. The fast path: most callers may read the whole catalog.
    if any(each.is_whole for each in allowances):
        return Narrowed(asked, None, is_whole=True)
    if not allowances:
        raise NotPermitted(f"{action} is not granted for this catalog")
    if content and not any(each.bodies for each in allowances):
        raise NotPermitted("bodies are not granted")
    # 2. Intersect each alternative with each allowance. Single intersections may be empty, but not all of them:
    #    empty criteria would mean every record.
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
        # The criteria have the conditions, so the visibility needs none: callers with other conditions have the
        # same visibility then, and share frames.
        shown = shown_of(allowances, effective, with_rows=False)
    return Narrowed(effective, shown, is_whole=False)


def _refuse_rows(met: Sequence[Criteria], allowance: Allowance) -> None:
    """Check that no rows of an allowance are requested whose condition cannot be applied.

    Raises:
        NotPermitted: The intersection of request and allowance has such rows.
    """
    if any(each.area is not Area.SCHEMA for each in met):
        names = ", ".join(sorted(allowance.entity_types or ()))
        raise NotPermitted(
            f"rows of {names} are granted by a condition, which is not applied here: read them as state, or "
            "ask for other entity types"
        )


def _refuse_named(asked: Criteria, allowances: Sequence[Allowance]) -> None:
    """Check that each entity type, key and column that a request names is granted.

    Raises:
        NotPermitted: A name is in no allowance. The error has the first such name, and reveals nothing of the
            log.
    """
    for name in asked.entity_type:
        if not any(each.takes_type(name) for each in allowances):
            raise NotPermitted(f"entity type {name!r} is not granted")
    # A key or a column is granted if one of the requested entity types has it; the others just match less.
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
    """Yield the intersection of an alternative and an allowance, without TRANSACTION records."""
    if asked.area is Area.INFRASTRUCTURE or asked.operation == (Operation.TRANSACTION,):
        return
    # 1. Intersect the entity types. An alternative without entity types gets those of the allowance.
    types = asked.entity_type
    if allowance.entity_types is not None:
        granted = allowance.entity_types
        types = tuple(name for name in types if name in granted) if types else tuple(granted)
        if not types:
            return
    # 2. Intersect the names of columns. Without names nothing
    #    is to do here: `Visibility` hides columns, row by row.
    names = tuple(filter(allowance.columns.shows, asked.container_name))
    if asked.container_name and not names:
        if ContainerType.ENTITY not in asked.container_type:
            return
        asked = replace(asked, container_type=(ContainerType.ENTITY,), container_name=())
    one = replace(asked, container_name=names) if names != asked.container_name else asked
    # 3. Intersect the keys. Criteria with keys match rows only, so schema records need criteria of their own.
    #    Without keys the same criteria match both.
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
    """Return the part of an alternative that matches rows, which can be narrowed to keys; None if none is."""
    if asked.area is Area.SCHEMA or asked.container_type == (ContainerType.CATALOG,):
        return None
    kinds = tuple(kind for kind in asked.container_type if kind is not ContainerType.CATALOG)
    operations = tuple(kind for kind in asked.operation if kind is not Operation.TRANSACTION)
    columns_only = bool(asked.wants_columns) and ContainerType.ENTITY not in kinds
    if columns_only and operations and Operation.UPSERT not in operations:
        return None
    return replace(asked, container_type=kinds, operation=operations)


def _schema_records_of(asked: Criteria) -> Criteria | None:
    """Return the part of an alternative without keys that matches schema records; None if there is none."""
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
    """Yield criteria with the condition of a grant added, one ``Criteria`` for each entity type.

    Args:
        met: The intersection of a request and an allowance; it names entity types.
        rows: The allowance's condition.
        view: The log, to whose newest columns the condition is bound.

    Raises:
        NotPermitted: The condition does not fit the columns of an entity type, or the entity type does not
            exist.
    """
    # Schema records have no rows, so the condition does not apply to them.
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
        # Join both conditions by AND. The mark keeps the grant's part out of errors and acknowledgements.
        held = condition_of(met)
        parts = (*(() if held is None else held.parts), ConditionText(rows, is_granted=True))
        yield filtered(one, RowCondition(parts, columns, view.published))
