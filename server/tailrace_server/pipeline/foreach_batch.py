"""The sink of ``foreachBatch``: a stream of messages, such as that of Spark's Kafka connector, feeds a catalog.

::

    with ForeachBatchSink("log", "shop", writer="orders", source=Debezium()) as sink:
        sink.run(messages.writeStream.option("checkpointLocation", "checkpoint"))

`transactions.frame_lines` lists the columns of a frame. A batch is committed once. It is identified by its
number and by the id of Spark's query, which is stored in the checkpoint (`wal.source_batches`). If the frame
has offsets, the log stores them too (`wal.source_offsets`): then nothing is lost or repeated if the checkpoint
is lost.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import InvalidRequest, TailraceError
from tailrace.errors.requests import nearest
from tailrace_server.pipeline.spark.checkpoint import QUERY_ID
from tailrace_server.pipeline.transactions.driver import Driver
from tailrace_server.pipeline.transactions.foreach_batch import (
    commit_frame,
    commit_lines,
    run_if_due,
)
from tailrace_server.pipeline.transactions.frame_lines import FrameLines
from tailrace_server.pipeline.transactions.large_batch import distribution
from tailrace_server.pipeline.transactions.settings import IngestSettings
from tailrace_server.wal.catalog import create_catalog, open_writer
from tailrace_server.wal.source_batches import SourceBatch
from tailrace_server.wal.source_offsets import gaps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tailrace_server.pipeline.input.source import Source
    from tailrace_server.pipeline.spark.idle_listener import IdleListener

_log = logging.getLogger(__name__)

_TURN_S: Final = 0.1
"""Time between two looks at the clock."""
_NOT_OPTIONS: Final = {"input", "follow", "master", "batch_bytes", "outlets"}
"""Settings of an ingest of files, and of its own session."""
_ROOT: Final = Path("/")
"""Files are named by their absolute path, without the first slash."""


class ForeachBatchSink:
    """Commits the batches of one stream to one catalog. A context manager.

    In its block a thread flushes, lets rows expire and publishes, each when it is due.
    """

    def __init__(
        self,
        log: str | Path,
        catalog: str,
        *,
        writer: str,
        source: Source,
        take_over: bool = False,
        accept_gaps: bool = False,
        **options: Any,
    ) -> None:
        """Open the catalog; create an absent one.

        Args:
            log: The log root.
            catalog: Name of the catalog.
            writer: A stable name that belongs to the stream's checkpoint. The first batch of a new checkpoint
                is rejected, unless ``take_over`` is set.
            source: The kind of the messages, with its options.
            take_over: Accept a catalog of another writer, or a new checkpoint. Lines with offsets that the log
                has are skipped.
            accept_gaps: Continue behind offsets that are missing, and log a warning for each gap.
            options: Other fields of `IngestSettings`, such as ``rules`` and ``small_batch_rows``.

        Raises:
            InvalidRequest: There is no such option.
            UnknownWriter: The catalog belongs to another writer, and ``take_over`` is not set.
        """
        known = {field.name for field in fields(IngestSettings)} - _NOT_OPTIONS
        for name in options.keys() - known:
            raise InvalidRequest(f"ForeachBatchSink has no option {name!r}{nearest(name, known)}")
        self._settings = IngestSettings(
            input=_ROOT,
            log=Path(log),
            catalog=catalog,
            source=source,
            take_over=take_over,
            **options,
        )
        self._accept_gaps = accept_gaps
        create_catalog(self._settings.log, catalog)
        self._writer = open_writer(self._settings.log, catalog, writer=writer, take_over=take_over)
        self.driver = Driver(self._writer, self._settings)
        self._began: float | None = None
        """Start time of the last batch, by the monotonic clock."""
        self._expect_small = True
        self._failure: BaseException | None = None
        """The error of the last batch."""
        self._listener: IdleListener | None = None
        self._query: StreamingQuery | None = None
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._watch_clock, name="tailrace-sink")
        self._clock_failure: BaseException | None = None

    def __enter__(self) -> ForeachBatchSink:
        """Start the thread."""
        self._clock.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        """Stop the thread and close the catalog. Raise the error of the thread if the block raised none."""
        self.close()
        if error is None and self._clock_failure is not None:
            raise self._clock_failure

    def run(self, stream: DataStreamWriter) -> None:
        """Start a stream into this sink, and return when it has ended.

        Args:
            stream: A ``writeStream`` with its checkpoint and trigger.

        Raises:
            TailraceError: A batch failed; the error is the batch's own.
            StreamingQueryException: The stream failed by itself.
        """
        from pyspark.errors import StreamingQueryException

        from tailrace_server.pipeline.spark.idle_listener import listening

        start = stream.foreachBatch(self.batch).start
        with listening(stream._spark, start) as (self._query, self._listener):
            try:
                self._query.awaitTermination()
            except StreamingQueryException:
                # Spark has the error of a batch only as text.
                if isinstance(self._failure, TailraceError):
                    raise self._failure from None
                raise
        if self._clock_failure is not None:
            raise self._clock_failure

    def batch(self, frame: DataFrame, batch_id: int) -> None:
        """Commit a batch, unless the log has the same batch already: the body of ``foreachBatch``.

        A batch is assumed to have all input that its stream had at the time. If the stream limits its batches,
        for example by ``maxOffsetsPerTrigger``, the time between two batches is therefore idle time for every
        transaction without a row in them.

        Raises:
            UnknownWriter: The stream's checkpoint is not the writer's.
            InvalidRequest: The frame cannot be read; the log has this batch with other rows; or offsets are
                missing.
        """
        self._failure = None
        at = time.monotonic()
        try:
            with self.driver.lock:
                if self._clock_failure is not None:
                    raise self._clock_failure
                self._began = at
                self.driver.idle.batch_began(at, whole=True)
                self._commit(frame, batch_id)
        except BaseException as error:
            self._failure = error
            raise

    def close(self) -> None:
        """Publish what is committed, and close the catalog; open transactions stay pending for the next run."""
        self._ended.set()
        if self._clock.is_alive():
            self._clock.join()
        try:
            with self.driver.lock:
                self.driver.publish(force=True)
        finally:
            self._writer.close()

    def _commit(self, frame: DataFrame, batch_id: int) -> None:
        driver, settings = self.driver, self._settings
        # The log's own batch ids continue over checkpoints. The stream's id is stored with the commit, and is
        # what identifies a repeated batch.
        next_id = driver.last_batch + 1
        spark = frame.sparkSession
        stream = spark.sparkContext.getLocalProperty(QUERY_ID) or ""
        with closing(
            FrameLines(frame, next_id, settings.small_batch_rows, expect_small=self._expect_small)
        ) as lines:
            self._expect_small = lines.is_small
            source = SourceBatch(
                stream,
                batch_id,
                lines.content,
                consecutive=bool(stream),
                take_over=settings.take_over,
                offsets=lines.offsets,
                accept_gaps=self._accept_gaps,
            )
            if driver.writer.find_source(source) is not None:
                return
            positions = driver.writer.state.source_positions
            for missing in gaps(lines.offsets, positions):
                _log.warning("continued without the missing offsets %s", missing)
            driver.numbered = source
            if lines.is_small:
                driver.distribute = distribution(spark)
                commit_lines(driver, settings, lines.collected(positions), next_id)
            else:
                rows = lines.distributed(positions)
                commit_frame(driver, settings, rows, next_id, small=False)

    def _watch_clock(self) -> None:
        while not self._ended.wait(_TURN_S):
            # A batch holds the lock as long as it runs, and `close` must not wait for it twice.
            if not self.driver.lock.acquire(blocking=False):
                continue
            try:
                self._turn()
            except BaseException as error:
                self._clock_failure = self._failure = error
                if self._query is not None:
                    self._query.stop()
                return
            finally:
                self.driver.lock.release()

    def _turn(self) -> None:
        """Move the idle clock, and do what is due by it. The caller holds the lock."""
        if self._listener is not None:
            # Spark's idle event can arrive late, after the next batch has begun; then it is ignored.
            at = self._listener.idle_at
            if at is not None and (self._began is None or at > self._began):
                self.driver.idle.source_idle(at)
        elif self._began is not None:
            # Before its first batch the stream may read what waits for it.
            self.driver.idle.source_idle(time.monotonic())
        run_if_due(self.driver)
