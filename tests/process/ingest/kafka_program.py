"""A program as users write it: a stream in the columns of Spark's Kafka connector feeds a catalog.

    python -m tests.process.ingest.kafka_program FOLDER LOG CHECKPOINT [take over]

Each file of the folder is a batch.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tailrace_server.pipeline.foreach_batch import ForeachBatchSink
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.spark.session import spark_session
from tests.server.pipeline.shapes import BY_ID, end, envelope, line, postgres

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_FIRST_S: Final = 1_700_000_000
"""Files are a second apart: a stream takes them by the time of their last change."""


class Message(NamedTuple):
    """A message in the columns of the connector that are used."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int


_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
    ]
)


def table_of(messages: Iterable[Message]) -> pa.Table:
    """Return messages in the types of the connector."""
    return pa.Table.from_pylist([each._asdict() for each in messages], _SCHEMA)


def write_file(folder: Path, number: int, messages: Iterable[Message]) -> None:
    """Let a batch appear, whole."""
    folder.mkdir(exist_ok=True)
    aside = folder / f".{number}.aside"
    pq.write_table(table_of(messages), aside)
    os.utime(aside, (_FIRST_S + number,) * 2)
    aside.rename(folder / f"{number:04}.parquet")


def messages_of(rows: int, *, partitions: int, batches: int) -> list[list[Message]]:
    """Return batches of messages: transactions of several rows, their ends, tombstones, and unusable lines.

    The rows of a table are divided among partitions by key; transaction metadata have a topic of their own.
    """
    chance = random.Random(7)
    offsets: dict[tuple[str, int], int] = {}
    found: list[Message] = []

    def add(key: object, value: bytes | None, topic: str, partition: int) -> None:
        place = topic, partition
        offset = offsets.get(place, chance.randrange(100))
        offsets[place] = offset + 1
        found.append(Message(orjson.dumps(key), value, *place, offset))

    for number in range(rows):
        tx = number // 4
        row = number % 50
        message = envelope("c", postgres(number + 1, tx), after={"id": row, "n": number})
        add({"id": row}, line(message), "shop.public.product", row % partitions)
        if number % 4 == 3:
            add({"id": str(tx)}, line(end(str(tx), 4)), "shop.transaction", 0)
        if number % 10 == 0:
            add({"id": row}, None, "shop.public.product", row % partitions)
        if number % 25 == 0:
            add({"id": row}, b"{unusable", "shop.public.product", row % partitions)
    size = -(-len(found) // batches)
    return [found[start : start + size] for start in range(0, len(found), size)]


def start(
    spark: SparkSession, folder: Path, checkpoint: str, *, follow: bool = False
) -> DataStreamWriter:
    """Return a stream of the messages, with a batch a file; it ends with the files unless it follows them."""
    stream = (
        spark.readStream.format("parquet")
        .schema("key binary, value binary, topic string, partition int, offset long")
        .option("maxFilesPerTrigger", "1")
        .load(str(folder))
        .writeStream.option("checkpointLocation", checkpoint)
    )
    return stream if follow else stream.trigger(availableNow=True)


if __name__ == "__main__":
    source, log, checkpoint = map(Path, sys.argv[1:4])
    with (
        spark_session("sink", master="local[2]") as session,
        ForeachBatchSink(
            log,
            "shop",
            writer="stream",
            source=Debezium(keys=BY_ID),
            take_over=len(sys.argv) > 4,
        ) as sink,
    ):
        sink.run(start(session, source, str(checkpoint)))
