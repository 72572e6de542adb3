"""The columns of a change table beside place and time: those of the key, and the JSON of each change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.errors import InvalidRequest
from tailrace_server.sql.change_json import ChangeJson, ChangeRecord, ImageMissing
from tailrace_server.sql.change_keys import key_images
from tailrace_server.sql.shown import CDC_JSON, hidden_in
from tailrace_server.sql.typed_rows import MISFITS, reader_of
from tailrace_server.typed.misfits import OnMisfit, ValueMisfit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Schema
    from tailrace_server.rows.lens import ViewAsked
    from tailrace_server.sql.shown import ShownChanges, ShownRows
    from tailrace_server.wal.segment.parallel import RecordColumns
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
        of_view: ViewAsked | None,
        on_misfit: OnMisfit = OnMisfit.RAISE,
    ) -> None:
        """Prepare to read.

        Args:
            view: The log.
            names: The entity type.
            schema: Whose names the columns have.
            form: The change table.
            shown: What may be read; None: everything.
            of_view: The view that the change table is on; None: an entity type.
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
        self._json_names = {each.id: each.name for each in self._columns if each.name not in keys}
        """Id of each column in the JSON → its name there."""
        if of_view is not None and of_view.columns:
            chosen = of_view.columns
            self._json_names = {id: chosen[id] for id in self._json_names if id in chosen}
        self._writers: dict[int, ChangeJson] = {}
        """By the id of a schema."""

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
        hidden = self._hidden(keys, schemas, which)
        found = []
        records = map(ChangeRecord, operations, keyed, changed, change, before, after)
        for place, (record, schema) in enumerate(zip(records, which.tolist(), strict=True)):
            names = frozenset(name for name, mask in hidden.items() if mask[place])
            try:
                found.append(writers[schema].of(record, names))
            except ImageMissing as error:
                raise self._refused(head, int(rows[place]), str(error)) from None
        return pa.array(found, pa.binary()).cast(pa.string())

    def _hidden(
        self, keys: pa.StringArray, schemas: Sequence[Schema], which: NDArray[np.int64]
    ) -> dict[str, list[bool]]:
        """Return by the name of a column in which rows it is hidden."""
        if self._shown is None:
            return {}
        columns = [each for each in self._columns if each.id in self._json_names]
        written = [*map(self._names.columns_in, schemas)]
        found = hidden_in(self._shown, columns, keys, written, which)
        return {name: mask.to_pylist() for name, mask in found.items()}

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
