"""The intake of a subscription: its queue, and every move between live and resync.

A refill has four results. They depend on where the next mark is, relative to the publisher's ring, which
covers [floor, routed):

    next <  floor             BEHIND      read the log from there: resync
      if it was live          OVERRUN     the ring has evicted what it needs: the overrun policy applies
    floor <= next < routed    FILLED      from the ring, live
    floor, routed <= next     CAUGHT_UP   wait, live

If a publisher is opened while a batch is being routed, its floor is after that batch and so above ``routed``.
Its subscriptions read the batch from the log.

In resync the subscription reads the log window by window (``accept``) until the next mark is inside or after
the ring. Moves between the two sources leave no gap and no repeat, because both are read from the same mark on.
Plain values; no I/O.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tailrace_server.rows.run import Mark, Run, SafePoint

if TYPE_CHECKING:
    from weakref import ref

    from tailrace.position import Position
    from tailrace_server.live.ring import Ring
    from tailrace_server.log_cache.catalog_reader import Scan
    from tailrace_server.log_cache.frames import FrameBlock


class Mode(Enum):
    """The source that serves a subscription."""

    LIVE = "live"
    RESYNC = "resync"


class RefillResult(Enum):
    """The result of a refill: where the next mark is, relative to the ring."""

    FILLED = "filled"
    CAUGHT_UP = "caught up"
    BEHIND = "behind"
    OVERRUN = "overrun"
    """Behind, and live until now: the subscriber was slower than the ring."""
    LATEST = "latest"
    """Behind, and the policy sends only the newest record of each key of what was missed (``latest_phase``)."""


@dataclass(slots=True)
class Slice:
    """Queued captures of a run, from ``start`` to ``stop``, exclusive."""

    run: Run
    start: int
    stop: int
    block: ref[FrameBlock] | None = None
    """The frames of the run that were used last; the cache may have dropped them."""


class Intake:
    """Queue, next mark and mode of one subscription."""

    __slots__ = (
        "_captures",
        "_captures_max",
        "_covered",
        "_delivered_last",
        "_delivered_rows",
        "_overrun",
        "matched",
        "mode",
        "next",
        "queue",
        "resyncs",
        "returns",
    )

    def __init__(self, start: Mark, before: SafePoint, *, captures_max: int) -> None:
        """Begin at a mark; ``before`` is the safe point just before the mark."""
        self.queue: deque[Slice] = deque()
        self.next = start
        """The first capture that was not queued yet is at or after this mark."""
        self.mode = Mode.RESYNC
        self.resyncs = 0
        self.returns = 0
        self.matched = 0
        """Number of delivered records."""
        self._overrun = False
        self._captures = 0
        self._captures_max = captures_max
        self._delivered_rows = before.rows
        self._delivered_last = before[1:]
        self._covered = before

    @property
    def queued(self) -> int:
        """Captures in the queue."""
        return self._captures

    def refill(self, ring: Ring, routed: int) -> RefillResult:
        """Queue captures from the ring, as far as the queue has room."""
        # Compare with the floor first: the floor of a new ring may be above ``routed``.
        if self.next.row < ring.floor:
            # Only eviction for want of room is an overrun. The ring also drops runs whose segment was deleted
            # or could not be read, and that is not the fault of a slow subscriber.
            overrun = self.mode is Mode.LIVE and self.next.row < ring.pushed_out
            self._enter_resync()
            return RefillResult.OVERRUN if overrun else RefillResult.BEHIND
        self._enter_live()
        if self.next.row >= routed:
            return RefillResult.CAUGHT_UP
        for run in ring.runs_from(self.next):
            if not self._take(run):
                return RefillResult.FILLED
        # The ring has no run for rows without a match, but it covers them too.
        self.next = Mark(routed)
        return RefillResult.FILLED if self.queue else RefillResult.CAUGHT_UP

    def accept(self, scan: Scan) -> None:
        """Queue captures from one window of the log, as far as the queue has room."""
        # Windows are shared, so this one may begin before the next mark. Runs before the mark were taken
        # already.
        for run in scan.runs:
            if run.last_row >= self.next.row and not self._take(run):
                return
        # Only after the whole window was taken is it certain that it has no further match.
        if scan.end_row > self.next.row:
            self.next = Mark(scan.end_row)
            self._covered = SafePoint(scan.end_row, *scan.end)

    def pass_to(self, point: SafePoint) -> None:
        """Continue after a point, without the captures before it; the queue must be empty."""
        if point.rows > self.next.row:
            self.next = Mark(point.rows)
        self._covered = max(self._covered, point)

    def deliver(self, count: int, last: tuple[int, int, int]) -> None:
        """Remove the first ``count`` captures, which were delivered; all are in the queue's first slice."""
        # 1. Count records. A record may have several captures, and a message may begin inside of a record.
        first = self.queue[0]
        run, start = first.run, first.start
        selection, first_row = run.selection, run.batch.first_row
        records = count
        if selection.ordinals is not None:
            records = selection.records(start, start + count)
            row = first_row + selection.rows.item(start)
            if self._delivered_rows == row + 1 and self.matched:
                records -= 1  # the record was begun by an earlier message
        self.matched += records
        # 2. Shorten the slice in place; it leaves the queue only when it is empty.
        first.start = stop = start + count
        self._captures -= count
        self._delivered_rows = first_row + selection.rows.item(stop - 1) + 1
        self._delivered_last = last
        if stop == first.stop:
            self.queue.popleft()

    @property
    def _delivered(self) -> SafePoint:
        return SafePoint(self._delivered_rows, *self._delivered_last)

    def put_back(self) -> None:
        """Drop the queue and read its captures again from the log, because a batch of the queue is gone."""
        # Compute the safe point first: it depends on the queue, and must not move back when the queue is
        # dropped.
        if self.queue:
            self._covered = self._before(self.queue[0].run, self.queue[0].start)
            self.next = self.queue[0].run.mark(self.queue[0].start)
            self.clear()
        self._enter_resync()

    def clear(self) -> None:
        """Drop the queue, and with it the references to batches."""
        self.queue.clear()
        self._captures = 0

    def safe_point(self, ring: Ring, routed: int, routed_position: Position) -> SafePoint:
        """Return the furthest point before the first match that was not delivered.

        The point never decreases, since a subscriber may have received it as a cursor to resume from. The next
        mark moves with the point over rows without a match in the ring. Otherwise an overrun would read these
        rows from the log, where they may be trimmed by then.
        """
        # Captures in the queue were not delivered; all captures before the queue were.
        if self.queue:
            return self._before(self.queue[0].run, self.queue[0].start)
        safe = self._passed(ring, routed, routed_position)
        self._delivered_rows, self._delivered_last = safe.rows, safe[1:]
        return safe

    def _passed(self, ring: Ring, routed: int, routed_position: Position) -> SafePoint:
        """Move the next mark to the next match in the ring; return the point before it. The queue is empty."""
        # 1. Windows of the log without a match are passed too, though nothing of them was delivered.
        safe = max(self._delivered, self._covered)
        # 2. Inside the ring: up to its next match, or up to ``routed`` if there is none.
        if ring.floor <= self.next.row < routed:
            for run in ring.runs_from(self.next):
                place = run.place_of(self.next)
                if place < len(run):
                    self.next = run.mark(place)
                    return max(safe, self._before(run, place))
            self.next = Mark(routed)
        # 3. The ring knows nothing about rows below its floor, or rows that are not routed yet.
        elif self.next.row != routed:
            return safe
        return max(safe, SafePoint(routed, *routed_position))

    def _before(self, run: Run, place: int) -> SafePoint:
        safe = max(self._delivered, self._covered) if not self.queue else self._delivered
        if place:
            return safe
        return max(safe, SafePoint(run.first_row, *run.first.preceding()))

    def _take(self, run: Run) -> bool:
        """Queue a run from the next mark on; return False if the queue is full before the run's end."""
        # 1. The queue's bound cuts a run only if it is empty: a single run may be larger than the bound.
        start, length = run.place_of(self.next), len(run)
        stop = min(length, start + self._captures_max - self._captures)
        if stop < length and self.queue:
            stop = start  # the run is queued whole later, so that its messages need not be cut
        if stop > start:
            self.queue.append(Slice(run, start, stop))
            self._captures += stop - start
        # 2. The next mark is the first capture left of a run that was cut, else the row after the run.
        if stop < length:
            self.next = run.mark(stop)
            return False
        if (end_row := run.last_row + 1) > self.next.row:
            self.next = Mark(end_row)
        return True

    def _enter_live(self) -> None:
        if self.mode is Mode.RESYNC:
            self.mode = Mode.LIVE
            if self._overrun:
                self._overrun = False
                self.returns += 1

    def _enter_resync(self) -> None:
        if self.mode is Mode.LIVE:
            self.mode = Mode.RESYNC
            self._overrun = True
            self.resyncs += 1
