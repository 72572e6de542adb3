"""The body of ``foreachBatch``: commits batches of a source's messages from any DataFrame.

A frame has a column ``value``, string or binary, with one line in each row. A frame of files can also name the
origin of each line, by Spark's ``_metadata`` or by the columns of `lines.LINES_SCHEMA`. Then lines are taken in
the order of files, and after a take-over, lines that the log has already are skipped. A batch of several files
is rejected if it does not name them, because Spark orders its files by size.

A batch is committed once. It is identified by its number and by the id of Spark's query, which is stored in the
checkpoint (`wal.source_batches`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.spark.checkpoint import QUERY_ID
from tailrace_server.pipeline.transactions.driver import Driver
from tailrace_server.pipeline.transactions.large_batch import commit_large_batch, distribution
from tailrace_server.pipeline.transactions.lines import decode_lines
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.source_batches import BatchContent, SourceBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tailrace_server.pipeline.transactions.settings import IngestSettings


class ForeachBatchSink:
    """Commits batches to one catalog; for streams that `tailrace ingest` does not read.

    ::

        with ForeachBatchSink(settings, writer="orders-from-kafka") as sink:
            messages.writeStream.foreachBatch(sink.batch).option("checkpointLocation", …).start()
            …                              # call sink.tick() about every second
    """

    def __init__(self, settings: IngestSettings, *, writer: str) -> None:
        """Open the catalog.

        Args:
            settings: ``input`` and ``follow`` have no effect.
            writer: A stable name that belongs to the stream's checkpoint. The first batch of a new checkpoint
                is rejected, unless ``take_over`` is set.

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
        """Commit a batch, unless the log has the same batch already.

        A batch is assumed to have all input that its stream had at the time. If the stream limits its batches,
        for example by ``maxOffsetsPerTrigger``, the time between two batches is therefore idle time for every
        transaction without a row in them.

        Raises:
            UnknownWriter: The stream's checkpoint is not the writer's.
            InvalidRequest: The log has this batch with other rows, or the batch has several files and does not
                name the file of each row.
        """
        at = time.monotonic()
        with self.driver.lock:
            self.driver.idle.batch_began(at, whole=True)
            content = _content(frame)
            source = SourceBatch(
                frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or "",
                batch_id,
                content,
                take_over=self._settings.take_over,
            )
            if self.driver.writer.find_source(source) is not None:
                return
            small = content.rows <= self._settings.small_batch_rows
            # The log's own batch ids continue over checkpoints. The stream's id is stored with the commit, and
            # is what identifies a repeated batch.
            self.driver.numbered = source
            next_id = self.driver.last_batch + 1
            commit_frame(self.driver, self._settings, frame, next_id, small=small)

    def tick(self) -> None:
        """Commit what idle time has completed, let rows expire, and publish, each if it is due.

        The time between two calls is idle time, unless a batch ran between them.
        """
        with self.driver.lock:
            self.driver.idle.source_idle(time.monotonic())
            run_if_due(self.driver)

    def close(self) -> None:
        """Publish what is committed, and close the catalog; open transactions stay pending for the next run."""
        with self.driver.lock:
            self.driver.publish(force=True)
        self._writer.close()


def commit_frame(
    driver: Driver, settings: IngestSettings, frame: DataFrame, batch_id: int, *, small: bool
) -> None:
    """Commit a batch, in the driver if it is ``small``, else in tasks. The caller holds the driver's lock."""
    lines = _lines(frame, batch_id)
    driver.distribute = distribution(frame.sparkSession)
    # Tasks cannot count rows: a count depends on all versions before.
    if not (small or settings.source.keyless):
        commit_large_batch(driver, settings, lines, batch_id)
        return
    decoded = decode_lines(lines.toArrow(), settings, driver.bindings, driver.consumed)
    driver.batch(batch_id, decoded.changes, decoded.skipped)


def run_if_due(driver: Driver) -> None:
    """Flush, compare snapshots, expire rows and publish, each if due. The caller holds the driver's lock."""
    left = driver.idle_left()
    if left is not None and left <= 0:
        driver.flush()
    driver.compare_snapshots()
    driver.expire()
    driver.publish()


def _lines(frame: DataFrame, batch_id: int) -> DataFrame:
    """Return a frame with the columns of `LINES_SCHEMA`; a frame without files is one nameless file."""
    if "file" in frame.columns:
        return frame
    if "_metadata" in frame.columns:
        return frame.selectExpr(
            "cast(value as binary) as value",
            "_metadata.file_path as file",
            "_metadata.file_block_start as block",
            "unix_micros(_metadata.file_modification_time) as modified_us",
        )
    return frame.selectExpr(
        "cast(value as binary) as value",
        "'' as file",
        "cast(spark_partition_id() as long) as block",
        f"cast({batch_id} as long) as modified_us",
    )


def _content(frame: DataFrame) -> BatchContent:
    """Return the row count and checksum of a frame, and check that its rows have an order.

    Raises:
        InvalidRequest: The frame has several files and does not name the file of each row.
    """
    # One Spark job computes all. `input_file_name` is known only in the stage that reads the file, so it is
    # selected as a column before the aggregation.
    found = (
        frame.selectExpr("crc32(cast(value as binary)) as crc", "input_file_name() as name")
        .selectExpr("count(1)", "sum(crc)", "min(name)", "max(name)")
        .first()
    )
    assert found is not None
    rows, checksum, first, last = found
    if first != last and not {"file", "_metadata"} & set(frame.columns):
        raise InvalidRequest(
            f"a batch has several files, {first} and others, and Spark reads them in order of "
            "size, not of time; select _metadata in addition to value, so that they are written "
            "by time, name and line"
        )
    return BatchContent(rows, (checksum or 0) % (1 << 64))
