"""The columns of a change table beside place and time: those of the key, and the JSON of each change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.sql.change_json import ChangeJson, ChangeRecord, ImageMissing
from tailrace_server.sql.change_keys import key_images
from tailrace_server.sql.shown import CDC_JSON, refuse_hidden
from tailrace_server.sql.typed_rows import MISFITS, reader_of
from tailrace_server.sql.view_changes import RowsInView, ViewChanges
from tailrace_server.typed.misfits import OnMisfit, ValueMisfit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Schema
    from tailrace_server.sql.shown import ShownChanges, ShownRows
    from tailrace_server.wal.segment.parallel import RecordColumns
    from tailrace_server.wal.segment.reader import BatchHead
    from tailrace_server.wal.state.entity_names import EntityNames
    from tailrace_server.wal.state.view import LogView


class ChangeTableRows:
    """Makes those columns of the records of one entity type. Use it from one thread at a time."""

    def __init__(
        self,
        view: LogView,
        names: EntityNames,
        schema: Schema,
        form: ShownChanges,
        shown: ShownRows | None,
        on_misfit: OnMisfit = OnMisfit.RAISE,
    ) -> None:
        """Prepare to read.

        Args:
            view: The log.
            names: The entity type.
            schema: Whose names the columns have.
            form: The change table.
            shown: What may be read; None: everything.
            on_misfit: What becomes of a value of a key that its column cannot hold.
        """
        self._view, self._names, self._form, self._shown = view, names, form, shown
        every = names.columns_in(schema)
        self._columns = every if shown is None else shown.columns(every)
        keys = {name: each for each in self._columns for name in form.keys if each.name == name}
        named = [keys[name] for name in form.keys if name in keys]
        self._reader = reader_of(view, schema, named, on_misfit)
        self.fields: list[pa.Field] = [*self._reader.schema]
        """Of the columns."""
        self.bodies: tuple[str, ...] = ()
        """Bodies of the records that they need."""
        if form.has_json:
            self.fields.append(pa.field(CDC_JSON, pa.string()))
            self.bodies = tuple(
                each
                for each, images in (
                    ("change", ("CHANGE", "POST")),
                    ("before", ("PRE", "POST")),
                    ("after", ("CHANGE", "POST")),
                )
                if any(image in form.images for image in images)
            )
        self._of_view = None if form.view is None else ViewChanges(view, names, schema, form.view)
        if self._of_view is not None:
            self.bodies = ("change", "before", "after")
        self._json_names = {each.id: each.name for each in self._columns if each.name not in keys}
        """Id of each column in the JSON → its name there."""
        if self._of_view is not None and self._of_view.columns:
            chosen = self._of_view.columns
            self._json_names = {id: chosen[id] for id in self._json_names if id in chosen}
        self._membership: RowsInView | None = None
        """Of the records of the batch that was looked at last, by their places in it."""
        self._writers: dict[int, ChangeJson] = {}
        """By the id of a schema."""

    def chosen(
        self,
        head: BatchHead,
        rows: NDArray[np.int64],
        bodies: Mapping[str, pa.BinaryArray],
        operations: NDArray[np.uint8],
    ) -> NDArray[np.int64]:
        """Return those of some records of a batch that change what is shown; ``arrays`` is asked of these.

        ``operations`` are those of the batch's records as the log has them.

        Raises:
            InvalidRequest: It is unknown whether a row is in the view.
        """
        if self._of_view is None or not len(rows):
            return rows
        # Before a value is looked at: what is wrong with one that is hidden would tell it.
        if self._shown is not None:
            asked = [each.name for each in self._columns if each.id in self._of_view.asked]
            keys = head.primary_keys.take(pa.array(rows))
            refuse_hidden(self._shown, asked, keys, self._form.table)
        found = self._of_view.judged(head, rows, bodies, operations)
        before, after = np.zeros((2, len(head.versions)), np.bool_)
        before[rows], after[rows] = found
        self._membership = RowsInView(before, after)
        truncates = head.key_hashes[rows] == 0
        kept: NDArray[np.int64] = rows[found.before | found.after | truncates]
        return kept

    def arrays(
        self,
        head: RecordColumns,
        rows: NDArray[np.int64],
        bodies: Mapping[str, pa.BinaryArray],
        misfits: dict[int, dict[str, object]],
    ) -> dict[str, pa.Array]:
        """Return the columns of some records of a batch, by name, and add the misfits of keys by place.

        Raises:
            InvalidRequest: A key is not of its columns' types, or the log does not hold an image.
        """
        schemas, which = self._view.schemas_of(head.versions[rows])
        keys = head.primary_keys.take(pa.array(rows))
        found = self._key_columns(head, rows, keys, schemas, which, misfits)
        if self._form.has_json:
            found[CDC_JSON] = self._json(head, rows, keys, bodies, schemas, which)
        return found

    def _key_columns(
        self,
        head: RecordColumns,
        rows: NDArray[np.int64],
        keys: pa.StringArray,
        schemas: Sequence[Schema],
        which: NDArray[np.int64],
        misfits: dict[int, dict[str, object]],
    ) -> dict[str, pa.Array]:
        if not self._reader.columns:
            return {}
        written = [*map(self._names.columns_in, schemas)]
        images: list[bytes | None] = [None] * len(rows)
        for place, columns in enumerate(written):
            mine = np.flatnonzero(which == place)
            try:
                made = key_images(keys.take(pa.array(mine)), columns).to_pylist()
            except ValueError as error:
                raise self._refused(head, int(rows[mine[0]]), str(error)) from None
            for row, image in zip(mine.tolist(), made, strict=True):
                images[row] = image
        array = pa.array(images, pa.binary())
        try:
            read = self._reader.read_mixed(array, written, which)
        except ValueMisfit as error:
            reason = f"{error}; with misfits null it is NULL, and {MISFITS} has its text"
            raise self._refused(head, int(rows[error.misfit.row]), reason) from None
        misfits |= self._reader.misfit_texts(read, array, written, which)
        return dict(zip(read.batch.schema.names, read.batch.columns, strict=True))

    def _json(
        self,
        head: RecordColumns,
        rows: NDArray[np.int64],
        keys: pa.StringArray,
        bodies: Mapping[str, pa.BinaryArray],
        schemas: Sequence[Schema],
        which: NDArray[np.int64],
    ) -> pa.StringArray:
        places = pa.array(rows)
        nothing = [None] * len(rows)
        change, before, after = (
            bodies[name].take(places).to_pylist() if name in self.bodies else nothing
            for name in ("change", "before", "after")
        )
        changed = head.changed.take(places).to_pylist()
        operations = head.operations[rows].tolist()
        keyed = keys.is_valid().to_pylist()
        writers = [*map(self._writer, schemas)]
        hidden = self._hidden(keys)
        found = []
        records = map(ChangeRecord, operations, keyed, changed, change, before, after)
        for place, (record, schema) in enumerate(zip(records, which.tolist(), strict=True)):
            if self._membership is not None:
                record = self._moved(record, int(rows[place]), self._membership)
            names = frozenset(name for name, mask in hidden.items() if mask[place])
            try:
                found.append(writers[schema].of(record, names))
            except ImageMissing as error:
                raise self._refused(head, int(rows[place]), str(error)) from None
        return pa.array(found, pa.binary()).cast(pa.string())

    def _moved(self, record: ChangeRecord, row: int, membership: RowsInView) -> ChangeRecord:
        """Return what a change is to the view: a row that enters is new, one that leaves is gone."""
        if not record.keyed:
            return record
        if not membership.before[row]:
            return replace(record, changed=None, before=None)
        if not membership.after[row] and record.operation == Operation.UPSERT:
            return replace(record, operation=Operation.REMOVE)
        return record

    def _hidden(self, keys: pa.StringArray) -> dict[str, list[bool]]:
        """Return by the name of a column in which rows it is hidden."""
        if self._shown is None:
            return {}
        masks = (
            (self._json_names[each.id], self._shown.hidden(each.name, keys))
            for each in self._columns
            if each.id in self._json_names
        )
        return {name: mask.fill_null(False).to_pylist() for name, mask in masks if mask is not None}

    def _writer(self, schema: Schema) -> ChangeJson:
        if schema.id not in self._writers:
            written = self._names.columns_in(schema)
            if self._shown is not None:
                written = self._shown.columns(written)  # under the names that they had then
            self._writers[schema.id] = ChangeJson(
                written,
                self._json_names,
                schema.placeholders,
                self._form.images,
            )
        return self._writers[schema.id]

    def _refused(self, head: RecordColumns, row: int, reason: str) -> InvalidRequest:
        at = f"{head.versions[row]}:{head.indexes[row]}"
        return InvalidRequest(f"{self._form.table} at {at}: {reason}")
