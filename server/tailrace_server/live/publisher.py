"""A publisher: one set of criteria, one ring, and the subscriptions that asked for the same."""

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
    """Shares one ring among the subscriptions of one set of criteria. Lives on the event loop.

    It notes which subscriptions there are and asks nothing of them: the observer wakes them.
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
        """Make a publisher whose ring covers nothing yet, from row ``floor`` on."""
        self._pace = pace
        self.kept = kept
        """The bytes charged for its criteria; the observer gives them back."""
        self.id = id
        self.predicate = predicate
        self.judging = EvaluationCost()
        """The cost of its conditions; the observer puts the router's account there."""
        self.ring = Ring(
            floor, rings, captures_max=settings.ring_captures, bytes_max=settings.ring_bytes
        )
        self.newest = NewestPasses()
        """The reader of the newest record of each key, for subscriptions that are behind and want no others."""
        self.subscriptions: set[_Subscription] = set()
        self._behind: set[_Subscription] = set()
        """The subscriptions that have not taken everything the ring holds."""

    def attach(self, subscription: _Subscription, *, impatient: bool = False) -> None:
        """Add a subscription; it counts as behind until it says otherwise.

        Args:
            subscription: The newcomer.
            impatient: True if the ring is to overtake it as soon as it is too far behind, also where no other
                subscription takes more.
        """
        self.subscriptions.add(subscription)
        self._behind.add(subscription)
        if impatient:
            self._pace.impatient(subscription)

    def detach(self, subscription: _Subscription) -> None:
        """Remove a subscription; the observer closes a publisher that has none."""
        self.subscriptions.discard(subscription)
        self._forget_taken(subscription)
        self._pace.gone(subscription)

    def append(self, run: Run) -> None:
        """Put a run into the ring; the caller wakes the subscriptions."""
        # All are behind now, and none is hungry: routing waits until one of them has taken it.
        self.ring.append(run)
        self._behind.update(self.subscriptions)
        self._pace.fed(self.subscriptions)

    def took(self, subscription: _Subscription, left: int, has_all_routed: bool) -> None:
        """Note where a slice begins or ends: so many are ``left``, and of what is routed none is to come."""
        # With the last one that begins, so that the next batch is routed while this is on its way.
        if has_all_routed and left == 1:
            self.hungry(subscription)
        elif has_all_routed and left == 0:
            self.caught_up(subscription)

    def hungry(self, subscription: _Subscription) -> None:
        """Note that a subscription has queued everything and could take more."""
        self._pace.hungry(subscription)

    def caught_up(self, subscription: _Subscription) -> None:
        """Note that a subscription has taken everything; what all have taken is forgotten."""
        self._forget_taken(subscription)
        self._pace.hungry(subscription)

    def skip_to(self, row: int) -> None:
        """Cover nothing below a row, since it was not routed; the caller wakes the subscriptions."""
        self.ring.skip_to(row)
        self._behind.update(self.subscriptions)

    def statistics(self) -> PublisherStatistics:
        """Return the figures of this moment."""
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
        # A run that all have taken is of no use to any: a newcomer begins at the end, or reads the log.
        self._behind.discard(subscription)
        if not self._behind:
            self.ring.forget_all()
