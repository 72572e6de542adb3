"""The reader of columns from images: JSON objects become one Arrow array for each requested column.

Columns are matched by id, and an image is read by the columns of its own version. So a renamed column is read
under its name in that version. If the column had another type in that version, its values are converted to the
requested type (``wal.schema.restating``). A value that cannot be converted exactly is a misfit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tailrace_server.machine_code.loader import loops
from tailrace_server.typed.forms import Form, Misfit, form_of, shown
from tailrace_server.typed.misfits import ColumnMisfit, OnMisfit, ValueMisfit
from tailrace_server.typed.values import Members, ValueReader
from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.unavailable import unavailable
from tailrace_server.wal.schema.decoding import decoding_of
from tailrace_server.wal.schema.restating import conversion_of, read_as, restated_or_shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Column
    from tailrace_server.typed.values import ColumnValues
    from tailrace_server.wal.schema.restating import Stated


class UnknownValues(NamedTuple):
    """The unknown values of one column, whose null in the array does not mean NULL: masks of shape (rows,)."""

    rows: NDArray[np.bool_]
    """Rows whose value is unknown."""
    exists: NDArray[np.bool_]
    """Rows whose value is unknown but certainly exists, such as a value that the column's type cannot hold."""


@dataclass(frozen=True, slots=True)
class TypedColumns:
    """The requested columns of some images; row n of each column has the value of image n."""

    batch: pa.RecordBatch
    """The columns, in the reader's schema. Null: the image has null or no value, or its value is unknown."""
    present: Mapping[str, pa.BooleanArray]
    """Column → mask of the images that have the column. A value that the source did not send is not present."""
    misfits: tuple[ColumnMisfit, ...]
    """The first misfit of each column with misfits, if the treatment is ``OnMisfit.NULL``."""
    unknown: Mapping[str, UnknownValues]
    """Column → its unknown values; columns without unknown values are left out."""
    others: pa.StringArray | None
    """The members of each image that were not requested, as a JSON object or null; None: not requested."""


class ColumnReader:
    """Reader of columns from images; it holds no reference to images. For one thread at a time."""

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        stated: Mapping[int, Column] | None = None,
        placeholders: tuple[str, ...] = (),
        on_misfit: OnMisfit = OnMisfit.RAISE,
        others: bool = False,
        form_of: Callable[[Column], Form] = form_of,
    ) -> None:
        """Create a reader.

        Args:
            columns: The requested columns, in the order of the result, each with the type for its array.
            stated: Column id → the column as the source first declared it (``restating.first_stated``).
            placeholders: The schema's texts that replace values which the source did not send.
            on_misfit: The treatment of values that do not fit.
            others: True to return the other members of the images too.
            form_of: Function that returns the form of a column's values.
        """
        self.columns = tuple(columns)
        self._forms = tuple(map(form_of, columns))
        self.schema = pa.schema(
            [_field(*each) for each in zip(self.columns, self._forms, strict=True)]
        )
        """The schema of the batches."""
        self._stated = stated or {}
        self._unavailable = unavailable(placeholders)
        self._on_misfit = on_misfit
        self._others = others
        self._written: Sequence[Column] | None = None
        self._sources: tuple[_Source, ...] = ()
        self._names: tuple[str, ...] = ()
        self._values = tuple(ValueReader(each, self._unavailable) for each in self._forms)

    def read(self, images: pa.BinaryArray, written: Sequence[Column]) -> TypedColumns:
        """Read images of one version, or of several versions with the same columns.

        Args:
            images: JSON objects in UTF-8, as in the log; null counts as an object without members.
            written: The entity type's columns in that version.

        Raises:
            ValueMisfit: A value does not fit, and ``on_misfit`` is RAISE.
            ValueError: An image is not a JSON object.
        """
        if written is not self._written:  # the same columns come batch after batch
            self._sources, self._written = self._sources_of(written), written
            names = (each.name for each in self._sources if each.name is not None)
            self._names = (*dict.fromkeys(names),)
        # Compiled code locates all members, and reads most values, in one pass over the images. It cannot
        # convert between types.
        machine = loops(len(images))
        places = {name: place for place, name in enumerate(self._names)}
        outputs = [
            None
            if machine is None or source.name is None or source.conversion is not None
            else self._values[place].output(images, places[source.name])
            for place, source in enumerate(self._sources)
        ]
        given = [each for each in outputs if each is not None]
        members = Members(images, self._names, machine, given)
        arrays, present, misfits, unknown = [], {}, [], {}
        for place, source in enumerate(self._sources):
            name = self.columns[place].name
            if source.name is None:
                arrays.append(pa.nulls(len(images), self.schema.field(place).type))
                present[name] = pa.repeat(False, len(images))
                continue
            restate = None if source.conversion is None else partial(self._restated, source)
            found = self._values[place].read(members, places[source.name], outputs[place], restate)
            arrays.append(found.array)
            present[name] = found.present
            if found.misfits:
                misfits.append(self._told(place, members, places[source.name], found.misfits))
            if found.misfits or len(found.unsent):
                unknown[name] = _unknown(len(images), found)
        batch = pa.record_batch(arrays, schema=self.schema)
        others = members.others() if self._others else None
        return TypedColumns(batch, present, tuple(misfits), unknown, others)

    def read_mixed(
        self, images: pa.BinaryArray, written: Sequence[Sequence[Column]], which: NDArray[np.int64]
    ) -> TypedColumns:
        """Read images of several versions with different columns.

        Args:
            images: JSON objects in UTF-8, as in the log; null counts as an object without members.
            written: The entity type's columns in each of these versions.
            which: For each image, the index of its version's columns in ``written``; shape (images,).

        Raises:
            ValueMisfit: A value does not fit, and ``on_misfit`` is RAISE.
            ValueError: An image is not a JSON object.
        """
        used = [0] if len(written) == 1 else np.unique(which).tolist()
        if len(used) <= 1:
            return self.read(images, written[used[0]] if used else ())
        # 1. Read the images of each version separately, and convert rows in misfits to indexes of `images`.
        parts, rows = [], []
        for each in used:
            places = np.flatnonzero(which == each)
            try:
                part = self.read(images.take(pa.array(places)), written[each])
            except ValueMisfit as error:
                row = int(places[error.misfit.row])
                raise ValueMisfit(replace(error.misfit, row=row)) from None
            told = (replace(found, row=int(places[found.row])) for found in part.misfits)
            parts.append(replace(part, misfits=tuple(told)))
            rows.append(places)
        # 2. Join the parts, and restore the order of `images`.
        return self._joined(parts, np.argsort(np.concatenate(rows)))

    def misfit_texts(
        self,
        found: TypedColumns,
        images: pa.BinaryArray,
        written: Sequence[Sequence[Column]],
        which: NDArray[np.int64],
    ) -> dict[int, dict[str, object]]:
        """Return row → column → text of each misfit, decoded if possible.

        Args:
            found: The result of ``read_mixed`` for the following arguments.
            images: The argument of ``read_mixed``.
            written: The argument of ``read_mixed``.
            which: The argument of ``read_mixed``.
        """
        texts: dict[int, dict[str, object]] = {}
        places = {column.name: place for place, column in enumerate(self.columns)}
        sources_of = cache(lambda place: self._sources_of(written[place]))
        for name, unknown in found.unknown.items():
            for row in np.flatnonzero(unknown.exists).tolist():
                source = sources_of(int(which[row]))[places[name]]
                # The image has a value, so its version has the column.
                assert source.name is not None
                assert source.read_as is not None
                value = bytes(decode_members(images[row].as_py())[source.name])
                texts.setdefault(row, {})[name] = _text_of(source.read_as, value)
        return texts

    def _joined(self, parts: Sequence[TypedColumns], places: NDArray[np.intp]) -> TypedColumns:
        order = pa.array(places)
        batch = pa.concat_batches([each.batch for each in parts]).take(order)
        present = {
            each.name: pa.concat_arrays([part.present[each.name] for part in parts]).take(order)
            for each in self.columns
        }
        others = None
        if self._others:
            others = pa.concat_arrays([part.others for part in parts]).take(order)
        # Report the first misfit of each column in the order of `images`, with the count of all parts.
        misfits: dict[str, ColumnMisfit] = {}
        for found in (each for part in parts for each in part.misfits):
            first = misfits.setdefault(found.column, found)
            if first is not found:
                earlier = min(first, found, key=lambda each: each.row)
                misfits[found.column] = replace(earlier, count=first.count + found.count)
        unknown = {}
        for name in dict.fromkeys(name for part in parts for name in part.unknown):
            known = (np.zeros((2, part.batch.num_rows), np.bool_) for part in parts)
            each = [
                part.unknown.get(name, UnknownValues(*nothing))
                for part, nothing in zip(parts, known, strict=True)
            ]
            unknown[name] = UnknownValues(
                np.concatenate([one.rows for one in each])[places],
                np.concatenate([one.exists for one in each])[places],
            )
        return TypedColumns(batch, present, tuple(misfits.values()), unknown, others)

    def _sources_of(self, written: Sequence[Column]) -> tuple[_Source, ...]:
        """Return the image member of each requested column, for images with the columns ``written``."""
        by_id = {each.id: each for each in written if each.id}
        by_name = {each.name: each for each in written}
        found = []
        for column in self.columns:
            source = by_id.get(column.id) if column.id else by_name.get(column.name)
            # If another column has the name in this version, the requested one was dropped: no values here.
            if source is None or by_name[source.name] is not source:
                found.append(_Source(None, None))
                continue
            stated = self._stated.get(column.id)
            # A column whose type was only inferred is read by the type that its source has declared first.
            read, wanted = read_as(source, stated), read_as(column, stated)
            conversion = conversion_of(read, (wanted.sql_type, wanted.encoding))
            found.append(_Source(source.name, conversion, read))
        return tuple(found)

    def _restated(self, source: _Source, raw: bytes) -> bytes:
        """Return the JSON text of a value after conversion to the requested column's type; raises Misfit."""
        assert source.conversion is not None
        found = restated_or_shown(raw, *source.conversion, self._unavailable)
        if found is None:
            written = " in encoding ".join(
                each or "an unknown type" for each in source.conversion[0]
            )
            raise Misfit(f"it was written as {written}, which is not exactly one")
        return found

    def _told(
        self, place: int, members: Members, member: int, misfits: Sequence[tuple[int, str]]
    ) -> ColumnMisfit:
        """Return the first misfit of a column, with the number of misfits.

        Raises:
            ValueMisfit: ``on_misfit`` is RAISE.
        """
        row, reason = misfits[0]
        misfit = ColumnMisfit(
            self.columns[place].name,
            row,
            shown(members.text(member, row)),
            self._forms[place].label,
            reason,
            len(misfits),
        )
        if self._on_misfit is OnMisfit.RAISE:
            raise ValueMisfit(misfit)
        return misfit


@dataclass(frozen=True, slots=True)
class _Source:
    """The member of images of one version that has the values of a requested column."""

    name: str | None
    """Name of the member; None if the version does not have the column."""
    conversion: tuple[Stated, Stated] | None
    """The written and the requested type of the values, if they differ."""
    read_as: Column | None = None
    """The column with the type and the encoding of the written values."""


def with_nulls(
    unknown: UnknownValues | None, array: pa.Array, rows: NDArray[np.bool_]
) -> UnknownValues | None:
    """Return the unknown values of a column, extended by all nulls in some rows.

    Such rows are removals whose image may have only the key, so that a null may be an unknown value.
    """
    lacking = array.is_null().to_numpy(zero_copy_only=False) & rows
    if not lacking.any():
        return unknown
    if unknown is None:
        return UnknownValues(lacking, np.zeros(len(lacking), np.bool_))
    return UnknownValues(unknown.rows | lacking, unknown.exists)


def _unknown(count: int, found: ColumnValues) -> UnknownValues:
    rows, exists = np.zeros((2, count), np.bool_)
    exists[[row for row, _ in found.misfits]] = True
    rows[found.unsent] = True
    return UnknownValues(rows | exists, exists)


def _text_of(column: Column, value: bytes) -> str:
    """Return the text of a value: decoded, without the quotes of a JSON string."""
    decoding = decoding_of(column)
    shown = value if decoding is None else decoding.shown(value)
    return msgspec.json.decode(shown, type=str) if shown[:1] == b'"' else shown.decode()


def _field(column: Column, form: Form) -> pa.Field:
    metadata = {} if column.sql_type is None else {"tailrace.type": column.sql_type}
    if form.is_json:
        metadata["tailrace.text"] = "json"
    return pa.field(column.name, form.type, metadata=metadata or None)
