"""How fast does Spark write our log, against the fastest thing that it writes itself?

::

    5 M change rows ──range partition, sort──┬─▶ format("tailrace")   segments, CRC-32C, fsync, one entry
                                             └─▶ parquet, uncompressed

Both start from the same parquet files and do the same shuffle and sort; about 1.2 GB of images. They take
turns, in one session, which has the settings that docs/spark.md advises for small rows.

::

    2 M rows of ten columns ──┬─▶ format("tailrace") with entityType and key   one version
                              └─▶ parquet, as Spark writes it by default

No shuffle and no sort; about 400 MB of images, which our tasks write, and our commit compares the keys. The
same rows once more as a snapshot, of which no row differs: tasks sort them, and the commit merges them.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench._harness import machine, median, table
from tailrace_server.pipeline.dataframe.datasource import TailraceDataSource
from tailrace_server.pipeline.spark.session import spark_session
from tailrace_server.wal.state.commit_log import CommitLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 5_000_000
ROWS_PER_TRANSACTION = 10
PARTITIONS = 8
RUNS = 3

CONF = {
    "spark.driver.memory": "6g",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2500",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}

_IMAGE = (
    'concat(\'{{"id":\', id, \',"name":"product \', id, \'","price":"\', id % {price}, \'.10","stock":\', '
    "id % {stock}, ',\"text\":\"', repeat('t', 60), '\"}}') AS {name}"
)
_COLUMNS = (
    "id AS seq",
    f"lpad(cast(id div {ROWS_PER_TRANSACTION} AS string), 12, '0') AS transaction_id",
    "'upsert' AS operation",
    "'product' AS entity_type",
    "cast(id AS string) AS primary_key",
    "array('price', 'stock') AS changed",
    _IMAGE.format(price=997, stock=13, name="before"),
    _IMAGE.format(price=991, stock=17, name="after"),
)


def changes(spark: SparkSession, source: Path) -> DataFrame:
    """Return the rows in commit order: the work that both writers share."""
    rows = spark.read.parquet(str(source)).repartitionByRange(PARTITIONS, "transaction_id")
    return rows.sortWithinPartitions("seq").drop("seq")


def seconds_of_tailrace(spark: SparkSession, source: Path, target: Path) -> float:
    """Return how long our sink takes, and check that everything is there."""
    started = time.perf_counter()
    (
        changes(spark, source)
        .write.format("tailrace")
        .option("log", str(target))
        .option("catalog", "bench")
        .mode("append")
        .save()
    )
    seconds = time.perf_counter() - started
    view = CommitLog.open(target / "bench").view
    assert view.published == ROWS // ROWS_PER_TRANSACTION
    assert view.end_row == ROWS + view.published + 1  # the leads, and what the columns are
    return seconds


def seconds_of_parquet(spark: SparkSession, source: Path, target: Path) -> float:
    """Return how long Spark's own parquet writer takes."""
    started = time.perf_counter()
    changes(spark, source).write.option("compression", "none").parquet(str(target))
    return time.perf_counter() - started


TYPED_ROWS = 2_000_000
_TYPED_COLUMNS = (
    "id",
    "concat('product ', id) AS name",
    "cast(id % 99991 AS decimal(12,2)) AS price",
    "cast(id % 1000 AS int) AS stock",
    "rand(7) AS rate",
    "id % 3 = 0 AS available",
    "date_add(date'2020-01-01', cast(id % 2000 AS int)) AS day",
    "timestamp_micros(id * 1000003) AS changed_at",
    "concat('city ', id % 500) AS city",
    "repeat('t', 40) AS note",
)


def seconds_of_typed(spark: SparkSession, source: Path, target: Path, mode: str) -> float:
    """Return how long our sink takes for typed rows, and check that everything is there."""
    started = time.perf_counter()
    (
        spark.read.parquet(str(source))
        .write.format("tailrace")
        .option("log", str(target))
        .option("catalog", "bench")
        .option("entityType", "product")
        .option("key", "id")
        .option("mode", mode)
        .mode("append")
        .save()
    )
    seconds = time.perf_counter() - started
    view = CommitLog.open(target / "bench").view
    assert view.published == 1
    assert view.end_row == TYPED_ROWS + 2  # the lead, and what the columns are
    return seconds


def typed_rows(spark: SparkSession, folder: Path) -> None:
    """Measure typed rows and print."""
    source = folder / "typed"
    rows = spark.range(TYPED_ROWS).selectExpr(*_TYPED_COLUMNS)
    rows.repartition(PARTITIONS).write.parquet(str(source))
    times = []
    for run in range(RUNS + 1):
        log, parquet = folder / f"typed-log{run}", folder / f"typed-parquet{run}"
        changes = seconds_of_typed(spark, source, log, "changes")
        snapshot = seconds_of_typed(spark, source, log, "snapshot")
        started = time.perf_counter()
        spark.read.parquet(str(source)).write.parquet(str(parquet))
        if run:  # the first one warms all up
            times.append((changes, snapshot, time.perf_counter() - started))
        shutil.rmtree(log)
        shutil.rmtree(parquet)
    ours, snapshots, theirs = (median([each[place] for each in times]) for place in range(3))
    table(
        f"{TYPED_ROWS:,} typed rows of {len(_TYPED_COLUMNS)} columns, median of {RUNS}",
        ["tailrace", "the same as a snapshot", "parquet", "ratio of speeds", "to reach"],
        [
            [
                *(f"{TYPED_ROWS / each / 1e3:.0f} k rows/s" for each in (ours, snapshots, theirs)),
                f"{median([each[2] / each[0] for each in times]):.2f}",
                "0.6",
            ]
        ],
    )


def main() -> None:
    """Measure and print."""
    print(machine())
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd()) as folder,
        spark_session("bench", quick=False, conf=CONF) as spark,
    ):
        spark.dataSource.register(TailraceDataSource)
        typed_rows(spark, Path(folder))
        source = Path(folder) / "source"
        rows = spark.range(ROWS).selectExpr(*_COLUMNS)
        rows.repartition(PARTITIONS).write.parquet(str(source))
        pairs = []
        for run in range(RUNS + 1):
            ours, theirs = Path(folder) / f"log{run}", Path(folder) / f"parquet{run}"
            pair = (
                seconds_of_tailrace(spark, source, ours),
                seconds_of_parquet(spark, source, theirs),
            )
            shutil.rmtree(ours)
            shutil.rmtree(theirs)
            if run:  # the first one warms both up
                pairs.append(pair)
    table(
        f"{ROWS:,} change rows with two images, median of {RUNS}",
        ["tailrace", "parquet, uncompressed", "ratio of speeds", "to reach"],
        [
            [
                f"{ROWS / median([one for one, _ in pairs]) / 1e3:.0f} k rows/s",
                f"{ROWS / median([other for _, other in pairs]) / 1e3:.0f} k rows/s",
                f"{median([other / one for one, other in pairs]):.2f}",
                "0.85",
            ]
        ],
    )


if __name__ == "__main__":
    main()
