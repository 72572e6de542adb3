"""The condition of a view: its text by other names of columns, and the rows of a state that meet it.

The rows are chosen by the evaluator of ``filters``, which reads of state, history and subscriptions use too. So
a view has the same rows wherever it is read, whatever DuckDB makes of a pattern, a number or a text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlglot
from sqlglot import exp

from tailrace.errors import InvalidRequest
from tailrace_server.filters.binding import bind
from tailrace_server.filters.tree import ConditionRefused
from tailrace_server.rows.lens import row_lens
from tailrace_server.typed.table_values import TableValues

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace_server.rows.judging import Right
    from tailrace_server.rows.lens import RowLens
    from tailrace_server.sql.statements import TableUse
    from tailrace_server.wal.state.view import LogView


def rows_in_view(use: TableUse, view: LogView, rights: Sequence[Right] | None) -> RowLens:
    """Return the lens for a place in a statement that reads a state: granted rows, in the view if it is one.

    Raises:
        InvalidRequest: A column has a type now with which a value of the view's condition does not compare.
    """
    values = TableValues(view, use.entity_type, use.version)
    asked = []
    if use.rows_met is not None:
        try:
            asked.append(bind(use.rows_met.condition, values.columns, {}))
        except ConditionRefused as error:
            raise InvalidRequest(f"view {use.rows_met.view}: {error}") from None
    return row_lens(values, view, rights, asked)


def unsure_row(use: TableUse, version: int, index: int) -> InvalidRequest:
    """Return the error of a row of which it is unknown whether it is in the view that is read."""
    assert use.rows_met is not None
    return InvalidRequest(
        f"view {use.rows_met.view} at {version}:{index}: a value that its condition needs was not sent, or its "
        "column's type cannot hold it, so nobody knows whether the row is in; read the view by `tailrace "
        "state`, which marks such rows, or ingest with --images full"
    )


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
