"""Conditions of requests on the rows of a table: parsed, then bound to columns."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.conditions import ConditionTree
from tailrace.criteria import parameters_in
from tailrace_server.filters.binding import bind
from tailrace_server.filters.messages import tree_of
from tailrace_server.filters.tree import columns_in

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tailrace.schema import Column
    from tailrace_server.filters.evaluation import RowFilter
    from tailrace_server.filters.tree import Condition


@dataclass(frozen=True, slots=True)
class StateCondition:
    """A parsed condition on the rows of a table, not bound to columns yet. Equal objects give equal results."""

    condition: Condition
    parameters: tuple[tuple[str, str], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns in the condition."""
        return tuple(name.text for name in columns_in(self.condition))

    def bound(self, columns: Sequence[Column], hints: Collection[str] | None) -> RowFilter:
        """Bind the condition to columns.

        Args:
            columns: The columns that the condition may name, by the names in the condition.
            hints: Names of columns that an error may reveal; None: all.

        Raises:
            ConditionRefused: A column is missing, or a value does not fit the type of its column.
        """
        return bind(self.condition, columns, dict(self.parameters), shown=hints)


async def read_condition(where: str | ConditionTree, parameters: tuple[str, ...]) -> StateCondition:
    """Parse a condition in a thread.

    Args:
        where: The condition.
        parameters: The parameters, each as ``name=value``.

    Raises:
        ConditionRefused: The text or the tree is not a valid condition.
    """
    values = parameters_in(parameters)
    return StateCondition(await parsed_in_thread(where), (*sorted(values.items()),))


async def parsed_in_thread(where: str | ConditionTree) -> Condition:
    """Parse a condition in a thread; raises like ``filters.parsing.parse`` and ``filters.messages.tree_of``."""
    return await asyncio.to_thread(parsed, where)


def parsed(where: str | ConditionTree) -> Condition:
    """Parse a condition. May be slow: call it in a thread. Raises like ``parsed_in_thread``."""
    if isinstance(where, ConditionTree):
        return tree_of(where)
    # The first condition of the process imports the parser,
    # here in the thread: this takes longer than any text.
    from tailrace_server.filters.parsing import parse

    return parse(where)
