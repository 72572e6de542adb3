"""Rows of a table's state, stored as columns and sorted by (key hash, key)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt


class StatePlace(NamedTuple):
    """The place of a row in its table. Places are totally ordered; a rename of the entity type keeps them."""

    key_hash: int
    primary_key: str


@dataclass(frozen=True, slots=True, eq=False)
class StateRows:
    """Some rows of a table, sorted by (key hash, key), as columns of equal length."""

    key_hashes: npt.NDArray[np.uint64]
    """Hash of each row's key, under the first name of the entity type."""
    primary_keys: pa.StringArray
    versions: npt.NDArray[np.int64]
    """Version of the last change of each row."""
    indexes: npt.NDArray[np.int32]
    """Index of that change in its version."""
    counts: npt.NDArray[np.int64]
    """Number of times that each row exists; always 1 in a table with a key."""
    images: pa.BinaryArray
    """The ``after`` of each row's last change, as it was sent; null if the change had none."""

    def __len__(self) -> int:
        return len(self.key_hashes)

    def place(self, row: int) -> StatePlace:
        """Return the place of a row, given by its number in these rows; -1 for the last."""
        keys = self.primary_keys
        return StatePlace(int(self.key_hashes[row]), keys[row % len(keys)].as_py())

    def slice(self, start: int, stop: int) -> StateRows:
        """Return the rows from ``start`` up to ``stop``, exclusive; they share memory with these."""
        count = stop - start
        return StateRows(
            self.key_hashes[start:stop],
            self.primary_keys.slice(start, count),
            self.versions[start:stop],
            self.indexes[start:stop],
            self.counts[start:stop],
            self.images.slice(start, count),
        )

    def taken(self, rows: npt.NDArray[np.int64]) -> StateRows:
        """Return a copy of some of the rows, in the given order."""
        chosen = pa.array(rows)
        return StateRows(
            self.key_hashes[rows],
            self.primary_keys.take(chosen),
            self.versions[rows],
            self.indexes[rows],
            self.counts[rows],
            self.images.take(chosen),
        )

    def count_up_to(self, place: StatePlace) -> int:
        """Return the number of rows at or before a place."""
        return rows_up_to(self.key_hashes, self.primary_keys, place)

    def parts(self, rows_max: int, bytes_max: int) -> Iterator[StateRows]:
        """Yield the rows in parts of at most ``rows_max`` rows and ``bytes_max`` bytes of keys and images.

        A larger row is a part alone.
        """
        ends = _data_ends(self.primary_keys) + _data_ends(self.images)
        start = 0
        while start < len(self):
            base = int(ends[start - 1]) if start else 0
            # As many rows as fit, at least one, at most ``rows_max``.
            stop = int(np.searchsorted(ends, base + bytes_max, "right"))
            stop = min(max(stop, start + 1), start + rows_max, len(self))
            yield self.slice(start, stop)
            start = stop

    def repeated(self, rows_max: int, bytes_max: int) -> Iterator[StateRows]:
        """Yield each row as many times as its count says, in parts.

        If every count is 1, all rows are one part, and the bounds do not apply. Otherwise each part has at most
        ``rows_max`` rows and ``bytes_max`` bytes; a larger row is a part alone. A row with a negative count,
        which was removed more often than it was added, is left out.
        """
        if (self.counts == 1).all():
            yield self
            return
        ends = _data_ends(self.primary_keys) + _data_ends(self.images)
        widest = int(np.diff(ends, prepend=0).max(initial=1))
        at_once = max(1, min(rows_max, bytes_max // widest))
        left, start = np.maximum(self.counts, 0), 0
        while start < len(self):
            # Limit counts to the size of a part before they are added up: their sum may have more than 64 bits.
            times = np.minimum(left[start : start + at_once], at_once)
            before = np.cumsum(times) - times
            times = np.minimum(times, np.maximum(at_once - before, 0))
            if times.any():
                yield self.taken(np.repeat(np.arange(start, start + len(times)), times))
            left[start : start + len(times)] -= times
            remaining = np.flatnonzero(left[start : start + len(times)])
            start += int(remaining[0]) if len(remaining) else len(times)


def rows_up_to(hashes: npt.NDArray[np.uint64], keys: pa.StringArray, place: StatePlace) -> int:
    """Return the number of rows at or before a place; the rows are sorted by (hash, key)."""
    # A binary search by hash; then keys one by one, since hardly ever do several keys have one hash.
    wanted = np.uint64(place.key_hash)
    start = int(np.searchsorted(hashes, wanted, "left"))
    while (
        start < len(hashes) and hashes[start] == wanted and keys[start].as_py() <= place.primary_key
    ):
        start += 1
    return start


def _data_ends(column: pa.StringArray | pa.BinaryArray) -> npt.NDArray[np.int64]:
    """Return, for each row, the total bytes of the column's values up to the end of that row."""
    # The column may be a slice: its offsets begin at ``column.offset``, and its bytes at the first of these.
    offsets = np.frombuffer(column.buffers()[1], np.int32).astype(np.int64)
    start: int = column.offset
    ends: npt.NDArray[np.int64] = offsets[start + 1 : start + len(column) + 1] - offsets[start]
    return ends


NO_ROWS: Final = StateRows(
    np.zeros(0, np.uint64),
    pa.array([], pa.utf8()),
    np.zeros(0, np.int64),
    np.zeros(0, np.int32),
    np.zeros(0, np.int64),
    pa.array([], pa.binary()),
)


def joined_rows(parts: list[StateRows]) -> StateRows:
    """Concatenate several parts, in the given order."""
    if len(parts) < 2:
        return parts[0] if parts else NO_ROWS
    return StateRows(
        np.concatenate([part.key_hashes for part in parts]),
        pa.concat_arrays([part.primary_keys for part in parts]),
        np.concatenate([part.versions for part in parts]),
        np.concatenate([part.indexes for part in parts]),
        np.concatenate([part.counts for part in parts]),
        pa.concat_arrays([part.images for part in parts]),
    )


__all__ = ["NO_ROWS", "StatePlace", "StateRows", "joined_rows", "rows_up_to"]
