"""The tables of record batches, segments and commits, in which a position, a row or a time is looked up.

Each table has columns of int64 that only grow. A view of the log is a reference to the columns and a length, so
making a view copies nothing, and its content never changes. A trim or a compaction makes a new table; older
views keep the old one. At 100,000 batches the columns take 14 MB and the segments 9 MB.

A log has many segments, so a segment takes 56 bytes and its path, and no Python objects. Its seven numbers are
in columns. Its rarely used values are packed end to end in a buffer of bytes, to which the numbers refer::

    numbers   base_version  rows  bytes   path_start path_length   shape_start shape_length
    packed    …segments/7/orders-41-0.arrow⟨shape⟩segments/7/orders-42-0.arrow…
                                              ▲
    shape     MessagePack of [prefix, counts]; a segment with the shape of the segment before refers to that
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
"""Full columns grow by 1/4 of their length. Doubling would waste more: unused room is held for as long as
the log is open."""
_BASE_VERSION, _ROWS, _BYTES, _PATH, _PATH_LENGTH, _SHAPE, _SHAPE_LENGTH = range(7)

Shape = tuple[Prefix, dict[str, int] | None]
"""The values that many segments have in common: ``prefix`` and ``counts``."""
_encode_shape: Final = msgspec.msgpack.Encoder().encode
_shape_decoder: Final[msgspec.msgpack.Decoder[Shape]] = msgspec.msgpack.Decoder(Shape)
_SHAPES_MAX: Final = 256


@lru_cache(maxsize=_SHAPES_MAX)
def _decode_shape(packed: bytes) -> Shape:
    """Return prefix and counts; cached, so that the many segments with equal shapes share one object."""
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
        """The columns, shape (width, capacity); numbers at and past ``len(self)`` are undefined."""
        return self._columns

    @property
    def nbytes(self) -> int:
        """Size of the columns' content in bytes, without reserved space."""
        return self._length * len(self._columns) * self._columns.itemsize

    def append(self, added: Columns | Sequence[npt.NDArray[np.int64]]) -> None:
        """Append n numbers to each column.

        Args:
            added: An array of shape (width, n), or one array of n numbers for each column.

        Raises:
            ValueError: The columns do not get equally many numbers.
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
            # This is the most frequent request, so it is answered without a call of numpy.
            return self._length
        return int(self._columns[column, : self._length].searchsorted(number, "right"))

    def _make_room(self, length: int) -> None:
        if length > self._columns.shape[1]:
            room = max(length, self._length + self._length // _SPARE + _CAPACITY_MIN)
            grown = np.empty((len(self._columns), room), np.int64)
            grown[:, : self._length] = self._columns[:, : self._length]
            # Views keep the old array, whose content does not change any more.
            self._columns = grown
            self._flat = grown.data.cast("B").cast("q")
            """The same memory, column after column. Setting one number here is faster than through numpy."""


class SegmentTable(GrowingColumns):
    """The segments of a log, in log order. Each look-up makes a new SegmentRef."""

    __slots__ = ("_newest_shape", "_newest_shape_place", "_packed")

    def __init__(self) -> None:
        super().__init__(_SHAPE_LENGTH + 1)
        self._packed = bytearray()
        self._newest_shape: tuple[object, object] | None = None
        """Shape of the segment that was added last; None if it is unknown, so that the next shape is packed."""
        self._newest_shape_place = (0, 0)
        """Start and length of that shape in ``_packed``."""

    def __getitem__(self, place: int) -> SegmentRef:
        """Return the segment at a place; the oldest one is at place 0."""
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
        """Size of the table's content in bytes, without reserved space."""
        return super().nbytes + len(self._packed)

    @property
    def rows(self) -> Columns:
        """Number of records of each segment."""
        return self._columns[_ROWS, : self._length]

    @property
    def sizes(self) -> Columns:
        """Size of each segment in bytes."""
        return self._columns[_BYTES, : self._length]

    def paths(self, start: int = 0, stop: int | None = None) -> list[str]:
        """Return the paths of the segments from place ``start`` up to ``stop``, exclusive; None: to the end."""
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
        """Return a new table of the segments from place ``start`` up to ``stop``, exclusive."""
        table = SegmentTable()
        chosen = self._columns[:, start : min(stop, self._length)].copy()
        if chosen.shape[1]:
            # Copy the packed bytes from the first segment's path on. Only the first segment's shape may lie
            # before that path, packed for an earlier segment. So it is copied to the front, and references
            # are moved accordingly.
            path, (shape, length) = int(chosen[_PATH, 0]), chosen[_SHAPE:, 0].tolist()
            end = int(chosen[_PATH, -1] + chosen[_PATH_LENGTH, -1])
            table._packed = self._packed[shape : shape + length] + self._packed[path:end]
            # Paths move from their old start to the place after the copied shape. A shape before the first path
            # is the copied one, now at 0; the others move like paths.
            chosen[_PATH] += length - path
            chosen[_SHAPE] = np.where(chosen[_SHAPE] < path, 0, chosen[_SHAPE] + length - path)
            table.append(chosen)
        return table

    def extend(self, other: SegmentTable) -> None:
        """Append all of another table's segments."""
        added = other._columns[:, : len(other)].copy()
        # The other table's bytes are appended to ours, so its references move by the length of ours.
        added[_PATH] += len(self._packed)
        added[_SHAPE] += len(self._packed)
        self._packed += other._packed
        # The last segment is now one of ``other``, whose shape is not decoded here.
        self._newest_shape = None
        self.append(added)

    def _with_shapes(
        self, segments: Iterable[SegmentRef]
    ) -> Iterator[tuple[SegmentRef, tuple[int, int]]]:
        """Yield each segment with the start and the length of its packed shape; pack a shape that is new."""
        before, place = self._newest_shape, self._newest_shape_place
        for segment in segments:
            shape = (segment.prefix, segment.counts)
            if shape != before:
                before, place = shape, self._pack(_encode_shape(shape))
            yield segment, place
        self._newest_shape, self._newest_shape_place = before, place

    def _pack(self, data: bytes) -> tuple[int, int]:
        """Append bytes to ``_packed``; return their start and their length."""
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
"""Names of the columns that describe a batch, as in entries and checkpoints; see docs/wal-format.md."""

RECEIPT_FIELDS: Final = len(BATCH_FIELDS) - 1
"""Number of columns that a segment's receipt has: all except ``first_row``, which only the commit knows."""

ROWS: Final = BATCH_FIELDS.index("rows")
FIRST_VERSION: Final = BATCH_FIELDS.index("first_version")
FIRST_INDEX: Final = BATCH_FIELDS.index("first_index")
LAST_VERSION: Final = BATCH_FIELDS.index("last_version")
LAST_INDEX: Final = BATCH_FIELDS.index("last_index")
FIRST_ROW: Final = BATCH_FIELDS.index("first_row")
CRC_HEAD: Final = BATCH_FIELDS.index("head_crc32c")
SEGMENT: Final = len(BATCH_FIELDS)
"""Index of the column with the place of the batch's segment in ``BatchTable.segments``."""

_WIDTH: Final = len(BATCH_FIELDS) + 1


class BatchTable(GrowingColumns):
    """The batches of a log, in log order, and their segments."""

    __slots__ = ("segments",)

    def __init__(self) -> None:
        super().__init__(_WIDTH)
        self.segments = SegmentTable()
        """The segments of the batches, in log order."""

    @property
    def nbytes(self) -> int:
        """Bytes of the content of this table and the table of segments, without reserved space."""
        return super().nbytes + self.segments.nbytes

    def append_batch(self, segment: SegmentRef, batch: Iterable[int]) -> None:
        """Append a segment that has one batch; the batch's numbers are in the order of BATCH_FIELDS."""
        place = len(self.segments)
        self.segments.add([segment])
        self.append_row((*batch, place))

    def append_segment(self, segment: SegmentRef, batches: Columns) -> None:
        """Append a segment with n batches, given by columns of shape (len(BATCH_FIELDS), n)."""
        place = len(self.segments)
        self.segments.add([segment])
        self.append([*batches, np.full(batches.shape[1], place)])

    def slice(self, start: int, stop: int | None = None) -> BatchTable:
        """Return a new table of the batches from ``start`` up to ``stop``, exclusive, and of their segments."""
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
    """The commits that have versions: first version, and commit timestamp in microseconds; both rise."""

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
    """Return a batch of a segment, described by numbers in the order of BATCH_FIELDS."""
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
    """Return the place of the first batch that ends at or after a position; ``length`` if none does.

    Args:
        columns: The columns of a BatchTable.
        length: Number of batches to search.
        position: The position.
    """
    # First by version; then by index among the batches that end in that version.
    versions = columns[LAST_VERSION, :length]
    start = int(np.searchsorted(versions, position.version, "left"))
    if start < length and versions[start] == position.version:
        stop = int(np.searchsorted(versions, position.version, "right"))
        return start + int(np.searchsorted(columns[LAST_INDEX, start:stop], position.index, "left"))
    return start


def find_row(columns: Columns, length: int, row: int) -> int:
    """Return the place of the batch that has the record with a running number.

    Args:
        columns: The columns of a BatchTable.
        length: Number of batches to search.
        row: The running number. Below the first batch the result is 0, after the last one it is ``length``.
    """
    if not length:
        return 0
    last = columns.item(FIRST_ROW, length - 1)
    if row >= last:  # the most frequent request, so it is answered without a call of numpy
        return length - (row < last + columns.item(ROWS, length - 1))
    return max(0, int(np.searchsorted(columns[FIRST_ROW, :length], row, "right")) - 1)


def end_of_rows(table: BatchTable, count: int, end_row: int) -> int:
    """Return the running number after the first ``count`` batches of a table that ends at ``end_row``."""
    return int(table.columns[FIRST_ROW, count]) if count < len(table) else end_row


__all__ = [
    "BATCH_FIELDS",
    "CRC_HEAD",
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
    """Return the bytes of the records that an entry carries, maybe none, and the receipts of all segments."""
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
    """Return the segments as their entry will list them: with absolute versions and running numbers.

    Args:
        receipts: The segments, in log order. A receipt without a path belongs to the segment that the entry
            itself carries.
        last_version: Newest committed version before the segments.
        end_row: Running number after the last record before the segments.
        entry: Number of the entry.

    Raises:
        ValueError: The first segment continues a transaction, which no segment began.
    """
    placed: list[SegmentDocument] = []
    for receipt in receipts:
        # Versions in a receipt are relative and count from 0. If the segment continues a transaction, its 0 is
        # the last version of the segment before it.
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
