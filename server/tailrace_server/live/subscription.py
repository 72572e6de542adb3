"""A subscription: what one subscriber is sent, in order, as fast as it takes it.

The transport pulls: each ``receive`` returns the next message, and between calls nothing is read, encoded or
retained for this subscriber beyond its queue of references. So a subscriber that stops reading costs its bound,
and delays no other.

::

    receive ─▶ ended? ─▶ heartbeat due? ─▶ state? ─▶ demand? ─▶ queue ─▶ frames ─▶ message
                                              │         │ empty
                                              │         ├─ refill from the ring
                                              │         ├─ overrun: one window of the log
                                              └─ wait ◀─┴─ caught up
"""

# Long: one state machine, whose moves are read together.
from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

from tailrace.capture import StateComplete
from tailrace.errors import (
    NotPermitted,
    ServerStopping,
    SubscriptionClosed,
    TailraceError,
    again,
    kept,
)
from tailrace.position import END
from tailrace_server.live.figures import NO_HOLD, DeliveryCounts, figures_of, heartbeat_of
from tailrace_server.live.intake import Intake, RefillResult
from tailrace_server.live.latest_phase import WhenBehind
from tailrace_server.live.messages import MessageCutter, whole_messages
from tailrace_server.live.options import added_demand
from tailrace_server.live.state_phase import advised
from tailrace_server.log_cache.last_message import LastMessage
from tailrace_server.log_cache.start import awaited, compacted_row, compacted_start, is_early
from tailrace_server.resources.event_loop import TimedWait
from tailrace_server.resources.statistics import NEVER
from tailrace_server.wal.segment.reader import SegmentMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.capture import Heartbeat
    from tailrace.cursor import Cursor
    from tailrace.errors import PositionCompacted
    from tailrace_server.live.intake import Slice
    from tailrace_server.live.options import DeliveryOptions, SubscribeAcknowledgement
    from tailrace_server.live.publisher import Publisher
    from tailrace_server.live.state_phase import StatePhase
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.log_cache.frames import Frames
    from tailrace_server.log_cache.start import ResolvedStart
    from tailrace_server.resources.memory import LargeMessages
    from tailrace_server.resources.statistics import Counters, SubscriptionStatistics
    from tailrace_server.rows.run import SafePoint


class Subscription:
    """One subscriber's link. Lives on the event loop; one task at a time may call ``receive``."""

    __slots__ = (
        "__weakref__",
        "_counters",
        "_counts",
        "_cutter",
        "_demand",
        "_detach",
        "_ended_at",
        "_heartbeat_at",
        "_intake",
        "_log",
        "_publisher",
        "_start_row",
        "_state",
        "_time",
        "_uncounted",
        "_uncounted_bytes",
        "_waiting",
        "_waiting_start",
        "_when_behind",
        "acknowledgement",
        "error",
        "hold",
        "last",
        "on_end",
        "options",
    )

    def __init__(
        self,
        acknowledgement: SubscribeAcknowledgement,
        log: FollowedLog,
        publisher: Publisher[Subscription],
        options: DeliveryOptions,
        counters: Counters,
        large: LargeMessages,
        start: ResolvedStart,
        detach: Callable[[Subscription, Publisher[Subscription]], None],
        state: StatePhase | None = None,
    ) -> None:
        """Attach to a publisher; ``detach`` is called once, when the subscription ends."""
        self.acknowledgement = acknowledgement
        self._log = log
        self._publisher = publisher
        self.options = options
        self._cutter = MessageCutter(log, options)
        self._counters = counters
        self.last = LastMessage(options.message_bytes, large)
        self._detach = detach
        self._begin(start)
        self._demand = options.demand
        """Captures that may still be delivered; None without accounting."""
        self.hold = NO_HOLD
        self.error: TailraceError | None = None
        """Why it has ended; None while it has not."""
        self._ended_at: SafePoint | None = None
        """Its safe point when it ended; None while it has not."""
        self._waiting = TimedWait()
        """``receive`` waits there, for its next heartbeat at the longest."""
        self._state = state
        """The rows that it is sent first; None once it has them all."""
        self._time = asyncio.get_running_loop().time
        self._heartbeat_at = self._time() + options.heartbeat_interval_s
        self._uncounted = 0
        """Captures of the queue's first slice that were handed over and are still in it."""
        self._uncounted_bytes = 0
        self.on_end: Callable[[TailraceError], None] | None = None
        """Called once when it ends, for a transport that is busy with a message and not in ``receive``."""
        self._counts = DeliveryCounts(counters, options.peer.transport)
        self._when_behind = WhenBehind.of(log, publisher, options)
        publisher.attach(self, impatient=options.is_impatient)
        if state is not None:
            state.attach(self.wake)
        self._report_nothing_left()

    async def receive(self) -> Frames | Heartbeat | StateComplete:
        """Return the next message: captures, or between them a heartbeat or the end of the state.

        A cancelled call takes nothing: the next one returns what it would have.

        Raises:
            TailraceError: The subscription has ended; the same error at every further call.
        """
        # 1. The transport is back: the last message is delivered, and its room is free for others.
        self.count_delivered()
        self.last.taken(self)
        # 2. One step at a time. After each, and after each wait, everything is judged anew: meanwhile it may
        #    have ended, got demand, fallen out of the ring, or be due a heartbeat.
        while True:
            if self.error is not None:
                raise again(self.error)
            # Before captures: a subscriber that always has some is owed its safe cursor too.
            if (now := self._time()) >= self._heartbeat_at:
                return self._heartbeat(now)
            if self._demand == 0 and self._state is None:
                self._report_nothing_left()
                await self._wait()
                continue
            try:
                message = next(self.ready(), None) or await self._advance()
            except SegmentMissing as missing:
                await self._read_again(missing)
            except Exception as error:  # ends this subscription, nobody else's
                self.end(kept(error))
            else:
                if message is not None:
                    return message

    def ready(self) -> Iterator[Frames]:
        """Yield what ``receive`` would return, as long as an earlier message left all that it takes.

        A message is handed over when it is asked for. When this ends, ask ``receive``. Most messages of a large
        batch come this way, so next to nothing is done for each: they are counted together, at the end or when
        somebody needs the figures.
        """
        if self._state is not None:
            yield from self._ready_rows(self._state)
            return
        queue, time, last = self._intake.queue, self._time, self.last
        while True:
            # 1. Count the burst before this one, which took the first slice without moving the queue.
            self.count_delivered()
            last.taken(self)
            bytes_max = last.bytes_max
            if not queue or self._demand == 0:
                return
            # 2. Only frames that are still encoded. The cache may drop them at any time, so no reference is
            #    kept over a yield: a stalled transport would keep the block in memory.
            first = queue[0]
            if (reference := first.block) is None or (block := reference()) is None:
                return
            borders = whole_messages(first, block, self._demand)
            # 3. The end of a slice, or a slice that does not begin at a border: cut one message.
            if not borders:
                if (now := time()) >= self._heartbeat_at:
                    return
                frames = self._cutter.fitting(first, block, self._demand, bytes_max)
                del block
                if frames is None or len(frames.data) > bytes_max:
                    return
                yield self._handed(first, frames, now)
                continue
            # 4. Whole messages as the block has them, shared with every other subscription. While they are
            #    on their way the subscription may end, and then the queue is empty.
            for begin, end in pairwise(borders):
                if (block := reference()) is None or (now := time()) >= self._heartbeat_at:
                    return
                frames = block.messages[begin]
                del block
                size = len(frames.data)
                if size > bytes_max or not queue:
                    return
                self._uncounted = end - first.start
                self._uncounted_bytes += size
                last.frames, last.handed_at = frames, now
                yield frames

    def count_delivered(self) -> None:
        """Count what ``ready`` handed over and take it out of the queue: before either is read."""
        if count := self._uncounted:
            assert self.last.frames is not None
            run = self._intake.queue[0].run
            self._intake.deliver(count, self.last.frames.last)
            self._count(count, self._uncounted_bytes, run.committed_at)
            self._uncounted = self._uncounted_bytes = 0

    def request(self, n: int) -> None:
        """Add demand for ``n`` captures; adds up and saturates.

        Raises:
            InvalidRequest: ``n`` is not positive; the subscription has ended with it (rule 3.9).
        """
        if self.error is not None:
            return
        self.count_delivered()
        try:
            self._demand = added_demand(self._demand, n)
        except TailraceError as error:
            self.end(error)
            raise
        self.wake()

    def cancel(self) -> None:
        """End without a terminal signal; whatever was queued is dropped. Idempotent."""
        if self.error is None:
            self._finish(SubscriptionClosed("the subscription was cancelled"))

    def end(self, error: TailraceError) -> None:
        """End with an error that ``receive`` raises; nothing after it. Idempotent."""
        if self.error is None:
            self._counters.subscriptions_failed += 1
            self._finish(error)

    def stop(self) -> None:
        """End because the server stops, with the cursor to resume from."""
        cursor = str(self.resume_cursor())
        self.end(ServerStopping(f"the server is stopping; resume after {cursor}", cursor))

    def end_if_refused(self) -> None:
        """End if the caller is no longer granted all that this delivers, with the cursor to resume from."""
        if (refusal := self.options.use.refusal()) is not None:
            self.end(NotPermitted(refusal, str(self.resume_cursor())))

    def end_if_compacted(self) -> None:
        """End one without demand whose next record retention has taken; others learn of it as they read."""
        self.count_delivered()
        if self._demand != 0 or self.error is not None:
            return
        if (compacted := self._compacted()) is not None:
            self.end(compacted)

    def wake(self) -> None:
        """Let a waiting ``receive`` continue; nothing if none waits."""
        self._waiting.wake()

    def cursor_behind(self, frames: Frames) -> Cursor:
        """Return the cursor behind a message, the last one that was handed over."""
        return self._log.view.cursor(*frames.last) if self._state is None else self._state.cursor

    def resume_cursor(self) -> Cursor:
        """Return the cursor behind everything that was handed over, as far as is safe; also after the end."""
        if self._state is not None:
            return self._state.cursor
        return self._log.view.cursor(*self._safe_point()[1:])

    @property
    def awaits_time(self) -> bool:
        """True if a start by time is still to come, so that its cursor alone would continue too early."""
        return self._waiting_start is not None and self._waiting_start.timestamp is not None

    def complete_below(self) -> int:
        """Return the first version that may still have matches to come."""
        safe, view = self._safe_point(), self._log.view
        if safe.rows >= view.end_row and self._waiting_start is None:
            return view.published + 1
        return safe.version + (safe.index == END)

    def statistics(self) -> SubscriptionStatistics:
        """Return the figures of this moment."""
        self.count_delivered()
        log, start = self._log, self._waiting_start
        return figures_of(
            self.acknowledgement.subscription_id,
            self.options.peer,
            self._publisher.predicate.criteria,
            counts=self._counts,
            intake=self._intake,
            demand=self._demand,
            safe=self._safe_point(),
            view=log.view,
            early=start is not None and is_early(log, start),
            in_state=self._state is not None,
        )

    async def _advance(self) -> Frames | StateComplete | None:
        """Bring the next message nearer, or return it: of the state, the latest, the log or the ring."""
        if self._state is not None:
            return await self._next_of_state(self._state)
        if self._waiting_start is not None:
            await self._resolve_start(self._waiting_start)
            return None
        # The queue comes first: what it holds lies before all that the ring or the log could add.
        intake, behind, waiting = self._intake, self._when_behind, (self.wake, self._wait)
        if behind and not intake.queue and await behind.fill(intake, self._compacted, *waiting):
            return None
        match RefillResult.FILLED if intake.queue else self._refill():
            case RefillResult.FILLED:
                return await self._deliver()
            case RefillResult.OVERRUN | RefillResult.BEHIND:
                await self._read_log()
            case RefillResult.CAUGHT_UP:
                self._publisher.caught_up(self)
                await self._wait()
        return None

    async def _next_of_state(self, state: StatePhase) -> Frames | StateComplete | None:
        """Return rows, or that there are no more; None after a wait for rows, demand or memory."""
        # What follows the state is gone: whoever had all rows could not go on behind them.
        if (compacted := self._compacted()) is not None:
            raise compacted
        message = state.cut(self._demand, self.last, self)
        if message is None:
            await self._wait()
        elif isinstance(message, StateComplete):
            state.close()
            self._state = None
        else:
            state.take(message, now := self._time())
            self._counted(message, now, NEVER)
        return message

    def _ready_rows(self, state: StatePhase) -> Iterator[Frames]:
        """As ``ready``: what is left of a block whose first message came by ``receive``."""
        while self.error is None and (now := self._time()) < self._heartbeat_at:
            self.last.taken(self)
            if (message := state.whole_message(self._demand, self.last.bytes_max)) is None:
                return
            state.take(message, now)
            yield self._counted(message, now, NEVER)

    def _refill(self) -> RefillResult:
        intake = self._intake
        before = intake.resyncs, intake.returns
        result = intake.refill(self._publisher.ring, self._log.routed)
        self._counters.resyncs += intake.resyncs - before[0]
        self._counters.returns += intake.returns - before[1]
        return self._when_behind.judged(result, self.resume_cursor) if self._when_behind else result

    async def _read_log(self) -> None:
        """Queue what one window of the log has: the ring no longer covers the next mark."""
        log, intake = self._log, self._intake
        await log.turns.turn(self.options.peer)  # those who are live come first
        if (compacted := self._compacted()) is not None:
            raise compacted
        scan = await log.reading.scan(log.view, intake.next.row, self._publisher.predicate)
        if self.error is None:  # else it has ended meanwhile, and its queue stays empty
            intake.accept(scan)

    async def _read_again(self, missing: SegmentMissing) -> None:
        """Go on from the same position in the newest view."""
        # The records are in another segment, or trimmed, or the log is damaged. Of a trimmed one the view
        # knows no position, so the error is made from what this subscription knows.
        try:
            # Forget the queue before the view changes: its runs refer to the old segments. So do the ring's,
            # and the next subscription would meet the same error there.
            self._intake.put_back()
            self._publisher.ring.forget_segment(missing.path)
            await self._log.recover(missing, self._intake.next.row)
        except TailraceError as error:
            self.end(self._compacted() or error)

    def _compacted(self) -> PositionCompacted | None:
        """Return the error of one whose next record neither the ring nor the log has; None for any other."""
        if self._waiting_start is not None:
            found = compacted_start(self._log, self._waiting_start)
        else:
            row, floor = self._intake.next.row, self._publisher.ring.floor
            found = compacted_row(self._log, row, floor, self._safe_point())
        return found if found is None or self._state is None else advised(found)

    def _begin(self, start: ResolvedStart) -> None:
        self._intake = Intake(start.mark, start.before, captures_max=self.options.queue_captures)
        self._start_row = start.before.rows
        self._waiting_start = None if start.published else start

    async def _resolve_start(self, start: ResolvedStart) -> None:
        """Turn a start that lay above the newest version into a mark, once it is published.

        Raises:
            PositionCompacted: It was published and trimmed meanwhile.
        """
        if (compacted := self._compacted()) is not None:
            raise compacted
        self._begin(await awaited(self._log, start))
        if self._waiting_start is not None:
            self._publisher.caught_up(self)
            await self._wait()

    async def _deliver(self) -> Frames | None:
        """Join what is ready, from the first slice on, to one message."""
        # 1. In the line for large messages nothing is encoded: memory is short.
        if self.last.waits_for_room(self):
            await self._wait()
            return None
        # 2. All waiting comes before the first capture leaves the queue: a cancelled call takes nothing.
        cutter, first = self._cutter, self._intake.queue[0]
        frames = cutter.of_crowd(first, self._demand, self.last.bytes_max)
        if frames is None:
            block = await cutter.block(first)
            frames = cutter.fitting(first, block, self._demand, self.last.bytes_max)
            frames = frames or await cutter.header_only(first, block)
        # 3. It may have ended during the read. A message without room is cut again in its turn, maybe smaller.
        if self.error is not None or not self.last.admits(len(frames.data), self):
            return None
        # 4. From here on in one step: the queue, the counts and the last message agree.
        frames = self._handed(first, frames, self._time())
        if first.start < first.stop:  # else ``_handed`` has reported
            self._publisher.took(self, len(self._intake.queue), self._has_all_routed)
        return frames

    def _handed(self, first: Slice, frames: Frames, now: float) -> Frames:
        """Take frames of the first slice out of the queue, with what can be joined to them."""
        intake = self._intake
        intake.deliver(frames.count, frames.last)
        if first.start == first.stop:
            self._cutter.taken(first)
            if intake.queue:
                frames = self._cutter.joined(intake, frames, self._demand, self.last.bytes_max)
            self._publisher.took(self, len(self._intake.queue), self._has_all_routed)
        return self._counted(frames, now, first.run.committed_at)

    def _counted(self, frames: Frames, now: float, committed_at: float) -> Frames:
        """Return a message that is handed over now, after it was counted."""
        self._count(frames.count, len(frames.data), committed_at)
        self.last.frames, self.last.handed_at = frames, now
        return frames

    def _count(self, captures: int, size: int, committed_at: float) -> None:
        if self._demand is not None:
            self._demand -= captures
        self._counts.add(captures, size, committed_at)

    def _report_nothing_left(self) -> None:
        """Tell the publisher if nothing that is routed is left to queue, though no message is asked for."""
        waits = self._waiting_start is not None
        if self._state is None and (waits or (not self._intake.queue and self._has_all_routed)):
            self._publisher.caught_up(self)

    @property
    def _has_all_routed(self) -> bool:
        return self._intake.next.row >= self._log.routed

    def _heartbeat(self, now: float) -> Heartbeat:
        self._heartbeat_at = now + self.options.heartbeat_interval_s
        self._counters.heartbeats_sent += 1
        safe, matched = self._safe_point(), self._intake.matched
        looked_at = self.options.use.looked_at(safe.rows - self._start_row, matched)
        return heartbeat_of(
            self._log, self.options, self.resume_cursor(), looked_at, matched, self.hold
        )

    def _safe_point(self) -> SafePoint:
        self.count_delivered()
        if self._ended_at is not None:
            return self._ended_at
        if self._waiting_start is not None:
            return self._waiting_start.before
        log = self._log
        return self._intake.safe_point(self._publisher.ring, log.routed, log.routed_position)

    async def _wait(self) -> None:
        """Wait for a wake-up or the next heartbeat. Afterwards the caller judges everything anew."""
        await self._waiting.until(self._heartbeat_at)

    def _finish(self, terminal: TailraceError) -> None:
        # 1. The resume cursor, while the queue still tells what was not handed over.
        self._ended_at = self._safe_point()
        self.error = terminal
        # 2. Give back what others wait for, and what the process must not keep.
        self._counters.subscriptions_ended += 1
        self.last.end(self)
        self._intake.clear()
        if self._when_behind:
            self._when_behind.close()
        if self._state is not None:
            self._state.close()  # its cursor stays
        self._detach(self, self._publisher)
        # 3. Tell whoever waits: ``receive``, or a transport that is busy with a message.
        self._waiting.close()
        if self.on_end is not None:
            self.on_end(terminal)
            self.on_end = None
