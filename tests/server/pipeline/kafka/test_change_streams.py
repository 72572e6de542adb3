"""Change streams in topics: the log is that of files, whatever the order, the partitions and the failures."""

from __future__ import annotations

import json
import random
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tailrace.cdcv2 import Progress, Update
from tailrace.errors import InvalidRequest
from tailrace_server.cdcv2 import write_line
from tailrace_server.cdcv2.schema import documented_schema
from tailrace_server.pipeline.catalog.quarantine import LineRefused
from tailrace_server.pipeline.cdcv2.folding import Folding
from tailrace_server.pipeline.cdcv2.ingest import Cdcv2Outcome, ingest_cdcv2
from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
from tailrace_server.pipeline.kafka.change_streams import ingest_topics
from tailrace_server.pipeline.kafka.options import KafkaOptions
from tailrace_server.pipeline.run.metrics import IngestMetrics
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.run.stop_signals import Stopping
from tailrace_server.wal.state.commit_log import CommitLog
from tests.process.ingest.killable import Killable
from tests.process.ingest.reading import data, leads
from tests.server.pipeline.cdcv2.streams import (
    DATA,
    SCHEMA,
    make_history,
    mangle,
    statements,
    write_files,
)
from tests.server.wal.logs import armed
from tests.support.kafka_brokers import Brokers, mock_cluster
from tests.support.schema_registry import Registry, framed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.cdcv2 import Statement

pytestmark = pytest.mark.slow

ROW = (1, "a", None)
ONE: list[Statement[int]] = [[Update(ROW, 1, 1)], Progress((0,), (2,), ((1, 1),))]
QUIET = ProgressReporter(quiet=True)


@pytest.fixture(scope="module")
def brokers() -> Brokers:
    return mock_cluster()


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with Registry().up() as registry:
        registry.add(7, documented_schema(DATA))
        other = {**DATA, "fields": DATA["fields"][:2]}
        registry.add(8, documented_schema(other))
        yield registry


class Topic:
    """A topic of the test, and the catalog that it is read into."""

    def __init__(self, brokers: Brokers, registry: Registry, root: Path) -> None:
        self.brokers = brokers
        self.name = root.name
        self.options = KafkaOptions(
            bootstrap=brokers.servers,
            topics=(root.name,),
            format="cdcv2",
            schema_registry=registry.url,
        )
        folding = Folding(SCHEMA, "product", ("id",))
        self.settings = Cdcv2Settings(input=root, log=root, catalog="shop", folding=folding)
        self.catalog = root / "shop"

    def send(self, *messages: Statement[int], partition: int = 0) -> None:
        """Send messages, each as JSON or as Avro."""
        for number, each in enumerate(messages):
            avro = framed(7, SCHEMA.form.encode(each))
            value = avro if number % 2 else write_line(SCHEMA.form, each)
            self.brokers.send(self.name, value, partition=partition)

    def ingest(self, **changes: Any) -> Cdcv2Outcome:
        options = {name: changes.pop(name) for name in [*changes] if hasattr(self.options, name)}
        return ingest_topics(
            replace(self.settings, **changes),
            replace(self.options, **options),
            QUIET,
            stopping=Stopping(),
            metrics=IngestMetrics("shop", "kafka", version="1"),
        )

    def positions(self) -> dict[str, int | str]:
        return CommitLog.open(self.catalog).state.source_positions


@pytest.fixture
def topic(brokers: Brokers, registry: Registry, tmp_path: Path) -> Topic:
    return Topic(brokers, registry, tmp_path)


@pytest.mark.parametrize("seed", range(2))
def test_topics_make_the_log_of_files(topic: Topic, tmp_path: Path, seed: int) -> None:
    """Messages in any partitions and order, and repeated; every second batch fails around its commit."""
    told = statements(make_history(seed, 8, 5, 3), 2, 9, close=bool(seed))
    write_files(tmp_path / "files", told, 2)
    files = replace(topic.settings, input=tmp_path / "files", catalog="of_files")
    ingest_cdcv2(files, QUIET, stopping=Stopping())
    chance = random.Random(seed)
    for each in mangle(told, seed, copies=2):
        topic.send(each, partition=chance.randrange(4))
    for place in ("before", "after"):
        with armed(f"pipeline.{place}_commit=error@2"), pytest.raises(OSError, match="failpoint"):
            topic.ingest(batch_bytes=200)
    outcome = topic.ingest(batch_bytes=2000)
    assert (outcome.waiting, outcome.closed) == ([], bool(seed))
    logs = [(data(each), leads(each)) for each in (topic.catalog, tmp_path / "of_files")]
    assert logs[0] == logs[1]
    assert logs[0][0]


def test_the_command_goes_on_after_a_kill(topic: Topic, tmp_path: Path) -> None:
    topic.send(*ONE, [Update((2, "b", 3), 2, 1)], Progress((2,), (3,), ((2, 1),)))
    schema = tmp_path / "price.avsc"
    schema.write_text(json.dumps(DATA))
    command = Killable(
        tmp_path,
        *("tailrace_server", "ingest", "kafka", "--format=cdcv2", "--topic", topic.name),
        *("--bootstrap", topic.options.bootstrap, "--log", tmp_path, "--catalog", "shop"),
        *("--schema-registry", topic.options.schema_registry, "--schema", schema),
        *("--entity-type", "product", "--key", "id", "--batch-bytes", "1KiB"),
    )
    for place in ("before", "after"):
        assert command.run(f"pipeline.{place}_commit=kill") == -signal.SIGKILL, command.said()
    assert command.run() == 0, command.said()
    assert [each.primary_key for each in data(topic.catalog)] == ["1", "2"]


def test_a_run_continues_at_its_offsets_and_ends_with_the_stream(topic: Topic) -> None:
    """Also behind marks of producers, which are offsets without messages."""
    topic.send(*ONE[:1])
    assert topic.ingest().waiting
    assert topic.ingest().counters.lines == 0
    topic.brokers.send_transaction(topic.name, write_line(SCHEMA.form, ONE[1]))
    topic.send([Update((1, "b", None), 2, 1)], Progress((2,), (), ((2, 1),)))
    outcome = topic.ingest(follow=True)
    assert (outcome.counters.lines, outcome.counters.versions, outcome.closed) == (3, 2, True)
    topic.send(ONE[0])
    assert topic.ingest(follow=True).counters.lines == 0
    assert topic.positions()[f"offset:{topic.name}/0"] == "5:"


def test_a_message_that_cannot_be_used_is_named_by_its_offset(topic: Topic) -> None:
    topic.send(*ONE)
    bad = [b"{unusable", framed(7, b"\x09"), b"\0\0", None]
    topic.brokers.send(topic.name, *bad, partition=2)
    with pytest.raises(LineRefused, match=rf"{topic.name}\+2\+0000000000"):
        topic.ingest(strict=True)
    assert topic.ingest().counters.quarantined == 3
    files = (topic.catalog / "quarantine").iterdir()
    lines = [line for file in files for line in file.read_bytes().splitlines()]
    assert sorted(orjson.loads(line)["file"] for line in lines) == [
        f"{topic.name}+2+{offset:010}" for offset in range(3)
    ]
    assert len(data(topic.catalog)) == 1


def test_another_schema_stops_the_ingest(topic: Topic) -> None:
    topic.brokers.send(topic.name, framed(8, b"\0"))
    with pytest.raises(InvalidRequest, match="schema 8 has another schema"):
        topic.ingest()
    with pytest.raises(InvalidRequest, match="--schema-registry"):
        topic.ingest(schema_registry=None)
