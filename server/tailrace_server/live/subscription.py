"""A subscription: delivers the matching captures to one subscriber, in log order, at the subscriber's pace.

The transport pulls: each ``receive`` returns the next message. Between calls the server reads, encodes and
retains nothing for this subscriber except its queue of references, and that queue is bounded. So a subscriber
that stops reading costs a bounded amount of memory and delays no other subscriber.

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
    """The link to one subscriber. It lives on the event loop; one task at a time may call ``receive``."""

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
        """Captures that may still be delivered; None: any number."""
        self.hold = NO_HOLD
        self.error: TailraceError | None = None
        """The error that ended the subscription; None while it is open."""
        self._ended_at: SafePoint | None = None
        """The safe point when the subscription ended; None while it is open."""
        self._waiting = TimedWait()
        """The wait of ``receive``; it lasts at most until the next heartbeat is due."""
        self._state = state
        """The rows of the initial state; None if there is no such phase, or all its rows were delivered."""
        self._time = asyncio.get_running_loop().time
        self._heartbeat_at = self._time() + options.heartbeat_interval_s
        self._uncounted = 0
        """Captures of the queue's first slice that were delivered and not yet removed from the slice."""
        self._uncounted_bytes = 0
        self.on_end: Callable[[TailraceError], None] | None = None
        """Called once when the subscription ends, so that a transport outside of ``receive`` learns of it
        too."""
        self._counts = DeliveryCounts(counters, options.peer.transport)
        self._when_behind = WhenBehind.of(log, publisher, options)
        publisher.attach(self, impatient=options.is_impatient)
        if state is not None:
            state.attach(self.wake)
        self._report_nothing_left()

    async def receive(self) -> Frames | Heartbeat | StateComplete:
        """Return the next message: captures, a heartbeat, or the end of the initial state.

        A cancelled call consumes nothing: the next call returns the same message.

        Raises:
            TailraceError: The subscription has ended. Every further call raises the same error.
        """
        # 1. The transport is back: the last message is delivered, and its room is free for others.
        self.count_delivered()
        self.last.taken(self)
        # 2. One step at a time. After each step and each wait, check everything again: meanwhile the
        # subscription
        #    may have ended, got demand, fallen out of the ring, or be due a heartbeat.
        while True:
            if self.error is not None:
                raise again(self.error)
            # The heartbeat comes before captures: a subscriber that always has captures needs its safe cursor
            # too.
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
        """Yield the messages that can be returned without waiting; afterwards call ``receive``.

        A message counts as delivered when it is yielded. Most messages of a large batch come this way, so the
        work for each is small: they are counted together, at the end or when the figures are read.
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
        """Count the captures that ``ready`` yielded and remove them from the queue.

        Call it before the counts or the queue are read.
        """
        if count := self._uncounted:
            assert self.last.frames is not None
            run = self._intake.queue[0].run
            self._intake.deliver(count, self.last.frames.last)
            self._count(count, self._uncounted_bytes, run.committed_at)
            self._uncounted = self._uncounted_bytes = 0

    def request(self, n: int) -> None:
        """Add demand for ``n`` captures, up to ``DEMAND_MAX``.

        Raises:
            InvalidRequest: ``n`` is not positive. The subscription ends with this error (rule 3.9).
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
        """End without a terminal signal, and drop the queue. Idempotent."""
        if self.error is None:
            self._finish(SubscriptionClosed("the subscription was cancelled"))

    def end(self, error: TailraceError) -> None:
        """End with an error, which every later ``receive`` raises. Idempotent."""
        if self.error is None:
            self._counters.subscriptions_failed += 1
            self._finish(error)

    def stop(self) -> None:
        """End with `ServerStopping`, which carries the cursor to resume from."""
        cursor = str(self.resume_cursor())
        self.end(ServerStopping(f"the server is stopping; resume after {cursor}", cursor))

    def end_if_refused(self) -> None:
        """End with `NotPermitted` if the caller has lost a grant that the subscription depends on.

        The error carries the cursor to resume from.
        """
        if (refusal := self.options.use.refusal()) is not None:
            self.end(NotPermitted(refusal, str(self.resume_cursor())))

    def end_if_compacted(self) -> None:
        """End a subscription without demand if retention has removed its next record.

        A subscription with demand notices that itself when it reads.
        """
        self.count_delivered()
        if self._demand != 0 or self.error is not None:
            return
        if (compacted := self._compacted()) is not None:
            self.end(compacted)

    def wake(self) -> None:
        """Let a waiting ``receive`` continue, if there is one."""
        self._waiting.wake()

    def cursor_behind(self, frames: Frames) -> Cursor:
        """Return the cursor after the message that was delivered last."""
        return self._log.view.cursor(*frames.last) if self._state is None else self._state.cursor

    def resume_cursor(self) -> Cursor:
        """Return the furthest cursor to resume from without loss; also valid after the end."""
        if self._state is not None:
            return self._state.cursor
        return self._log.view.cursor(*self._safe_point()[1:])

    @property
    def awaits_time(self) -> bool:
        """True if the start is a time that is not published yet; the cursor alone would resume too early."""
        return self._waiting_start is not None and self._waiting_start.timestamp is not None

    def complete_below(self) -> int:
        """Return the first version that may still have undelivered matches."""
        safe, view = self._safe_point(), self._log.view
        if safe.rows >= view.end_row and self._waiting_start is None:
            return view.published + 1
        # The version at the safe point is complete only if its last record was passed.
        return safe.version + (safe.index == END)

    def statistics(self) -> SubscriptionStatistics:
        """Return the current figures of the subscription."""
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
        """Return the next message, or make one step towards it and return None.

        The sources, in this order: the initial state, the newest records, the queue, the ring, the log.
        """
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
        """Return rows of the state, or `StateComplete`; None after a wait for rows, demand or memory."""
        # If the changes after the state are gone, the subscription could not continue after the last row.
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
        """Yield the other messages of a block of state rows whose first message was returned by ``receive``."""
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
        """Queue the matches in one window of the log, because the ring no longer covers the next mark."""
        log, intake = self._log, self._intake
        await log.turns.turn(self.options.peer)  # those who are live come first
        if (compacted := self._compacted()) is not None:
            raise compacted
        scan = await log.reading.scan(log.view, intake.next.row, self._publisher.predicate)
        if (
            self.error is None
        ):  # else the subscription has ended meanwhile, and its queue must stay empty
            intake.accept(scan)

    async def _read_again(self, missing: SegmentMissing) -> None:
        """Continue from the same position in the newest view of the log."""
        # The records are in another segment, or trimmed, or the log is damaged. The view has no position for
        # a trimmed record, so the error is made from the safe point of this subscription.
        try:
            # Clear the queue before the view changes: its runs refer to the old segments. The runs of the ring
            # do as well, and the next subscription would fail on them too.
            self._intake.put_back()
            self._publisher.ring.forget_segment(missing.path)
            await self._log.recover(missing, self._intake.next.row)
        except TailraceError as error:
            self.end(self._compacted() or error)

    def _compacted(self) -> PositionCompacted | None:
        """Return the error if neither the ring nor the log has the next record; else None."""
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
        """Turn a start above the published version into a mark once it is published; else wait.

        Raises:
            PositionCompacted: The start was published and trimmed meanwhile.
        """
        if (compacted := self._compacted()) is not None:
            raise compacted
        self._begin(await awaited(self._log, start))
        if self._waiting_start is not None:
            self._publisher.caught_up(self)
            await self._wait()

    async def _deliver(self) -> Frames | None:
        """Return the next message of the queue: the first slice, joined with following slices that are encoded.

        Return None if there is no room for the message, or the subscription ended meanwhile.
        """
        # 1. While it waits in the line for large messages, encode nothing: memory is short.
        if self.last.waits_for_room(self):
            await self._wait()
            return None
        # 2. All waiting comes before the first capture leaves the queue: a cancelled call consumes nothing.
        cutter, first = self._cutter, self._intake.queue[0]
        frames = cutter.of_crowd(first, self._demand, self.last.bytes_max)
        if frames is None:
            block = await cutter.block(first)
            frames = cutter.fitting(first, block, self._demand, self.last.bytes_max)
            frames = frames or await cutter.header_only(first, block)
        # 3. The subscription may have ended during the read. A message that gets no room now is cut again
        #    when it is this subscription's turn, maybe smaller.
        if self.error is not None or not self.last.admits(len(frames.data), self):
            return None
        # 4. From here on in one step: the queue, the counts and the last message agree.
        frames = self._handed(first, frames, self._time())
        if first.start < first.stop:  # else ``_handed`` has reported
            self._publisher.took(self, len(self._intake.queue), self._has_all_routed)
        return frames

    def _handed(self, first: Slice, frames: Frames, now: float) -> Frames:
        """Remove frames of the first slice from the queue and return them, joined with following slices."""
        intake = self._intake
        intake.deliver(frames.count, frames.last)
        if first.start == first.stop:
            self._cutter.taken(first)
            if intake.queue:
                frames = self._cutter.joined(intake, frames, self._demand, self.last.bytes_max)
            self._publisher.took(self, len(self._intake.queue), self._has_all_routed)
        return self._counted(frames, now, first.run.committed_at)

    def _counted(self, frames: Frames, now: float, committed_at: float) -> Frames:
        """Count a message as delivered and return it."""
        self._count(frames.count, len(frames.data), committed_at)
        self.last.frames, self.last.handed_at = frames, now
        return frames

    def _count(self, captures: int, size: int, committed_at: float) -> None:
        if self._demand is not None:
            self._demand -= captures
        self._counts.add(captures, size, committed_at)

    def _report_nothing_left(self) -> None:
        """Report to the publisher that this subscription has queued all routed captures, if it has."""
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
        """Wait for a wake-up or the next heartbeat. Afterwards the caller must check everything again."""
        await self._waiting.until(self._heartbeat_at)

    def _finish(self, terminal: TailraceError) -> None:
        # 1. Compute the resume cursor while the queue still shows which captures were not delivered.
        self._ended_at = self._safe_point()
        self.error = terminal
        # 2. Release what other subscriptions wait for, and what the process must not retain.
        self._counters.subscriptions_ended += 1
        self.last.end(self)
        self._intake.clear()
        if self._when_behind:
            self._when_behind.close()
        if self._state is not None:
            self._state.close()  # its cursor remains valid
        self._detach(self, self._publisher)
        # 3. Wake ``receive``, or notify a transport that is busy with a message.
        self._waiting.close()
        if self.on_end is not None:
            self.on_end(terminal)
            self.on_end = None
