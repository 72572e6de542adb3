"""Conversion of rows to typed columns, with the Arrow types of the schema as of the version that is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.errors import ValueNotHeld
from tailrace.schema import Column
from tailrace_server.cli.tables.cells import OTHERS
from tailrace_server.typed.misfits import ValueMisfit
from tailrace_server.typed.reader import ColumnReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.reads.state import StateRow
    from tailrace.schema import Schema


class TypedCells:
    """The columns of a table as Arrow arrays."""

    def __init__(self, schema: Schema, entity_type: str, names: Sequence[str]) -> None:
        """Choose columns.

        Args:
            schema: Schema as of the version that is printed.
            entity_type: Name of the table.
            names: Names of the columns, in order; a column that the schema does not have comes as JSON text.
        """
        known = {each.name: each for each in schema.columns(entity_type)}
        columns = [known.get(name) or Column(name) for name in names]
        self._reader = ColumnReader(columns, placeholders=schema.placeholders, others=True)
        self._entity_type = entity_type
        self.fields: list[pa.Field] = [*self._reader.schema, pa.field(OTHERS, pa.string())]
        """Fields of the arrays that `arrays` returns."""

    def arrays(self, rows: Sequence[StateRow]) -> list[pa.Array]:
        """Return the columns of rows that were read with ``typed=True``.

        Raises:
            ValueNotHeld: A value does not fit the type of its column.
        """
        # Number the distinct lists of columns by identity: rows of one version share one list, and images are
        # read by the columns of the version that wrote them.
        images = pa.array([row.image for row in rows], pa.binary())
        written: dict[int, tuple[int, tuple[Column, ...]]] = {}
        which = []
        for row in rows:
            columns = () if row.reader is None else row.reader.columns
            which.append(written.setdefault(id(columns), (len(written), columns))[0])
        given = [columns for _, columns in written.values()]
        try:
            found = self._reader.read_mixed(images, given, np.array(which, np.int64))
        except ValueMisfit as error:
            misfit = error.misfit
            row = rows[misfit.row]
            where = f"in the row of key {row.primary_key!r}, version {row.position.version}"
            raise ValueNotHeld(
                *(self._entity_type, misfit.column, misfit.label, misfit.value),
                f"{misfit.reason}, {where}; --values raw writes such values as text",
            ) from None
        assert found.others is not None
        return [*found.batch.columns, found.others]
