"""Typed columns of the images of one batch, decoded once for all conditions that read them.

The images before and after are put into one array, so that a condition is evaluated once for both kinds::

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
from tailrace.errors import ColumnsChanged
from tailrace_server.filters.evaluation import truth_of
from tailrace_server.filters.tree import ConditionRefused, ValuesNotCarried
from tailrace_server.rows.transitions import (
    IS_IN,
    MAY_BE_IN,
    MAY_HAVE_BEEN,
    WAS_IN,
    ImageVerdict,
    RowsFound,
)
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.typed.reader import ColumnReader, UnknownValues, with_nulls

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Column, Schema
    from tailrace_server.filters.evaluation import Mask, RowFilter
    from tailrace_server.rows.batch_images import Images
    from tailrace_server.rows.row_condition import RowCondition
    from tailrace_server.wal.segment.reader import BatchHead


class _Decoded(NamedTuple):
    """One column of the images: first the values before, then those after."""

    array: pa.Array
    unknown: UnknownValues | None
    """The images whose value is unknown; None: every value is known."""


class UnknownValue(NamedTuple):
    """A value that a condition needs and that is unknown."""

    image: str
    """The image that should have the value: "before" or "after"."""
    column: str
    """The column's name in the condition."""
    exists: bool
    """True if the source sent a value, but the column's type cannot hold it."""
    is_key_only: bool
    """True if the image is that of a removed row and may have the key alone."""


class TypedImages:
    """The images of some rows of one entity type in one batch, as typed columns that are decoded on demand."""

    def __init__(
        self, head: BatchHead, images: Images, entity_type: str, rows: NDArray[np.int32]
    ) -> None:
        """Select rows, in rising order and at least one; nothing is decoded yet."""
        self.rows = rows
        self.entity_type = entity_type
        self._images = images
        self._schemas, self.which = images.schemas_of(head.versions[rows])
        # ``which`` has for each row the index of its schema's columns in ``written``.
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
        # Only an insert has neither `before` nor changed columns:
        # an update without `before` names all columns as changed.
        updates = head.names.array.take(places).is_valid().to_numpy(zero_copy_only=False)
        self._was_there = self._has_before | updates | removes
        self._key_only = self._may_lack_values(head.operations[rows], head.versions[rows])
        """Mask of the removals whose image may have the key alone: a NULL in it may be an unknown value."""
        self._decoded: dict[Column, _Decoded] = {}
        self._open_rows: dict[Sequence[Column], RowsFound] = {}

    @property
    def nbytes(self) -> int:
        """Size of the images in bytes."""
        return int(pc.sum(pc.binary_length(self._texts)).as_py() or 0)

    def _may_lack_values(
        self, operations: NDArray[np.uint8], versions: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        # An EXPIRE is written by the ingest itself, with the
        # whole image of the row. Only a REMOVE may lack values.
        removes: NDArray[np.bool_] = operations == Operation.REMOVE
        if not removes.any():
            return removes
        return removes & ~self._images.whole_removals.of(self.entity_type, versions)

    def _columns_in(self, schema: Schema) -> Sequence[Column]:
        return schema.entity_types.get(self.entity_type, ())

    def names_of(self, columns: Iterable[Column]) -> set[str]:
        """Return all names that some columns have in the versions of the rows."""
        # A column that was renamed has several names.
        ids = {column.id for column in columns}
        return {each.name for written in self.written for each in written if each.id in ids}

    def unknown_value(self, condition: RowCondition) -> UnknownValue | None:
        """Return the first unknown value that a condition needs of the first row.

        The condition must be undecided for this row. None: the row's image before is missing.
        """
        row_filter = self.fitted(condition)
        verdict = self.verdict(row_filter)
        image = "before" if verdict.may_have_been[0] else "after"
        if image == "before" and not self._has_before[0]:
            return None
        place = 0 if image == "before" else len(self.rows)
        for column in row_filter.columns:
            unknown = self._decoded[column].unknown
            if unknown is not None and unknown.rows[place]:
                is_key_only = image == "before" and bool(self._key_only[0])
                return UnknownValue(image, column.name, bool(unknown.exists[place]), is_key_only)
        raise AssertionError("every value of the row is known")

    def fitted(self, condition: RowCondition) -> RowFilter:
        """Return the filter of a condition, fitted to the newest columns of these images.

        Raises:
            ConditionRefused: ``RowCondition.fitted`` raises it. Or another entity type had the name in one of
                the versions: there each column would be NULL, so the condition would be true of every row or of
                none.
            ColumnsChanged: The new type of a compared column may not hold its earlier values.
        """
        if not all(map(condition.is_of, self._ids)):
            raise ConditionRefused(
                f"where: {self.entity_type!r} was renamed, and another entity type has that name: around "
                f"version {self._version} it is not the one that the condition was checked against; ask anew, "
                "for versions of one of them"
            )
        try:
            return condition.fitted(self.written[-1], self._version)
        except ValuesNotCarried as error:
            reason = f"is {error.now} now, which may not hold its earlier values"
            raise ColumnsChanged(self.entity_type, error.column, reason) from None

    def decode(self, columns: Iterable[Column]) -> None:
        """Decode columns in one pass, except those that are already decoded."""
        wanted = [each for each in dict.fromkeys(columns) if each not in self._decoded]
        if not wanted:
            return
        # 1. Read the columns under numbers as names: one column may be wanted in two types, or by two names.
        reader = ColumnReader(
            [replace(column, name=str(number)) for number, column in enumerate(wanted)]
            if all(column.id for column in wanted)
            else wanted,
            stated=self._images.stated(),
            placeholders=self._schemas[-1].placeholders,
            on_misfit=OnMisfit.NULL,
        )
        found = reader.read_mixed(self._texts, self.written, np.tile(self.which, 2))
        # 2. Note the values that are unknown although their image exists.
        for number, column in enumerate(wanted):
            array = found.batch.column(number)
            unknown = found.unknown.get(reader.columns[number].name)
            self._decoded[column] = _Decoded(array, self._unknown(array, unknown))

    def column(self, column: Column) -> pa.Array:
        """Return the values of a column: first those before, then those after."""
        self.decode((column,))
        return self._decoded[column].array

    def misses_values(self, columns: Iterable[Column]) -> bool:
        """Return True if an existing image has an unknown value in one of some decoded columns."""
        return any(self._decoded[column].unknown is not None for column in columns)

    def open_rows(self, columns: Sequence[Column]) -> RowsFound:
        """Return the rows with an unknown value in some decoded columns, as ``MAY_…`` bits for each image.

        A row whose image before is missing, though the row existed, is one of them.
        """
        found = self._open_rows.get(columns)
        if found is None:
            bits = (self._was_there & ~self._has_before) * np.uint8(MAY_HAVE_BEEN)
            count = len(bits)
            for column in columns:
                if (unknown := self._decoded[column].unknown) is not None:
                    bits |= unknown.rows[:count] * np.uint8(MAY_HAVE_BEEN)
                    bits |= unknown.rows[count:] * np.uint8(MAY_BE_IN)
            places = np.flatnonzero(bits)
            found = self._open_rows[columns] = RowsFound(places, bits[places])
        return found

    def verdict(
        self, row_filter: RowFilter, *, places: NDArray[np.intp] | None = None
    ) -> ImageVerdict:
        """Evaluate a condition on the rows; columns that it needs are decoded on first use.

        Args:
            row_filter: The condition, ``fitted``.
            places: Indexes into ``rows`` of the rows to evaluate; None: all rows.
        """
        # One array has the images before, then the images after: evaluate both at once, and split the result.
        images = self._images_of(row_filter.columns, places)
        has_before, has_after, was_there = self._has_before, self._has_after, self._was_there
        decoded = ((column.name, self._decoded[column].unknown) for column in row_filter.columns)
        unknown = {name: values for name, values in decoded if values is not None}
        if places is not None:
            has_before, has_after = has_before[places], has_after[places]
            was_there = was_there[places]
            both = np.concatenate([places, places + len(self.rows)])
            unknown = {
                name: UnknownValues(values.rows[both], values.exists[both])
                for name, values in unknown.items()
            }
        is_true, is_undecided = truth_of(row_filter.mask, images, unknown)
        count = len(has_before)
        may_be_in = is_undecided[count:] & has_after
        if row_filter.granted is not None and may_be_in.any():
            # A grant covers only rows that certainly meet it. So an image may be visible as undecided only if
            # the reader's own condition is the undecided one.
            may_be_in &= truth_of(row_filter.granted, images, unknown).is_true[count:]
        # A missing image never matches. But if a row existed and
        # its image before was not sent, it may have matched.
        return ImageVerdict(
            was_in=is_true[:count] & has_before,
            may_have_been=np.where(has_before, is_undecided[:count], was_there),
            is_in=is_true[count:] & has_after,
            may_be_in=may_be_in,
        )

    def bits(
        self, masks: Sequence[Mask], columns: Sequence[Column], places: NDArray[np.intp] | None
    ) -> NDArray[np.uint8]:
        """Return for each row the bits ``WAS_IN`` and ``IS_IN``: the images that meet all of some conditions.

        A missing image is evaluated like an image of NULLs.

        Args:
            masks: The conditions, at least one.
            columns: The columns that the conditions need.
            places: Indexes into ``rows`` of the rows to evaluate; None: all rows.
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
        """Return columns of the images, first those before, then those after; decode them on first use."""
        self.decode(columns)
        arrays = [self._decoded[column].array for column in columns]
        images = pa.record_batch(arrays, [column.name for column in columns])
        if places is None:
            return images
        return images.take(pa.array(np.concatenate([places, places + len(self.rows)])))

    def _unknown(self, array: pa.Array, unknown: UnknownValues | None) -> UnknownValues | None:
        """Add to the unknown values those of removed rows whose image may have the key alone."""
        if not self._key_only.any():
            return unknown
        lacking = np.zeros(len(array), np.bool_)
        lacking[: len(self.rows)] = self._key_only & self._has_before
        return with_nulls(unknown, array, lacking)
