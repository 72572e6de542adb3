"""Rows of a table's state, as columns, and their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt


class StatePlace(NamedTuple):
    """A row's place in its table: the order is total, and a rename of the entity type keeps it."""

    key_hash: int
    primary_key: str


@dataclass(frozen=True, slots=True, eq=False)
class StateRows:
    """Some rows of a table, by (key hash, key); columns of equal length."""

    key_hashes: npt.NDArray[np.uint64]
    """Of the name that the entity type had first."""
    primary_keys: pa.StringArray
    versions: npt.NDArray[np.int64]
    """Of the change that each row stands for, …"""
    indexes: npt.NDArray[np.int32]
    """… and its place in the version."""
    counts: npt.NDArray[np.int64]
    """How often the row exists: 1, unless the table has no key."""
    images: pa.BinaryArray
    """The ``after`` of that change, as it was sent; null where it had none."""

    def __len__(self) -> int:
        return len(self.key_hashes)

    def place(self, row: int) -> StatePlace:
        """Return the place of a row; -1 is the last."""
        keys = self.primary_keys
        return StatePlace(int(self.key_hashes[row]), keys[row % len(keys)].as_py())

    def slice(self, start: int, stop: int) -> StateRows:
        """Return the rows of a range, sharing memory."""
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
        """Return some of the rows, in an order."""
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
        """Yield the rows in parts of so many rows and bytes of keys and images; a larger row is alone."""
        ends = _data_ends(self.primary_keys) + _data_ends(self.images)
        start = 0
        while start < len(self):
            base = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, base + bytes_max, "right"))
            stop = min(max(stop, start + 1), start + rows_max, len(self))
            yield self.slice(start, stop)
            start = stop

    def repeated(self, rows_max: int, bytes_max: int) -> Iterator[StateRows]:
        """Yield each row as often as it exists. If every row exists once, all are yielded together.

        Otherwise the rows come in parts of bounded rows and bytes, made one by one; a larger row is alone. A
        row that was removed more often than it was added is left out.
        """
        if (self.counts == 1).all():
            yield self
            return
        ends = _data_ends(self.primary_keys) + _data_ends(self.images)
        widest = int(np.diff(ends, prepend=0).max(initial=1))
        at_once = max(1, min(rows_max, bytes_max // widest))
        left, start = np.maximum(self.counts, 0), 0
        while start < len(self):
            # Counts are cut to a part before they are added up: their sum may have more than 64 bits.
            times = np.minimum(left[start : start + at_once], at_once)
            before = np.cumsum(times) - times
            times = np.minimum(times, np.maximum(at_once - before, 0))
            if times.any():
                yield self.taken(np.repeat(np.arange(start, start + len(times)), times))
            left[start : start + len(times)] -= times
            remaining = np.flatnonzero(left[start : start + len(times)])
            start += int(remaining[0]) if len(remaining) else len(times)


def rows_up_to(hashes: npt.NDArray[np.uint64], keys: pa.StringArray, place: StatePlace) -> int:
    """Return the number of rows, sorted by (hash, key), at or before a place."""
    wanted = np.uint64(place.key_hash)
    start = int(np.searchsorted(hashes, wanted, "left"))
    while (
        start < len(hashes) and hashes[start] == wanted and keys[start].as_py() <= place.primary_key
    ):
        start += 1
    return start


def _data_ends(column: pa.StringArray | pa.BinaryArray) -> npt.NDArray[np.int64]:
    """Return the bytes of a column up to the end of each row."""
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
    """Return the rows of several parts as one, in the order given."""
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
