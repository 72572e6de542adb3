"""A set of rows of a stretch of the log, in as few bytes as its density allows.

Up to one row in 64 is a number of eight bytes each; more are a bit for each row of the stretch. So it takes at
most an eighth of a byte for each record that was looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_SPARSE: Final = 64
"""Rows of the stretch for each that is in the set, above which they are listed."""
_STEP: Final = 1 << 16
"""Rows that are looked at together where they are bits."""


class RowSet:
    """Rows from ``low`` to ``high``, exclusive. Immutable."""

    __slots__ = ("_bits", "_high", "_low", "_rows")

    def __init__(self, low: int, high: int, parts: Iterable[NDArray[np.int64]]) -> None:
        """Take rows of the stretch, in any order; one may come more than once."""
        self._low, self._high = low, high
        self._rows: NDArray[np.int64] | None = None
        self._bits: NDArray[np.uint8] | None = None
        found = [*parts]
        if sum(map(len, found)) * _SPARSE <= high - low:
            self._rows = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
            return
        bits = np.zeros((high - low + 7) // 8, np.uint8)
        for part in found:
            places = part - low
            np.bitwise_or.at(bits, places >> 3, (128 >> (places & 7)).astype(np.uint8))
        self._bits = bits

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        held = self._rows if self._rows is not None else self._bits
        assert held is not None
        return held.nbytes

    def within(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return those from ``start`` to ``stop``, exclusive, rising."""
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
        """Return the first one at or after a row; None: there is none."""
        row = max(row, self._low)
        step = self._high - row if self._rows is not None else _STEP
        while row < self._high:
            found = self.within(row, row + step)
            if len(found):
                return int(found[0])
            row += step
        return None
