"""The tables of record batches, segments and commits, in which a position, a row or a time is looked up.

Each has columns of int64 that only grow, so a view of the log is a reference to the columns and a length:
taking a view costs nothing, and its content never changes. A trim or a compaction makes a new table; older
views keep the old one. At 100,000 batches the columns take 14 MB and the segments 9 MB.

A segment takes 56 bytes and its path, and no Python objects, since a log has so many: five numbers, and seldom
used values, which lie packed end to end in a buffer of bytes::

    numbers   base_version  rows  bytes   path_start path_length   shape_start shape_length
    packed    …segments/7/orders-41-0.arrow⟨shape⟩segments/7/orders-42-0.arrow…
                                              ▲
    shape     MessagePack of [prefix, counts]; a segment whose shape is that of the one before refers to it
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from tailrace.position import Position
from tailrace_server.wal.files.documents import ENTRIES, SegmentDocument
from tailrace_server.wal.files.sealed import object_name
from tailrace_server.wal.segment.carried import CarriedSegment
from tailrace_server.wal.segment.refs import BatchRef, Prefix, SegmentRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from tailrace_server.wal.segment.writer import SegmentReceipt

    Columns = npt.NDArray[np.int64]

_CAPACITY_MIN: Final = 64
_SPARE: Final = 4
"""Columns that are full get room for one part in so many more: they are large for as long as the log is."""
_BASE_VERSION, _ROWS, _BYTES, _PATH, _PATH_LENGTH, _SHAPE, _SHAPE_LENGTH = range(7)

Shape = tuple[Prefix, dict[str, int] | None]
"""The common part of many segments: ``prefix`` and ``counts``."""
_encode_shape: Final = msgspec.msgpack.Encoder().encode
_shape_decoder: Final[msgspec.msgpack.Decoder[Shape]] = msgspec.msgpack.Decoder(Shape)
_SHAPES_MAX: Final = 256


@lru_cache(maxsize=_SHAPES_MAX)
def _decode_shape(packed: bytes) -> Shape:
    """Return prefix and counts; one object for all segments that are alike, as most of a log's are."""
    return _shape_decoder.decode(packed)


class GrowingColumns:
    """Columns of int64 of equal length that only grow."""

    __slots__ = ("_columns", "_flat", "_length")

    def __init__(self, width: int) -> None:
        self._columns: Columns = np.empty((width, 0), np.int64)
        self._length = 0
        self._make_room(_CAPACITY_MIN)

    def __len__(self) -> int:
        return self._length

    @property
    def columns(self) -> Columns:
        """The columns; what lies past the length is undefined."""
        return self._columns

    @property
    def nbytes(self) -> int:
        """Bytes of the columns' content, without reserved space."""
        return self._length * len(self._columns) * self._columns.itemsize

    def append(self, added: Columns | Sequence[npt.NDArray[np.int64]]) -> None:
        """Append n numbers to each column: of shape (width, n), or an array for each.

        Raises:
            ValueError: They are not equally many.
        """
        count = len(added[0])
        if any(len(numbers) != count for numbers in added):
            raise ValueError(f"columns of {[*map(len, added)]} numbers")
        self._make_room(self._length + count)
        for column, numbers in zip(self._columns, added, strict=True):
            column[self._length : self._length + count] = numbers
        self._length += count

    def append_row(self, numbers: Iterable[int]) -> None:
        """Append one number to each column."""
        self._make_room(self._length + 1)
        flat, at, step = self._flat, self._length, self._columns.shape[1]
        for number in numbers:
            flat[at] = number
            at += step
        self._length += 1

    def last(self, column: int) -> int:
        """Return the newest number of a column."""
        return int(self._flat[column * self._columns.shape[1] + self._length - 1])

    def count_up_to(self, column: int, number: int) -> int:
        """Return how many values of a sorted column are less than or equal to a number."""
        if not self._length or self.last(column) <= number:
            return self._length  # what is asked mostly, so numpy is not
        return int(self._columns[column, : self._length].searchsorted(number, "right"))

    def _make_room(self, length: int) -> None:
        if length > self._columns.shape[1]:
            room = max(length, self._length + self._length // _SPARE + _CAPACITY_MIN)
            grown = np.empty((len(self._columns), room), np.int64)
            grown[:, : self._length] = self._columns[:, : self._length]
            self._columns = grown
            self._flat = grown.data.cast("B").cast("q")
            """The same memory, column after column."""


class SegmentTable(GrowingColumns):
    """The segments of a log, in log order; a SegmentRef is made on request."""

    __slots__ = ("_newest_shape", "_newest_shape_place", "_packed")

    def __init__(self) -> None:
        super().__init__(_SHAPE_LENGTH + 1)
        self._packed = bytearray()
        self._newest_shape: tuple[object, object] | None = None
        """Of the segment that ``add`` has added last, and where it is packed; None where it is not known."""
        self._newest_shape_place = (0, 0)

    def __getitem__(self, place: int) -> SegmentRef:
        """Return the segment at a place, 0 the oldest."""
        if not 0 <= place < self._length:
            raise IndexError(f"segment {place} of {self._length}")
        numbers: list[Any] = [*map(self._columns.item, range(len(self._columns)), repeat(place))]
        base_version, rows, size, path, path_length, shape, shape_length = numbers
        prefix, counts = _decode_shape(bytes(self._packed[shape : shape + shape_length]))
        return SegmentRef(
            path=self._packed[path : path + path_length].decode(),
            base_version=base_version,
            prefix=prefix,
            rows=rows,
            bytes=size,
            counts=counts,
        )

    def __iter__(self) -> Iterator[SegmentRef]:
        """Iterate over the segments, oldest first."""
        return map(self.__getitem__, range(self._length))

    @property
    def nbytes(self) -> int:
        """Bytes of the table's content, without reserved space."""
        return super().nbytes + len(self._packed)

    @property
    def rows(self) -> Columns:
        """Records of each segment."""
        return self._columns[_ROWS, : self._length]

    @property
    def sizes(self) -> Columns:
        """Bytes of each segment."""
        return self._columns[_BYTES, : self._length]

    def paths(self, start: int = 0, stop: int | None = None) -> list[str]:
        """Return the paths of some of the segments, oldest first."""
        places = slice(start, self._length if stop is None else stop)
        starts, lengths = self._columns[_PATH : _PATH_LENGTH + 1, places].tolist()
        packed = self._packed
        return [
            packed[at : at + length].decode() for at, length in zip(starts, lengths, strict=True)
        ]

    def add(self, segments: Iterable[SegmentRef]) -> None:
        """Append segments."""
        for segment, shape in self._with_shapes(segments):
            numbers = segment.base_version, segment.rows, segment.bytes
            self.append_row((*numbers, *self._pack(segment.path.encode()), *shape))

    def slice(self, start: int, stop: int) -> SegmentTable:
        """Return a new table of some of the segments."""
        table = SegmentTable()
        chosen = self._columns[:, start : min(stop, self._length)].copy()
        if chosen.shape[1]:
            # All that is packed from the first one's path on, and before it the first one's shape, which
            # alone of those that are needed may lie before it.
            path, (shape, length) = int(chosen[_PATH, 0]), chosen[_SHAPE:, 0].tolist()
            end = int(chosen[_PATH, -1] + chosen[_PATH_LENGTH, -1])
            table._packed = self._packed[shape : shape + length] + self._packed[path:end]
            chosen[_PATH] += length - path
            chosen[_SHAPE] = np.where(chosen[_SHAPE] < path, 0, chosen[_SHAPE] + length - path)
            table.append(chosen)
        return table

    def extend(self, other: SegmentTable) -> None:
        """Append all of another table's segments."""
        added = other._columns[:, : len(other)].copy()
        added[_PATH] += len(self._packed)
        added[_SHAPE] += len(self._packed)
        self._packed += other._packed
        self._newest_shape = None
        self.append(added)

    def _with_shapes(
        self, segments: Iterable[SegmentRef]
    ) -> Iterator[tuple[SegmentRef, tuple[int, int]]]:
        """Yield each segment with where its shape is packed."""
        before, place = self._newest_shape, self._newest_shape_place
        for segment in segments:
            shape = (segment.prefix, segment.counts)
            if shape != before:
                before, place = shape, self._pack(_encode_shape(shape))
            yield segment, place
        self._newest_shape, self._newest_shape_place = before, place

    def _pack(self, data: bytes) -> tuple[int, int]:
        """Append bytes to what is packed; return where they begin, and how many they are."""
        start = len(self._packed)
        self._packed += data
        return start, len(data)


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
    """The batches of a log, in log order, and their segments."""

    __slots__ = ("segments",)

    def __init__(self) -> None:
        super().__init__(_WIDTH)
        self.segments = SegmentTable()
        """In the order of the log."""

    @property
    def nbytes(self) -> int:
        """Bytes of the content of this table and the table of segments, without reserved space."""
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
    """The first version and commit timestamp, µs, of every commit that has versions; both columns rise."""

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


def carried_records(
    segments: Sequence[SegmentReceipt | CarriedSegment],
) -> tuple[bytes, list[SegmentReceipt]]:
    """Return the records that an entry is to carry, if any, and the receipts of all segments."""
    data, receipts = b"", []
    for place, segment in enumerate(segments):
        if isinstance(segment, CarriedSegment):
            assert place == 0, "an entry carries one segment, its first"
            data = segment.data
            receipts.append(segment.receipt)
        else:
            receipts.append(segment)
    return data, receipts


def place_segments(
    receipts: Sequence[SegmentReceipt], last_version: int, end_row: int, *, entry: int
) -> list[SegmentDocument]:
    """Give segments their versions and their records running numbers; one without a path is the entry's own."""
    placed: list[SegmentDocument] = []
    for receipt in receipts:
        if receipt.continues and not placed:
            raise ValueError(
                f"{receipt.path} continues a transaction, but no segment comes before it"
            )
        base = last_version if receipt.continues else last_version + 1
        columns = list(map(list, zip(*receipt.batches, strict=True)))
        for place in (FIRST_VERSION, LAST_VERSION):
            columns[place] = [base + version for version in columns[place]]
        columns.append(list(accumulate(columns[ROWS][:-1], initial=end_row)))
        placed.append(
            SegmentDocument(
                path=receipt.path or f"{ENTRIES}/{object_name(entry)}",
                rows=receipt.rows,
                bytes=receipt.bytes,
                base_version=base,
                first=(columns[FIRST_VERSION][0], columns[FIRST_INDEX][0]),
                last=(columns[LAST_VERSION][-1], columns[LAST_INDEX][-1]),
                counts=receipt.counts,
                prefix=list(receipt.prefix),
                batches=dict(zip(BATCH_FIELDS, columns, strict=True)),
            )
        )
        last_version = placed[-1].last[0]
        end_row += receipt.rows
    return placed
