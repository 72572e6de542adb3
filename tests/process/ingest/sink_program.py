"""A program as users write it: files of changes become versions, by batch writes or by a stream.

    python -m tests.process.ingest.sink_program batch|stream FRAMES CATALOG CHECKPOINT

Tests start it as a process of its own, to kill it, and call what it does in theirs. The kind names the writer.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace_server.pipeline.dataframe.datasource import register
from tailrace_server.pipeline.spark.session import spark_session
from tailrace_server.wal.upkeep.verify import verify
from tests.process.ingest.reading import data, leads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = ("transaction_id", "operation", "entity_type", "primary_key", "before", "after")
SCHEMA = pa.schema([(name, pa.string()) for name in COLUMNS])
_FIRST_S: Final = 1_700_000_000
"""Files are a second apart: a stream takes them by when they were last changed, and the clock that says so
stands still for milliseconds."""


def add_frame(folder: Path, number: int, transactions: range, rows: int = 3) -> None:
    """Let a file of changes appear, whole: a batch of a stream, or of a write with this number."""
    table = pa.Table.from_pylist(
        [
            {
                "transaction_id": f"{t:06}",
                "operation": "upsert",
                "entity_type": "t",
                "primary_key": f"{t}-{row}",
                "after": f'{{"id":{row}}}',
            }
            for t in transactions
            for row in range(rows)
        ],
        schema=SCHEMA,
    )
    folder.mkdir(exist_ok=True)
    aside = folder / f".{number}.aside"
    pq.write_table(table, aside)
    os.utime(aside, (_FIRST_S + number,) * 2)
    aside.rename(folder / f"{number:04}.parquet")


def write_batches(spark: SparkSession, frames: Path, catalog: Path, writer: str) -> None:
    """Write every file as the batch of its number: what the log holds of them is skipped."""
    for file in sorted(frames.glob("*.parquet")):
        (
            spark.read.parquet(str(file))
            .write.format("tailrace")
            .option("path", str(catalog))
            .option("writer", writer)
            .option("batch", str(int(file.stem)))
            .mode("append")
            .save()
        )


def start_stream(
    spark: SparkSession,
    frames: Path,
    catalog: Path,
    checkpoint: Path,
    writer: str,
    *,
    take_over: bool = False,
    follow: bool = False,
) -> StreamingQuery:
    """Start a stream with a batch a file; it ends with the files unless it is to follow them."""
    given = (
        spark.readStream.format("parquet")
        .schema(", ".join(f"{name} string" for name in COLUMNS))
        .option("maxFilesPerTrigger", "1")
        .load(str(frames))
        .writeStream.format("tailrace")
        .option("path", str(catalog))
        .option("checkpointLocation", str(checkpoint))
        .option("writer", writer)
        .option("take_over", str(take_over))
    )
    return (given if follow else given.trigger(availableNow=True)).start()


def run(spark: SparkSession, kind: str, frames: Path, catalog: Path, checkpoint: Path) -> None:
    """Do all that there is to do, as a writer of the kind's name."""
    if kind == "batch":
        write_batches(spark, frames, catalog, kind)
    else:
        start_stream(spark, frames, catalog, checkpoint, kind).awaitTermination()


def check_transactions(catalog: Path, numbers: Iterable[int]) -> None:
    """Check that a log holds these transactions, whole, in order and nothing else."""
    numbers = list(numbers)
    assert [body["transaction_id"] for body in leads(catalog)] == [f"{n:06}" for n in numbers]
    assert [record.primary_key for record in data(catalog)] == [
        f"{number}-{row}" for number in numbers for row in range(3)
    ]
    assert verify(catalog).sound


if __name__ == "__main__":
    with spark_session("sink", master="local[2]") as session:
        register(session)
        run(session, sys.argv[1], *map(Path, sys.argv[2:5]))
