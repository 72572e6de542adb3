"""Topics of librdkafka's mock cluster into a catalog: offsets, transactions, gaps, and what cannot be read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError

from tailrace.errors import InvalidRequest
from tailrace_server.option_fields import options_of
from tailrace_server.pipeline.feed.source import SourceLost, SourceRefused, SourceUnreachable
from tailrace_server.pipeline.kafka import partitions as partitions_module
from tailrace_server.pipeline.kafka.errors import SourceCompacted, source_error
from tailrace_server.pipeline.kafka.ingest import run_kafka
from tailrace_server.pipeline.kafka.options import KafkaOptions
from tailrace_server.pipeline.kafka.partitions import Partition, Partitions
from tailrace_server.pipeline.run.metrics import IngestMetrics
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.run.stop_signals import Stopping
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.settings import IngestSettings, Rules
from tailrace_server.wal.state.commit_log import CommitLog
from tests.process.ingest.reading import data, leads
from tests.server.pipeline.shapes import BY_ID, end, envelope, line, postgres
from tests.server.wal.logs import armed
from tests.support.kafka_brokers import Brokers, Tansu, mock_cluster
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tailrace_server.pipeline.run.progress import IngestCounters

pytestmark = pytest.mark.slow

PRODUCTS, MARKS = "shop.public.product", "shop.transaction"


def row(number: int, tx: int | None = None) -> bytes:
    return line(envelope("c", postgres(number, tx), after={"id": number}))


def finish(tx: int, rows: int) -> bytes:
    return line(end(str(tx), rows))


class Reporter(ProgressReporter):
    """Keeps the error lines."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.complaints: list[str] = []

    def complain(self, message: str) -> None:
        self.complaints.append(message)


class Shop:
    """A catalog that topics are read into."""

    def __init__(self, brokers: Brokers, root: Path) -> None:
        self.brokers = brokers
        self.options = KafkaOptions(bootstrap=brokers.servers, topics=("^shop[.]",))
        self.settings = IngestSettings(
            input=Path("/"),
            log=root,
            catalog="shop",
            source=Debezium(keys=BY_ID),
            rules=Rules(idle_s=0.2),
        )
        self.catalog = root / "shop"
        self.reporter = Reporter()

    def ingest(self, stopping: Stopping | None = None, **changes: Any) -> IngestCounters:
        """Read what is there, and end."""
        options = {name: changes.pop(name) for name in [*changes] if hasattr(self.options, name)}
        return run_kafka(
            replace(self.settings, **changes),
            replace(self.options, **options),
            self.reporter,
            IngestMetrics("shop", "kafka", version="1"),
            stopping or Stopping(),
        ).counters

    def keys(self) -> list[str | None]:
        return [each.primary_key for each in data(self.catalog)]

    def offsets(self) -> dict[str, int | str]:
        if not self.catalog.exists():
            return {}
        positions = CommitLog.open(self.catalog).state.source_positions
        return {name: at for name, at in positions.items() if name.startswith("offset:")}


@pytest.fixture(scope="module")
def shared() -> Brokers:
    """Return a cluster for tests that only look at it."""
    brokers = mock_cluster()
    brokers.send(PRODUCTS, row(1))
    return brokers


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(mock_cluster(), tmp_path)


def test_a_run_continues_at_the_offsets_of_the_catalog(shop: Shop) -> None:
    """With tombstones and messages that cannot be used, from several partitions."""
    shop.brokers.send(PRODUCTS, row(1), b"{unusable", key=b'{"id":1}')
    shop.brokers.send(PRODUCTS, None, row(2), key=b'{"id":2}', partition=3)
    counters = shop.ingest()
    assert (counters.lines, counters.versions, counters.quarantined) == (4, 2, 1)
    figures = counters.sources["kafka"]
    assert (figures.positions[f"{PRODUCTS}/3"], figures.lags[f"{PRODUCTS}/3"]) == (2, 0)
    assert shop.offsets() == {f"offset:{PRODUCTS}/0": "2:", f"offset:{PRODUCTS}/3": "2:"}
    assert shop.ingest().lines == 0
    shop.brokers.send(PRODUCTS, row(3))
    assert shop.ingest().lines == 1
    assert sorted(map(str, shop.keys())) == ["1", "2", "3"]
    (file,) = (shop.catalog / "quarantine").iterdir()
    assert f"{PRODUCTS}+0+" in file.read_text()


@pytest.mark.parametrize("place", ["pipeline.before_commit", "pipeline.after_commit"])
def test_a_failure_around_a_commit_neither_loses_nor_repeats_a_message(
    shop: Shop, place: str
) -> None:
    shop.brokers.send(PRODUCTS, *map(row, range(6)))
    with armed(f"{place}=error"), pytest.raises(OSError, match="failpoint"):
        shop.ingest(small_batch_rows=2)
    shop.ingest(small_batch_rows=2)
    assert shop.keys() == [str(number) for number in range(6)]


def test_a_transaction_of_several_topics_is_one_version(shop: Shop) -> None:
    """A run waits for the ends of the transactions that it opened; idle time ends those without."""
    shop.brokers.send(PRODUCTS, row(1, 7), row(3, 8), partition=1)
    shop.brokers.send("shop.public.order", row(2, 7))
    shop.brokers.send(MARKS, finish(7, 2))
    shop.ingest()
    assert [body["source_count"] for body in leads(shop.catalog)] == [2, 1]


def test_marks_of_producers_are_passed(shop: Shop) -> None:
    """A producer with transactions leaves offsets without a message, also at the end of a partition."""
    shop.brokers.send_transaction(PRODUCTS, row(1))
    shop.ingest()
    assert shop.offsets() == {f"offset:{PRODUCTS}/0": "2:"}
    shop.brokers.send_transaction(PRODUCTS, row(2))
    shop.ingest()
    assert shop.keys() == ["1", "2"]


def test_messages_that_were_deleted_before_they_were_read_are_an_error(shop: Shop) -> None:
    shop.brokers.send(PRODUCTS, row(1))
    shop.ingest()
    filler = [(None, b"x" * 500_000, PRODUCTS, 0)] * 20
    shop.brokers.send_all(filler)
    shop.brokers.send(PRODUCTS, row(2))
    with pytest.raises(SourceCompacted, match=r"needs offset 1: .*--accept-gaps") as caught:
        shop.ingest()
    assert caught.value.figures()["wanted"] == "1"
    assert shop.keys() == ["1"]
    shop.ingest(accept_gaps=True)
    assert shop.keys() == ["1", "2"]
    assert len(shop.reporter.complaints) == 1
    assert "without the missing offsets 1 to" in shop.reporter.complaints[0]
    shop.ingest()


def test_a_topic_that_was_created_again_is_an_error(shop: Shop) -> None:
    shop.brokers.send(PRODUCTS, row(1), row(2))
    shop.ingest()
    shop.brokers = mock_cluster()
    shop.brokers.send(PRODUCTS, row(1))
    with pytest.raises(SourceLost, match=r"ends at offset 1, but .* up to offset 2"):
        shop.ingest(bootstrap=shop.brokers.servers)


@pytest.mark.parametrize(
    ("options", "kind", "reason"),
    [
        ({"topics": ("shop.public.products",)}, InvalidRequest, "did you mean shop.public.product"),
        ({"topics": ("^other",)}, InvalidRequest, "there is no such topic"),
        (
            {"client": {"sasl.passwords": "hidden"}},
            InvalidRequest,
            "--kafka sasl.passwords: No such",
        ),
        ({"client": {"security.protocol": "hidden"}}, InvalidRequest, "--kafka security.protocol"),
        ({"bootstrap": "127.0.0.1:1"}, SourceUnreachable, "127.0.0.1:1: .*refused"),
    ],
)
def test_what_cannot_be_read_says_so_and_creates_no_catalog(
    shared: Brokers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    kind: type[Exception],
    reason: str,
) -> None:
    monkeypatch.setattr(partitions_module, "_ANSWER_S", 1.0)
    shop = Shop(shared, tmp_path)
    with pytest.raises(kind, match=reason) as caught:
        shop.ingest(**options)
    assert "hidden" not in str(caught.value)
    assert not shop.catalog.exists()


def test_a_client_that_the_brokers_refuse_is_not_tried_again() -> None:
    """Librdkafka reports the refusal by itself; the call only times out."""
    late, refused = KafkaError(KafkaError._TIMED_OUT), KafkaError(KafkaError._AUTHENTICATION, "no")
    assert isinstance(source_error(late, "b:1"), SourceUnreachable)
    assert isinstance(source_error(late, "b:1", refused), SourceRefused)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("isolation.level=read_uncommitted", "sets this itself"),
        ("bootstrap.servers=other", "sets this itself"),
        ("sasl.password", "write KEY=VALUE"),
    ],
)
def test_a_setting_that_exactly_once_depends_on_is_refused(setting: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        options_of(KafkaOptions)["client"].value([setting])


def test_an_outage_is_reported_and_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is created meanwhile is read, too."""
    monkeypatch.setattr(partitions_module, "_ANSWER_S", 0.5)
    monkeypatch.setattr(partitions_module, "_LISTING_S", 0.1)
    broker, stopping = Tansu(tmp_path), Stopping()
    try:
        broker.start(**{PRODUCTS: 1})
        broker.send(PRODUCTS, row(1), row(2, 7))
        shop = Shop(broker, tmp_path)
        with ThreadPoolExecutor(1) as threads:
            run = threads.submit(
                shop.ingest, follow=True, rules=Rules(idle_s=3600.0), stopping=stopping
            )
            wait_until(lambda: bool(shop.offsets()) or run.done())
            with broker.stalled():
                wait_until(lambda: len(shop.reporter.complaints) > 1)
            broker.send(PRODUCTS, row(3, 7))
            broker.create(**{MARKS: 1})
            broker.send(MARKS, finish(7, 2))
            wait_until(lambda: shop.keys() == ["1", "2", "3"])
            stopping.set()
            run.result()
    finally:
        broker.close()
    assert [body["source_count"] for body in leads(shop.catalog)] == [1, 2]
    assert "a new attempt follows in 1 s" in shop.reporter.complaints[0]


def test_a_topic_that_is_gone_after_an_outage_is_an_error(shop: Shop) -> None:
    partitions = Partitions(replace(shop.options, topics=("^other",)), shop.reporter.complain)
    try:
        with pytest.raises(SourceLost, match=r"topic other\.t was deleted, and the catalog"):
            partitions.find({"offset:other.t/0": "5:"})
    finally:
        partitions.close()


def test_a_new_partition_waits_for_what_the_older_ones_had(shop: Shop) -> None:
    """Otherwise a newer message of a key could come before an older one."""
    shop.brokers.send(PRODUCTS, row(1), row(2))
    shop.brokers.send(PRODUCTS, row(3), partition=1)
    partitions = Partitions(shop.options, shop.reporter.complain)
    try:
        partitions.find({f"offset:{PRODUCTS}/0": "1:"})
        taken: list[Partition] = []
        while not partitions.has(partitions.ends()):
            taken += partitions.take(1, 1, 0.1)
    finally:
        partitions.close()
    assert taken == [Partition(PRODUCTS, 0), Partition(PRODUCTS, 1)]
