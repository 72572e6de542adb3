"""When the rows of a table are due: 16 bytes a row, those that are due first, up to a bound.

Rows are known by the hash of their key. The last entry of a hash counts, so a row that was changed is due
later and one that was removed is not due. Of a table with more rows than the bound those that are due first are
kept, and the *horizon* says up to when none is missing::

    kept       ●●● ●●●●●● ●● ●●●●│
    horizon                      │  rows that are due from here on may be missing
    now          ▲
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

NEVER: Final = (1 << 63) - 1
"""When a row is due that is never due, µs."""
_ROWS_MAX: Final = 1 << 21
_UNSORTED_MAX: Final = 1 << 16


class DueRows:
    """Those of one table. Not thread-safe."""

    def __init__(self, rows_max: int = _ROWS_MAX) -> None:
        """Begin without rows.

        Args:
            rows_max: Rows that are kept.
        """
        self._rows_max = rows_max
        self._hashes = np.zeros(0, np.uint64)
        """Sorted; each once."""
        self._due = np.zeros(0, np.int64)
        """When each row is due, µs; NEVER for one that is to be dropped."""
        self._new: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]] = []
        """The entries since the last sort, in their order."""
        self._new_rows = 0
        self.horizon = NEVER
        """No row is missing that is due before this time, µs."""

    def __len__(self) -> int:
        """Return how many rows are kept."""
        self._settle()
        return len(self._hashes)

    def say(self, hashes: npt.NDArray[np.uint64], due: npt.NDArray[np.int64]) -> None:
        """Say when rows are due; of a hash that comes again the last word counts.

        Args:
            hashes: Of the keys, shape (n,).
            due: When each is due, µs; NEVER takes it away. Shape (n,).
        """
        self._new.append((hashes, due))
        self._new_rows += len(hashes)
        if self._new_rows >= _UNSORTED_MAX:
            self._settle()

    def clear(self) -> None:
        """Forget all rows: there are none."""
        self._hashes, self._due = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self._new, self._new_rows = [], 0
        self.horizon = NEVER

    @property
    def first(self) -> int:
        """When the first row is due, µs; NEVER where none is."""
        self._settle()
        return int(self._due.min(initial=NEVER))

    def until(self, now: int) -> npt.NDArray[np.uint64]:
        """Return the hashes of the rows that are due at a time or before, sorted, shape (n,)."""
        self._settle()
        return self._hashes[self._due <= now]

    def _settle(self) -> None:
        """Sort in what is new, and keep to the bound."""
        if not self._new:
            return
        hashes, due = (np.concatenate(columns) for columns in zip(*self._new, strict=True))
        self._new, self._new_rows = [], 0
        # 1. The last word of each hash: `unique` gives the first place, so it is asked from behind.
        hashes, last = np.unique(hashes[::-1], return_index=True)
        due = due[::-1][last]
        due = np.where(due >= self.horizon, NEVER, due)
        # 2. Those that are known are said anew in place, the others are put between them.
        places = np.searchsorted(self._hashes, hashes)
        known = np.zeros(len(hashes), np.bool_)
        inside = places < len(self._hashes)
        known[inside] = self._hashes[places[inside]] == hashes[inside]
        self._due[places[known]] = due[known]
        added = ~known & (due < NEVER)
        self._hashes = np.insert(self._hashes, places[added], hashes[added])
        self._due = np.insert(self._due, places[added], due[added])
        # 3. Rows that are not due any more go, and above the bound those that are due last.
        kept = self._due < NEVER
        if not kept.all():
            self._hashes, self._due = self._hashes[kept], self._due[kept]
        if len(self._due) > self._rows_max:
            # Half of the room is freed, so that a table that grows by a row does not sort at each of them.
            first = np.sort(np.argpartition(self._due, self._rows_max // 2)[: self._rows_max // 2])
            self._hashes, self._due = self._hashes[first], self._due[first]
            # Others may be due at the same time as the last that is kept.
            self.horizon = int(self._due.max())
