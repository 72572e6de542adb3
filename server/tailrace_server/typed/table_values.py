"""Conditions on the rows of a table's state: each row is read by the columns of its own version."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.typed.reader import ColumnReader
from tailrace_server.wal.schema.restating import first_stated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.schema import Column, Schema
    from tailrace_server.typed.reader import UnknownValues
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.state.view import LogView


class RowValues(NamedTuple):
    """Values of some rows."""

    batch: pa.RecordBatch
    """The columns that were asked for; a value that is not known is null."""
    unknown: Mapping[str, UnknownValues]
    """By column, the rows whose value is not known."""
    written: Sequence[Sequence[Column]]
    """The columns of the table, in each schema that rows were written with."""
    which: NDArray[np.int64]
    """Of each row, its place in ``written``."""


class TableValues:
    """Reads values of one table as of one version; any thread may call it."""

    def __init__(self, view: LogView, entity_type: str, version: int) -> None:
        """Find the columns that the table has at the version, under the name that it has there."""
        self._view = view
        self.entity_type = entity_type
        self.version = version
        schema = view.schema_of(version)
        self.columns = schema.columns(entity_type)
        """At the version."""
        self._placeholders = schema.placeholders
        self._ids = frozenset(column.id for column in self.columns if column.id)

    def shares(self, columns: Sequence[Column]) -> bool:
        """Return whether columns are of the same table, as another one may have its name."""
        return not self._ids or any(column.id in self._ids for column in columns)

    @cached_property
    def _stated(self) -> Mapping[int, Column]:
        return first_stated(self._view.schemas())

    def of(self, rows: StateRows, columns: Sequence[Column]) -> RowValues:
        """Return values of rows. A column that was renamed is found by its id."""
        schemas, which = self._view.schemas_of(rows.versions)
        written = [*map(self._columns_in, schemas)]
        reader = ColumnReader(
            columns,
            stated=self._stated,
            placeholders=self._placeholders,
            on_misfit=OnMisfit.NULL,
        )
        found = reader.read_mixed(rows.images, written, which)
        return RowValues(found.batch, found.unknown, written, which)

    def _columns_in(self, schema: Schema) -> Sequence[Column]:
        """Return the columns of the table, which may have had another name."""
        columns = schema.entity_types.get(self.entity_type, ())
        if not self.shares(columns):
            for each in schema.entity_types.values():
                if any(column.id in self._ids for column in each):
                    return each
        return columns
