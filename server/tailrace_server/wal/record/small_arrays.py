"""Arrays of a few numbers, made without numpy's own ways to make them.

A server that gets a small commit every few milliseconds runs code that has left the processor's caches each
time, and then the first call of any numpy function costs 20 to 50 µs, whatever it does, while ``struct`` and
``frombuffer`` serve for all of them (docs/adr/0046). So what handles a small commit keeps to these.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FEW: Final = 48
"""Up to so many numbers; more are quicker with numpy."""

_INT64, _INT32 = np.dtype(np.int64), np.dtype(np.int32)


def int64s(numbers: Sequence[int]) -> NDArray[np.int64]:
    """Return an array, shape (n,), read-only."""
    return np.frombuffer(struct.pack(f"={len(numbers)}q", *numbers), _INT64)


def repeated(number: int, count: int) -> NDArray[np.int64]:
    """Return an array of one number, shape (count,), however many."""
    return int64s([number] * count) if count <= FEW else np.full(count, number)


def int32s(numbers: Sequence[int]) -> NDArray[np.int32]:
    """Return an array, shape (n,), read-only."""
    return np.frombuffer(struct.pack(f"={len(numbers)}i", *numbers), _INT32)
