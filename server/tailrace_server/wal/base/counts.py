"""The counts of rows without a key: whole numbers of 64 bits, exact or refused.

NumPy and Arrow add numbers of 64 bits, and a larger sum wraps to a negative number in silence.
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
"""A sum of floats up to this is of whole numbers whose sum has 64 bits."""
_SHOWN_MAX: Final = 80


def counts_of(
    changes: Sequence[bytes | None], record: Callable[[int], tuple[BatchRef, BatchHead, int]]
) -> npt.NDArray[np.int64]:
    """Return by how much each record changes the count of its row; 0 if ``change`` has no number.

    Args:
        changes: ``change`` of each record.
        record: Returns the batch of a record, the batch's head and the row in the batch, for the error.

    Raises:
        LogCorrupted: A number has more than 64 bits, in a log that was written before writers refused it.
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
        keys: Keys of the rows.
        diffs: The diffs of all rows; those of one row follow each other.
        starts: Place of each row's first diff.

    Raises:
        LogError: A sum is beyond 64 bits.
    """
    sums = np.add.reduceat(diffs, starts)
    # Sums of floats show which few may be beyond; these are added up exactly.
    roughly = np.abs(np.add.reduceat(diffs.astype(np.float64), starts))
    for row in np.flatnonzero(roughly > _SURELY_FITS).tolist():
        stop = starts[row + 1] if row + 1 < len(starts) else len(diffs)
        _refuse_large(keys, row, sum(diffs[starts[row] : stop].tolist()))
    return sums


def added_counts(
    keys: pa.StringArray, counts: npt.NDArray[np.int64], diffs: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the sums of the counts of rows and the numbers added to them; raises as `summed_counts`."""
    sums = counts + diffs
    # The sum of two numbers is beyond 64 bits if its sign is that of neither.
    for row in np.flatnonzero(((counts ^ sums) & (diffs ^ sums)) < 0).tolist():
        _refuse_large(keys, row, int(counts[row]) + int(diffs[row]))
    return sums


def _refuse_large(keys: pa.StringArray, row: int, count: int) -> None:
    if fits_count(count):
        return
    key = keys[row].as_py()
    shown = key if len(key) <= _SHOWN_MAX else f"{key[:_SHOWN_MAX]}…"
    raise LogError(
        f"the counts of the row {shown} add up to {count}, and a count has 64 bits: write a record with a diff "
        "that brings it back, and read a later version"
    )
