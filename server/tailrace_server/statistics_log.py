"""The engine's statistics as events of the log, for operators who read logs instead of metrics.

The events are logged after every interval in which a figure changed, and once at the end::

    event="statistics"          the engine: subscriptions, captures delivered, resyncs, cache, memory
    event="catalog statistics"  one for each catalog: published, committed, routed, publishers, rings

The fields are those of `EngineStatistics` and `ObserverStatistics`, with the same names as in /metrics. Fields
of the cache begin with ``cache_``. Counters count from the start of the process. The histogram of latencies is
omitted. ``log_bytes`` is null until it has been measured.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.resources.statistics import EngineStatistics

_MOVED: Final = ("captures_delivered", "subscriptions_opened", "subscriptions", "unreadable")
"""Figures of the engine whose change counts as activity. Heartbeats do not: they continue without any
activity."""

_log = structlog.get_logger("tailrace.statistics")


class StatisticsReporter:
    """The reporter of one engine's statistics."""

    def __init__(self, statistics: Callable[[], EngineStatistics]) -> None:
        """Report the result of ``statistics`` when it differs from the result now."""
        self._statistics = statistics
        self._reported = _marks(statistics())

    async def run(self, interval_s: float) -> None:
        """Call ``report`` at intervals until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            self.report()

    def report(self) -> None:
        """Log the current figures, unless there was no activity since the last report."""
        found = self._statistics()
        marks = _marks(found)
        if marks == self._reported:
            return
        self._reported = marks
        fields = asdict(replace(found, latencies={}))
        observers, cache = fields.pop("observers"), fields.pop("cache")
        del fields["latencies"], fields["disks"]
        fields["memory"] = {each.name: each.bytes for each in found.memory}
        cached = {f"cache_{name}": value for name, value in cache.items()}
        fields |= {f"sql_{name}": value for name, value in fields.pop("sql").items()}
        fields["process_bytes"] = cached.pop("cache_process_bytes")
        _log.info("statistics", **fields, **cached)
        for observer in observers:
            disk = found.disks.get(observer["catalog"])
            occupied = None if disk is None else disk.nbytes
            _log.info(
                "catalog statistics",
                **observer | {"uuid": str(observer["uuid"]), "log_bytes": occupied},
            )


def _marks(statistics: EngineStatistics) -> tuple[object, ...]:
    """Return the figures whose change counts as activity."""
    catalogs = [(each.uuid, each.records, each.committed) for each in statistics.observers]
    return (*(getattr(statistics, name) for name in _MOVED), catalogs)
