"""The columns of a change table: the columns of the key, and the JSON of each change.

The JSON has the form of Apache Phoenix. Its values are copied from the texts of the images, digit by digit.

=============  ============================================================================================
member
=============  ============================================================================================
event_type     ``upsert``, ``delete``, ``ttl_delete``; ``truncate`` of all rows
pre_image      the before-image; ``{}`` for a new row
change_image   only for an upsert: the columns that changed; all columns of a new row
post_image     only for an upsert: the after-image
=============  ============================================================================================

The columns of the key are columns of the change table, and are not in the images. All columns have the names of
the newest schema. Values are decoded as docs/schemas.md describes.

Source: apache/phoenix, CDCChangeBuilder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import orjson
import pyarrow as pa

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.sql.shown import CDC_JSON, hidden_in
from tailrace_server.sql.typed_rows import MISFITS, reader_of
from tailrace_server.typed.forms import form_of
from tailrace_server.typed.misfits import OnMisfit, ValueMisfit
from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.unavailable import unavailable
from tailrace_server.wal.schema.decoding import decoding_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Column, Schema
    from tailrace_server.rows.lens import ViewAsked
    from tailrace_server.sql.shown import ShownChanges, ShownRows
    from tailrace_server.typed.forms import Form
    from tailrace_server.wal.segment.parallel import RecordColumns
    from tailrace_server.wal.state.entity_names import EntityNames
    from tailrace_server.wal.state.view import LogView

_NULL: Final = msgspec.Raw(b"null")
_EMPTY: Final = b"{}"
_SETTING: Final = "ingest with --images full, which keeps it"


class ImageMissing(ValueError):
    """The log does not hold the data of an image; the message says what is missing and how to keep it."""


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One record of an entity type, as the log stores it."""

    operation: int
    keyed: bool
    """True if the record has a key. A removal without a key removes all rows."""
    changed: Sequence[str] | None
    """Names of the changed columns; None for a new row, as far as the source says."""
    change: bytes | None
    before: bytes | None
    after: bytes | None


class ChangeJson:
    """Encoder of the JSON of changes that were written with one schema."""

    def __init__(
        self,
        written: Sequence[Column],
        shown: Mapping[int, str],
        placeholders: tuple[str, ...],
        images: Iterable[str],
    ) -> None:
        """Prepare to encode.

        Args:
            written: The entity type's columns at the versions of the records.
            shown: Column id → column name in the images; without the columns of the key.
            placeholders: The schema's placeholders for values that the source did not send.
            images: The images to write: some of CHANGE, PRE and POST.
        """
        known = [each for each in written if each.id in shown]
        self._names = {each.name: shown[each.id] for each in known}
        self._decoders = {
            each.name: decoding.shown
            for each in known
            if (decoding := decoding_of(each)) is not None
        }
        self._unavailable = unavailable(placeholders)
        self._hidden: Collection[str] = ()
        self._has_change, self._has_pre, self._has_post = (
            each in images for each in ("CHANGE", "PRE", "POST")
        )

    def of(self, record: ChangeRecord, hidden: Collection[str] = ()) -> bytes:
        """Return the JSON of a record, without the columns that are hidden in it.

        Args:
            record: The record.
            hidden: Names of the hidden columns, as the images name them.

        Raises:
            ImageMissing: The log does not hold the data of an image.
        """
        self._hidden = hidden
        # A removal without a key is a truncate, which has no images.
        if not record.keyed:
            return b'{"event_type":"truncate"}'
        if record.operation != Operation.UPSERT:
            kind = b"ttl_delete" if record.operation == Operation.EXPIRE else b"delete"
            if not self._has_pre:
                return b'{"event_type":"%b"}' % kind
            return b'{"event_type":"%b","pre_image":%b}' % (kind, self._pre(record))
        parts = [b'{"event_type":"upsert"']
        if self._has_pre:
            parts.append(b'"pre_image":' + self._pre(record))
        if self._has_change:
            parts.append(b'"change_image":' + self._change(record))
        if self._has_post:
            parts.append(b'"post_image":' + self._post(record))
        return b",".join(parts) + b"}"

    def _pre(self, record: ChangeRecord) -> bytes:
        if record.before is None:
            # A new row has no before-image. For other records the source did not send it.
            if record.operation == Operation.UPSERT and record.changed is None:
                return _EMPTY
            raise ImageMissing(
                f"its source did not send the row before, so there is no PRE image; {_SETTING}"
            )
        members = self._members(record.before)
        for name, value in members.items():
            if self._unavailable.is_one(bytes(value)):
                raise self._not_sent(name, "PRE")
        return self._written(members)

    def _change(self, record: ChangeRecord) -> bytes:
        after = self._after(record, "CHANGE")
        # A new row: all of its columns have changed.
        if record.changed is None:
            return self._whole(after, {}, "CHANGE")
        # A placeholder says that the source did not send the value: leave the column out, it did not change.
        found = {
            name: after.get(name, _NULL)
            for name in record.changed
            if name in self._names
            and self._names[name] not in self._hidden
            and not self._unavailable.is_one(bytes(after.get(name, b"")))
        }
        return self._written(found)

    def _post(self, record: ChangeRecord) -> bytes:
        after = self._after(record, "POST")
        before = {} if record.before is None else self._members(record.before)
        # A changed column that the row no longer has is null in the change image. The post image must agree:
        # it is the pre image with the change applied.
        gone = [each for each in record.changed or () if each in self._names and each in before]
        after = {**after, **{each: _NULL for each in gone if each not in after}}
        return self._whole(after, before, "POST")

    def _after(self, record: ChangeRecord, image: str) -> Mapping[str, msgspec.Raw]:
        if record.after is not None:
            return self._members(record.after)
        # Without a before-image, `change` is enough for the CHANGE image, but not for POST.
        if record.change is not None and (image == "CHANGE" or record.before is not None):
            before = {} if record.before is None else self._members(record.before)
            return {**before, **self._members(record.change)}
        raise ImageMissing(
            f"its source did not send the row after, so there is no {image} image; {_SETTING}"
        )

    def _whole(
        self, members: Mapping[str, msgspec.Raw], before: Mapping[str, msgspec.Raw], image: str
    ) -> bytes:
        """Return an image in which placeholders are replaced by the values of the before-image.

        Raises:
            ImageMissing: The before-image has a placeholder too.
        """
        found = {}
        for name, value in members.items():
            if self._unavailable.is_one(bytes(value)):
                value = before.get(name, value)
                if self._unavailable.is_one(bytes(value)):
                    raise self._not_sent(name, image)
            found[name] = value
        return self._written(found)

    def _members(self, image: bytes) -> Mapping[str, msgspec.Raw]:
        """Return the visible members of an image."""
        return {
            name: value
            for name, value in decode_members(image).items()
            if name in self._names and self._names[name] not in self._hidden
        }

    def _written(self, members: Mapping[str, msgspec.Raw]) -> bytes:
        shown = {
            self._names[name]: msgspec.Raw(self._decoders[name](bytes(value)))
            if name in self._decoders
            else value
            for name, value in members.items()
        }
        return msgspec.json.encode(shown)

    def _not_sent(self, name: str, image: str) -> ImageMissing:
        return ImageMissing(
            f"its source did not send {self._names[name]!r}, so there is no {image} image; {_SETTING}"
        )


_decode_parts: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def key_images(keys: pa.StringArray, written: Sequence[Column]) -> pa.BinaryArray:
    """Return images that have only the columns of the keys.

    Args:
        keys: Keys as texts: plain text for a key of one column, a JSON array for several; null gives an empty
            image.
        written: The entity type's columns at the version of the keys.

    Raises:
        ValueError: A text does not have that form.
    """
    columns = sorted((each for each in written if each.key), key=lambda each: each.key)
    texts = keys.to_pylist()
    if not columns:
        return pa.array([_EMPTY] * len(texts), pa.binary())
    if len(columns) == 1:
        name, form = orjson.dumps(columns[0].name), form_of(columns[0])
        found = [
            _EMPTY if text is None else b"{%b:%b}" % (name, _value(form, text)) for text in texts
        ]
        return pa.array(found, pa.binary())
    names = [each.name for each in columns]
    return pa.array(
        [_EMPTY if text is None else _image(names, text) for text in texts], pa.binary()
    )


def keys_as_images(
    keys: pa.StringArray, written: Sequence[Sequence[Column]], which: NDArray[np.int64]
) -> pa.BinaryArray:
    """Return images that have only the columns of the keys, for keys of several versions.

    Args:
        keys: As for ``key_images``.
        written: The entity type's columns in each schema.
        which: For each key, the index of its schema's columns in ``written``.

    Raises:
        ValueError: As ``key_images``.
    """
    places = [np.flatnonzero(which == place) for place in range(len(written))]
    made = [
        key_images(keys.take(pa.array(mine)), columns)
        for mine, columns in zip(places, written, strict=True)
    ]
    return pa.concat_arrays(made).take(pa.array(np.argsort(np.concatenate(places))))


def _value(form: Form, text: str) -> bytes:
    """Return the JSON value of a key of one column; the text of a string key has no quotes."""
    raw = text.encode()
    if raw[:1] != b'"':
        try:
            orjson.loads(raw)
            form.decode(raw)
        except ValueError:  # not JSON, or a misfit: then it is the text of a string
            pass
        else:
            return raw
    return orjson.dumps(text)


def _image(names: Sequence[str], text: str) -> bytes:
    try:
        values = _decode_parts(text)
    except msgspec.DecodeError:
        values = []
    if len(values) != len(names):
        raise ValueError(f"the key {text[:80]!r} is not a JSON array of {', '.join(names)}")
    return msgspec.json.encode(dict(zip(names, values, strict=True)))


class ChangeTableRows:
    """Builds the columns of a change table from records of one entity type.

    Use it from one thread at a time.
    """

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
            names: The names of the entity type.
            schema: The schema whose column names are used.
            form: The form of the change table.
            shown: The visible part of the entity type; None: everything.
            of_view: The view that the change table is on; None: it is on an entity type.
            on_misfit: What happens to a value of a key that its column cannot hold.
        """
        self._view, self._names, self._form, self._shown = view, names, form, shown
        every = names.columns_in(schema)
        self._columns = every if shown is None else shown.columns(every)
        keys = {name: each for each in self._columns for name in form.keys if each.name == name}
        named = [keys[name] for name in form.keys if name in keys]
        self._reader = reader_of(view, schema, named, on_misfit)
        self.fields: list[pa.Field] = [*self._reader.schema]
        """The Arrow fields of the columns."""
        self.bodies: tuple[str, ...] = ()
        """Names of the stored images that the columns need."""
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
        """Column id → column name in the JSON."""
        if of_view is not None and of_view.columns:
            chosen = of_view.columns
            self._json_names = {id: chosen[id] for id in self._json_names if id in chosen}
        self._writers: dict[int, ChangeJson] = {}
        """Encoders, by schema id."""

    def arrays(
        self,
        head: RecordColumns,
        rows: NDArray[np.int64],
        bodies: Mapping[str, pa.BinaryArray],
        misfits: dict[int, dict[str, object]],
    ) -> dict[str, pa.Array]:
        """Return the columns of some records of a batch, by name.

        Args:
            head: The head of the batch.
            rows: The indexes of the records.
            bodies: The images of the batch, by name.
            misfits: Receives the misfits of keys, by index in ``rows``.

        Raises:
            InvalidRequest: A key does not have its columns' types, or the log does not hold an image.
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
        # Keys are texts: turn each into an image by the schema of its version, and read that like any other
        # image.
        written = [*map(self._names.columns_in, schemas)]
        try:
            array = keys_as_images(keys, written, which)
        except ValueError as error:
            raise self._refused(head, int(rows[0]), str(error)) from None
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
        # One encoder for each schema: columns may have other names in other versions.
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
        """Return, by column name, a mask of the rows in which the column is hidden."""
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
                # Grants apply to the column names of that schema.
                written = self._shown.columns(written)
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
