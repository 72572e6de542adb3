"""The ingest of Kafka: the same log in one process and in Spark tasks, and kills of it and of its broker."""

from __future__ import annotations

import random
import shlex
import signal
from itertools import chain
from typing import TYPE_CHECKING

import orjson
import pytest

from tailrace.errors import UnknownWriter
from tailrace_server.pipeline.foreach_batch import ForeachBatchSink
from tailrace_server.pipeline.run.stop_signals import Stopping
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.spark.session import SparkFailed
from tailrace_server.pipeline.transactions.settings import Rules
from tailrace_server.wal.upkeep.verify import verify
from tests.process.ingest.kafka_program import Message, messages_of, table_of
from tests.process.ingest.killable import Killable, end
from tests.process.ingest.reading import data, leads, published
from tests.rules.test_documented_programs import blocks
from tests.server.pipeline.kafka.test_formats import ENVELOPE, KEY, messages, shop_of
from tests.server.pipeline.kafka.test_topics import Shop, row
from tests.server.pipeline.shapes import BY_ID
from tests.support.kafka_brokers import Tansu, mock_cluster
from tests.support.polling import wait_until
from tests.support.schema_registry import Registry, framed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

TOPICS = {"shop.public.product": 2, "shop.transaction": 1}


class StopsInBatch(Stopping):
    """Is set when the first batch looks at it, after the loops of the run."""

    looks = 0

    def is_set(self) -> bool:
        self.looks += 1
        return self.looks > 2


def test_tasks_make_the_log_that_one_process_makes(spark: SparkSession, tmp_path: Path) -> None:
    """A batch that is stopped in its tasks leaves nothing."""
    brokers = mock_cluster()
    brokers.send_all(each[:4] for each in chain(*messages_of(300, partitions=2, batches=1)))
    stopped = Shop(brokers, tmp_path / "stopped")
    stopped.ingest(StopsInBatch(), batch_rows=400)
    assert (published(stopped.catalog), stopped.offsets()) == (0, {})
    logs = []
    for rows in (1_000_000, 400):
        shop = Shop(brokers, tmp_path / str(rows))
        shop.ingest(batch_rows=rows, source=Debezium(), rules=Rules(idle_s=3600.0))
        assert verify(shop.catalog).sound
        logs.append((data(shop.catalog), leads(shop.catalog), shop.offsets()))
    assert logs[0] == logs[1]
    assert len(logs[0][1]) == 75


def test_tasks_decode_avro(spark: SparkSession, tmp_path: Path) -> None:
    """A schema that is missing in a task is named."""
    brokers = mock_cluster()
    registry = Registry()
    registry.add(1, KEY)
    registry.add(2, ENVELOPE)
    for key, value in messages("debezium-avro"):
        brokers.send("shop.a", value, key=key)
    logs = []
    with registry.up():
        for rows in (1_000_000, 4):
            shop = shop_of(brokers, tmp_path / str(rows), "shop.a", registry, "debezium-avro")
            shop.ingest(batch_rows=rows, source=Debezium())
            logs.append((data(shop.catalog), leads(shop.catalog), shop.offsets()))
        brokers.send("shop.a", framed(77, b"\0"), None)
        with pytest.raises(SparkFailed, match=r"shop.a/0 at offset 5: .*--schema-registry"):
            shop.ingest(batch_rows=1, source=Debezium())
    assert logs[0] == logs[1]


def test_a_catalog_of_the_sink_continues_at_its_offsets(
    spark: SparkSession, tmp_path: Path
) -> None:
    brokers = mock_cluster()
    brokers.send("shop.t", *map(row, range(5)))
    shop = Shop(brokers, tmp_path)
    source = Debezium(keys=BY_ID)
    with ForeachBatchSink(tmp_path, "shop", writer="stream", source=source) as sink:
        messages = [Message(None, row(number), "shop.t", 0, number) for number in range(3)]
        sink.batch(spark.createDataFrame(table_of(messages)), 0)
    with pytest.raises(UnknownWriter):
        shop.ingest()
    shop.ingest(take_over=True)
    assert shop.keys() == [str(number) for number in range(5)]
    assert shop.offsets() == {"offset:shop.t/0": "5:"}


@pytest.fixture
def tansu(tmp_path: Path) -> Iterator[Tansu]:
    broker = Tansu(tmp_path)
    broker.start(**TOPICS)
    yield broker
    broker.close()


def test_each_message_is_in_the_catalog_once_whatever_is_killed(
    tansu: Tansu, tmp_path: Path
) -> None:
    """The command of the page, killed around commits and at random; its broker comes back with its messages."""
    (text,) = blocks("ingest-kafka.md", "Start", "")
    (line,) = (each for each in text.splitlines() if each.startswith("tailrace"))
    line = line.replace("localhost:9092", tansu.servers).replace("log/", str(tmp_path))
    command = Killable(
        tmp_path,
        *("tailrace_server", *shlex.split(line)[1:]),
        *("--small-batch-rows", 40, "--transaction-idle", "1h"),
    )
    messages = [each[:4] for each in chain(*messages_of(240, partitions=2, batches=1))]
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        for key, value, topic, partition in messages[sent : sent + count]:
            tansu.send(topic, value, key=key, partition=partition)
        sent += count

    send(150)
    for place in ("pipeline.before_commit=kill@2", "pipeline.after_commit=kill@2"):
        process = command.start(place)
        try:
            assert process.wait(120) == -signal.SIGKILL, command.said()
        finally:
            end(process)
    process = command.start()
    try:
        wait_until(lambda: published(tmp_path / "shop") > 20)
        send(random.Random(3).randrange(20, 60))
        tansu.kill()
        wait_until(lambda: "a new attempt follows" in command.said())
    finally:
        end(process)
    before, sent = sent, 0
    tansu.start(**TOPICS)
    send(before)
    process = command.start()
    try:
        send(len(messages) - sent)
        wait_until(lambda: published(tmp_path / "shop") == 60)
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        end(process)
    found = [orjson.loads(each.after or b"null")["n"] for each in data(tmp_path / "shop")]
    assert found == list(range(240))
    assert verify(tmp_path / "shop").sound
