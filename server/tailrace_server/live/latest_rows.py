"""The newest record of each key among the matched records of a range of the log.

One pass reads the heads of the matched records, oldest first, and keeps the row of each key's newest record.
New rows are joined with the kept rows by a stable sort, so later records win::

    kept      ▆▆▆▆▆▆▆▆▆▆▆▆▆▆          one row a key, by hash
    new       ▂▂▂▂▂▂                   rows in the order of the log
    reduced   ▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆         as soon as there are as many new rows as kept ones

Memory is bounded by narrowing: if there are too many keys, the pass continues with the lower half of their
hashes, and the next pass begins with the rest. A key takes 32 bytes and its text.

A key is here the entity type, the primary key and, for column-level captures, the column. A record is kept if
one of its captures is the newest of its key. Records without a primary key:

=================  =========================================================================================
truncates          the newest of each entity type is kept; earlier records of the entity type are dropped
lead records       the newest is kept
schema records     all are kept: each describes a difference
rows without key   all are kept: each says how many times its row was added or removed
=================  =========================================================================================

The result is a set of rows, stored by its density. If at most 1 of 64 rows is in the set, each takes a number
of eight bytes; else each row of the range takes a bit. So the set takes at most 1/8 byte for each record of the
range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area
from tailrace_server.wal.base.winners import HASHES_END, are_equal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from numpy.typing import NDArray

    from tailrace_server.rows.run import BatchSelection
    from tailrace_server.wal.segment.reader import BatchHead

_ORDINAL_BITS: Final = 31
_ORDINAL_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
"""A factor for ordinals. It is odd, so two columns of one key never have the same hash."""


@dataclass(frozen=True, slots=True)
class NewestBounds:
    """The most keys, and bytes of keys, that a pass holds at once."""

    keys: int = 1 << 20
    key_bytes: int = 64 << 20


BOUNDS: Final = NewestBounds()


@dataclass(frozen=True, slots=True, eq=False)
class _KeyedCaptures:
    """Captures with a primary key; columns of equal length."""

    hashes: NDArray[np.uint64]
    names: NDArray[np.int64]
    """Number of the entity type, shifted by ``_ORDINAL_BITS``, and the ordinal."""
    rows: NDArray[np.int64]
    keys: pa.StringArray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def key_bytes(self) -> int:
        return int(pc.sum(pc.binary_length(self.keys)).as_py() or 0)

    def taken(self, places: NDArray[np.int64]) -> _KeyedCaptures:
        keys = self.keys.take(pa.array(places))
        return _KeyedCaptures(self.hashes[places], self.names[places], self.rows[places], keys)


_NOTHING: Final = _KeyedCaptures(
    np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64), pa.array([], pa.utf8())
)


class NewestRecords:
    """One pass, over the keys whose hashes are at least ``start``. Plain values; any thread may call it."""

    def __init__(
        self, start: int = 0, unkeyed: Collection[str] = (), bounds: NewestBounds = BOUNDS
    ) -> None:
        """Begin without records; ``unkeyed`` are the entity types without a primary key."""
        self.stop = HASHES_END
        """The pass is complete for hashes below this one, where the next pass begins."""
        self._start = start
        self._unkeyed = unkeyed
        self._bounds = bounds
        self._names: dict[str, int] = {}
        self._truncates: dict[int, int] = {}
        """Number of an entity type → row of its newest truncate."""
        self._lead = -1
        self._all: list[NDArray[np.int64]] = []
        """Rows that no later record replaces: schema records and rows without a key."""
        self._kept = _NOTHING
        self._new: list[_KeyedCaptures] = []
        self._new_rows = self._new_bytes = 0

    def add(self, head: BatchHead, selection: BatchSelection, low: int, high: int) -> None:
        """Add the matched captures of the next batch that are in rows ``low`` to ``high``, exclusive."""
        # 1. Take the captures inside of the range, with their entity types and areas.
        first_row = head.ref.first_row
        places = selection.rows.astype(np.int64)
        ordinals = np.zeros(len(places), np.int64)
        if selection.ordinals is not None:
            ordinals = selection.ordinals.astype(np.int64)
        inside = (places >= low - first_row) & (places < high - first_row)
        if not inside.all():
            places, ordinals = places[inside], ordinals[inside]
        if not len(places):
            return
        names = self._numbers_of(head)
        codes, areas = head.type_codes[places], head.areas[places]
        is_row = (areas == Area.DATA) & (codes >= 0)
        keyed = head.key_hashes[places] != 0
        # 2. Records without a key. Each pass finds the same ones; only the first pass returns them.
        leads = places[areas == Area.INFRASTRUCTURE]
        if len(leads):
            self._lead = first_row + int(leads[-1])
        for place in np.flatnonzero(is_row & ~keyed).tolist():
            self._truncates[names[codes[place]]] = first_row + int(places[place])
        whole = ~is_row & (areas != Area.INFRASTRUCTURE)
        if self._unkeyed:
            unkeyed = np.array([name in self._unkeyed for name in (*head.entity_types, "")])
            of_unkeyed = is_row & keyed & unkeyed[codes]
            whole |= of_unkeyed
            keyed &= ~of_unkeyed
        if whole.any():
            self._all.append(np.unique(places[whole]) + first_row)
        # 3. Rows with a key.
        chosen = np.flatnonzero(is_row & keyed)
        places, ordinals, codes = places[chosen], ordinals[chosen], codes[chosen]
        hashes = head.key_hashes[places] + ordinals.astype(np.uint64) * _ORDINAL_FACTOR
        wanted = hashes >= np.uint64(self._start)
        if self.stop < HASHES_END:
            wanted &= hashes < np.uint64(self.stop)
        if not wanted.all():
            places, ordinals, hashes = places[wanted], ordinals[wanted], hashes[wanted]
            codes = codes[wanted]
        if len(places):
            named = (names[codes] << _ORDINAL_BITS) | ordinals
            keys = head.primary_keys.take(pa.array(places))
            self._append(_KeyedCaptures(hashes, named, places + first_row, keys))

    def rows(self, *, first: bool) -> NDArray[np.int64]:
        """Return the rows of the pass in rising order; with ``first`` also the rows without a key."""
        self._reduce()
        found = [self._kept.rows]
        if first:
            found += [*self._all, np.array([*self._truncates.values()], np.int64)]
            if self._lead >= 0:
                found.append(np.array([self._lead], np.int64))
        return np.unique(np.concatenate(found))

    def _numbers_of(self, head: BatchHead) -> NDArray[np.int64]:
        """Return the number of each entity type of a batch; a type has the same number in every batch."""
        numbers = [self._names.setdefault(name, len(self._names)) for name in head.entity_types]
        return np.array([*numbers, -1], np.int64)

    def _append(self, new: _KeyedCaptures) -> None:
        # Reduce only when there are as many new rows as kept ones: so the repeated sorting of kept rows costs
        # no more than that of the new ones.
        self._new.append(new)
        self._new_rows += len(new)
        self._new_bytes += new.key_bytes
        rows_max = min(self._bounds.keys, max(1 << 17, len(self._kept)))
        if self._new_rows >= rows_max or self._new_bytes >= self._bounds.key_bytes:
            self._reduce()

    def _reduce(self) -> None:
        """Reduce the rows to the newest of each key, and narrow the range of hashes to fit the bounds."""
        kept = _newest(_joined([self._kept, *self._new]))
        self._new, self._new_rows, self._new_bytes = [], 0, 0
        # A truncate removes all rows of its entity type from before it.
        if self._truncates:
            ends = np.full(len(self._names), -1, np.int64)
            ends[[*self._truncates]] = [*self._truncates.values()]
            left = kept.rows > ends[kept.names >> _ORDINAL_BITS]
            if not left.all():
                kept = kept.taken(np.flatnonzero(left))
        while len(kept) > self._bounds.keys or kept.key_bytes > self._bounds.key_bytes:
            # Rows of equal hash must stay together, because the next pass begins at a hash. If the lower half
            # has a single hash, cut after that hash instead.
            stop = kept.hashes[len(kept) // 2]
            if stop == kept.hashes[0]:
                above = kept.hashes[kept.hashes > stop]
                if not len(above):
                    break
                stop = above[0]
            self.stop = int(stop)
            kept = kept.taken(np.arange(np.searchsorted(kept.hashes, stop)))
        self._kept = kept


def _joined(parts: list[_KeyedCaptures]) -> _KeyedCaptures:
    if len(parts) == 1:
        return parts[0]
    return _KeyedCaptures(
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.names for part in parts]),
        np.concatenate([part.rows for part in parts]),
        pa.concat_arrays([part.keys for part in parts]),
    )


def _newest(rows: _KeyedCaptures) -> _KeyedCaptures:
    """Return the last row of each key, sorted by hash; ``rows`` are in the order of the log."""
    if len(rows) < 2:
        return rows
    order = np.argsort(rows.hashes, kind="stable")
    hashes = rows.hashes[order]
    followed = hashes[1:] == hashes[:-1]
    places = np.flatnonzero(followed)
    # Only neighbours are compared. If keys with equal hashes alternate, an older row of a key may remain:
    # the reader then receives a superseded record too, but misses none.
    left, right = order[places], order[places + 1]
    same = rows.names[left] == rows.names[right]
    same &= are_equal(rows.keys, left, rows.keys, right)
    followed[places] = same
    return rows.taken(order[np.append(~followed, True)])


_SPARSE: Final = 64
"""A set with at most one row in this many is stored as a list of numbers; a denser one as a bitmap."""
_STEP: Final = 1 << 16
"""Rows of a bitmap that are searched at a time."""


class RowSet:
    """A set of rows from the range ``low`` to ``high``, exclusive. Immutable."""

    __slots__ = ("_bits", "_high", "_low", "_rows")

    def __init__(self, low: int, high: int, parts: Iterable[NDArray[np.int64]]) -> None:
        """Make a set of rows of the range, given in any order and possibly repeated."""
        self._low, self._high = low, high
        self._rows: NDArray[np.int64] | None = None
        self._bits: NDArray[np.uint8] | None = None
        found = [*parts]
        if sum(map(len, found)) * _SPARSE <= high - low:
            self._rows = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
            return
        bits = np.zeros((high - low + 7) // 8, np.uint8)
        for part in found:
            # ``bitwise_or.at``, unlike ``|=`` with an index array, combines all rows of one byte.
            places = part - low
            np.bitwise_or.at(bits, places >> 3, (128 >> (places & 7)).astype(np.uint8))
        self._bits = bits

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the set holds."""
        held = self._rows if self._rows is not None else self._bits
        assert held is not None
        return held.nbytes

    def within(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the rows of the set from ``start`` to ``stop``, exclusive, in rising order."""
        start, stop = max(start, self._low), min(stop, self._high)
        if start >= stop:
            return np.empty(0, np.int64)
        if self._rows is not None:
            first, end = np.searchsorted(self._rows, (start, stop))
            return self._rows[first:end]
        assert self._bits is not None
        first = (start - self._low) >> 3
        bits = np.unpackbits(self._bits[first : ((stop - 1 - self._low) >> 3) + 1])
        rows = np.flatnonzero(bits) + (self._low + 8 * first)
        return rows[(rows >= start) & (rows < stop)]

    def first_at_or_after(self, row: int) -> int | None:
        """Return the first row of the set at or after a row; None if there is none."""
        row = max(row, self._low)
        step = self._high - row if self._rows is not None else _STEP
        while row < self._high:
            found = self.within(row, row + step)
            if len(found):
                return int(found[0])
            row += step
        return None
