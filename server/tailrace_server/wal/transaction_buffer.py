"""The buffer of transactions that a writer has accepted and not committed yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tailrace_server.wal.record.columns import TEXT_SCHEMA
from tailrace_server.wal.segment.carried import BYTES_MAX, ROWS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tailrace.schema import Schema
    from tailrace_server.wal.segment.carried import CarriedSegment
    from tailrace_server.wal.segment.writer import SegmentReceipt

_BATCH_BYTES: Final = 256 << 20
"""Maximum size of the images in a batch of buffered records, in bytes; a single record may have more."""

_Mark = tuple[int, int, int, int, dict[str, bool]]


@dataclass(slots=True)
class Buffer:
    """Buffered records: first whole batches, then single records as one list per column."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    columns: tuple[list[Any], ...] = field(default_factory=lambda: tuple([] for _ in TEXT_SCHEMA))
    transactions: int = 0
    schema_changes: list[tuple[int, Schema]] = field(default_factory=list)
    bytes: int = 0
    """Total size of the images in ``columns``, in bytes."""
    removals: dict[str, bool] = field(default_factory=dict)
    """Entity types with removed rows → True if the image of a removed row may lack values."""

    def add(self, *values: Any) -> None:
        """Add a record, given as its values in the order of the columns."""
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)
        self.bytes += sum(len(image) for image in values[-3:] if image is not None)

    def add_batches(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Add batches of records after all other records."""
        self.batches += [*self._batches_of_columns(), *batches]
        self.columns, self.bytes = tuple([] for _ in TEXT_SCHEMA), 0

    @property
    def small(self) -> bool:
        """True if a commit's entry can carry the buffered records."""
        if self.batches:  # they are made of many rows
            return False
        return len(self.columns[0]) <= ROWS_MAX and self.bytes <= BYTES_MAX

    def mark(self) -> _Mark:
        """Return a mark for ``drop``; it is valid until ``add_batches`` is called."""
        rows, schema_changes = len(self.columns[0]), len(self.schema_changes)
        return rows, schema_changes, self.transactions, self.bytes, {**self.removals}

    def drop(self, mark: _Mark) -> None:
        """Drop all records that were added after a mark."""
        rows, schema_changes, self.transactions, self.bytes, self.removals = mark
        for column in self.columns:
            del column[rows:]
        del self.schema_changes[schema_changes:]

    def all_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all records as batches; single records are converted one batch at a time."""
        yield from self.batches
        yield from self._batches_of_columns()

    def note_removals(self, removals: Mapping[str, bool], *, whole: bool) -> None:
        """Add the result of `removals_in`; unless ``whole``, any image of a removed row may lack values."""
        for entity_type, lacking in removals.items():
            lacking |= not whole or self.removals.get(entity_type, False)
            self.removals[entity_type] = lacking

    def _batches_of_columns(self) -> Iterator[pa.RecordBatch]:
        # Arrow counts the bytes of a column in 32 bits, so a buffer with many large images needs several
        # batches.
        rows, starts, size = len(self.columns[0]), [0], 0
        if self.bytes > _BATCH_BYTES:
            for row, images in enumerate(zip(*self.columns[-3:], strict=True)):
                size += sum(len(image) for image in images if image is not None)
                if size > _BATCH_BYTES and row > starts[-1]:
                    starts.append(row)
                    size = sum(len(image) for image in images if image is not None)
        return (self._batch(start, stop) for start, stop in pairwise([*starts, rows]) if stop)

    def _batch(self, start: int, stop: int) -> pa.RecordBatch:
        columns = zip(self.columns, TEXT_SCHEMA, strict=True)
        arrays = [pa.array(column[start:stop], each.type) for column, each in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=TEXT_SCHEMA)


@dataclass(slots=True)
class Attempt:
    """A commit that has begun. After a failure it is repeated unchanged before anything else is committed."""

    batch_id: int
    segments: Sequence[CarriedSegment | SegmentReceipt]
    schema_changes: list[tuple[int, Schema]]
    removals: Mapping[str, bool]
    source_positions: Mapping[str, str | int]
