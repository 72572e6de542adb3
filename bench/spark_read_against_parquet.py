"""How fast does Spark read one entity type of a log, compared with the same rows in Parquet?

::

    2 M inserts of ten columns ─▶ log ─▶ spark.read.format("tailrace"), three typed columns ─▶ noop
    the rows that it returns   ─▶ Parquet ─▶ spark.read.parquet                             ─▶ noop   baseline

Both are read in one session by all cores, alternately, and the rows are compared first. The sink ``noop`` takes
each row and drops it. The log stores rows as JSON; a task parses three of their ten members.

What it does not show: slow disks, updates with both images, and conditions.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench._harness import machine, median, table
from bench.log_read import ROWS, write
from tailrace_server.machine_code.loader import loops_made
from tailrace_server.pipeline.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUNS = 5
COLUMNS = "id,price,status"


def from_log(spark: SparkSession, root: Path) -> DataFrame:
    """Return three columns of the rows in the log."""
    reader = spark.read.format("tailrace").option("path", str(root / "bench"))
    return reader.option("entityType", "sale").option("columns", COLUMNS).load()


def seconds(rows: DataFrame) -> float:
    """Return how long it takes to read all rows."""
    started = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    print(machine())
    loops_made()
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd()) as folder,
        spark_session("bench", quick=False, conf={"spark.driver.memory": "4g"}) as spark,
    ):
        root, parquet = Path(folder) / "log", Path(folder) / "parquet"
        root.mkdir()
        write(root)
        from_log(spark, root).write.parquet(str(parquet))
        baseline = spark.read.parquet(str(parquet))
        assert baseline.count() == ROWS
        assert from_log(spark, root).exceptAll(baseline).isEmpty(), "the rows differ"
        pairs = []
        for run in range(RUNS + 1):
            pair = seconds(from_log(spark, root)), seconds(spark.read.parquet(str(parquet)))
            if run:  # the first one warms both up
                pairs.append(pair)
        shutil.rmtree(root)
    table(
        f"{ROWS:,} rows, three typed columns, median of {RUNS}",
        ["tailrace", "parquet", "ratio of speeds", "to reach"],
        [
            [
                f"{ROWS / median([one for one, _ in pairs]) / 1e3:.0f} k rows/s",
                f"{ROWS / median([other for _, other in pairs]) / 1e3:.0f} k rows/s",
                f"{median([other / one for one, other in pairs]):.2f}",
                "0.6",
            ]
        ],
    )


if __name__ == "__main__":
    main()
