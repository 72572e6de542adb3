"""Counters and latencies of the engine, and the figures of its parts as frozen records.

``/metrics`` and the logs report the same figures.
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
    """Bytes cached now."""
    values: int
    """Values of all kinds cached now."""
    hits: int
    """Requests for a cached value."""
    misses: int
    """Loads; a load that several requests share counts once."""
    evicted: int
    """Values evicted to make room."""
    process_bytes: int
    """Anonymous memory of the process when it was last measured."""


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """The present figures of one subscription."""

    subscription_id: str
    peer: Peer
    criteria: tuple[Criteria, ...]
    age_s: float
    """Seconds since the subscription was opened."""
    mode: str
    """Present mode: ``live`` or ``resync``."""
    demand: int | None
    """Captures requested and not yet delivered; None: the transport's flow control is the demand."""
    delivered: int
    """Captures handed to the transport."""
    delivered_bytes: int
    position: Position
    """Position up to which all matching captures have been handed over, inclusive."""
    queued: int
    """Captures taken from ring or log and not yet handed over."""
    lag_records: int
    """Published records after the position; 0 while the start is not published."""
    lag_versions: int
    """Versions from which the subscription may still get captures; 0 if ``lag_records`` is 0."""
    lag_s: float
    """Seconds between the commits of the last version handed over and of the newest version; 0 if
    ``lag_records`` is 0."""
    resyncs: int
    """Number of times that the subscription fell back from live to resync."""
    returns: int
    """Number of times that the subscription became live again."""


@dataclass(frozen=True, slots=True)
class PublisherStatistics:
    """The present figures of one publisher."""

    subscriptions: int
    ring_captures: int
    ring_bytes: int
    ring_evicted: int
    """Captures evicted from the ring, since the publisher began, that a subscription may still have needed."""
    criteria_bytes: int
    """Bytes charged for the criteria, which all its subscriptions share."""
    conditions_cpu_s: float
    """CPU seconds spent on evaluating its conditions during routing, since it began; 0 without a condition.
    Work that is done once for all conditions of an entity type is split evenly."""
    conditions_image_bytes: int
    """Bytes of images read to evaluate its conditions, split in the same way."""


@dataclass(frozen=True, slots=True)
class ObserverStatistics:
    """The present figures of one catalog's observer."""

    catalog: str
    uuid: UUID
    published: int
    """Highest published version that was read."""
    committed: int
    """Highest committed version that was read."""
    records: int
    """Number of published records, including trimmed ones."""
    records_routed: int
    """Running number up to which the live path has routed records."""
    publishers: int
    subscriptions: int
    batches_unreadable: int
    """Batches that the live path had to skip since the observer began."""
    damaged_places: int
    """Places that a read has found damaged, and that are still needed."""
    ring_bytes: int
    newest_timestamp: int
    """Commit timestamp of ``published``, in microseconds; 0 if nothing is published."""
    oldest: int = 1
    """First retained version."""
    newest_age_s: float | None = None
    """Seconds since ``published`` appeared, by the server's clock; if it appeared before the server opened the
    log, since its commit timestamp. None if nothing is published."""
    oldest_timestamp: int = 0
    """Commit timestamp of ``oldest``, in microseconds; 0 if nothing is published."""
    bodies_from: Mapping[str, int] = field(default_factory=dict)
    """Entity type → first version that has bodies, for entity types whose older bodies are deleted."""
    bytes_over: int = 0
    """Bytes by which the records exceed ``max_bytes``; 0 if they do not, or if ``max_bytes`` is not set."""


@dataclass(frozen=True, slots=True)
class SqlStatistics:
    """SQL statements: present numbers, and counters since the engine began."""

    statements: int = 0
    """Open statements now, including those whose reader takes nothing."""
    computing: int = 0
    """Statements that are being computed now."""
    answered: int = 0
    """Statements whose answer was read to its end."""
    refused: int = 0
    """Statements that ended with an error of any cause, including the lack of a place."""
    left: int = 0
    """Statements that their readers left before the end."""
    computing_s: float = 0.0
    """Seconds of elapsed time for which ended statements were computed."""
    answer_bytes: int = 0
    """Bytes of answers handed to transports."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """The figures of the whole engine: present values, and counters since it began."""

    observers: tuple[ObserverStatistics, ...]
    unreadable: Mapping[str, str]
    """Catalog → reason, for catalogs whose log cannot be read now; a subscribe raises the same error."""
    faults: tuple[ServerFault, ...]
    """The current faults, including catalogs that cannot be read."""
    cache: CacheStatistics
    subscriptions: int
    subscriptions_opened: int
    subscriptions_failed: int
    """Subscriptions that ended with an error of any cause."""
    captures_delivered: int
    bytes_delivered: int
    heartbeats_sent: int
    resyncs: int
    returns: int
    memory: tuple[MemoryAccount, ...]
    """Accounts of the memory budget; the last one is the rest of the process."""
    message_bytes_max: int
    """Present size limit of a message, in bytes; smaller while memory is short."""
    waiting_for_memory: int
    """Readers that wait now until other large messages are delivered."""
    disconnected_for_memory: int
    """Stalled readers that were disconnected because the process exceeded its memory budget or other readers
    waited."""
    latencies: Mapping[str, LatencyHistogram]
    """Transport → latencies from commit to hand-over, for commits after the begin of the subscription."""
    disks: Mapping[str, DiskUsage]
    """Catalog → disk usage of its log, as last measured."""
    sql: SqlStatistics = SqlStatistics()


@dataclass(slots=True)
class Counters:
    """Counters of one engine since it began. They only rise; ``EngineStatistics`` documents them."""

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
        """Number of open subscriptions."""
        return self.subscriptions_opened - self.subscriptions_ended

    def totals(self) -> dict[str, Any]:
        """Return the counters that ``EngineStatistics`` has under the same names."""
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
"""Commit time that is before all others."""


def committed_at(view: LogView, version: int) -> float:
    """Return the commit time of a version, in seconds of ``time.monotonic``; `NEVER` if it is not retained.

    If the writer's clock is ahead of ours, this returns the present time.
    """
    timestamp = view.known_timestamp_of(version)
    if not timestamp:
        return NEVER
    return time.monotonic() - max(0.0, time.time() - timestamp / 1e6)
