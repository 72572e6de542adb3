"""A program as users write it: a stream from a log into Parquet files, or into a Delta table by MERGE.

    python -m tests.process.ingest.source_program parquet|delta CATALOG TARGET CHECKPOINT

Tests start it as a process of its own, to kill it, and call what it does in theirs.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import CommitProperties, DeltaTable, Transaction

from tailrace_server.failpoints import reach
from tailrace_server.pipeline.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APPLICATION = "orders-from-the-log"


def merge(target: str, rows: DataFrame, number: int) -> None:
    """Apply the net changes of a batch to a Delta table, once."""
    table = DeltaTable(target)
    done = table.transaction_version(APPLICATION)
    if done is not None and number <= done:
        return
    changes = rows.where("_change_type <> 'update_preimage'").toArrow()
    reach("program.before_merge")
    once = CommitProperties(app_transactions=[Transaction(APPLICATION, number)])
    columns = {name: f"s.{name}" for name in ("id", "name", "price")}
    (
        table.merge(changes, "t.id = s.id", "s", "t", commit_properties=once)
        .when_matched_delete("s._change_type = 'delete'")
        .when_matched_update(columns)
        .when_not_matched_insert(columns, "s._change_type <> 'delete'")
        .execute()
    )
    reach("program.after_merge")


def run(spark: SparkSession, kind: str, catalog: Path, target: Path, checkpoint: Path) -> None:
    """Read what there is, one version in a batch."""
    reader = (
        spark.readStream.format("tailrace")
        .option("path", str(catalog))
        .option("entityType", "product")
        .option("maxVersionsPerBatch", "1")
        .option("rowsPerPart", "4")
    )
    if kind == "delta":
        reader = reader.option("deduplicationMode", "netChanges").option("computeUpdates", "true")
    writer = reader.load().writeStream.option("checkpointLocation", str(checkpoint))
    if kind == "delta":
        writer = writer.foreachBatch(partial(merge, str(target)))
    else:
        writer = writer.format("parquet").option("path", str(target))
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    with spark_session("source", master="local[2]") as session:
        run(session, sys.argv[1], *map(Path, sys.argv[2:5]))
