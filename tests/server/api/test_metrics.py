"""Every figure of the statistics is a metric: a number that only tests can see is not operable."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING
from uuid import UUID

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tailrace_server.api.grpc import GrpcStatistics
from tailrace_server.api.server import metrics
from tailrace_server.histogram import LatencyHistogram
from tailrace_server.resources.disk_usage import DiskUsage
from tailrace_server.resources.faults import ServerFault
from tailrace_server.resources.memory import MemoryAccount
from tailrace_server.resources.statistics import (
    CacheStatistics,
    EngineStatistics,
    ObserverStatistics,
    SqlStatistics,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.samples import Sample

NOT_METRICS = {"values", "subscriptions"}
"""How many cached values of any kind tells nothing; the engine's subscriptions are the sum over catalogs."""


def distinct(kind: type, first: int, **fixed: object) -> tuple[object, dict[str, float]]:
    """Return a record in which each number differs from all others, and those numbers by field."""
    names = [field.name for field in dataclasses.fields(kind) if field.name not in fixed]
    values = {name: first + place for place, name in enumerate(names)}
    return kind(**values, **fixed), dict(values)


def parsed(registry: CollectorRegistry) -> list[Sample]:
    """Return the samples of a scrape."""
    exposition, _ = metrics.expose(registry, metrics.OPENMETRICS_TYPE)
    families = text_string_to_metric_families(exposition.decode())  # type: ignore[no-untyped-call]
    return [sample for family in families for sample in family.samples]


def test_every_figure_of_the_statistics_is_exposed() -> None:
    cache, of_cache = distinct(CacheStatistics, 100)
    observer, of_observer = distinct(
        ObserverStatistics,
        200,
        catalog="shop",
        uuid=UUID(int=1),
        newest_timestamp=0,
        newest_age_s=90.5,
        oldest_timestamp=(time.time_ns() - 900_000_000_000) // 1_000,
        bodies_from={"product": 4711},
    )
    sql, of_sql = distinct(SqlStatistics, 500)
    latency = LatencyHistogram()
    latency.observe(0.002)
    engine, of_engine = distinct(
        EngineStatistics,
        300,
        cache=cache,
        observers=(observer,),
        unreadable={"crm": "damaged"},
        faults=(ServerFault("log_unreadable", "crm", "damaged"),),
        latencies={"grpc": latency},
        disks={"shop": DiskUsage(997, 995, 996)},
        memory=(
            MemoryAccount("cache", int(of_cache["bytes"]), 994),
            MemoryAccount("rest", 993, None),
        ),
        sql=sql,
    )
    assert isinstance(engine, EngineStatistics)
    registry = metrics.registry(lambda: engine, lambda: GrpcStatistics(999, 998), version="1.2.3")
    samples = parsed(registry)
    faults = [each.labels for each in samples if each.name == "tailrace_fault"]
    assert faults == [{"kind": "log_unreadable", "subject": "crm"}]
    exposed = {sample.value for sample in samples}
    assert {999, 998} <= exposed  # what the gRPC face has ended and refused
    assert {997, 996} <= exposed  # the disk
    assert {994, 993} <= exposed  # the accounts of memory
    [age] = [each.value for each in samples if each.name == "tailrace_newest_commit_age_seconds"]
    assert age == 90.5
    [age] = [each.value for each in samples if each.name == "tailrace_oldest_commit_age_seconds"]
    assert age >= 900
    assert 4711 in exposed  # the oldest bodies
    buckets = {
        each.labels["le"]: each.value
        for each in samples
        if each.name == "tailrace_hand_over_latency_seconds_bucket"
    }
    assert (buckets["0.001"], buckets["0.0025"], buckets["+Inf"]) == (0, 1, 1)
    for figures in (of_cache, of_observer, of_sql, of_engine):
        for name, value in figures.items():
            if name not in NOT_METRICS or figures is of_observer:
                assert value in exposed, name
    process = {each.name: each.value for each in samples if each.name.startswith("process_")}
    assert process["process_cpu_seconds_total"] > 0
    assert process["process_resident_memory_bytes"] > 1 << 20
    assert 0 < process["process_open_fds"] <= process["process_max_fds"]
    assert process["process_start_time_seconds"] <= time.time()
