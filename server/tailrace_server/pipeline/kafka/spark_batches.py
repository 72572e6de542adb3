"""Large batches of messages, read and written by Spark tasks; Spark starts with the first of them."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema

from tailrace_server.pipeline.kafka.ranges import OffsetRangeReader, ranges_of
from tailrace_server.pipeline.spark.session import (
    SparkFailed,
    StartInterrupted,
    reason_of,
    started,
)
from tailrace_server.pipeline.transactions.large_batch import commit_large_batch, distribution
from tailrace_server.pipeline.transactions.lines import LINES_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tailrace_server.pipeline.kafka.options import KafkaOptions
    from tailrace_server.pipeline.kafka.partitions import Partitions
    from tailrace_server.pipeline.run.stop_signals import Stopping
    from tailrace_server.pipeline.transactions.driver import Driver
    from tailrace_server.pipeline.transactions.settings import IngestSettings

_LOOK_S: Final = 0.1
"""Time between two looks whether a running batch must stop, in seconds."""


class SparkBatches:
    """Writes large batches of one ingest. Close it: it may have started Spark."""

    def __init__(self, settings: IngestSettings, options: KafkaOptions, stopping: Stopping) -> None:
        """Start nothing yet; ``stopping`` is set when the run must end."""
        self._stopping = stopping
        self._settings = settings
        self._options = options
        self._session: SparkSession | None = None
        self._stack = ExitStack()

    def close(self) -> None:
        """Stop Spark."""
        self._stack.close()

    def commit(self, driver: Driver, batch_id: int, partitions: Partitions) -> bool:
        """Commit the messages between the committed offsets and the next ones; True if they are committed.

        False: the run must stop, and nothing is committed. The caller holds the driver's lock.

        Raises:
            SourceCompacted, SourceLost, SourceUnreachable, SourceRefused: The messages cannot be read.
            JavaMissing, SparkNotStarted, SparkFailed: Spark does not run.
        """
        with suppress(StartInterrupted):
            spark = self._started()
            driver.distribute = distribution(spark)
            cores = spark.sparkContext.defaultParallelism
            ranges = ranges_of(partitions.committed, partitions.next, cores)
            pieces = spark.createDataFrame(ranges).repartitionById(ranges.num_rows, "task")
            reader = OffsetRangeReader(self._options, batch_id)
            lines = pieces.mapInArrow(reader, from_arrow_schema(LINES_SCHEMA))
            try:
                with self._cancelling(spark):
                    commit_large_batch(driver, self._settings, lines, batch_id)
            except (PySparkException, Py4JError, OSError) as error:
                if self._stopping.is_set():
                    return False
                partitions.check()  # Spark has the error of a task only as text
                raise SparkFailed(reason_of(error)) from error
            return True
        return False

    @contextmanager
    def _cancelling(self, spark: SparkSession) -> Iterator[None]:
        """Cancel the jobs of the block once the run must stop."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_LOOK_S):
                if self._stopping.is_set():
                    with suppress(Py4JError, OSError):
                        spark.sparkContext.cancelAllJobs()

        watcher = threading.Thread(target=watch, name="kafka-batch")
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _started(self) -> SparkSession:
        if self._session is None:
            settings = self._settings
            name = f"tailrace ingest {settings.catalog}"
            folder = settings.log / settings.catalog
            self._session = self._stack.enter_context(started(settings.spark, name, folder))
        return self._session
