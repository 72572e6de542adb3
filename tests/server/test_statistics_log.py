"""What the log says of the engine's statistics."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from structlog.testing import capture_logs

from tailrace_server.histogram import LatencyHistogram
from tailrace_server.resources.disk_usage import DiskUsage
from tailrace_server.resources.memory import MemoryAccount
from tailrace_server.resources.statistics import (
    CacheStatistics,
    EngineStatistics,
    ObserverStatistics,
)
from tailrace_server.statistics_log import StatisticsReporter

SHOP = ObserverStatistics(
    catalog="shop",
    uuid=UUID(int=1),
    published=3,
    committed=4,
    records=9,
    records_routed=9,
    publishers=1,
    subscriptions=1,
    damaged_places=0,
    batches_unreadable=0,
    ring_bytes=100,
    newest_timestamp=7,
)
NOW = EngineStatistics(
    observers=(SHOP,),
    unreadable={},
    faults=(),
    cache=CacheStatistics(1, 2, 3, 4, 5, 6),
    subscriptions=1,
    subscriptions_opened=1,
    subscriptions_failed=0,
    captures_delivered=6,
    bytes_delivered=600,
    heartbeats_sent=1,
    resyncs=0,
    returns=0,
    memory=(MemoryAccount("cache", 1, 8), MemoryAccount("rest", 5, None)),
    message_bytes_max=65_536,
    waiting_for_memory=0,
    disconnected_for_memory=0,
    latencies={"grpc": LatencyHistogram()},
    disks={"shop": DiskUsage(8_192, 2, 1 << 30)},
)


def test_an_interval_in_which_something_moved_is_reported_with_every_number() -> None:
    found = replace(NOW, captures_delivered=0)
    reporter = StatisticsReporter(lambda: found)
    found = NOW
    with capture_logs() as lines:
        reporter.report()
    engine, catalog = lines
    assert (engine["event"], engine["captures_delivered"], engine["bytes_delivered"]) == (
        "statistics",
        6,
        600,
    )
    assert engine["memory"] == {"cache": 1, "rest": 5}
    assert (engine["cache_bytes"], engine["cache_evicted"], engine["process_bytes"]) == (1, 5, 6)
    assert catalog["event"] == "catalog statistics"
    assert {
        name: catalog[name] for name in ("catalog", "committed", "ring_bytes", "log_bytes")
    } == {
        "catalog": "shop",
        "committed": 4,
        "ring_bytes": 100,
        "log_bytes": 8_192,
    }


def test_where_nothing_but_heartbeats_moved_nothing_is_written() -> None:
    found = NOW
    reporter = StatisticsReporter(lambda: found)
    found = replace(NOW, heartbeats_sent=2)
    with capture_logs() as lines:
        reporter.report()
    assert lines == []


def test_a_commit_that_nobody_takes_is_something_that_moved() -> None:
    found = NOW
    reporter = StatisticsReporter(lambda: found)
    found = replace(NOW, observers=(replace(SHOP, committed=5),))
    with capture_logs() as lines:
        reporter.report()
    assert [line["event"] for line in lines] == ["statistics", "catalog statistics"]
