"""The condition of a view: its text by other names of columns, and the rows of a state that meet it.

The rows are chosen by the evaluator of ``filters``, which reads of state, history and subscriptions use too. So
a view has the same rows wherever it is read, whatever DuckDB makes of a pattern, a number or a text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import sqlglot
from sqlglot import exp

from tailrace.errors import InvalidRequest
from tailrace_server.filters.binding import bind
from tailrace_server.filters.errors import ConditionRefused
from tailrace_server.filters.truth import truth_of
from tailrace_server.sql.shown import hidden_in
from tailrace_server.typed.table_values import TableValues

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.sql.shown import RowsMet, ShownRows
    from tailrace_server.sql.statements import TableUse
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.state.view import LogView


class ViewFilter:
    """Chooses the rows of one table's state that meet the condition of a view."""

    @classmethod
    def of(cls, use: TableUse, view: LogView, shown: ShownRows | None) -> ViewFilter | None:
        """Return what chooses the rows of one place in a statement; None: all of them are read.

        Raises:
            InvalidRequest: A column has a type now with which a value of the condition does not compare.
        """
        return None if use.rows_met is None else cls(use, use.rows_met, view, shown)

    def __init__(self, use: TableUse, met: RowsMet, view: LogView, shown: ShownRows | None) -> None:
        """Bind the condition to the columns of the table, as of the version that is read; raises as ``of``."""
        self._name = met.view
        self._values = TableValues(view, use.entity_type, use.version)
        self._shown = shown
        try:
            self._filter = bind(met.condition, self._values.columns, {})
        except ConditionRefused as error:
            raise InvalidRequest(f"view {met.view}: {error}") from None

    def kept(self, rows: StateRows) -> StateRows:
        """Return the rows of the view.

        Raises:
            InvalidRequest: It is unknown whether one of them is in the view; SQL has no mark for that.
        """
        values = self._values.of(rows, self._filter.columns)
        keep, undecided = truth_of(self._filter.mask, values.batch, values.unknown)
        if self._shown is not None:
            # A row that hides a column of the condition is left out: its presence would tell the value.
            for mask in hidden_in(self._shown, self._filter.columns, rows.primary_keys).values():
                keep = keep & ~mask.to_numpy(zero_copy_only=False)
                undecided = undecided & ~mask.to_numpy(zero_copy_only=False)
        if undecided.any():
            row = int(np.flatnonzero(undecided)[0])
            raise InvalidRequest(
                f"view {self._name} at {rows.versions[row]}:{rows.indexes[row]}: a value that its condition "
                "needs was not sent, or its column's type cannot hold it, so nobody knows whether the row is "
                "in; read the view by `tailrace state`, which marks such rows, or ingest with --images full"
            )
        return rows if keep.all() else rows.taken(np.flatnonzero(keep))


def with_columns(condition: str, named: Callable[[str, bool], str]) -> exp.Expr:
    """Return a condition with other names for its columns.

    Args:
        condition: A filter's text.
        named: Given a name and whether it is quoted, returns the one to write; may raise.
    """
    tree = sqlglot.parse_one(condition, read="postgres")
    for column in list(tree.find_all(exp.Column)):
        if isinstance(column.this, exp.Identifier):
            name = named(column.name, bool(column.this.args.get("quoted")))
            column.set("this", exp.to_identifier(name, quoted=True))
    return tree
