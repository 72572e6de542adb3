"""Updates as Arrow tables: hashed, deduplicated, and partitioned by hash.

`UPDATES` is their schema in state files and between tasks. ``data`` is the row in canonical Avro binary, so
rows are equal if and only if their bytes are. A row is decoded only when its update is finished.

The *slot* of an update, from 0 to `SLOTS` - 1, is the top byte of its hash. Each slot can be deduplicated
alone. A task has all slots that are equal modulo the number of tasks. So any number of tasks can read the state
that another number of tasks wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.machine_code.loader import BYTE, LONG, WORD, address, loops
from tailrace_server.wal.record.keys import key_hashes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Longs = npt.NDArray[np.int64]

SLOTS: Final = 256

UPDATES: Final = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("time", pa.int64(), nullable=False),
        pa.field("diff", pa.int64(), nullable=False),
        pa.field("message", pa.int64(), nullable=False),
        pa.field("data", pa.large_binary(), nullable=False),
    ]
)
"""Schema of updates: ``message`` is the place of the message, as `place_of` encodes it."""

_OFFSET_BITS: Final = 40
_WORD: Final = np.uint64(0x9E3779B97F4A7C15)


class Place(NamedTuple):
    """The place of a message in the input."""

    ordinal: int
    """Number of the file, in the order of reading."""
    offset: int
    """Offset of the first byte of the line, or of the container's block."""


def place_of(ordinal: int, offset: int) -> int:
    """Return a place as one number; the numbers sort in the order of reading."""
    return ordinal << _OFFSET_BITS | offset


def place(number: int) -> Place:
    """Return the place that a number encodes."""
    return Place(number >> _OFFSET_BITS, number & ((1 << _OFFSET_BITS) - 1))


def updates_table(data: pa.Array, times: Longs, diffs: Longs, messages: Longs) -> pa.RecordBatch:
    """Return a table of `UPDATES`; ``data`` is a large_binary array."""
    return pa.RecordBatch.from_arrays(
        [pa.array(hashes(data, times)), *map(pa.array, (times, diffs, messages)), data],
        schema=UPDATES,
    )


def hashes(data: pa.Array, times: Longs) -> npt.NDArray[np.uint64]:
    """Return the hash of each pair (data, time)."""
    # The time is the seed for the hash of the data.
    return key_hashes(times.astype(np.uint64) * _WORD, data)


class Distinct(NamedTuple):
    """Updates without repeats, and what was removed."""

    updates: pa.RecordBatch
    duplicates: int
    conflicts: int
    conflict: tuple[int, int] | None
    """Row numbers, in the input, of the first two updates that differ only in their diff; None: there are
    none.
    """


def distinct(updates: pa.RecordBatch, *, both: bool = False) -> Distinct:
    """Return the first update of each pair (data, time).

    Args:
        updates: The updates, in the order that decides which one is first.
        both: True to keep updates that differ from an earlier one only in their diff, for a later step to
            decide.
    """
    times = updates.column("time").to_numpy()
    diffs = updates.column("diff").to_numpy()
    data = updates.column("data")
    rows = len(times)
    keep = np.ones(rows, np.bool_)
    pair: tuple[int, int] | None = None
    conflicts = 0
    machine = loops(rows)
    if machine is not None and rows:
        # An open-addressing hash table of row numbers, at most half full.
        table = np.full(1 << (2 * rows - 1).bit_length(), -1, np.int64)
        first = np.full(2, -1, np.int64)
        hashed = updates.column("hash").to_numpy()
        values, offsets = _bytes_of(data)
        conflicts = machine.mark_distinct(
            *(rows, address(hashed, WORD), address(times, LONG), address(diffs, LONG)),
            *(address(values, BYTE), address(offsets, LONG)),
            *(address(table, LONG), len(table), int(both)),
            *(address(keep.view(np.uint8), BYTE), address(first, LONG)),
        )
        if conflicts:
            pair = int(first[0]), int(first[1])
    else:
        # The same in Python, while the compiled loops are not available.
        seen: dict[tuple[bytes, int], int] = {}
        keys = zip(data.to_pylist(), times.tolist(), strict=True)
        for row, key in enumerate(keys):
            other = seen.setdefault(key, row)
            if other == row:
                continue
            same = diffs[other] == diffs[row]
            keep[row] = both and not same
            if not same:
                conflicts += 1
                pair = pair or (other, row)
    kept = int(np.count_nonzero(keep))
    return Distinct(
        updates if kept == rows else updates.filter(pa.array(keep)), rows - kept, conflicts, pair
    )


def slots(hashed: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint16]:
    """Return the slot of each hash."""
    return (hashed >> np.uint64(56)).astype(np.uint16)


def share_out(
    rows: pa.RecordBatch, hashed: npt.NDArray[np.uint64], parts: int
) -> list[tuple[int, pa.RecordBatch]]:
    """Return rows grouped by the task of their slot, without empty groups; rows of a task keep their order."""
    if parts == 1 or not len(hashed):
        return [(0, rows)] if len(hashed) else []
    tasks = slots(hashed) % np.uint16(parts)
    # A stable sort keeps the order of the rows within a task.
    order = np.argsort(tasks, kind="stable")
    ends = np.cumsum(np.bincount(tasks, minlength=parts)).tolist()
    ordered = rows.take(pa.array(order))
    starts = [0, *ends[:-1]]
    return [
        (part, ordered.slice(start, stop - start))
        for part, (start, stop) in enumerate(zip(starts, ends, strict=True))
        if stop > start
    ]


def joined(parts: Sequence[pa.RecordBatch], schema: pa.Schema = UPDATES) -> pa.RecordBatch:
    """Return several batches as one."""
    if len(parts) == 1:
        return parts[0]
    table = pa.Table.from_batches(parts, schema=schema).combine_chunks()
    batches = table.to_batches()
    assert len(batches) <= 1
    return (
        batches[0]
        if batches
        else pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in schema], schema=schema
        )
    )


def before(rows: pa.RecordBatch, time: int | None) -> pa.RecordBatch:
    """Return the rows with a time below ``time``; None returns all rows."""
    return rows if time is None else rows.filter(pc.less(rows.column("time"), time))


def since(rows: pa.RecordBatch, time: int | None) -> pa.RecordBatch:
    """Return the rows with a time at or above ``time``; None returns no rows."""
    return (
        rows.slice(0, 0)
        if time is None
        else rows.filter(pc.greater_equal(rows.column("time"), time))
    )


def _bytes_of(data: pa.Array) -> tuple[Any, Longs]:
    """Return the bytes and the offsets of a large_binary array, without a copy."""
    _, offset_buffer, values = data.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[data.offset : data.offset + len(data) + 1]
    if values is None:
        return np.zeros(0, np.uint8), offsets
    return np.frombuffer(values, np.uint8), offsets
