"""Every figure of the statistics is a metric: a number that only tests can see is not operable."""

from __future__ import annotations

import dataclasses
from uuid import UUID

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tailrace_server.api import metrics
from tailrace_server.api.grpc import GrpcStatistics
from tailrace_server.capture.reading.batch_cache import CacheStatistics
from tailrace_server.capture.statistics import EngineStatistics, ObserverStatistics

NOT_METRICS = {"values", "subscriptions"}
"""How many cached values of any kind tells nothing; the engine's subscriptions are the sum over catalogs."""


def distinct(kind: type, first: int, **fixed: object) -> tuple[object, dict[str, float]]:
    """Return a record in which each number differs from all others, and those numbers by field."""
    names = [field.name for field in dataclasses.fields(kind) if field.name not in fixed]
    values = {name: first + place for place, name in enumerate(names)}
    return kind(**values, **fixed), dict(values)


def test_every_figure_of_the_statistics_is_exposed() -> None:
    cache, of_cache = distinct(CacheStatistics, 100)
    observer, of_observer = distinct(ObserverStatistics, 200, catalog="shop", uuid=UUID(int=1))
    engine, of_engine = distinct(
        EngineStatistics, 300, cache=cache, observers=(observer,), unreadable={"crm": "damaged"}
    )
    assert isinstance(engine, EngineStatistics)
    registry = metrics.registry(lambda: engine, lambda: GrpcStatistics(999, 998), version="1.2.3")
    exposition, _ = metrics.expose(registry, metrics.OPENMETRICS_TYPE)
    text = exposition.decode()
    samples = [
        sample
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        for sample in family.samples
    ]
    unreadable = [each.labels for each in samples if each.name == "tailrace_catalog_unreadable"]
    assert unreadable == [{"catalog": "crm"}]
    exposed = {sample.value for sample in samples}
    assert {999, 998} <= exposed  # what the gRPC face has ended and refused
    for figures in (of_cache, of_observer, of_engine):
        for name, value in figures.items():
            if name not in NOT_METRICS or figures is of_observer:
                assert value in exposed, name
