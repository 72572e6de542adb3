"""Typed values of rows of a table's state, for conditions; each row is read by the columns of its version."""

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
    """Values of some rows, as columns."""

    batch: pa.RecordBatch
    """The requested columns; unknown values are null."""
    unknown: Mapping[str, UnknownValues]
    """Column → its unknown values; columns without unknown values are left out."""
    written: Sequence[Sequence[Column]]
    """The columns of the table, once for each schema that rows were written with."""
    which: NDArray[np.int64]
    """For each row, the index of its columns in ``written``."""


class TableValues:
    """Reader of values of one table as of one version; any thread may call it."""

    def __init__(self, view: LogView, entity_type: str, version: int) -> None:
        """Look up the table's columns at a version; ``entity_type`` is the table's name at that version."""
        self._view = view
        self.entity_type = entity_type
        self.version = version
        schema = view.schema_of(version)
        self.columns = schema.columns(entity_type)
        """The table's columns at the version."""
        self._placeholders = schema.placeholders
        self._ids = frozenset(column.id for column in self.columns if column.id)

    def shares(self, columns: Sequence[Column]) -> bool:
        """Return True if columns belong to this table, not to another table that had its name."""
        return not self._ids or any(column.id in self._ids for column in columns)

    @cached_property
    def _stated(self) -> Mapping[int, Column]:
        return first_stated(self._view.schemas())

    def of(self, rows: StateRows, columns: Sequence[Column]) -> RowValues:
        """Return the values of some columns of rows. Columns are matched by id, also after a rename."""
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
        """Return the table's columns in a schema; the table may have another name there."""
        columns = schema.entity_types.get(self.entity_type, ())
        if not self.shares(columns):
            for each in schema.entity_types.values():
                if any(column.id in self._ids for column in each):
                    return each
        return columns
