"""The condition of a view: its text with other column names, and the rows of a state that meet it.

The evaluator of ``filters`` selects the rows. Reads of state, history and subscriptions use that evaluator too.
So a view has the same rows wherever it is read, even where DuckDB would treat a pattern, number or text
differently.
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
    """Return the lens for a place that reads a state.

    It selects granted rows, and those of the view if there is one.

    Raises:
        InvalidRequest: A column's type has changed, and a value of the view's condition does not compare with
            it.
    """
    values = TableValues(view, use.entity_type, use.version)
    asked = []
    if use.rows_met is not None:
        try:
            # Bind the condition to the types of this version: they may have changed since the view was defined.
            asked.append(bind(use.rows_met.condition, values.columns, {}))
        except ConditionRefused as error:
            raise InvalidRequest(f"view {use.rows_met.view}: {error}") from None
    return row_lens(values, view, rights, asked)


def unsure_row(use: TableUse, version: int, index: int) -> InvalidRequest:
    """Return the error for a row that may or may not be in the view, as a value that decides it is unknown."""
    assert use.rows_met is not None
    return InvalidRequest(
        f"view {use.rows_met.view} at {version}:{index}: a value that its condition needs was not sent, or its "
        "column's type cannot hold it, so it is unknown whether the view has the row; read the view with "
        "`tailrace state`, which marks such rows, or ingest with --images full"
    )


def with_columns(condition: str, named: Callable[[str, bool], str]) -> exp.Expr:
    """Return a condition with other column names.

    Args:
        condition: The text of a filter.
        named: Returns the new name, given the old name and whether that is quoted; may raise.
    """
    tree = sqlglot.parse_one(condition, read="postgres")
    # A list, since the loop changes the tree.
    for column in list(tree.find_all(exp.Column)):
        if isinstance(column.this, exp.Identifier):
            name = named(column.name, bool(column.this.args.get("quoted")))
            column.set("this", exp.to_identifier(name, quoted=True))
    return tree
