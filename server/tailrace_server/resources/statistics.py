"""Counters and latencies of the engine, and the figures of its parts as frozen records.

``/metrics`` and the logs print the same figures.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tailrace_server.histogram import LatencyHistogram

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from tailrace.criteria import Criteria
    from tailrace.position import Position
    from tailrace_server.grants.principal import Peer
    from tailrace_server.resources.disk_usage import DiskUsage
    from tailrace_server.resources.faults import ServerFault
    from tailrace_server.resources.memory import MemoryAccount
    from tailrace_server.wal.state.view import LogView


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Figures of the batch cache."""

    bytes: int
    """Bytes that it holds now."""
    values: int
    """Values of all kinds that it holds now."""
    hits: int
    """Requests for a value that was held."""
    misses: int
    """Loads; a shared one counts once."""
    evicted: int
    """Values that were evicted to make room."""
    process_bytes: int
    """Anonymous memory of the process when it was last measured."""


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """One subscription, now."""

    subscription_id: str
    peer: Peer
    criteria: tuple[Criteria, ...]
    age_s: float
    """Seconds since it was opened."""
    mode: str
    """``live`` or ``resync``."""
    demand: int | None
    """Captures requested and not yet delivered; None: the transport's flow control is the demand."""
    delivered: int
    """Captures handed to the transport."""
    delivered_bytes: int
    position: Position
    """Everything that matches at or before it has been handed over."""
    queued: int
    """Captures taken from ring or log and not yet handed over."""
    lag_records: int
    """Records published behind the position; 0 while its start is not published."""
    lag_versions: int
    """Versions that may still send something; 0 where ``lag_records`` is."""
    lag_s: float
    """From the commit that was handed over last to the newest one, seconds; 0 where ``lag_records`` is."""
    resyncs: int
    """How often it fell from live into resync."""
    returns: int
    """How often it came back live."""


@dataclass(frozen=True, slots=True)
class PublisherStatistics:
    """One publisher, now."""

    subscriptions: int
    ring_captures: int
    ring_bytes: int
    ring_evicted: int
    """Captures evicted while a subscription may still have needed them, since it began."""
    criteria_bytes: int
    """The charge for its criteria, which the subscriptions share."""
    conditions_cpu_s: float
    """CPU time that judging its conditions has taken since it began, s, as changes are routed. Work that is
    done once for all conditions of an entity type is split evenly. 0 without a condition."""
    conditions_image_bytes: int
    """Bytes of images that were read for them, split likewise."""


@dataclass(frozen=True, slots=True)
class ObserverStatistics:
    """One catalog's observer, now."""

    catalog: str
    uuid: UUID
    published: int
    """Highest published version seen."""
    committed: int
    """Highest committed version seen."""
    records: int
    """Published records, trimmed ones included."""
    records_routed: int
    """How far the live path has come, as a running number."""
    publishers: int
    subscriptions: int
    batches_unreadable: int
    """Batches that the live path had to leave out, since it began."""
    damaged_places: int
    """Places that some read has found damaged, and that are still needed."""
    ring_bytes: int
    newest_timestamp: int
    """Commit timestamp of ``published``, µs; 0 for none."""
    oldest: int = 1
    """First version that is kept."""
    newest_age_s: float | None = None
    """Since ``published`` appeared, by the server's own clock; if that was before the server opened the log,
    since its commit timestamp. None for none."""
    oldest_timestamp: int = 0
    """Its commit timestamp, µs; 0 for none."""
    bodies_from: Mapping[str, int] = field(default_factory=dict)
    """First version that has bodies, of each entity type that has lost some."""
    bytes_over: int = 0
    """By how much its records exceed ``max_bytes``; 0 where they do not, or none is set."""


@dataclass(frozen=True, slots=True)
class SqlStatistics:
    """Statements in SQL: those at work now, and counters since the engine began."""

    statements: int = 0
    """Begun and not over, those whose reader takes nothing among them."""
    computing: int = 0
    """Those that are being computed."""
    answered: int = 0
    """Read to the end."""
    refused: int = 0
    """Ended by an error, whoever's doing, for want of a place too."""
    left: int = 0
    """Ended by their readers before the end."""
    computing_s: float = 0.0
    """That statements which are over were computed for, by the clock."""
    answer_bytes: int = 0
    """Handed to transports."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """The whole engine: what is now, and counters since it began."""

    observers: tuple[ObserverStatistics, ...]
    unreadable: Mapping[str, str]
    """Catalogs whose log cannot be read now, and why; subscribing to one raises the same."""
    faults: tuple[ServerFault, ...]
    """The current faults, including catalogs that cannot be read."""
    cache: CacheStatistics
    subscriptions: int
    subscriptions_opened: int
    subscriptions_failed: int
    """Ended by an error, whoever's doing."""
    captures_delivered: int
    bytes_delivered: int
    heartbeats_sent: int
    resyncs: int
    returns: int
    memory: tuple[MemoryAccount, ...]
    """The accounts of the memory budget, the rest of the process as the last."""
    message_bytes_max: int
    """The current size limit of a message: smaller while memory is short."""
    waiting_for_memory: int
    """Readers that wait until other large messages have gone, now."""
    disconnected_for_memory: int
    """Stalled readers that were ended: the process was above its memory budget, or others waited."""
    latencies: Mapping[str, LatencyHistogram]
    """From commit to hand-over, by transport, for what was committed since its subscription began."""
    disks: Mapping[str, DiskUsage]
    """The disk usage of each catalog's log, as last measured."""
    sql: SqlStatistics = SqlStatistics()


@dataclass(slots=True)
class Counters:
    """Counters of one engine since it began; they only rise. ``EngineStatistics`` says what each means."""

    subscriptions_opened: int = 0
    subscriptions_ended: int = 0
    subscriptions_failed: int = 0
    captures_delivered: int = 0
    bytes_delivered: int = 0
    heartbeats_sent: int = 0
    resyncs: int = 0
    returns: int = 0
    latencies: dict[str, LatencyHistogram] = field(default_factory=dict)

    def latencies_over(self, transport: str) -> LatencyHistogram:
        """Return the histogram of a transport."""
        return self.latencies.setdefault(transport, LatencyHistogram())

    @property
    def subscriptions(self) -> int:
        """Those that are open."""
        return self.subscriptions_opened - self.subscriptions_ended

    def totals(self) -> dict[str, Any]:
        """Return those that ``EngineStatistics`` has under the same names."""
        return {
            "subscriptions": self.subscriptions,
            "subscriptions_opened": self.subscriptions_opened,
            "subscriptions_failed": self.subscriptions_failed,
            "captures_delivered": self.captures_delivered,
            "bytes_delivered": self.bytes_delivered,
            "heartbeats_sent": self.heartbeats_sent,
            "resyncs": self.resyncs,
            "returns": self.returns,
        }


NEVER: Final = float("-inf")
"""A commit before everything."""


def committed_at(view: LogView, version: int) -> float:
    """Return when a version was committed, in seconds of ``time.monotonic``; `NEVER` where it is forgotten.

    The writer's clock may be ahead of ours: then it is now.
    """
    timestamp = view.known_timestamp_of(version)
    if not timestamp:
        return NEVER
    return time.monotonic() - max(0.0, time.time() - timestamp / 1e6)
