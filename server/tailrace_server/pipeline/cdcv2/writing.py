"""Effects of whole times, written as a segment; in the driver or in a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.pipeline.cdcv2.folding import records
from tailrace_server.pipeline.record_table import ROWS_PER_WRITE
from tailrace_server.wal.segment.writer import SegmentReceipt, SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

    from tailrace_server.pipeline.cdcv2.folding import Time


def write_segment(
    path: Path,
    effects: pa.RecordBatch,
    entity_type: str,
    times: Sequence[Time] | None = None,
) -> tuple[list[SegmentReceipt], int]:
    """Write effects as a segment; return it, and how many versions it has. ``times`` as in `records`.

    Raises:
        LogFull: No room.
    """
    versions = 0
    with SegmentWriter(path) as segment:
        for table, so_far in records(effects, entity_type, ROWS_PER_WRITE, times):
            segment.write(table)
            versions = so_far
        return [segment.close()], versions
