"""Batches of a source's messages, from whatever DataFrame they come: the body of ``foreachBatch``.

A frame has a column ``value``, string or binary, one line a row. Frames of files also say where each line
comes from, by ``_metadata`` of Spark or by the columns of `lines.LINES_SCHEMA`: lines are then taken in the
order of files, and those which the log holds are skipped after a take-over. Without it a batch is refused if
it has several files, since Spark lays them out by size.

A batch is committed once. It is known by the id of Spark's query, which belongs to the checkpoint, and by its
number (`wal.source_batches`).
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
            writer: A stable name; it goes with the stream's checkpoint. A new checkpoint is refused at its
                first batch, unless ``take_over`` is set.

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
        """Commit a batch; one that the log has with the same rows is passed over.

        A batch counts as all that its stream had then. Of a stream that limits its batches, as with
        ``maxOffsetsPerTrigger``, the time of a batch is idle time of every transaction without a row in it.

        Raises:
            UnknownWriter: The stream's checkpoint is not the writer's.
            InvalidRequest: The log has the batch with other rows, or the batch has several files and does not
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
            self.driver.numbered = source
            next_id = self.driver.last_batch + 1
            commit_frame(self.driver, self._settings, frame, next_id, small=small)

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
    driver.compare_snapshots()
    driver.expire()
    driver.publish()


def _lines(frame: DataFrame, batch_id: int) -> DataFrame:
    """Return a frame in the form of `LINES_SCHEMA`; one without files is one nameless file a batch."""
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
    """Return the content of a frame, and make sure that its rows have an order.

    Raises:
        InvalidRequest: It has several files and does not name the file of each row.
    """
    # One job for all. Spark knows the file of a row only where it reads it, so that is a column first.
    found = (
        frame.selectExpr("crc32(cast(value as binary)) as crc", "input_file_name() as name")
        .selectExpr("count(1)", "sum(crc)", "min(name)", "max(name)")
        .first()
    )
    assert found is not None
    rows, checksum, first, last = found
    if first != last and not {"file", "_metadata"} & set(frame.columns):
        raise InvalidRequest(
            f"a batch has several files, {first} and others, and Spark lays them out by size, not by time; "
            "select _metadata beside value, and they are taken by time, name and line"
        )
    return BatchContent(rows, (checksum or 0) % (1 << 64))
