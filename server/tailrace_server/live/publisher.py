"""A publisher: one set of criteria, its ring, and the subscriptions with these criteria."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from tailrace_server.live.latest_passes import NewestPasses
from tailrace_server.live.ring import Ring
from tailrace_server.live.routing_cost import EvaluationCost
from tailrace_server.resources.statistics import PublisherStatistics

if TYPE_CHECKING:
    from tailrace_server.live.ring import RingBudget, RoutingPace
    from tailrace_server.resources.memory import MemoryCharge
    from tailrace_server.resources.settings import EngineSettings
    from tailrace_server.rows.predicate import Predicate
    from tailrace_server.rows.run import Run


_Subscription = TypeVar("_Subscription")


class Publisher(Generic[_Subscription]):
    """One ring, shared by the subscriptions with the same criteria. It lives on the event loop.

    A publisher keeps the set of its subscriptions, but does not call them: the observer wakes them.
    """

    __slots__ = (
        "_behind",
        "_pace",
        "id",
        "judging",
        "kept",
        "newest",
        "predicate",
        "ring",
        "subscriptions",
    )

    def __init__(
        self,
        id: int,
        predicate: Predicate,
        floor: int,
        settings: EngineSettings,
        rings: RingBudget,
        pace: RoutingPace,
        kept: MemoryCharge,
    ) -> None:
        """Make a publisher with an empty ring whose coverage begins at row ``floor``."""
        self._pace = pace
        self.kept = kept
        """The memory charged for the criteria; the observer releases it."""
        self.id = id
        self.predicate = predicate
        self.judging = EvaluationCost()
        """The cost of evaluating the conditions; the observer replaces it by the router's account."""
        self.ring = Ring(
            floor, rings, captures_max=settings.ring_captures, bytes_max=settings.ring_bytes
        )
        self.newest = NewestPasses()
        """The passes that find the newest record of each key, for subscriptions with the policy LATEST."""
        self.subscriptions: set[_Subscription] = set()
        self._behind: set[_Subscription] = set()
        """The subscriptions that have not taken everything the ring holds."""

    def attach(self, subscription: _Subscription, *, impatient: bool = False) -> None:
        """Add a subscription; it counts as behind until it reports that it has caught up.

        Args:
            subscription: The new subscription.
            impatient: True if the ring may overtake the subscription even when no other subscription is faster.
        """
        self.subscriptions.add(subscription)
        self._behind.add(subscription)
        if impatient:
            self._pace.impatient(subscription)

    def detach(self, subscription: _Subscription) -> None:
        """Remove a subscription; the observer closes a publisher that has none."""
        self.subscriptions.discard(subscription)
        # If only this subscription had not taken the runs of the ring, the ring can drop them now.
        self._forget_taken(subscription)
        self._pace.gone(subscription)

    def append(self, run: Run) -> None:
        """Append a run to the ring; the caller wakes the subscriptions."""
        # All subscriptions are behind now and none is hungry: routing waits until one of them has taken the
        # run.
        self.ring.append(run)
        self._behind.update(self.subscriptions)
        self._pace.fed(self.subscriptions)

    def took(self, subscription: _Subscription, left: int, has_all_routed: bool) -> None:
        """Note that a subscription has begun or ended a slice of its queue.

        Args:
            subscription: The subscription.
            left: Number of slices that are left in the queue.
            has_all_routed: True if all routed captures are in the queue or were delivered.
        """
        # Hungry as soon as the last slice begins, so that the next batch is routed while this slice is sent.
        if has_all_routed and left == 1:
            self.hungry(subscription)
        elif has_all_routed and left == 0:
            self.caught_up(subscription)

    def hungry(self, subscription: _Subscription) -> None:
        """Note that a subscription has queued all routed captures and could take more."""
        self._pace.hungry(subscription)

    def caught_up(self, subscription: _Subscription) -> None:
        """Note that a subscription has taken all routed captures; drop the runs if every subscription has."""
        self._forget_taken(subscription)
        self._pace.hungry(subscription)

    def skip_to(self, row: int) -> None:
        """Let the ring begin at a row: the rows below were not routed. The caller wakes subscriptions."""
        self.ring.skip_to(row)
        self._behind.update(self.subscriptions)

    def statistics(self) -> PublisherStatistics:
        """Return the current figures of the publisher."""
        return PublisherStatistics(
            subscriptions=len(self.subscriptions),
            ring_captures=self.ring.captures,
            ring_bytes=self.ring.bytes,
            ring_evicted=self.ring.evicted,
            criteria_bytes=self.kept.nbytes,
            conditions_cpu_s=round(self.judging.cpu_s, 6),
            conditions_image_bytes=self.judging.image_bytes,
        )

    def _forget_taken(self, subscription: _Subscription) -> None:
        # A run that all subscriptions have taken is useless: a new subscription begins at the end of the ring,
        # or reads the log.
        self._behind.discard(subscription)
        if not self._behind:
            self.ring.forget_all()
