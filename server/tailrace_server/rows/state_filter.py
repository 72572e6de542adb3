"""A condition on the rows of a table, as a request has it: read, and bound to columns."""

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
    """A condition on the rows of a table, as it was requested; equal ones give equal results."""

    condition: Condition
    parameters: tuple[tuple[str, str], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that it asks for."""
        return tuple(name.text for name in columns_in(self.condition))

    def bound(self, columns: Sequence[Column], hints: Collection[str] | None) -> RowFilter:
        """Return the condition, bound to columns.

        Args:
            columns: The columns that it may name, as it names them.
            hints: Names of columns that an error may reveal; None: all.

        Raises:
            ConditionRefused: A column is not there, or a value is none of its column's.
        """
        return bind(self.condition, columns, dict(self.parameters), shown=hints)


async def read_condition(where: str | ConditionTree, parameters: tuple[str, ...]) -> StateCondition:
    """Read a condition, off the event loop.

    Args:
        where: The condition.
        parameters: Each as ``name=value``.

    Raises:
        ConditionRefused: It is none.
    """
    values = parameters_in(parameters)
    return StateCondition(await parsed_in_thread(where), (*sorted(values.items()),))


async def parsed_in_thread(where: str | ConditionTree) -> Condition:
    """Return what a condition says; raises as ``filters.parsing.parse`` and ``filters.messages.tree_of``."""
    return await asyncio.to_thread(parsed, where)


def parsed(where: str | ConditionTree) -> Condition:
    """Return what a condition says, for whoever is in a thread; raises as ``parsed_in_thread``."""
    if isinstance(where, ConditionTree):
        return tree_of(where)
    # The parser is loaded by the first who filters, in this thread: it takes longer than a text of any size.
    from tailrace_server.filters.parsing import parse

    return parse(where)
