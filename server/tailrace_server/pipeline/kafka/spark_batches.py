"""Large batches of messages, read and written by Spark tasks; Spark starts with the first of them."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema

from tailrace_server.pipeline.kafka.ranges import OffsetRangeReader, ranges_of
from tailrace_server.pipeline.spark.session import (
    SparkFailed,
    StartInterrupted,
    interruptible,
    reason_of,
    started,
)
from tailrace_server.pipeline.transactions.large_batch import commit_large_batch, distribution
from tailrace_server.pipeline.transactions.lines import LINES_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace_server.pipeline.kafka.options import KafkaOptions
    from tailrace_server.pipeline.kafka.partitions import Partitions
    from tailrace_server.pipeline.transactions.driver import Driver
    from tailrace_server.pipeline.transactions.settings import IngestSettings


class SparkBatches:
    """Writes large batches of one ingest. Close it: it may have started Spark."""

    def __init__(self, settings: IngestSettings, options: KafkaOptions) -> None:
        """Start nothing yet."""
        self._settings = settings
        self._options = options
        self._session: SparkSession | None = None
        self._stack = ExitStack()

    def close(self) -> None:
        """Stop Spark."""
        self._stack.close()

    def commit(self, driver: Driver, batch_id: int, partitions: Partitions) -> None:
        """Commit the messages between the committed offsets and the next ones.

        Returns early at a signal; the batch may be committed then or not. The caller holds the driver's lock.

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
                with interruptible():
                    commit_large_batch(driver, self._settings, lines, batch_id)
            except (PySparkException, Py4JError, OSError) as error:
                partitions.check()  # Spark has the error of a task only as text
                raise SparkFailed(reason_of(error)) from error

    def _started(self) -> SparkSession:
        if self._session is None:
            settings = self._settings
            name = f"tailrace ingest {settings.catalog}"
            folder = settings.log / settings.catalog
            self._session = self._stack.enter_context(started(settings.spark, name, folder))
        return self._session
