"""Small arrays, made by ``struct`` and ``frombuffer`` instead of numpy's constructors.

A server with a small commit every few milliseconds finds its code out of the processor's caches each
time. The first call of any numpy function then costs 20 to 50 µs (docs/adr/0016). ``struct`` and
``frombuffer`` are called for every such array, so they stay cached.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SMALL_LENGTH: Final = 48
"""Largest length for which these functions beat numpy."""

_INT64, _INT32 = np.dtype(np.int64), np.dtype(np.int32)


def int64s(numbers: Sequence[int]) -> NDArray[np.int64]:
    """Return an array, shape (n,), read-only."""
    return np.frombuffer(struct.pack(f"={len(numbers)}q", *numbers), _INT64)


def repeated(number: int, count: int) -> NDArray[np.int64]:
    """Return an array that repeats one number, shape (count,); ``count`` may be any size."""
    return int64s([number] * count) if count <= SMALL_LENGTH else np.full(count, number)


def int32s(numbers: Sequence[int]) -> NDArray[np.int32]:
    """Return an array, shape (n,), read-only."""
    return np.frombuffer(struct.pack(f"={len(numbers)}i", *numbers), _INT32)
