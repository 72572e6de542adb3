"""Whether a large batch has images to fill.

An image is filled from the versions before, so the versions of such a batch are written one after the other, in
the driver. A batch with nothing to fill is written in tasks as ever: rows of a snapshot, new rows, rows whose
source sends both images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.changes import CHANGE, from_table
from tailrace_server.pipeline.filling.last_images import needs_last_image
from tailrace_server.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.pipeline.transactions.tally import Tally

_COUNTS: Final = pa.schema([pa.field("lacking", pa.int64()), pa.field("bytes", pa.int64())])


def lacks_images(
    open_tallies: Mapping[str, Tally], settings: IngestSettings, decoded: DataFrame
) -> bool:
    """Return whether the versions of a batch have to be written in the driver.

    Args:
        open_tallies: Of the open transactions. The missing values of their rows are unknown, so with any row
        they have to.
        settings: Of the ingest.
        decoded: The batch, of `CHANGE_SCHEMA`.

    Raises:
        InvalidRequest: They have to, and are too large for it.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = ["entity_type", "operation", "primary_key", "old_key", "before", "after"]
    rows = decoded.where(decoded["kind"] == CHANGE).select(*columns)
    counts = rows.mapInArrow(counter_of(settings), from_arrow_schema(_COUNTS)).toArrow().to_pylist()
    total = sum(each["bytes"] for each in counts)
    waiting = any(tally.rows for tally in open_tallies.values())
    if not waiting and not any(each["lacking"] for each in counts):
        return False
    if total > settings.batch_bytes:
        raise InvalidRequest(
            f"images are filled in one process, and those of the next batch have {format_bytes(total)}, above "
            f"--batch-bytes, {format_bytes(settings.batch_bytes)}: give --batch-bytes {total}B if that fits "
            "memory, or smaller files, or take these with --images as-sent"
        )
    return True


def counter_of(
    settings: IngestSettings,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what counts, in a task, the changes that may lack something, and the bytes of all images."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lacking = size = 0
        for batch in batches:
            size += batch.column("before").nbytes + batch.column("after").nbytes
            lacking += sum(needs_last_image(change, settings) for change in from_table(batch))
        yield pa.RecordBatch.from_arrays(
            [pa.array([lacking], pa.int64()), pa.array([size], pa.int64())], schema=_COUNTS
        )

    return count
