"""The set of keys that have a row, kept as hashes: a sorted array, and the changes since it was made.

An array takes 8 bytes a key, a Python set 70. Two keys with the same hash count as one here.
"""

from __future__ import annotations

from typing import Final

import numpy as np

_CHANGES_MAX: Final = 100_000
"""Changes at which they are merged into the array. A merge copies the array."""


class LiveKeys:
    """The hashes of the keys that have a row."""

    def __init__(self) -> None:
        self._sorted = np.empty(0, np.uint64)
        self._changes: dict[int, bool] = {}

    def __contains__(self, key_hash: int) -> bool:
        found = self._changes.get(key_hash)
        if found is not None:
            return found
        wanted = np.uint64(key_hash)
        place = int(np.searchsorted(self._sorted, wanted))
        return place < len(self._sorted) and bool(self._sorted[place] == wanted)

    def put(self, key_hash: int, *, live: bool) -> None:
        """Record whether a key has a row now."""
        self._changes[key_hash] = live
        if len(self._changes) >= _CHANGES_MAX:
            self._merge()

    def clear(self) -> None:
        """Record that no key has a row."""
        self._sorted = np.empty(0, np.uint64)
        self._changes.clear()

    def _merge(self) -> None:
        touched = np.array(list(self._changes), np.uint64)
        live = np.array([key for key, alive in self._changes.items() if alive], np.uint64)
        kept = np.setdiff1d(self._sorted, touched, assume_unique=True)
        self._sorted = np.sort(np.concatenate([kept, live]))
        self._changes.clear()
