"""The figures of one subscription, put together from its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.position import Position
from tailrace_server.capture.delivery.lag import NO_LAG, lag_behind
from tailrace_server.capture.statistics import SubscriptionStatistics

if TYPE_CHECKING:
    from tailrace.criteria import Criteria
    from tailrace_server.capture.delivery.delivery_counts import DeliveryCounts
    from tailrace_server.capture.delivery.live_and_resync import Intake, SafePoint
    from tailrace_server.capture.delivery.peer import Peer
    from tailrace_server.wal.state.view import LogView


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
) -> SubscriptionStatistics:
    """Return the figures of this moment; nothing is behind one that is ``early``, above what is published."""
    lag = NO_LAG if early else lag_behind(safe, view)
    return SubscriptionStatistics(
        subscription_id=subscription_id,
        peer=peer,
        criteria=criteria,
        age_s=counts.age_s,
        mode=intake.mode.value,
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
