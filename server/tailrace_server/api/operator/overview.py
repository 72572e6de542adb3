"""``/overview``, ``/subscriptions`` and ``/publishers``: the figures of the operator's page, as JSON.

::

    {"now": µs, "ask_again_s": 2.0, "version": "0.1.0", "up_s": 86400.0,
     "status": "serving", "faults": [{"kind", "subject", "reason"}],
     "memory": {"process_bytes", "budget_bytes", "accounts": [{"name", "bytes", "bytes_max"}], …},
     "counters": {"subscriptions", "subscriptions_opened", "captures_delivered", "resyncs", …},
     "catalogs": [{"catalog", "committed", "published", "oldest", "newest_age_s", "writers", …}],
     "subscriptions": [{…}], "publishers": [{…}],
     "lines": [{"timestamp", "level", "logger", "event", "fields", "times"}]}

In ``/overview``, ``subscriptions`` has the 200 subscriptions with the largest lag, and ``publishers`` the 100
publishers that hold the most bytes. The work grows with the number of open subscriptions. So the response says
in ``ask_again_s`` when to request it again: a client that follows this uses at most 1/50 of the server's time.

``/subscriptions`` returns the 1,000 subscriptions with the largest lag in records. Each is an object with its
catalog (``system`` for the log of catalogs), the fields of `SubscriptionStatistics`, and the fields of its
`Peer`. ``/publishers`` returns the 1,000 publishers with the most subscriptions, one for each distinct
criteria, with the fields of `PublisherStatistics`. ``/health`` and ``/metrics`` have the totals.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from tailrace.position import Position
from tailrace_server.resources.event_loop import Turn
from tailrace_server.rows.criteria_form import criteria_form, in_words
from tailrace_server.wal.catalog import SYSTEM_CATALOG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace_server.api.operator.recent_lines import LogLine
    from tailrace_server.catalogs.catalog_info import CatalogInfo
    from tailrace_server.engine.engine import Engine
    from tailrace_server.grants.principal import Principal
    from tailrace_server.live.publisher import Publisher
    from tailrace_server.live.subscription import Subscription
    from tailrace_server.resources.statistics import EngineStatistics, SubscriptionStatistics
    from tailrace_server.wal.state.view import LogView


_SUBSCRIPTIONS_SHOWN: Final = 200
_PUBLISHERS_SHOWN: Final = 100
_WRITERS_SHOWN: Final = 5
_RATE_OVER_S: Final = 60
"""Period over which rates are computed, in seconds."""
_ASK_AGAIN_S: Final = 2.0
"""Minimum interval between two requests of the page, in seconds."""
_ASK_AGAIN_MOST_S: Final = 120.0
"""Maximum interval between two requests of the page, in seconds."""
_SHARE: Final = 50
"""The page may use 1/N of the server's time."""
_COUNTERS: Final = (
    *("subscriptions", "subscriptions_opened", "subscriptions_failed"),
    *("captures_delivered", "bytes_delivered", "heartbeats_sent", "resyncs", "returns"),
    "disconnected_for_memory",
)


_SHOWN: Final = 1_000


async def overview(
    engine: Engine,
    caller: Principal,
    *,
    health: Mapping[str, Any],
    lines: Sequence[LogLine],
    version: str,
    up_s: float,
) -> dict[str, Any]:
    """Return the body of ``/overview`` with the figures that a caller may see.

    Args:
        engine: The engine that is described.
        caller: The principal that requests the figures.
        health: The body of ``/health`` for this caller.
        lines: Warnings and errors of the server's log, newest first.
        version: The version of this distribution.
        up_s: Seconds since the server started.
    """
    begun = time.monotonic()
    figures = engine.statistics(caller)
    catalogs = await _catalogs(engine, caller, figures)
    behind = await subscriptions(engine, caller, shown=_SUBSCRIPTIONS_SHOWN)
    costly = publishers(engine, caller, shown=_PUBLISHERS_SHOWN, by_cost=True)
    # The time includes the turns of other tasks. So on a busy server the page is requested less often.
    took_s = time.monotonic() - begun
    return {
        "now": time.time_ns() // 1_000,
        "ask_again_s": round(min(max(_ASK_AGAIN_S, _SHARE * took_s), _ASK_AGAIN_MOST_S), 1),
        "version": version,
        "up_s": round(up_s, 1),
        "status": health["status"],
        "faults": health["faults"],
        "memory": _memory(engine, figures),
        "counters": {name: getattr(figures, name) for name in _COUNTERS},
        "catalogs": catalogs,
        "subscriptions": behind,
        "publishers": costly,
        "lines": [asdict(each) for each in lines],
    }


def rates(view: LogView, now_us: int) -> tuple[float, float]:
    """Return the versions per second and the records per second that were committed in the last minute.

    A batch that began before that minute contributes records in proportion to its versions within the minute.
    """
    # 1. Versions of the last minute: from the first one committed in it to the newest published one.
    first = view.version_at(now_us - _RATE_OVER_S * 1_000_000)
    versions = view.published + 1 - first
    if versions <= 0:
        return 0.0, 0.0
    # 2. Records: the log knows the number of records of a batch, not of a version.
    place = view.find(Position(first, 0))
    if place == len(view):
        return versions / _RATE_OVER_S, 0.0
    batch = view.batch(place)
    records = view.end_row - batch.first_row
    if batch.first.version < first:
        spread = batch.last.version - batch.first.version + 1
        records -= round(batch.rows * (first - batch.first.version) / spread)
    return versions / _RATE_OVER_S, records / _RATE_OVER_S


async def _catalogs(
    engine: Engine, caller: Principal, figures: EngineStatistics
) -> list[dict[str, Any]]:
    """Return the catalogs, sorted by name; an unreadable catalog has only its name and the error."""
    now_us = time.time_ns() // 1_000
    observed = {each.catalog: each for each in figures.observers}
    found: list[dict[str, Any]] = [
        {"catalog": name, "error": error}
        for name, error in figures.unreadable.items()
        if name != SYSTEM_CATALOG
    ]
    for info in engine.catalogs(caller):
        one = observed.get(info.name)
        if one is None:  # The catalog has appeared since the figures were taken.
            continue
        view = await engine.view(caller, info.name)
        versions_per_s, records_per_s = rates(view, now_us)
        disk = figures.disks.get(info.name)
        found.append(
            {
                **_catalog(info, one.newest_age_s),
                "versions_per_s": round(versions_per_s, 2),
                "records_per_s": round(records_per_s, 2),
                "records": one.records,
                "log_bytes": None if disk is None else disk.nbytes,
                "free_bytes": None if disk is None else disk.free_bytes,
                "publishers": one.publishers,
                "subscriptions": one.subscriptions,
                "ring_bytes": one.ring_bytes,
                "batches_unreadable": one.batches_unreadable,
            }
        )
    return sorted(found, key=lambda each: str(each["catalog"]))


def _catalog(info: CatalogInfo, newest_age_s: float | None) -> dict[str, Any]:
    return {
        "catalog": info.name,
        "uuid": str(info.uuid),
        "committed": info.committed,
        "published": info.published,
        "oldest": str(info.oldest),
        "newest_timestamp": info.newest_timestamp,
        "newest_age_s": None if newest_age_s is None else round(newest_age_s, 1),
        "writers": [asdict(each) for each in info.writers[:_WRITERS_SHOWN]],
    }


def _memory(engine: Engine, figures: EngineStatistics) -> dict[str, object]:
    return {
        "process_bytes": figures.cache.process_bytes,
        "budget_bytes": engine.settings.memory_bytes,
        "accounts": [each._asdict() for each in figures.memory],
        "message_bytes_max": figures.message_bytes_max,
        "waiting_for_memory": figures.waiting_for_memory,
    }


async def subscriptions(
    engine: Engine, caller: Principal, *, shown: int = _SHOWN
) -> list[dict[str, object]]:
    """Return the ``shown`` subscriptions with the largest lag, the largest first; yields to other tasks."""
    # Convert only the subscriptions that are returned: there may be 100,000, each with 100,000 keys. The heap
    # holds their figures; its smallest entry is the first to be replaced. `-place` makes entries distinct, so
    # figures are never compared.
    turn = Turn()
    behind: list[tuple[int, int, str, SubscriptionStatistics]] = []
    for place, (catalog, subscription) in enumerate(engine.subscriptions(caller)):
        figures = subscription.statistics()
        entry = (figures.lag_records, -place, catalog, figures)
        if len(behind) < shown:
            heapq.heappush(behind, entry)
        else:
            heapq.heappushpop(behind, entry)
        if turn.is_over():
            await turn.give_way()
    found = []
    for _, _, catalog, figures in sorted(behind, reverse=True):
        found.append({"catalog": catalog, **_plain(figures)})
        if turn.is_over():
            await turn.give_way()
    return found


def publishers(
    engine: Engine, caller: Principal, *, shown: int = _SHOWN, by_cost: bool = False
) -> list[dict[str, object]]:
    """Return the publishers with the most subscriptions, or by cost those that hold the most bytes."""

    def size(each: tuple[str, Publisher[Subscription]]) -> int:
        publisher = each[1]
        if by_cost:
            return publisher.ring.bytes + publisher.kept.nbytes
        return len(publisher.subscriptions)

    largest = heapq.nlargest(shown, engine.publishers(caller), key=size)
    return [
        {
            "catalog": catalog,
            "criteria": criteria_form(publisher.predicate.criteria),
            "criteria_text": in_words(publisher.predicate.criteria),
            **asdict(publisher.statistics()),
        }
        for catalog, publisher in largest
    ]


def _plain(figures: SubscriptionStatistics) -> dict[str, object]:
    """Return the figures of a subscription as JSON values, with its position as text."""
    fields = {name: getattr(figures, name) for name in figures.__slots__}
    peer = fields.pop("peer")
    return fields | {
        "transport": peer.transport,
        "peer": peer.address,
        "principal": peer.principal,
        "client": peer.client,
        "criteria": criteria_form(figures.criteria),
        "criteria_text": in_words(figures.criteria),
        "age_s": round(figures.age_s, 3),
        "position": str(figures.position),
    }
