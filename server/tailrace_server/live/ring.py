"""The ring: the newest runs of one publisher, bounded in size, covering an interval of scanned rows.

    scanned rows   …────────────┬───────────────────────────────┬─────▶ log
                              floor                           routed
    runs                        [run] [run]      [run]    [run]

The runs contain every match in [floor, routed). The interval also covers rows without a match, which have no
run. ``routed`` is one number for all rings of a catalog; the observer holds it. Eviction raises ``floor`` by
whole runs, oldest first, so the captures of a record are never split.

Routing stays one batch ahead of the fastest subscription. A subscription is *hungry* when it has queued all
routed captures and is sending the last of them. While a subscription is hungry, the observer continues to
route, so the fastest subscription never waits. While none is hungry, the observer routes at most a small part
of a
ring: more would only evict runs that slower subscriptions still need, and these would have to read the log.

A subscription whose overrun policy is LATEST or DISCONNECT is *impatient*: while one is attached, routing waits
for no subscription. The policy applies once the ring has overtaken the subscription. If the ring waited for it,
a subscription that is alone would never be overtaken.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace_server.rows.run import Mark, Run


class Ring:
    """The runs of one publisher, oldest first. Plain values; no I/O, no waiting."""

    __slots__ = (
        "_base",
        "_budget",
        "_runs",
        "bytes",
        "bytes_max",
        "captures",
        "captures_max",
        "evicted",
        "floor",
        "pushed_out",
    )

    def __init__(
        self, floor: int, budget: RingBudget, *, captures_max: int, bytes_max: int
    ) -> None:
        """Make an empty ring that covers rows from ``floor`` on; all rings share the budget."""
        self._budget = budget
        self._runs: list[Run | None] = []
        self._base = 0
        self.floor = floor
        """First covered row; a subscription whose mark is below it must read the log."""
        self.pushed_out = 0
        """Rows below this one were evicted for want of room; a subscription that still needs one was too
        slow."""
        self.captures = 0
        self.bytes = 0
        self.captures_max = captures_max
        self.bytes_max = bytes_max
        self.evicted = 0
        """Number of captures dropped while a subscription may still have needed them."""

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._runs) - self._base

    def append(self, run: Run) -> None:
        """Add the newest run, and evict the oldest ones while the ring is over a bound."""
        self._runs.append(run)
        self.captures += len(run)
        self.bytes += run.nbytes
        self._budget.charge(self, run.nbytes)
        while self.captures > self.captures_max or self.bytes > self.bytes_max:
            self.evict()

    def evict(self) -> None:
        """Drop the oldest run for want of room; from now on its captures must be read from the log."""
        self._drop()
        self.pushed_out = self.floor

    def forget_all(self) -> None:
        """Drop every run: all subscriptions have passed them."""
        while len(self):
            self.floor = self._pop().last_row + 1

    def forget_segment(self, path: str) -> None:
        """Drop the runs up to the last one that refers to a deleted file; other files have the records now."""
        # Older runs must go too, even if their files exist: the ring covers one interval without gaps.
        runs = self._runs[self._base :]
        stale = [
            place
            for place, run in enumerate(runs, 1)
            if run is not None and run.batch.segment.path == path
        ]
        for _ in range(stale[-1] if stale else 0):
            self._drop()

    def skip_to(self, row: int) -> None:
        """Drop all runs and begin at ``row``, because the rows below could not be routed."""
        # Runs below the gap must go too, because the ring covers one interval without gaps.
        while len(self):
            self._pop()
        self.floor = row

    def runs_from(self, mark: Mark) -> Iterator[Run]:
        """Yield the runs that hold captures at or after a mark, oldest first.

        The mark must not be below ``floor``.
        """
        # Binary search for the first run that ends at or after the mark.
        assert mark.row >= self.floor
        low, high = self._base, len(self._runs)
        while low < high:
            middle = (low + high) // 2
            run = self._runs[middle]
            assert run is not None
            if run.last_row < mark.row:
                low = middle + 1
            else:
                high = middle
        for place in range(low, len(self._runs)):
            run = self._runs[place]
            assert run is not None
            yield run

    def _drop(self) -> None:
        run = self._pop()
        self.floor = run.last_row + 1
        self.evicted += len(run)

    def _pop(self) -> Run:
        run = self._runs[self._base]
        assert run is not None
        # Evicted runs leave a None at the front, and the list is cut only when half of it is None: so a drop
        # takes constant time on average.
        self._runs[self._base] = None
        self._base += 1
        self.captures -= len(run)
        self.bytes -= run.nbytes
        self._budget.release(self, run.nbytes)
        if self._base * 2 >= len(self._runs):
            del self._runs[: self._base]
            self._base = 0
        return run


class RingBudget:
    """The bytes that all rings of an engine may hold together.

    Beyond this bound, runs are evicted from the ring that was appended to least recently.
    """

    __slots__ = ("_bytes_max", "_holders", "bytes")

    def __init__(self, bytes_max: int) -> None:
        """Make an unused budget."""
        self._bytes_max = bytes_max
        self._holders: OrderedDict[Ring, None] = OrderedDict()
        self.bytes = 0

    def charge(self, ring: Ring, nbytes: int) -> None:
        """Charge the budget for a new run of a ring, and evict runs while the budget is exceeded."""
        self.bytes += nbytes
        self._holders[ring] = None
        self._holders.move_to_end(ring)
        # The ring that was appended to last is evicted last, so an active ring keeps what it has just got.
        while self.bytes > self._bytes_max:
            next(iter(self._holders)).evict()

    def release(self, ring: Ring, nbytes: int) -> None:
        """Release the bytes of a run that a ring has dropped."""
        self.bytes -= nbytes
        if not len(ring):
            self._holders.pop(ring, None)


class RoutingPace:
    """The hungry and the impatient subscriptions of a catalog, for which the observer's task waits."""

    __slots__ = ("_changed", "_hungry", "_impatient")

    def __init__(self) -> None:
        """Begin without subscriptions."""
        self._hungry: set[object] = set()
        self._impatient: set[object] = set()
        self._changed = asyncio.Event()

    def __bool__(self) -> bool:
        """Return True if the observer may continue to route: a subscription is hungry or impatient."""
        return bool(self._hungry or self._impatient)

    def impatient(self, subscription: object) -> None:
        """Note a subscription for which routing must not wait; ``gone`` removes it."""
        self._impatient.add(subscription)
        self._changed.set()

    def gone(self, subscription: object) -> None:
        """Forget a subscription that has ended."""
        self._hungry.discard(subscription)
        self._impatient.discard(subscription)

    def hungry(self, subscription: object) -> None:
        """Note that a subscription could take more captures."""
        self._hungry.add(subscription)
        self._changed.set()

    def fed(self, subscriptions: Iterable[object]) -> None:
        """Note that captures were routed for these subscriptions, so they are not hungry any more."""
        self._hungry.difference_update(subscriptions)

    def notify(self) -> None:
        """Wake the waiting task: there is more to route, or the set of subscriptions has changed."""
        self._changed.set()

    async def change(self) -> None:
        """Wait until a subscription is hungry or ``notify`` is called."""
        # Clear only after the wait: a change between two waits is then seen at once, and not lost.
        await self._changed.wait()
        self._changed.clear()
