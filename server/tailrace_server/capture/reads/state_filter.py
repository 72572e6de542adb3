"""The rows of a table that meet a condition: each is judged by the columns of its own version."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tailrace_server.filters.binding import bind
from tailrace_server.filters.errors import ConditionRefused
from tailrace_server.filters.tree import columns_in
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.typed.reader import ColumnReader
from tailrace_server.wal.schema.restating import first_stated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Column, Schema
    from tailrace_server.capture.granting.shown import Visibility
    from tailrace_server.filters.tree import Condition
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.state.view import LogView


@dataclass(frozen=True, slots=True)
class StateCondition:
    """A condition on the rows of a table, as it was asked for; equal ones judge alike."""

    condition: Condition
    parameters: tuple[tuple[str, str], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that it asks for."""
        return tuple(name.text for name in columns_in(self.condition))


async def read_condition(text: str, parameters: tuple[str, ...]) -> StateCondition:
    """Read a condition, off the event loop.

    Args:
        text: In SQL.
        parameters: Each as ``name=value``.

    Raises:
        ConditionRefused: It is none.
    """
    values: dict[str, str] = {}
    for each in parameters:
        name, equals, value = each.partition("=")
        if not equals or name in values:
            raise ConditionRefused("where_parameter: write each once, as name=value")
        values[name] = value
    return StateCondition(await asyncio.to_thread(_parsed, text), (*sorted(values.items()),))


def _parsed(text: str) -> Condition:
    # The parser is loaded by the first who filters, in this thread: it takes longer than a text of any size.
    from tailrace_server.filters.parsing import parse

    return parse(text)


class StateFilter:
    """Judges the rows of one table as of one version; any thread may call it."""

    def __init__(
        self,
        asked: StateCondition,
        view: LogView,
        entity_type: str,
        version: int,
        shown: Visibility | None,
    ) -> None:
        """Find the columns.

        Args:
            asked: The condition.
            view: The log.
            entity_type: The table, as it is called at the version.
            version: The version that is read, whose names the condition uses.
            shown: What is granted of the rows; None: all of it.

        Raises:
            ConditionRefused: A column is not there, or a value is none of its column's.
        """
        self._view = view
        self._entity_type = entity_type
        self._version = version
        self._rules = None if shown is None else shown.rules_of(entity_type)
        schema = view.schema_of(version)
        columns = schema.columns(entity_type)
        self._ids = frozenset(column.id for column in columns if column.id)
        names: list[str] | None = None
        if self._rules is not None:
            names = [
                column.name
                for column in columns
                if any(rule.columns.shows(column.name) for rule in self._rules)
            ]
        self._filter = bind(asked.condition, columns, dict(asked.parameters), shown=names)
        self._placeholders = schema.placeholders
        self._shown = shown

    @cached_property
    def _stated(self) -> Mapping[int, Column]:
        return first_stated(self._view.schemas())

    def kept(self, rows: StateRows) -> StateRows:
        """Return the rows that meet the condition. A value that its type cannot hold counts as NULL."""
        schemas, which = self._view.schemas_of(rows.versions)
        written = [*map(self._columns_in, schemas)]
        reader = ColumnReader(
            self._filter.columns,
            stated=self._stated,
            placeholders=self._placeholders,
            on_misfit=OnMisfit.NULL,
        )
        batch = reader.read_mixed(rows.images, written, which).batch
        keep = self._filter.mask.of(batch).fill_null(False).to_numpy(zero_copy_only=False)
        if self._rules is not None:
            keep &= self._may_be_judged(rows, written, which)
        return rows if keep.all() else rows.taken(np.flatnonzero(keep))

    def _columns_in(self, schema: Schema) -> Sequence[Column]:
        """Return the columns of the table, which may have had another name."""
        columns = schema.entity_types.get(self._entity_type, ())
        if self._ids and not any(column.id in self._ids for column in columns):
            for each in schema.entity_types.values():
                if any(column.id in self._ids for column in each):
                    return each
        return columns

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
