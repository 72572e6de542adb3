"""The intake of a subscription: its queue, and every move between live and resync.

A refill has four results, by the place of the next mark relative to the publisher's ring, which covers
[floor, routed):

    next <  floor             BEHIND      read the log from there: resync
      where it was live       OVERRUN     the ring has pushed out what it needs: as its policy says
    floor <= next < routed    FILLED      from the ring, live
    floor, routed <= next     CAUGHT_UP   wait, live

The floor of a publisher that is opened while a batch is routed lies behind that batch, and so past
what is routed: its subscriptions read the batch from the log.

In resync the log is read window by window (``accept``) until the next mark is inside or past the
ring; the moves leave no gap and no repeat because both sources are asked for captures at or after
the same mark. Plain values; no I/O.
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
    """The place of the next mark at a refill: in the ring, behind its end, or before its floor."""

    FILLED = "filled"
    CAUGHT_UP = "caught up"
    BEHIND = "behind"
    OVERRUN = "overrun"
    """Behind, and live until now: it took less than came."""
    LATEST = "latest"
    """Behind, and what it has missed is to come as the latest of each key (capture/latest)."""


@dataclass(slots=True)
class Slice:
    """Captures ``start`` to ``stop`` (exclusive) of a run, waiting in a queue."""

    run: Run
    start: int
    stop: int
    block: ref[FrameBlock] | None = None
    """The run's frames, where they were used last; the cache may have dropped them."""


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
        """Begin at a mark; ``before`` is the safe point just before it."""
        self.queue: deque[Slice] = deque()
        self.next = start
        """First capture that the queue has not taken is at or after it."""
        self.mode = Mode.RESYNC
        self.resyncs = 0
        self.returns = 0
        self.matched = 0
        """Records delivered."""
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
        """Take what the ring has, as far as the queue has room."""
        # Judged first: the floor of a ring may lie behind what is routed.
        if self.next.row < ring.floor:
            # Where a segment went, or could not be read, the ring let go of it by itself.
            overrun = self.mode is Mode.LIVE and self.next.row < ring.pushed_out
            self._enter_resync()
            return RefillResult.OVERRUN if overrun else RefillResult.BEHIND
        self._enter_live()
        if self.next.row >= routed:
            return RefillResult.CAUGHT_UP
        for run in ring.runs_from(self.next):
            if not self._take(run):
                return RefillResult.FILLED
        # Where nothing matches there is no run, and yet the ring covers it.
        self.next = Mark(routed)
        return RefillResult.FILLED if self.queue else RefillResult.CAUGHT_UP

    def accept(self, scan: Scan) -> None:
        """Take what one window of the log has, as far as the queue has room."""
        # Windows are shared, so this one may begin before the next mark; runs before it were taken already.
        for run in scan.runs:
            if run.last_row >= self.next.row and not self._take(run):
                return
        # Only a window that was taken to its end says that nothing else in it matches.
        if scan.end_row > self.next.row:
            self.next = Mark(scan.end_row)
            self._covered = SafePoint(scan.end_row, *scan.end)

    def pass_to(self, point: SafePoint) -> None:
        """Go on behind a point, before which nothing is wanted any more; the queue is empty."""
        if point.rows > self.next.row:
            self.next = Mark(point.rows)
        self._covered = max(self._covered, point)

    def deliver(self, count: int, last: tuple[int, int, int]) -> None:
        """Drop the first ``count`` captures, all of the queue's first slice: they were handed over."""
        # 1. Records, of which a message may hold several captures each, and begin in the midst of one.
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
        # 2. The slice becomes shorter in place; the queue moves only at its end.
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
        """Forget the queue and read it again from the log: a batch that it refers to is gone."""
        # The safe point first: it is worked out from the queue, and must not go back with it.
        if self.queue:
            self._covered = self._before(self.queue[0].run, self.queue[0].start)
            self.next = self.queue[0].run.mark(self.queue[0].start)
            self.clear()
        self._enter_resync()

    def clear(self) -> None:
        """Drop the queue, with the batches that it refers to."""
        self.queue.clear()
        self._captures = 0

    def safe_point(self, ring: Ring, routed: int, routed_position: Position) -> SafePoint:
        """Return the furthest point before the first match that was not handed over.

        It never decreases: a subscriber that received it can resume there. So the next mark moves with it
        over what the ring has no match in. An overrun must not send it to the log for that stretch, which may
        be trimmed by then.
        """
        # What waits in the queue was not handed over, and all before it was.
        if self.queue:
            return self._before(self.queue[0].run, self.queue[0].start)
        safe = self._passed(ring, routed, routed_position)
        self._delivered_rows, self._delivered_last = safe.rows, safe[1:]
        return safe

    def _passed(self, ring: Ring, routed: int, routed_position: Position) -> SafePoint:
        """With an empty queue, move the next mark to the ring's first match and return the point before it."""
        # 1. Log windows without a match are safe too, though nothing of them was handed over.
        safe = max(self._delivered, self._covered)
        # 2. Inside the ring: up to its next match, or to the end of what is routed if there is none.
        if ring.floor <= self.next.row < routed:
            for run in ring.runs_from(self.next):
                place = run.place_of(self.next)
                if place < len(run):
                    self.next = run.mark(place)
                    return max(safe, self._before(run, place))
            self.next = Mark(routed)
        # 3. Below the floor the ring says nothing. Ahead of what is routed nothing is known yet.
        elif self.next.row != routed:
            return safe
        return max(safe, SafePoint(routed, *routed_position))

    def _before(self, run: Run, place: int) -> SafePoint:
        safe = max(self._delivered, self._covered) if not self.queue else self._delivered
        if place:
            return safe
        return max(safe, SafePoint(run.first_row, *run.first.preceding()))

    def _take(self, run: Run) -> bool:
        """Queue a run from the next mark on; False when the queue is full before its end."""
        # 1. The queue's bound cuts a run only if it is empty: a single run may be larger than the bound.
        start, length = run.place_of(self.next), len(run)
        stop = min(length, start + self._captures_max - self._captures)
        if stop < length and self.queue:
            stop = start  # it is taken whole later, when its messages need not be cut
        if stop > start:
            self.queue.append(Slice(run, start, stop))
            self._captures += stop - start
        # 2. The next mark is exact within a run that was cut, and behind the whole run's last record else.
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
