"""The table of record batches and the table of commits: what a position, a row or a time is looked up in.

Both are columns of int64 that only grow, so a view of the log is a reference to the columns and a length:
taking one costs nothing, and what it sees never changes. A trim or a compaction makes a new table; older
views keep the old one. At 100,000 batches the columns take 14 MB,
what is known of the segments 9 MB (segment_table.py).
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.position import Position
from tailrace_server.wal.segment.refs import BatchRef
from tailrace_server.wal.state.segment_table import GrowingColumns, SegmentTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from tailrace_server.wal.segment.refs import SegmentRef

    Columns = npt.NDArray[np.int64]

BATCH_FIELDS: Final = (
    "offset",
    "length",
    "head_length",
    "rows",
    "first_version",
    "first_index",
    "last_version",
    "last_index",
    "head_crc32c",
    "change_length",
    "before_length",
    "after_length",
    "nullable_bodies",
    "change_crc32c",
    "before_crc32c",
    "after_crc32c",
    "first_row",
)
"""The columns that describe a batch, by their names in entries and checkpoints; see docs/wal-format.md."""

RECEIPT_FIELDS: Final = len(BATCH_FIELDS) - 1
"""A receipt lacks the last one."""

ROWS: Final = BATCH_FIELDS.index("rows")
FIRST_VERSION: Final = BATCH_FIELDS.index("first_version")
FIRST_INDEX: Final = BATCH_FIELDS.index("first_index")
LAST_VERSION: Final = BATCH_FIELDS.index("last_version")
LAST_INDEX: Final = BATCH_FIELDS.index("last_index")
FIRST_ROW: Final = BATCH_FIELDS.index("first_row")
SEGMENT: Final = len(BATCH_FIELDS)
"""Place of a batch's segment in the table's list."""

_WIDTH: Final = len(BATCH_FIELDS) + 1


class BatchTable(GrowingColumns):
    """The batches of a log, in its order, and the segments that they lie in."""

    __slots__ = ("segments",)

    def __init__(self) -> None:
        super().__init__(_WIDTH)
        self.segments = SegmentTable()
        """In the order of the log."""

    @property
    def nbytes(self) -> int:
        """Bytes of what is in it and in the table of segments, without the room for what is to come."""
        return super().nbytes + self.segments.nbytes

    def append_batch(self, segment: SegmentRef, batch: Iterable[int]) -> None:
        """Append a segment of one batch, numbers in the order of BATCH_FIELDS."""
        place = len(self.segments)
        self.segments.add([segment])
        self.append_row((*batch, place))

    def append_segment(self, segment: SegmentRef, batches: Columns) -> None:
        """Append a segment's batches, shape (len(BATCH_FIELDS), n)."""
        place = len(self.segments)
        self.segments.add([segment])
        self.append([*batches, np.full(batches.shape[1], place)])

    def slice(self, start: int, stop: int | None = None) -> BatchTable:
        """Return a new table of some of the batches, and of the segments that they need."""
        chosen = self._columns[:, start : self._length if stop is None else stop]
        table = BatchTable()
        if chosen.shape[1]:
            first, last = int(chosen[SEGMENT, 0]), int(chosen[SEGMENT, -1])
            table.segments = self.segments.slice(first, last + 1)
            table.append(chosen)
            table.columns[SEGMENT, : len(table)] -= first
        return table

    def extend(self, other: BatchTable) -> None:
        """Append all of another table's batches and segments."""
        added = other.columns[:, : len(other)].copy()
        added[SEGMENT] += len(self.segments)
        self.segments.extend(other.segments)
        self.append(added)


class CommitTable(GrowingColumns):
    """First version and commit timestamp, µs, of every commit that has versions; both rise."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(2)

    def add(self, first_version: int, timestamp: int) -> None:
        """Append one commit."""
        self.append_row((first_version, timestamp))


def batch_ref(segments: SegmentTable, columns: Columns, place: int) -> BatchRef:
    """Return the batch at a place of a table's columns."""
    values: list[int] = [*map(columns.item, range(_WIDTH), repeat(place))]
    return ref_of(segments[values[SEGMENT]], values)


def ref_of(segment: SegmentRef, values: Sequence[int]) -> BatchRef:
    """Return the batch of a segment that numbers describe, in the order of BATCH_FIELDS."""
    return BatchRef(
        segment=segment,
        offset=values[0],
        length=values[1],
        head_length=values[2],
        rows=values[3],
        first=Position(values[4], values[5]),
        last=Position(values[6], values[7]),
        first_row=values[FIRST_ROW],
        crc_head=values[8],
        crc_body=(values[13], values[14], values[15]),
        body_lengths=(values[9], values[10], values[11]),
        body_nullable=values[12],
    )


def find_position(columns: Columns, length: int, position: Position) -> int:
    """Return the first of ``length`` batches whose last position is at or after one; ``length`` if none is."""
    versions = columns[LAST_VERSION, :length]
    start = int(np.searchsorted(versions, position.version, "left"))
    if start < length and versions[start] == position.version:
        stop = int(np.searchsorted(versions, position.version, "right"))
        return start + int(np.searchsorted(columns[LAST_INDEX, start:stop], position.index, "left"))
    return start


def find_row(columns: Columns, length: int, row: int) -> int:
    """Return the batch that holds a running number: the first for a lower one, ``length`` past the last row."""
    if not length:
        return 0
    last = columns.item(FIRST_ROW, length - 1)
    if row >= last:  # what is asked mostly, so numpy is not
        return length - (row < last + columns.item(ROWS, length - 1))
    return max(0, int(np.searchsorted(columns[FIRST_ROW, :length], row, "right")) - 1)


def end_of_rows(table: BatchTable, count: int, end_row: int) -> int:
    """Return the running number after the first ``count`` batches of a table that ends at ``end_row``."""
    return int(table.columns[FIRST_ROW, count]) if count < len(table) else end_row


__all__ = [
    "BATCH_FIELDS",
    "FIRST_INDEX",
    "FIRST_ROW",
    "FIRST_VERSION",
    "LAST_INDEX",
    "LAST_VERSION",
    "RECEIPT_FIELDS",
    "ROWS",
    "SEGMENT",
    "BatchTable",
    "CommitTable",
    "batch_ref",
    "end_of_rows",
    "find_position",
    "find_row",
    "ref_of",
]
