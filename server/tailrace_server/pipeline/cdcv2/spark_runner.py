"""Runs the steps of a large batch in a Spark session."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema

from tailrace_server.pipeline.cdcv2.batch import results_of
from tailrace_server.pipeline.cdcv2.pieces import Kind
from tailrace_server.pipeline.spark.pieces import FRAME, frame
from tailrace_server.pipeline.spark.session import SparkFailed, reason_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace_server.pipeline.cdcv2.batch import Batch, BatchResult
    from tailrace_server.pipeline.cdcv2.steps import BatchStep, ReadParts

PART_BYTES: Final = 16 << 20
"""A larger file is read in parts of about this many bytes, so that all cores share the work."""

SHARES_MAX: Final = 256
"""The most hash partitions: the number of slots in `updates`."""


class SparkRunner:
    """Runs the steps of one batch on Spark; a context manager. Cached frames are freed when the block ends."""

    part_bytes = PART_BYTES
    merged_rows_max = 1 << 62

    def __init__(self, spark: SparkSession, partitions: int | None = None) -> None:
        """Bind to a session.

        Args:
            spark: The session.
            partitions: The number of hash partitions; None: twice the number of cores.
        """
        cores = spark.sparkContext.defaultParallelism
        self.shares = min(partitions or 2 * cores, SHARES_MAX)
        self.readers, self.segments_max = 4 * cores, 2 * cores
        self._spark = spark
        self._kept = ExitStack()
        self._schema: Any = from_arrow_schema(FRAME)

    def __enter__(self) -> SparkRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()

    def read(self, step: ReadParts) -> DataFrame:
        """Run the first step, with one task for each list of file parts in the step."""
        tasks = len(step.parts)
        # One row for each task, each in its own partition: a task's number selects its list of parts.
        numbers = self._spark.range(0, tasks, 1, tasks)
        seeds = numbers.selectExpr(
            "CAST(id AS INT) AS share", f"{int(Kind.SEED)} AS kind", "CAST('' AS BINARY) AS piece"
        )
        return self.run(seeds, step)

    def run(self, rows: DataFrame, step: BatchStep) -> DataFrame:
        """Run a step on the pieces of each task, without moving the pieces."""
        return rows.mapInArrow(step, self._schema)

    def exchange(self, rows: DataFrame, shares: int, step: BatchStep) -> DataFrame:
        """Send each piece to the task of its partition, and run a step there."""
        return self.run(rows.repartitionById(shares, "share"), step)

    def seeded(self, rows: DataFrame) -> DataFrame:
        """Add an empty piece for each partition, so that a partition without other pieces is run too."""
        seeds = [(share, Kind.SEED, b"") for share in range(self.shares)]
        return rows.unionByName(self._spark.createDataFrame(pa.Table.from_batches([frame(seeds)])))

    def kept(self, rows: DataFrame) -> DataFrame:
        """Cache rows until the block ends."""
        kept = rows.persist()
        self._kept.callback(kept.unpersist)
        return kept

    def only(self, rows: DataFrame, kind: Kind) -> DataFrame:
        """Return the pieces of a kind."""
        return rows.where(f"kind = {int(kind)}")

    def without(self, rows: DataFrame, kind: Kind) -> DataFrame:
        """Return the pieces of all other kinds."""
        return rows.where(f"kind != {int(kind)}")

    def both(self, rows: DataFrame, others: DataFrame) -> DataFrame:
        """Return the pieces of both inputs, each in its present partition."""
        return rows.unionByName(others)

    def results(self, rows: DataFrame) -> dict[int, list[Any]]:
        """Return the unpickled results of tasks, by kind."""
        table: pa.Table = rows.select("kind", "piece").toArrow()
        kinds, pieces = (column.to_pylist() for column in table.columns)
        return results_of(zip(kinds, pieces, strict=True))


def run_on_spark(spark: SparkSession, batch: Batch) -> BatchResult:
    """Run a batch in a session.

    Raises:
        SparkFailed: A task failed too often, or the JVM died.
        TailraceError: A step of the batch raised it.
    """
    try:
        with SparkRunner(spark, batch.settings.partitions) as runner:
            return batch.run(runner)
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(reason_of(error)) from error
