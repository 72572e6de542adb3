"""The figures of one subscription, and its heartbeats: delivered captures, lag, latency since the commit."""

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
    """The distance of a subscription from the newest published record."""

    records: int
    versions: int
    """Number of versions that may still have undelivered captures."""
    seconds: float
    """Time from the commit at the safe point to the newest commit, in seconds."""


NO_LAG: Final = Lag(0, 0, 0.0)


def lag_behind(safe: SafePoint, view: LogView) -> Lag:
    """Return the lag of a safe point behind a view.

    For a safe point below the oldest retained version, the seconds count from the commit of that version.
    """
    records = view.end_row - safe.rows
    if records <= 0:
        return NO_LAG
    # A version is passed only when its last record is.
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
    """Return the heartbeat of a subscription that has received everything up to a cursor.

    ``hold`` is how far a named subscription delays retention, in µs and in bytes.
    """
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
    """Return the current figures of a subscription.

    An ``early`` subscription starts above the published version, so its lag is 0. A subscription ``in_state``
    is receiving rows of a state; its lag counts from the version of the state.
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
    """Counts of one subscription; each is also added to the counters of the engine."""

    __slots__ = ("_counters", "_latencies", "captures", "nbytes", "since")

    def __init__(self, counters: Counters, transport: str) -> None:
        """Begin at zero, now; ``transport`` is the label under which the engine counts the latencies."""
        self._counters = counters
        self._latencies = counters.latencies_over(transport)
        self.captures = 0
        self.nbytes = 0
        self.since = monotonic()
        """Monotonic time when the subscription was opened, in seconds."""
        counters.subscriptions_opened += 1

    @property
    def age_s(self) -> float:
        """Seconds since the subscription was opened."""
        return monotonic() - self.since

    def add(self, captures: int, nbytes: int, committed_at: float) -> None:
        """Count captures that were delivered together.

        ``committed_at`` is the monotonic time of the first capture's commit, in seconds. A commit from before
        the subscription was opened is history and gives no latency: that would measure how late the subscriber
        came.
        """
        self.captures += captures
        self.nbytes += nbytes
        counters = self._counters
        counters.captures_delivered += captures
        counters.bytes_delivered += nbytes
        if committed_at >= self.since:
            self._latencies.observe(monotonic() - committed_at)
