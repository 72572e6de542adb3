"""Lookup tables: the rows of a batch that conditions match by the values of one column.

Images of n rows are numbered as in ``typed_images``: 0 to n - 1 are the before-images, n to 2n - 1 the
after-images. A lookup by values groups all images by value at once. A lookup by ranges sorts the images by
value, so the images of a range are neighbours; they are turned into rows only when the rows of the range are
requested::

    tenant   t1 t2 t2 | t1 t2 t3    t1: row 0 was and is in; t2: row 1 was and is in, 2 was in; t3: row 2 is in
    price     5  9  2 |  6  1  2    sorted: 4 2 5 0 3 1; from 1 to 4: images 4 2 5: row 1 is in, 2 was and is
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.live.index.lookup_terms import plain, sortable
from tailrace_server.rows.transitions import IS_IN, WAS_IN, RowsFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace_server.live.index.lookup_terms import Indexed

_NONE: Final = -1
"""The code of a value that no condition names, and the highest rank of an empty range."""
_SMALL_RANKS_MAX: Final = (1 << 16) - 1
"""Ranks up to this are sorted as 16-bit integers, which numpy sorts in one or two passes."""


class Finder(Protocol):
    """The result of a lookup: the rows of one batch, by the number of a value or range."""

    def owners(self) -> Iterator[tuple[int, Iterable[Indexed]]]:
        """Yield each number that has rows, with the conditions that look it up."""

    def rows(self, number: int) -> RowsFound:
        """Return the rows of one number."""

    @property
    def grouped(self) -> GroupedRows | None:
        """All rows, grouped by number; None if one image may have several numbers."""


class GroupedRows(NamedTuple):
    """Rows grouped by number."""

    found: RowsFound
    bounds: list[int]
    """Offsets: the first row of each number, and the end of the last number's rows."""


def joined(count: int, parts: Sequence[RowsFound]) -> RowsFound:
    """Return the union of several sets of rows; ``count`` is the number of rows in the batch."""
    bits = np.zeros(count, np.uint8)
    for each in parts:
        bits[each.places] |= each.bits
    places = np.flatnonzero(bits)
    return RowsFound(places, bits[places])


class PointTable:
    """The conditions that are looked up by values of one column."""

    def __init__(self) -> None:
        """Begin without conditions."""
        self.asking: dict[Indexed, None] = {}
        self._owners: dict[Any, dict[Indexed, None]] = {}
        self._listed: tuple[pa.Array, list[dict[Indexed, None]]] | None = None
        """The values, and the conditions of each value; made when they are needed."""

    def add(self, one: Indexed) -> None:
        """Add a condition."""
        self.asking[one] = None
        self._listed = None
        for value in one.values:
            self._owners.setdefault(value, {})[one] = None

    def remove(self, one: Indexed) -> None:
        """Remove a condition."""
        del self.asking[one]
        self._listed = None
        for value in one.values:
            owners = self._owners[value]
            del owners[one]
            if not owners:
                del self._owners[value]

    def askers(self, values: Sequence[Any]) -> int:
        """Return how many conditions are looked up by some values."""
        return sum(len(self._owners.get(value, ())) for value in values)

    def find(self, array: pa.Array) -> Finder:
        """Look up the values of a column: those of all before-images, then those of all after-images."""
        values = plain(array)
        # The cost of a commit with few rows must not grow with the number of conditions.
        if len(values) < len(self._owners):
            return _few_matches(values.to_pylist(), self._owners)
        if self._listed is None:
            self._listed = pa.array([*self._owners], values.type), [*self._owners.values()]
        value_set, owners = self._listed
        codes = pc.index_in(values, value_set=value_set).fill_null(_NONE).to_numpy()
        return _many_matches(codes, owners)


class _PointMatches:
    """The rows of a batch, grouped by value."""

    def __init__(self, grouped: GroupedRows, owners: Sequence[Iterable[Indexed]]) -> None:
        self.grouped = grouped
        self._owners = owners

    def owners(self) -> Iterator[tuple[int, Iterable[Indexed]]]:
        return enumerate(self._owners)

    def rows(self, number: int) -> RowsFound:
        (places, bits), bounds = self.grouped
        part = slice(bounds[number], bounds[number + 1])
        return RowsFound(places[part], bits[part])


def _few_matches(values: Sequence[Any], owners: Mapping[Any, Iterable[Indexed]]) -> _PointMatches:
    """Look up each value of the batch in the conditions' values, without arrays."""
    count = len(values) // 2
    # Only values that a condition names are collected; each row gets a bit for each of its images.
    by_value: dict[Any, dict[int, int]] = {}
    for image, value in enumerate(values):
        if value in owners:
            row, bit = (image, WAS_IN) if image < count else (image - count, IS_IN)
            known = by_value.setdefault(value, {})
            known[row] = known.get(row, 0) | bit
    places: list[int] = []
    bits: list[int] = []
    bounds = [0]
    for known in by_value.values():
        places += sorted(known)
        bits += (known[row] for row in sorted(known))
        bounds.append(len(places))
    found = RowsFound(np.array(places, np.intp), np.array(bits, np.uint8))
    return _PointMatches(GroupedRows(found, bounds), [owners[value] for value in by_value])


def _many_matches(codes: NDArray[np.int32], owners: Sequence[Iterable[Indexed]]) -> _PointMatches:
    """Group the images of a batch by the code of their value."""
    count = len(codes) // 2
    images = np.flatnonzero(codes != _NONE)
    # 1. Sort the images by value, row and side. All three are packed into one integer for one fast sort.
    keys = codes[images].astype(np.int64) * count + images % count
    keys = keys << 1 | (images >= count)
    keys.sort()
    # 2. Merge both images of a row that have the same value.
    pairs = keys >> 1
    firsts = _firsts(pairs)
    bits = np.where(keys & 1, np.uint8(IS_IN), np.uint8(WAS_IN))
    bits = np.bitwise_or.reduceat(bits, firsts) if len(firsts) else bits
    values, places = np.divmod(pairs[firsts], max(count, 1))
    # 3. Find the first row of each value.
    firsts = _firsts(values)
    bounds = [*firsts.tolist(), len(values)]
    grouped = GroupedRows(RowsFound(places, bits), bounds)
    return _PointMatches(grouped, [owners[number] for number in values[firsts].tolist()])


def _firsts(values: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the index at which each distinct value of a sorted array begins."""
    is_first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=is_first[1:])
    return np.flatnonzero(is_first)


class RangeTable:
    """The conditions that are looked up by a range of one column.

    The ends of all ranges are borders, which cut the column's values into ranks::

        borders          2       5
        ranks         0  1   2   3  4        0: below 2, 1: equal to 2, 2: between them, ...
    """

    def __init__(self) -> None:
        """Begin without conditions."""
        self.asking: dict[Indexed, None] = {}
        self._ranks: _RankedRanges | None = None

    def add(self, one: Indexed) -> None:
        """Add a condition."""
        self.asking[one] = None
        self._ranks = None

    def remove(self, one: Indexed) -> None:
        """Remove a condition."""
        del self.asking[one]
        self._ranks = None

    def find(self, array: pa.Array) -> Finder:
        """Look up the values of a column: those of all before-images, then those of all after-images."""
        images = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
        values = sortable(array.drop_null())
        if self._ranks is None:
            self._ranks = _RankedRanges([*self.asking], values.type)
        return _RangeMatches(self._ranks, images, values, len(array) // 2)


class _RankedRanges:
    """The ranges of all conditions as ranks: the lowest and the highest of each, inclusive."""

    def __init__(self, asking: list[Indexed], kind: pa.DataType) -> None:
        self.asking = asking
        parts = [one.part for one in asking if one.part is not None]
        begins = [(number, bound) for number, part in enumerate(parts) for bound in part.begins]
        ends = [(number, bound) for number, part in enumerate(parts) for bound in part.ends]
        both = [*begins, *ends]
        values = pa.array([bound.value for _, bound in both], kind)
        # 1. All ends of all ranges, sorted, are the borders.
        borders = pc.unique(values)
        self.borders = borders.take(pc.sort_indices(borders))
        ranks = self.ranks_of(values) + np.array([bound.is_behind for _, bound in both], np.int64)
        numbers = np.array([number for number, _ in both], np.intp)
        # 2. A range without a begin or end reaches to the lowest or highest rank. Of several begins the highest
        #    counts, of several ends the lowest.
        self.lowest = np.zeros(len(asking), np.int64)
        self.highest = np.full(len(asking), 2 * len(borders), np.int64)
        np.maximum.at(self.lowest, numbers[: len(begins)], ranks[: len(begins)])
        np.minimum.at(self.highest, numbers[len(begins) :], ranks[len(begins) :] - 1)
        self.highest[np.array([part.is_empty for part in parts], np.bool_)] = _NONE

    def ranks_of(self, values: pa.Array) -> NDArray[np.int64]:
        # A value equal to border number b has b borders on its left and b + 1 if it counts itself: an odd sum.
        # A value between two borders has the same number from both sides: an even sum.
        left, right = (
            pc.search_sorted(self.borders, values, side=side).to_numpy().astype(np.int64)
            for side in ("left", "right")
        )
        return left + right  # type: ignore[no-any-return]


class _RangeMatches:
    """The images of a batch in the order of their ranks."""

    grouped = None

    def __init__(
        self, ranges: _RankedRanges, images: NDArray[np.intp], values: pa.Array, count: int
    ) -> None:
        ranks = ranges.ranks_of(values)
        if 2 * len(ranges.borders) <= _SMALL_RANKS_MAX:
            ranks = ranks.astype(np.uint16)
        # After the sort the images of each range are neighbours: two binary searches for each range find them.
        order = np.argsort(ranks, kind="stable")
        ranks = ranks[order]
        self._asking = ranges.asking
        self._count = count
        self._images = images[order]
        self._first = np.searchsorted(ranks, ranges.lowest, "left")
        self._behind = np.searchsorted(ranks, ranges.highest, "right")

    def owners(self) -> Iterator[tuple[int, Iterable[Indexed]]]:
        for number in np.flatnonzero(self._behind > self._first).tolist():
            yield number, (self._asking[number],)

    def rows(self, number: int) -> RowsFound:
        images = self._images[self._first[number] : self._behind[number]]
        # Both images of a row may be in the range; their bits are combined in one row.
        bits = np.zeros(self._count, np.uint8)
        is_after = images >= self._count
        bits[images[~is_after]] = WAS_IN
        bits[images[is_after] - self._count] |= np.uint8(IS_IN)
        places = np.flatnonzero(bits)
        return RowsFound(places, bits[places])
