"""The rows of a table that meet a condition, evaluated on the columns of each row's version."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrace.conditions import ConditionTree
from tailrace.criteria import parameters_in
from tailrace_server.filters.binding import bind
from tailrace_server.filters.messages import tree_of
from tailrace_server.filters.tree import columns_in
from tailrace_server.filters.truth import Truth, truth_of
from tailrace_server.typed.table_values import TableValues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Column
    from tailrace_server.filters.tree import Condition
    from tailrace_server.grants.shown import Visibility
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.state.view import LogView


@dataclass(frozen=True, slots=True)
class StateCondition:
    """A condition on the rows of a table, as it was requested; equal ones give equal results."""

    condition: Condition
    parameters: tuple[tuple[str, str], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that it asks for."""
        return tuple(name.text for name in columns_in(self.condition))


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


class StateFilter:
    """Judges the rows of one table as of one version; any thread may call it."""

    def __init__(
        self,
        asked: StateCondition,
        view: LogView,
        entity_type: str,
        version: int,
        shown: Visibility | None,
        named: Sequence[Column] | None = None,
    ) -> None:
        """Find the columns.

        Args:
            asked: The condition.
            view: The log.
            entity_type: The table, as it is called at the version.
            version: The version that is read, whose names the condition uses.
            shown: What is granted of the rows; None: all of it.
            named: The columns that it may name, as a view calls them; None: those of the table.

        Raises:
            ConditionRefused: A column is not there, or a value is none of its column's.
        """
        self._entity_type = entity_type
        self._rules = None if shown is None else shown.rules_of(entity_type)
        self._values = TableValues(view, entity_type, version)
        columns = self._values.columns if named is None else named
        names: list[str] | None = None
        if self._rules is not None and named is None:
            names = [
                column.name
                for column in columns
                if any(rule.columns.shows(column.name) for rule in self._rules)
            ]
        self._filter = bind(asked.condition, columns, dict(asked.parameters), shown=names)
        self._shown = shown

    def truth(self, rows: StateRows) -> Truth:
        """Return the answer of the condition for each row."""
        values = self._values.of(rows, self._filter.columns)
        found = truth_of(self._filter.mask, values.batch, values.unknown)
        if self._rules is None:
            return found
        shown = self._may_be_judged(rows, values.written, values.which)
        return Truth(found.is_true & shown, found.is_undecided & shown)

    def _may_be_judged(
        self, rows: StateRows, written: Sequence[Sequence[Column]], which: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return which rows show all columns of the condition, under the names that they have there.

        A row that hides one is left out, whatever the condition: else it would tell what is hidden.
        """
        assert self._rules is not None
        assert self._shown is not None
        ids = {column.id for column in self._filter.columns}
        names = [{each.name for each in columns if each.id in ids} for columns in written]
        if all(
            rule.keys is None and rule.bodies and all(map(rule.columns.shows, set().union(*names)))
            for rule in self._rules
        ):
            return np.ones(len(rows), np.bool_)
        found = []
        for key, place in zip(rows.primary_keys.to_pylist(), which.tolist(), strict=True):
            rules = self._shown.rules_for(self._entity_type, key)
            found.append(
                all(
                    any(rule.bodies and rule.columns.shows(name) for rule in rules)
                    for name in names[place]
                )
            )
        return np.array(found, np.bool_)
