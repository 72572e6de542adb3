"""The columns of rows as DuckDB gets them: typed, exact, and without values that the caller may not see.

A value that its column's type cannot hold ends the statement. With ``OnMisfit.NULL`` the value is null instead,
and the column ``_misfits`` has its text.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import InvalidRequest
from tailrace_server.sql.shown import hidden_in
from tailrace_server.typed.forms import narrow_form_of
from tailrace_server.typed.misfits import OnMisfit, ValueMisfit
from tailrace_server.typed.reader import ColumnReader
from tailrace_server.wal.schema.restating import first_stated

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tailrace.schema import Column, Schema
    from tailrace_server.sql.shown import ShownRows
    from tailrace_server.typed.reader import TypedColumns
    from tailrace_server.wal.state.entity_names import EntityNames
    from tailrace_server.wal.state.view import LogView

MISFITS: Final = "_misfits"
"""Name of the column with the texts of values that are null because their column's type cannot hold them."""


TIMESTAMP: Final = pa.timestamp("us", "UTC")
"""The type of commit timestamps."""
_OF_STATE: Final = {
    "_primary_key": pa.string(),
    "_version": pa.int64(),
    "_index": pa.int32(),
    "_commit_timestamp": TIMESTAMP,
}
_OF_CHANGES: Final = {
    "_commit_version": pa.int64(),
    "_index": pa.int32(),
    "_commit_timestamp": TIMESTAMP,
    "_change_type": pa.string(),
    "_primary_key": pa.string(),
}


def own_columns(*, of_changes: bool, with_misfits: bool) -> dict[str, pa.DataType]:
    """Return the columns that a table has in addition to those of its entity type, with their types."""
    misfits = {MISFITS: pa.string()} if with_misfits else {}
    return (_OF_CHANGES if of_changes else _OF_STATE) | misfits


class RowsRead(NamedTuple):
    """The typed columns of some rows."""

    batch: pa.RecordBatch
    misfits: Mapping[int, dict[str, object]]
    """The texts of values that do not fit, by row and column; empty unless requested."""


class TypedRows:
    """Reads some columns of one entity type. Use it from one thread at a time."""

    def __init__(
        self,
        view: LogView,
        schema: Schema,
        entity_type: str,
        names: EntityNames,
        columns: Sequence[Column],
        *,
        shown: ShownRows | None,
        shown_of: Callable[[tuple[Column, ...]], tuple[Column, ...]],
        on_misfit: OnMisfit,
        unread: Collection[str] = (),
    ) -> None:
        """Prepare to read.

        Args:
            view: The log.
            schema: The schema whose columns are read.
            entity_type: The entity type's name, for errors.
            names: The names of the entity type, version by version.
            columns: The columns to read.
            shown: Says which values of single rows are visible; None: all.
            shown_of: Returns the columns, among the given ones, that are visible.
            on_misfit: What happens to a value that its column cannot hold.
            unread: Names, in lower case, of columns whose values are not needed: they are null.
        """
        self._view, self._shown, self._shown_of = view, shown, shown_of
        self._entity_type, self._names = entity_type, names
        self._reader_of = partial(reader_of, view, schema, on_misfit=on_misfit)
        self._reader = self._reader_of(columns)
        self.schema = self._reader.schema
        """The Arrow schema of the batches."""
        if unread:
            # The schema keeps all columns; only the reader leaves out the unread ones.
            read = [each for each in columns if each.name.lower() not in unread]
            self._reader = self._reader_of(read)

    def read(
        self,
        images: pa.BinaryArray,
        versions: NDArray[np.int64],
        indexes: NDArray[np.int32],
        keys: pa.StringArray | None,
        *,
        with_misfits: bool,
    ) -> RowsRead:
        """Return the columns of images, each read by the schema of its version.

        Args:
            images: JSON objects; null is read as an object without members.
            versions: The version of each image.
            indexes: The index of each image's record, for errors.
            keys: The primary key of each row; None: no row hides a column.
            with_misfits: True to return the texts of values that do not fit.

        Raises:
            InvalidRequest: A value does not fit its column, and misfits are errors.
        """
        # No value is needed: do not parse the images.
        if not self._reader.columns:
            nulls = [pa.nulls(len(images), each.type) for each in self.schema]
            return RowsRead(pa.record_batch(nulls, schema=self.schema), {})
        schemas, which = self._view.schemas_of(versions)
        whole = [*map(self._names.columns_in, schemas)]
        written = [*map(self._shown_of, whole)]
        try:
            if self._shown is not None and keys is not None:
                hidden = hidden_in(self._shown, self._reader.columns, keys, whole, which)
                found = _read_shown(self._reader, self._reader_of, images, written, which, hidden)
            else:
                found = self._reader.read_mixed(images, written, which)
        except ValueMisfit as error:
            row = error.misfit.row
            raise InvalidRequest(
                f"{self._entity_type} at {versions[row]}:{indexes[row]}: {error}; leave the column out, or use "
                f"misfits null (--misfits null of `tailrace sql`), which puts the text into {MISFITS}"
            ) from None
        texts = self._reader.misfit_texts(found, images, written, which) if with_misfits else {}
        return RowsRead(self._with_unread(found.batch), texts)

    def _with_unread(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the unread columns added as nulls."""
        if len(batch.schema) == len(self.schema):
            return batch
        read = dict(_named(batch))
        arrays = [
            read[each.name] if each.name in read else pa.nulls(len(batch), each.type)
            for each in self.schema
        ]
        return pa.record_batch(arrays, schema=self.schema)


def misfits_array(count: int, by_row: Mapping[int, object]) -> pa.StringArray:
    """Return the column ``_misfits`` for some rows: JSON objects, null for a row whose values all fit."""
    texts: list[str | None] = [None] * count
    for row, found in by_row.items():
        texts[row] = msgspec.json.encode(found).decode()
    return pa.array(texts, pa.string())


def reader_of(
    view: LogView,
    schema: Schema,
    columns: Sequence[Column],
    on_misfit: OnMisfit = OnMisfit.RAISE,
) -> ColumnReader:
    """Return a reader of columns for DuckDB, which has no decimals above 38 digits.

    Args:
        view: The log.
        schema: The schema that has the columns.
        columns: The columns.
        on_misfit: What happens to a value that its column cannot hold.
    """
    return ColumnReader(
        columns,
        stated=first_stated(view.schemas()),
        placeholders=schema.placeholders,
        on_misfit=on_misfit,
        form_of=narrow_form_of,
    )


def _read_shown(
    reader: ColumnReader,
    reader_of: Callable[[Sequence[Column]], ColumnReader],
    images: pa.BinaryArray,
    written: Sequence[Sequence[Column]],
    which: NDArray[np.int64],
    hidden: Mapping[str, pa.BooleanArray],
) -> TypedColumns:
    """Return the columns of images. A hidden value becomes null without being parsed.

    Args:
        reader: Reads all of the columns.
        reader_of: Returns a reader of some of the columns.
        images: The images, as for ``ColumnReader.read_mixed``.
        written: The columns of each schema, as for ``ColumnReader.read_mixed``.
        which: The schema of each image, as for ``ColumnReader.read_mixed``.
        hidden: For each column that some rows hide, a mask of these rows.

    Raises:
        ValueMisfit: A visible value does not fit its column. Hidden values are never reported.
    """
    if not hidden:
        return reader.read_mixed(images, written, which)
    # 1. Read the columns that are visible in every row together.
    # 2. Read each other column alone, with the images of rows that hide it set to null.
    parts: list[TypedColumns] = []
    open_ones = [each for each in reader.columns if each.name not in hidden]
    if open_ones:
        parts.append(reader_of(open_ones).read_mixed(images, written, which))
    for column in reader.columns:
        if column.name in hidden:
            kept = pc.if_else(hidden[column.name], pa.scalar(None, images.type), images)
            parts.append(reader_of((column,)).read_mixed(kept, written, which))
    arrays = {name: array for part in parts for name, array in _named(part.batch)}
    batch = pa.record_batch([arrays[each] for each in reader.schema.names], schema=reader.schema)
    unknown = {name: each for part in parts for name, each in part.unknown.items()}
    return replace(parts[0], batch=batch, unknown=unknown)


def _named(batch: pa.RecordBatch) -> Iterable[tuple[str, pa.Array]]:
    return zip(batch.schema.names, batch.columns, strict=True)
