"""Runs without a log behind them, for tests of what only holds references."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace.position import Position
from tailrace_server.rows.run import BatchSelection, Run
from tailrace_server.wal.segment.refs import BatchRef, SegmentRef

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS_PER_VERSION = 4


def position_of(row: int) -> Position:
    """Return the position of a row in a log whose versions all have four records."""
    return Position(1 + row // ROWS_PER_VERSION, row % ROWS_PER_VERSION)


def batch_ref(first_row: int, rows: int) -> BatchRef:
    """Return a reference to a batch that exists nowhere."""
    segment = SegmentRef(path=f"segments/1/{first_row}.arrow", base_version=0, prefix=())
    return BatchRef(
        segment=segment,
        offset=0,
        length=0,
        head_length=0,
        rows=rows,
        first=position_of(first_row),
        last=position_of(first_row + rows - 1),
        first_row=first_row,
        crc_head=0,
        crc_body=(0, 0, 0),
    )


def entity_run(first_row: int, offsets: Sequence[int], rows: int | None = None) -> Run:
    """Return a run of entity-level captures at offsets of a batch."""
    return column_run(first_row, [(offset, 0) for offset in offsets], rows)


def column_run(first_row: int, captures: Sequence[tuple[int, int]], rows: int | None = None) -> Run:
    """Return a run of captures at (offset, ordinal) of a batch."""
    offsets = np.array([offset for offset, _ in captures], np.int32)
    ordinals = np.array([ordinal for _, ordinal in captures], np.int32)
    selection = BatchSelection("test", offsets, ordinals if ordinals.any() else None)
    ref = batch_ref(first_row, rows or int(offsets[-1]) + 1)
    return Run(ref, selection, position_of(first_row + int(offsets[0])))
