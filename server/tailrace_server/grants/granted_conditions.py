"""Conditions of grants, put into criteria and applied to the rows of a table.

A reader whose grant depends on a row's values receives each change as that reader sees it: the row enters,
changes, or leaves. Images outside the grant are not sent, nor the names of columns that changed on the way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import structlog

from tailrace.criteria import Area, Criteria
from tailrace.errors import NotPermitted
from tailrace_server.filters.binding import bind
from tailrace_server.filters.errors import ConditionRefused
from tailrace_server.filters.truth import truth_of
from tailrace_server.rows.row_condition import ConditionText, RowCondition, condition_of, filtered
from tailrace_server.typed.table_values import TableValues

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Column
    from tailrace_server.filters.evaluation import RowFilter
    from tailrace_server.filters.tree import Condition
    from tailrace_server.grants.shown import Rule
    from tailrace_server.wal.base.state_rows import StateRows
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


class ConditionedRows:
    """Applies rules, some of them with conditions, to rows of one table as of one version.

    Any thread may call it. A row is shown that is of one of a rule's keys and meets the rule's condition. A
    condition that is NULL or undecided shows nothing.
    """

    def __init__(
        self, rules: Sequence[Rule], view: LogView, entity_type: str, version: int
    ) -> None:
        """Bind the conditions to the columns of the table.

        A condition speaks of the columns by their newest names, or by those of the version.

        Raises:
            NotPermitted: One does not fit them. The error has no details; the log has them.
        """
        self._rules = tuple(rules)
        self._values = TableValues(view, entity_type, version)
        kinds = [columns for columns, _ in columns_named(view, entity_type, version)]
        self._filters = [
            None if rule.rows is None else bound_grant(rule.rows, kinds, entity_type)
            for rule in rules
        ]
        columns = {
            column.name: column
            for each in self._filters
            if each is not None
            for column in each.columns
        }
        self._columns = (*columns.values(),)

    def kept(self, rows: StateRows) -> StateRows:
        """Return the rows that are shown."""
        keep = self.shown(rows)
        return rows if keep.all() else rows.taken(np.flatnonzero(keep))

    def shown(self, rows: StateRows) -> NDArray[np.bool_]:
        """Return whether each row is shown."""
        values = self._values.of(rows, self._columns)
        keys = None
        found = np.zeros(len(rows), np.bool_)
        for rule, bound in zip(self._rules, self._filters, strict=True):
            shown = np.ones(len(rows), np.bool_)
            if bound is not None:
                shown = truth_of(bound.mask, values.batch, values.unknown).is_true
            if rule.keys is not None:
                keys = rows.primary_keys.to_pylist() if keys is None else keys
                shown &= np.array([rule.takes(key) for key in keys], np.bool_)
            found |= shown
        return found
