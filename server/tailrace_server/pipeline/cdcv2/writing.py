"""Effects of whole times, written as a segment; in the driver or in a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.pipeline.cdcv2.folding import records
from tailrace_server.pipeline.driver import ROWS_PER_WRITE
from tailrace_server.wal.segment import SegmentReceipt, SegmentWriter

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


def write_segment(
    path: Path, effects: pa.RecordBatch, entity_type: str
) -> tuple[list[SegmentReceipt], int]:
    """Write effects as a segment; return it, and how many versions it has.

    Raises:
        LogFull: No room.
    """
    versions = 0
    with SegmentWriter(path) as segment:
        for table, so_far in records(effects, entity_type, ROWS_PER_WRITE):
            segment.write(table)
            versions = so_far
        return [segment.close()], versions
