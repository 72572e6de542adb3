"""The rows of a table that rules with conditions show to a caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace_server.capture.granting.granted_conditions import bound_grant, columns_named
from tailrace_server.filters.truth import truth_of
from tailrace_server.typed.table_values import TableValues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tailrace_server.capture.granting.shown import Rule
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.state.view import LogView


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
