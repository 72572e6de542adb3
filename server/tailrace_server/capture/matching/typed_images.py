"""Typed columns of the images of one batch, decoded once for all conditions that judge by them.

The images before and after of some rows of one entity type are read together, so that a condition is judged in
one go::

    rows          3   17   40
    images        before 3, before 17, before 40, after 3, after 17, after 40
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace_server.capture.matching.transitions import IS_IN, WAS_IN, ImageVerdict
from tailrace_server.filters.errors import ConditionRefused
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.typed.reader import ColumnReader
from tailrace_server.wal.record.unavailable import unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Column, Schema
    from tailrace_server.capture.matching.batch_images import Images
    from tailrace_server.capture.matching.row_condition import RowCondition
    from tailrace_server.filters.evaluation import Mask, RowFilter
    from tailrace_server.wal.segment.reader import BatchHead


class _Decoded(NamedTuple):
    """One column of the images, those before and those after."""

    array: pa.Array
    unknown: NDArray[np.bool_] | None
    """Of which rows the image before does not tell the value, though there was one; None: it tells all."""


class TypedImages:
    """The images of some rows of one entity type in one batch."""

    def __init__(
        self, head: BatchHead, images: Images, entity_type: str, rows: NDArray[np.int32]
    ) -> None:
        """Take rows, in rising order and at least one; nothing is decoded yet."""
        self.rows = rows
        self.entity_type = entity_type
        self._images = images
        self._schemas, self._which = images.schemas_of(head.versions[rows])
        self.written = [*map(self._columns_in, self._schemas)]
        """The columns of the entity type in each schema that the rows were written with."""
        self._ids = [frozenset(each.id for each in one if each.id) for one in self.written]
        self._version = int(
            head.versions[rows].max()
        )  # rows of a state are in no order of versions
        places = pa.array(rows)
        before, after = images.before().take(places), images.after().take(places)
        self._texts = pa.concat_arrays([before, after])
        self._has_before, self._has_after = (
            each.is_valid().to_numpy(zero_copy_only=False) for each in (before, after)
        )
        removes = head.operations[rows] != Operation.UPSERT
        # Only an insert has neither: an update whose `before` was not sent names all columns as changed.
        updates = head.names.array.take(places).is_valid().to_numpy(zero_copy_only=False)
        self._was_there = self._has_before | updates | removes
        self._key_only = self._may_lack_values(head.operations[rows], head.versions[rows])
        """Removals whose image may hold nothing but the key: NULL says nothing there."""
        self._decoded: dict[Column, _Decoded] = {}
        self._open_places: dict[Sequence[Column], NDArray[np.intp]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the images."""
        return int(pc.sum(pc.binary_length(self._texts)).as_py() or 0)

    def _may_lack_values(
        self, operations: NDArray[np.uint8], versions: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        # What expires is removed by the log itself, with the image that it has.
        removes: NDArray[np.bool_] = operations == Operation.REMOVE
        if not removes.any():
            return removes
        has_keys = any(column.key for each in self.written for column in each)
        found: NDArray[np.bool_] = removes & has_keys
        return found & ~self._images.whole_removals.of(self.entity_type, versions)

    def _columns_in(self, schema: Schema) -> Sequence[Column]:
        return schema.entity_types.get(self.entity_type, ())

    def names_of(self, columns: Iterable[Column]) -> set[str]:
        """Return the names that some columns have in the versions of the rows."""
        ids = {column.id for column in columns}
        return {each.name for written in self.written for each in written if each.id in ids}

    def fitted(self, condition: RowCondition) -> RowFilter:
        """Return what judges these images of a condition.

        Raises:
            ConditionRefused: As ``RowCondition.fitted``. Or the entity type had its name from another one at a
                version: each column would be NULL there, and so the condition true or false of every row.
        """
        if not all(map(condition.is_of, self._ids)):
            raise ConditionRefused(
                f"where: {self.entity_type!r} was renamed, and another entity type has that name: around "
                f"version {self._version} it is not the one that the condition was checked against; ask anew, "
                "for versions of one of them"
            )
        return condition.fitted(self.written[-1], self._version)

    def decode(self, columns: Iterable[Column]) -> None:
        """Decode those of some columns that are not decoded yet, together."""
        wanted = [each for each in dict.fromkeys(columns) if each not in self._decoded]
        if not wanted:
            return
        # 1. Read, in columns that are told apart by number: one may be wanted in two types, or by two names.
        reader = ColumnReader(
            [replace(column, name=str(number)) for number, column in enumerate(wanted)]
            if all(column.id for column in wanted)
            else wanted,
            stated=self._images.stated(),
            placeholders=self._schemas[-1].placeholders,
            on_misfit=OnMisfit.NULL,
        )
        found = reader.read_mixed(self._texts, self.written, np.tile(self._which, 2))
        # 2. Which values before are not known, though the row was there.
        for number, column in enumerate(wanted):
            array = found.batch.column(number)
            present = found.present[reader.columns[number].name]
            self._decoded[column] = _Decoded(array, self._unknown(array, present))

    def column(self, column: Column) -> pa.Array:
        """Return the values of a column, those before and those after."""
        self.decode((column,))
        return self._decoded[column].array

    def misses_values(self, columns: Iterable[Column]) -> bool:
        """Return whether an image before does not tell a value of some decoded columns."""
        return any(self._decoded[column].unknown is not None for column in columns)

    def open_places(self, columns: Sequence[Column]) -> NDArray[np.intp]:
        """Return the rows of which nobody knows the values before of all of some decoded columns."""
        found = self._open_places.get(columns)
        if found is None:
            is_open = self._was_there & ~self._has_before
            for column in columns:
                if (unknown := self._decoded[column].unknown) is not None:
                    is_open |= unknown
            found = self._open_places[columns] = np.flatnonzero(is_open)
        return found

    def verdict(
        self,
        row_filter: RowFilter,
        *,
        asks_null: bool,
        places: NDArray[np.intp] | None = None,
    ) -> ImageVerdict:
        """Return what a condition says of the rows, whose columns are decoded if they are not yet.

        Args:
            row_filter: The condition, ``fitted``.
            asks_null: Whether it can be true of a value that is missing.
            places: Those of the rows that are to be judged; None: all.
        """
        images = self._images_of(row_filter.columns, places)
        decoded = (self._decoded[column].unknown for column in row_filter.columns)
        unknown = [each for each in decoded if each is not None]
        has_before, has_after, was_there = self._has_before, self._has_after, self._was_there
        if places is not None:
            unknown = [each[places] for each in unknown]
            has_before, has_after = has_before[places], has_after[places]
            was_there = was_there[places]
        count = len(has_before)
        mask = row_filter.mask.of(images)
        is_true = pc.fill_null(mask, False).to_numpy(zero_copy_only=False)
        was_in = is_true[:count] & has_before
        may_have_been = was_there & ~has_before
        if unknown:
            # What is true or false whatever the missing value stays so, unless it was asked whether it is NULL.
            open_ones = reduce(np.logical_or, unknown)
            if not asks_null:
                open_ones = open_ones & mask.is_null().to_numpy(zero_copy_only=False)[:count]
            may_have_been |= open_ones
            was_in &= ~open_ones
        return ImageVerdict(was_in, may_have_been, is_true[count:] & has_after)

    def bits(
        self, masks: Sequence[Mask], columns: Sequence[Column], places: NDArray[np.intp] | None
    ) -> NDArray[np.uint8]:
        """Return of which images all of some conditions are true, as bits of ``transitions`` for each row.

        An image that is not there is as one of NULLs.

        Args:
            masks: The conditions, at least one.
            columns: The columns that they need.
            places: Those of the rows that are to be judged; None: all.
        """
        images = self._images_of(columns, places)
        found = reduce(pc.and_, (pc.fill_null(mask.of(images), False) for mask in masks))
        is_true = found.to_numpy(zero_copy_only=False)
        count = len(is_true) // 2
        bits: NDArray[np.uint8] = is_true[:count] * np.uint8(WAS_IN)
        bits |= is_true[count:] * np.uint8(IS_IN)
        return bits

    def _images_of(
        self, columns: Sequence[Column], places: NDArray[np.intp] | None
    ) -> pa.RecordBatch:
        """Return columns of the images, those before and those after; decode what is not decoded yet."""
        self.decode(columns)
        arrays = [self._decoded[column].array for column in columns]
        images = pa.record_batch(arrays, [column.name for column in columns])
        if places is None:
            return images
        return images.take(pa.array(np.concatenate([places, places + len(self.rows)])))

    def _unknown(self, array: pa.Array, present: pa.BooleanArray) -> NDArray[np.bool_] | None:
        count = len(self.rows)
        # 1. A removal of which the source sent the key alone.
        found = None
        if self._key_only.any():
            null = array.is_null().to_numpy(zero_copy_only=False)[:count]
            found = null & self._key_only & self._has_before
        # 2. A value in whose place a placeholder stands. Few images lack a value that is asked for.
        absent = ~present.to_numpy(zero_copy_only=False)[:count] & self._has_before
        if absent.any():
            places = np.flatnonzero(absent)
            texts = self._texts.take(pa.array(places))
            marks = unavailable(self._schemas[-1].placeholders).marks
            held = reduce(pc.or_, (pc.match_substring(texts, mark) for mark in marks))
            kept = np.zeros(count, np.bool_)
            kept[places] = held.to_numpy(zero_copy_only=False)
            found = kept if found is None else found | kept
        return found if found is not None and found.any() else None
