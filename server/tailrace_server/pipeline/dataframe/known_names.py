"""Finds the JSON objects that have a name which is not known, for whole columns of them.

A compiled loop walks through each object and looks its names up by a hash. Names of nested objects are not
looked at. No unknown name is missed, except if two hashes collide (2^-64 for two given names). Without the loop
the caller parses each object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace_server.machine_code.loader import BYTE, LONG, WORD, address, loops
from tailrace_server.wal.record.text_columns import addresses_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

_FACTOR: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


class KnownNames:
    """A set of (group, name), looked up by hash for many at once. Groups are small numbers."""

    def __init__(self) -> None:
        """Begin empty."""
        self._hashes: set[int] = set()
        self._bits = 4
        self._table = np.zeros(1 << self._bits, np.uint64)

    def add(self, group: int, name: str) -> None:
        """Add a name as JSON writes it: without quotes, escapes as they are."""
        value = _hash_of(group, name.encode())
        if value in self._hashes:
            return
        self._hashes.add(value)
        slot = value >> (64 - self._bits)
        if self._table[slot]:
            self._grow()
        else:
            self._table[slot] = value

    @property
    def table(self) -> tuple[int, int]:
        """Address of the table of hashes, valid until a name is added, and the bits of its size."""
        return address(self._table, WORD), self._bits

    def _grow(self) -> None:
        """Widen the table until no two names share a slot."""
        values = np.array(sorted(self._hashes), np.uint64)
        while True:
            self._bits += 1
            slots = values >> np.uint64(64 - self._bits)
            if len(np.unique(slots)) == len(slots):
                break
        self._table = np.zeros(1 << self._bits, np.uint64)
        self._table[slots] = values


def rows_with_unknown_names(
    images: pa.Array, groups: npt.NDArray[np.int64], known: KnownNames
) -> npt.NDArray[np.int64]:
    """Return the rows to be parsed: those that may hold a name that is not known in their group.

    Args:
        images: Binary or string array of JSON objects, known to be such.
        groups: Group of each row.
        known: The known names.
    """
    machine = loops(len(images))
    if machine is None:
        return np.flatnonzero(images.is_valid().to_numpy(zero_copy_only=False))
    marks = np.zeros(len(images), np.uint8)
    machine.mark_unknown(
        *(*addresses_of(images), images.offset, len(images)),
        *(address(groups, LONG), *known.table, address(marks, BYTE)),
    )
    return np.flatnonzero(marks)


def _hash_of(group: int, name: bytes) -> int:
    """Return the hash of a name, as `mark_unknown` computes it."""
    value = ((group + 1) * _FACTOR) & _MASK
    # Words are taken from the end. What is left in front are the high bytes of the last word.
    for end in range(len(name), -1, -8):
        word = int.from_bytes(name[max(end - 8, 0) : end].rjust(8, b"\0"), "little")
        product = ((value ^ word) * _FACTOR) & _MASK
        value = product ^ (product >> 29)
    return value
