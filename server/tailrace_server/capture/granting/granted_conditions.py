"""Conditions of grants, put into criteria.

A reader whose grant depends on a row's values receives each change as he sees it: the row enters, changes, or
leaves. Images outside the grant are not sent, nor the names of columns that changed on the way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from tailrace.criteria import Area, Criteria
from tailrace.errors import NotPermitted
from tailrace_server.capture.matching.row_condition import (
    ConditionText,
    RowCondition,
    condition_of,
    filtered,
)
from tailrace_server.filters.binding import bind
from tailrace_server.filters.errors import ConditionRefused
from tailrace_server.typed.table_values import TableValues

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.schema import Column
    from tailrace_server.filters.evaluation import RowFilter
    from tailrace_server.filters.tree import Condition
    from tailrace_server.wal.state.view import LogView

_log = structlog.get_logger("tailrace.granting")


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
        bound_grant(rows, [columns], name)
        one = replace(met, entity_type=(name,))
        held = condition_of(met)
        parts = (*(() if held is None else held.parts), ConditionText(rows, is_granted=True))
        yield filtered(one, RowCondition(parts, columns, view.published))


def granted_condition(
    condition: Condition, view: LogView, entity_type: str, version: int
) -> RowCondition:
    """Return a grant's condition for changes, bound to the columns of a table.

    Args:
        condition: The condition.
        view: The log. The condition names the newest columns, …
        entity_type: The table.
        version: … or those of this version, if the table is not there any more under that name.

    Raises:
        NotPermitted: It does not fit; as of ``bound_grant``.
    """
    for columns, since in columns_named(view, entity_type, version):
        try:
            return RowCondition([ConditionText(condition, is_granted=True)], columns, since)
        except ConditionRefused:
            continue
    kinds = [columns for columns, _ in columns_named(view, entity_type, version)]
    bound_grant(condition, kinds, entity_type)  # says why it does not fit
    raise _unfit(entity_type, "a column has been dropped")


def columns_named(
    view: LogView, entity_type: str, version: int
) -> list[tuple[Sequence[Column], int]]:
    """Return the columns that a grant's condition may name of a table, and the version that they are of."""
    table = TableValues(view, entity_type, version)
    newest = view.schema_of(view.published).entity_types.get(entity_type, ())
    found: list[tuple[Sequence[Column], int]] = [(table.columns, version)]
    if newest and table.shares(newest):  # else another entity type has the name now, or none
        found.insert(0, (newest, view.published))
    return found


def bound_grant(
    condition: Condition, kinds: Sequence[Sequence[Column]], entity_type: str
) -> RowFilter:
    """Return a grant's condition bound to the first of some sets of columns that it fits.

    Raises:
        NotPermitted: It fits none. The error has no details; the log has them.
    """
    why: ConditionRefused | None = None
    for columns in kinds:
        try:
            return bind(condition, columns, {})
        except ConditionRefused as error:
            why = why or error
    raise _unfit(entity_type, str(why))


def _unfit(entity_type: str, why: str) -> NotPermitted:
    # Its text has names of columns, and values of claims, that the caller need not know.
    _log.warning("grant does not fit its entity type", entity_type=entity_type, reason=why)
    return NotPermitted(
        f"a condition of the grants of {entity_type!r} does not fit it as it is; the server's log says why"
    )
