"""The commit of one batch of lines, in the driver or in tasks, and what the clock makes due between batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.pipeline.transactions.large_batch import commit_large_batch, distribution
from tailrace_server.pipeline.transactions.lines import decode_lines

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tailrace_server.pipeline.transactions.driver import Driver
    from tailrace_server.pipeline.transactions.settings import IngestSettings


def commit_frame(
    driver: Driver, settings: IngestSettings, frame: DataFrame, batch_id: int, *, small: bool
) -> None:
    """Commit a batch, in the driver if it is ``small``, else in tasks. The caller holds the driver's lock.

    Args:
        driver: The driver of the catalog.
        settings: The settings of the ingest.
        frame: The lines, with the columns of `lines.LINES_SCHEMA`.
        batch_id: The log's id of the batch.
        small: True if the lines fit into this process.
    """
    driver.distribute = distribution(frame.sparkSession)
    if small:
        commit_lines(driver, settings, frame.toArrow(), batch_id)
    else:
        commit_large_batch(driver, settings, frame, batch_id)


def commit_lines(driver: Driver, settings: IngestSettings, lines: pa.Table, batch_id: int) -> None:
    """Commit collected lines, a table of `lines.LINES_SCHEMA`. The caller holds the driver's lock."""
    decoded = decode_lines(lines, settings, driver.bindings, driver.consumed)
    driver.batch(batch_id, decoded.changes, decoded.skipped)


def run_if_due(driver: Driver) -> None:
    """Flush, compare snapshots, expire rows and publish, each if due. The caller holds the driver's lock."""
    left = driver.idle_left()
    if left is not None and left <= 0:
        driver.flush()
    driver.compare_snapshots()
    driver.expire()
    driver.publish()
