"""The table of segments: 56 bytes for each and its path, and no Python objects, since a log has so many.

A segment is five numbers and what is seldom asked for, which lies packed end to end in a buffer of bytes::

    numbers   base_version  rows  bytes   path_start path_length   shape_start shape_length
    packed    …segments/7/orders-41-0.arrow⟨shape⟩segments/7/orders-42-0.arrow…
                                              ▲
    shape     MessagePack of [prefix, counts]; a segment whose shape is that of the one before refers to it

Like the other tables it only grows, so that any thread may look at the segments that a view knows while the
thread that follows the log appends.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from tailrace_server.wal.segment.refs import Prefix, SegmentRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

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
        """Bytes of what is in them, without the room for what is to come."""
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
        """Return how many of a column that does not fall are at most a number."""
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
            """The same memory, column behind column."""


class SegmentTable(GrowingColumns):
    """The segments of a log, in its order; a SegmentRef is made when it is asked for."""

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
        """Bytes of what is in it, without the room for what is to come."""
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
