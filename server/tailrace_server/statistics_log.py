"""The engine's statistics as events of the log, for operators who read logs and scrape no metrics.

Every ``interval`` in which anything moved, and once more at the end::

    event="statistics"          the engine: subscriptions, captures delivered, resyncs, cache, memory
    event="catalog statistics"  one for each catalog: published, committed, routed, publishers, rings

The fields are those of `EngineStatistics` and `ObserverStatistics` under their own names, which /metrics shows
too; ``cache_`` stands before those of the cache. Counters count since the process began. The histogram of
latencies is not among them; ``log_bytes`` is, null where it has not been measured.
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
"""Of the engine; heartbeats go on also where nothing happens."""

_log = structlog.get_logger("tailrace.statistics")


class StatisticsReporter:
    """Writes the statistics of one engine."""

    def __init__(self, statistics: Callable[[], EngineStatistics]) -> None:
        """Report what ``statistics`` returns; begin with what it returns now."""
        self._statistics = statistics
        self._reported = _marks(statistics())

    async def run(self, interval_s: float) -> None:
        """Report at intervals until cancelled, which loses nothing: ``report`` may be called at any time."""
        while True:
            await asyncio.sleep(interval_s)
            self.report()

    def report(self) -> None:
        """Write the present figures, unless nothing moved since the last report."""
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
