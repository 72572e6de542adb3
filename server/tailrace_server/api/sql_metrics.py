"""The families of /metrics that tell of statements in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

    from tailrace_server.resources.statistics import SqlStatistics


def sql_families(sql: SqlStatistics) -> Iterable[Metric]:
    """Yield the families of statements in SQL."""
    yield GaugeMetricFamily(
        "tailrace_sql_statements", "Statements in SQL that are not over.", sql.statements
    )
    yield GaugeMetricFamily(
        "tailrace_sql_computing",
        "Those that are being computed; the others wait for their readers.",
        sql.computing,
    )
    yield CounterMetricFamily("tailrace_sql_answered", "Statements read to the end.", sql.answered)
    yield CounterMetricFamily(
        "tailrace_sql_refused",
        "Statements ended by an error, for want of a place too.",
        sql.refused,
    )
    yield CounterMetricFamily(
        "tailrace_sql_left", "Statements that their readers ended before the end.", sql.left
    )
    yield CounterMetricFamily(
        "tailrace_sql_computing_seconds",
        "That statements which are over were computed for, by the clock.",
        sql.computing_s,
    )
    yield CounterMetricFamily(
        "tailrace_sql_answer_bytes",
        "Of answers in SQL handed to transports, by statements that are over.",
        sql.answer_bytes,
    )
