"""The figures of one subscription, and its heartbeats, put together from its parts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tailrace.capture import Heartbeat
from tailrace.position import Position
from tailrace_server.capture.delivery.lag import NO_LAG, lag_behind
from tailrace_server.capture.named.loss import loss_of
from tailrace_server.capture.statistics import SubscriptionStatistics
from tailrace_server.wal.subscriptions.holds import needed_position

if TYPE_CHECKING:
    from tailrace.criteria import Criteria
    from tailrace.cursor import Cursor
    from tailrace_server.capture.delivery.delivery_counts import DeliveryCounts
    from tailrace_server.capture.delivery.followed_log import FollowedLog
    from tailrace_server.capture.delivery.live_and_resync import Intake, SafePoint
    from tailrace_server.capture.delivery.options import DeliveryOptions
    from tailrace_server.capture.delivery.peer import Peer
    from tailrace_server.wal.state.view import LogView

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
