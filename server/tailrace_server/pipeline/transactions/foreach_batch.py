"""Batches of a source's messages, from whatever DataFrame they come: the body of ``foreachBatch``.

A frame has a column ``value``, string or binary, one line a row. Frames of files also say where each line
comes from (`lines.LINES_SCHEMA`), so that lines which the log holds are skipped after a take-over. For other
frames the batch id alone keeps a batch from being committed twice.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace_server.pipeline.transactions.driver import Driver
from tailrace_server.pipeline.transactions.large_batch import commit_large_batch, distribution
from tailrace_server.pipeline.transactions.lines import decode_lines
from tailrace_server.wal.catalog import open_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tailrace_server.pipeline.transactions.settings import IngestSettings


class ForeachBatchSink:
    """Turns batches into commits of one catalog; for streams that `tailrace ingest` does not read.

    ::

        with ForeachBatchSink(settings, writer="orders-from-kafka") as sink:
            messages.writeStream.foreachBatch(sink.batch).option("checkpointLocation", …).start()
            …                              # call sink.tick() about every second
    """

    def __init__(self, settings: IngestSettings, *, writer: str) -> None:
        """Open the catalog.

        Args:
            settings: ``input`` and ``follow`` have no effect.
            writer: A stable name; it goes with the stream's checkpoint.

        Raises:
            UnknownWriter: The catalog belongs to another writer, and ``take_over`` is not set.
        """
        self._settings = settings
        self._writer = open_writer(
            settings.log, settings.catalog, writer=writer, take_over=settings.take_over
        )
        self.driver = Driver(self._writer, settings)

    def __enter__(self) -> ForeachBatchSink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def batch(self, frame: DataFrame, batch_id: int) -> None:
        """Commit a batch; one that the log knows is passed over.

        A batch counts as all that its stream had then. Of a stream that limits its batches, as with
        ``maxOffsetsPerTrigger``, the time of a batch is idle time of every transaction without a row in it.
        """
        at = time.monotonic()
        with self.driver.lock:
            self.driver.idle.batch_began(at, whole=True)
            if batch_id > self.driver.last_batch:
                small = frame.count() <= self._settings.small_batch_rows
                commit_frame(self.driver, self._settings, frame, batch_id, small=small)

    def tick(self) -> None:
        """Commit what idle time has completed, let rows expire, and publish, each if it is due.

        Idle time goes from one call to the next, unless a batch lies between.
        """
        with self.driver.lock:
            self.driver.idle.source_idle(time.monotonic())
            run_if_due(self.driver)

    def close(self) -> None:
        """Publish what is committed and close the catalog; what is open stays for the next run."""
        with self.driver.lock:
            self.driver.publish(force=True)
        self._writer.close()


def commit_frame(
    driver: Driver, settings: IngestSettings, frame: DataFrame, batch_id: int, *, small: bool
) -> None:
    """Commit a batch in the driver, or on all cores. Called under the driver's lock."""
    lines = _lines(frame, batch_id)
    driver.distribute = distribution(frame.sparkSession)
    # Counts of rows follow from all versions before, which tasks do not know.
    if not (small or settings.source.keyless):
        commit_large_batch(driver, settings, lines, batch_id)
        return
    decoded = decode_lines(lines.toArrow(), settings, driver.bindings, driver.consumed)
    driver.batch(batch_id, decoded.changes, decoded.skipped)


def run_if_due(driver: Driver) -> None:
    """Flush, let rows expire and publish, each if it is due. Called under the driver's lock."""
    left = driver.idle_left()
    if left is not None and left <= 0:
        driver.flush()
    driver.expire()
    driver.publish()


def _lines(frame: DataFrame, batch_id: int) -> DataFrame:
    """Return a frame in the form of `LINES_SCHEMA`; one without files is one nameless file a batch."""
    if "file" in frame.columns:
        return frame
    return frame.selectExpr(
        "cast(value as binary) as value",
        "'' as file",
        "cast(spark_partition_id() as long) as block",
        f"cast({batch_id} as long) as modified_us",
    )
