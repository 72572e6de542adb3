"""Counts of rows in tables without a key: signed integers of 64 bits, whose sums are exact or raise an error.

This is checked here because NumPy and Arrow wrap a sum beyond 64 bits without an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.errors import LogCorrupted, LogError
from tailrace.position import Position
from tailrace_server.wal.record.columns import count_fault, fits_count, multiplicity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from tailrace_server.wal.segment.reader import BatchHead
    from tailrace_server.wal.segment.refs import BatchRef

_SURELY_FITS: Final = float(1 << 62)
"""If the sum in floats is at most this, the exact sum of the integers has at most 64 bits."""
_SHOWN_MAX: Final = 80
"""The most characters of a key in an error."""


def counts_of(
    changes: Sequence[bytes | None], record: Callable[[int], tuple[BatchRef, BatchHead, int]]
) -> npt.NDArray[np.int64]:
    """Return, for each record, the number that it adds to the count of its row; 0 if ``change`` has no number.

    Args:
        changes: The ``change`` of each record.
        record: Returns a record's batch, the batch's head and the row in the batch; used for the error.

    Raises:
        LogCorrupted: A number has more than 64 bits. Only logs of old writers can have such a number.
    """
    counts = [multiplicity_of(change or b"") for change in changes]
    for at, (count, change) in enumerate(zip(counts, changes, strict=True)):
        if change is None or (count is not None and fits_count(count)):
            continue
        if (reason := count_fault(change)) is not None:
            ref, head, row = record(at)
            place = Position(int(head.versions[row]), int(head.indexes[row]))
            raise LogCorrupted(ref.segment.path, ref.offset, f"the record {place} {reason}")
    return np.array([count or 0 for count in counts], np.int64)


def summed_counts(
    keys: pa.StringArray, diffs: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the sum of the diffs of each row.

    Args:
        keys: The key of each row.
        diffs: The diffs of all rows; the diffs of one row are neighbours.
        starts: The place of each row's first diff.

    Raises:
        LogError: A sum has more than 64 bits.
    """
    sums = np.add.reduceat(diffs, starts)
    # Sums in floats are only approximate, but do not wrap. They show which few rows have to be added up
    # exactly, in Python's integers.
    roughly = np.abs(np.add.reduceat(diffs.astype(np.float64), starts))
    for row in np.flatnonzero(roughly > _SURELY_FITS).tolist():
        stop = starts[row + 1] if row + 1 < len(starts) else len(diffs)
        _refuse_large(keys, row, sum(diffs[starts[row] : stop].tolist()))
    return sums


def added_counts(
    keys: pa.StringArray, counts: npt.NDArray[np.int64], diffs: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the count of each row plus its diff.

    Raises:
        LogError: A sum has more than 64 bits.
    """
    sums = counts + diffs
    # The sum of two numbers has wrapped if and only if its sign differs from the signs of both.
    for row in np.flatnonzero(((counts ^ sums) & (diffs ^ sums)) < 0).tolist():
        _refuse_large(keys, row, int(counts[row]) + int(diffs[row]))
    return sums


def _refuse_large(keys: pa.StringArray, row: int, count: int) -> None:
    if fits_count(count):
        return
    key = keys[row].as_py()
    shown = key if len(key) <= _SHOWN_MAX else f"{key[:_SHOWN_MAX]}…"
    raise LogError(
        f"the counts of the row {shown} add up to {count}, which exceeds 64 bits: write a record "
        "whose diff reduces the count, and read a later version"
    )
