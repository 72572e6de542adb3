"""The figures of one subscription and its heartbeats: captures delivered, lag, and latency since the commit."""

from __future__ import annotations

import time
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.capture import Heartbeat
from tailrace.position import END, Position
from tailrace_server.log_cache.loss import loss_of
from tailrace_server.resources.statistics import SubscriptionStatistics
from tailrace_server.wal.sequences.holds import needed_position

if TYPE_CHECKING:
    from tailrace.criteria import Criteria
    from tailrace.cursor import Cursor
    from tailrace_server.grants.principal import Peer
    from tailrace_server.live.intake import Intake
    from tailrace_server.live.options import DeliveryOptions
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.resources.statistics import Counters
    from tailrace_server.rows.run import SafePoint
    from tailrace_server.wal.state.view import LogView


class Lag(NamedTuple):
    """The published versions behind a point of the log."""

    records: int
    versions: int
    """The versions whose captures may still come."""
    seconds: float
    """From the commit that was handed over last to the newest one."""


NO_LAG: Final = Lag(0, 0, 0.0)


def lag_behind(safe: SafePoint, view: LogView) -> Lag:
    """Return how far a view goes beyond a safe point.

    Before the first version that is retained, the seconds count from its commit.
    """
    records = view.end_row - safe.rows
    if records <= 0:
        return NO_LAG
    passed = safe.version if safe.index == END else safe.version - 1
    behind_us = view.newest_timestamp - view.timestamp_of(safe.version)
    return Lag(records, view.published - max(passed, 0), max(0, behind_us) / 1e6)


NO_HOLD: Final = (0, 0)
"""The hold of a subscription without a name, in µs and bytes."""


def heartbeat_of(
    log: FollowedLog,
    options: DeliveryOptions,
    cursor: Cursor,
    looked_at: int,
    matched: int,
    hold: tuple[int, int],
) -> Heartbeat:
    """Return a heartbeat of who has been sent everything up to a cursor, and may hold retention so far."""
    needed = needed_position(cursor)
    loss = loss_of(log.view, needed, log.retention, hold, time.time_ns() // 1000)
    return Heartbeat(
        published=log.view.published,
        cursor=cursor,
        records_scanned=looked_at,
        records_matched=matched,
        next_within_s=options.heartbeat_interval_s,
        expires_in_s=options.expires_in_s,
        lost_in_s=None if loss.in_us is None else loss.in_us / 1e6,
        lost_in_bytes=loss.in_bytes,
    )


def figures_of(
    subscription_id: str,
    peer: Peer,
    criteria: tuple[Criteria, ...],
    *,
    counts: DeliveryCounts,
    intake: Intake,
    demand: int | None,
    safe: SafePoint,
    view: LogView,
    early: bool,
    in_state: bool,
) -> SubscriptionStatistics:
    """Return the figures of this moment; nothing is behind one that is ``early``, above what is published.

    One ``in_state`` is sent rows of a state, and has all the log behind its version before it.
    """
    lag = NO_LAG if early else lag_behind(safe, view)
    return SubscriptionStatistics(
        subscription_id=subscription_id,
        peer=peer,
        criteria=criteria,
        age_s=counts.age_s,
        mode="state" if in_state else intake.mode.value,
        demand=demand,
        delivered=counts.captures,
        delivered_bytes=counts.nbytes,
        position=Position(safe.version, safe.index),
        queued=intake.queued,
        lag_records=lag.records,
        lag_versions=lag.versions,
        lag_s=lag.seconds,
        resyncs=intake.resyncs,
        returns=intake.returns,
    )


class DeliveryCounts:
    """Counts of one subscription, which go into those of its engine as well."""

    __slots__ = ("_counters", "_latencies", "captures", "nbytes", "since")

    def __init__(self, counters: Counters, transport: str) -> None:
        """Begin at zero, now; ``transport`` is the label of its latencies."""
        self._counters = counters
        self._latencies = counters.latencies_over(transport)
        self.captures = 0
        self.nbytes = 0
        self.since = monotonic()
        """When the subscription was opened."""
        counters.subscriptions_opened += 1

    @property
    def age_s(self) -> float:
        """Seconds since it was opened."""
        return monotonic() - self.since

    def add(self, captures: int, nbytes: int, committed_at: float) -> None:
        """Count captures that were handed over together, the first committed at a time by `committed_at`.

        Commits before the subscription's begin are history. Its latency would be that of the
        subscriber's question, not of the server.
        """
        self.captures += captures
        self.nbytes += nbytes
        counters = self._counters
        counters.captures_delivered += captures
        counters.bytes_delivered += nbytes
        if committed_at >= self.since:
            self._latencies.observe(monotonic() - committed_at)
