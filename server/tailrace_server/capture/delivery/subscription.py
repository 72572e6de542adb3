"""A subscription: what one subscriber is sent, in order, as fast as it takes it.

The transport pulls: each ``receive`` returns the next message, and while nobody calls it nothing is
read, encoded or kept for this subscriber beyond its queue of references. So a subscriber that stops
reading costs its bound, and nobody waits for it.

::

    receive ─▶ ended? ─▶ heartbeat due? ─▶ demand? ─▶ queue ─▶ frames ─▶ message
                                              │         │ empty
                                              │         ├─ refill from the ring
                                              │         ├─ overrun: one window of the log
                                              └─ wait ◀─┴─ caught up
"""

from __future__ import annotations

import asyncio
from copy import copy
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tailrace.capture import Heartbeat
from tailrace.cursor import Cursor
from tailrace.errors import (
    InvalidRequest,
    PositionCompacted,
    ServerStopping,
    SubscriptionClosed,
    TailraceError,
)
from tailrace.position import END, Position
from tailrace_server.capture.delivery.intake import Intake, Outcome
from tailrace_server.capture.delivery.messages import Cutter, whole_messages
from tailrace_server.capture.reading.small_commits import FrameRequest
from tailrace_server.capture.statistics import SubscriptionStatistics
from tailrace_server.errors import as_tailrace_error
from tailrace_server.wal.segment.reader import SegmentMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace_server.capture.codecs import Codec
    from tailrace_server.capture.delivery.intake import Beginning, SafePoint, Slice
    from tailrace_server.capture.delivery.memory_budget import LargeMessages
    from tailrace_server.capture.delivery.options import Acknowledgement, Delivery
    from tailrace_server.capture.delivery.publisher import Publisher
    from tailrace_server.capture.observer import Observer
    from tailrace_server.capture.reading.frames import Frames
    from tailrace_server.capture.statistics import Counters

_DEMAND_MAX: Final = 2**63 - 1


class Subscription:
    """One subscriber's link. Lives on the event loop; one task at a time may call ``receive``."""

    __slots__ = (
        "__weakref__",
        "_asked",
        "_counters",
        "_cutter",
        "_delivered",
        "_delivered_bytes",
        "_delivery",
        "_demand",
        "_ended_at",
        "_handed_at",
        "_heartbeat_at",
        "_held",
        "_intake",
        "_large",
        "_observer",
        "_publisher",
        "_reads_large",
        "_start_row",
        "_terminal",
        "_time",
        "_timer",
        "_unsettled",
        "_unsettled_bytes",
        "_waiter",
        "_waits_for",
        "acknowledgement",
        "on_end",
    )

    def __init__(
        self,
        acknowledgement: Acknowledgement,
        observer: Observer,
        publisher: Publisher,
        delivery: Delivery,
        counters: Counters,
        large: LargeMessages,
        beginning: Beginning,
    ) -> None:
        """Attach to a publisher; called by the observer, which resolved the start."""
        self.acknowledgement = acknowledgement
        self._observer = observer
        self._publisher = publisher
        self._delivery = delivery
        self._cutter = Cutter(observer, delivery)
        self._counters = counters
        self._large = large
        self._waits_for: Beginning | None = None
        """A start that is not published yet; None once it is."""
        self._begin(beginning)
        self._demand = delivery.demand
        self._terminal: TailraceError | None = None
        self._ended_at: SafePoint | None = None
        """How far it had come when it ended; None while it has not."""
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Wakes it for its next heartbeat; none is made for each wait."""
        self._time = asyncio.get_running_loop().time
        self._heartbeat_at = self._time() + delivery.heartbeat_interval_s
        self._delivered = 0
        self._delivered_bytes = 0
        self._held: Frames | None = None
        """The last message, while the transport has not come back for the next."""
        self._handed_at = 0.0
        self._asked = False
        """Whether it has asked for room for a large message, and has not given it back."""
        self._reads_large = False
        """Whether it has taken a large message and come back for the next."""
        self._unsettled = 0
        """Captures of the queue's first slice that were handed over and are in it until ``settle``."""
        self._unsettled_bytes = 0
        self.on_end: Callable[[TailraceError], None] | None = None
        """Called once when it ends, for a transport that is busy with a message and not in ``receive``."""
        publisher.attach(self)
        counters.subscriptions_opened += 1
        self._look_ahead()

    async def receive(self) -> Frames | Heartbeat:
        """Return the next message: captures, or a heartbeat that stands between them.

        A cancelled call takes nothing: the next one returns what it would have.

        Raises:
            TailraceError: The subscription has ended; the same error at every further call.
        """
        self.settle()
        self._let_go()
        while True:
            if self._terminal is not None:
                raise _again(self._terminal)
            if (now := self._time()) >= self._heartbeat_at:
                return self._heartbeat(now)
            if self._demand == 0:
                self._look_ahead()
                await self._wait()
                continue
            try:
                message = next(self.ready(), None) or await self._advance()
            except SegmentMissing as missing:
                await self._read_again(missing)
            except Exception as error:  # ends this subscription, nobody else's
                self.end(as_tailrace_error(error))
            else:
                if message is not None:
                    return message

    def ready(self) -> Iterator[Frames]:
        """Yield what ``receive`` would return, as long as an earlier message left all that it takes.

        A message is handed over when it is asked for. At the end, ask ``receive``. Most messages of a large
        batch come this way, so next to nothing is done for each: they are settled together, at the end or when
        somebody asks. The cache may drop their block while one is on its way.
        """
        queue, time = self._intake.queue, self._time
        while True:
            self.settle()
            self._let_go()
            bytes_max = self._message_bytes
            if not queue or self._demand == 0:
                return
            first = queue[0]
            if (reference := first.block) is None or (block := reference()) is None:
                return
            borders = whole_messages(first, block, self._demand)
            if not borders:
                if (now := time()) >= self._heartbeat_at:
                    return
                frames = self._cutter.fitting(first, block, self._demand, bytes_max)
                del block
                if frames is None or len(frames.data) > bytes_max:
                    return
                yield self._taken(first, frames, now)
                continue
            for begin, end in pairwise(borders):
                if (block := reference()) is None or (now := time()) >= self._heartbeat_at:
                    return
                frames = block.messages[begin]
                del block
                size = len(frames.data)
                if size > bytes_max or not queue:
                    return
                self._unsettled = end - first.start
                self._unsettled_bytes += size
                self._held, self._handed_at = frames, now
                yield frames

    def settle(self) -> None:
        """Count what was handed over, and take it out of the queue: before anybody looks at either."""
        if count := self._unsettled:
            assert self._held is not None
            self._intake.deliver(count, self._held.last)
            self._count(count, self._unsettled_bytes)
            self._unsettled = self._unsettled_bytes = 0

    def request(self, n: int) -> None:
        """Add demand for ``n`` captures; adds up and saturates.

        Raises:
            InvalidRequest: ``n`` is not positive; the subscription has ended with the same error
            (rule 3.9).
        """
        if self._terminal is not None:
            return
        self.settle()
        if n <= 0:
            error = InvalidRequest(
                f"request({n}): demand must be positive (Reactive Streams rule 3.9)"
            )
            self.end(error)
            raise error
        self._demand = min((self._demand or 0) + n, _DEMAND_MAX)
        self.wake()

    def cancel(self) -> None:
        """End without a terminal signal; whatever was queued is dropped. Idempotent."""
        if self._terminal is None:
            self._finish(SubscriptionClosed("the subscription was cancelled"))

    def end(self, error: TailraceError) -> None:
        """End with an error that ``receive`` raises; nothing after it. Idempotent."""
        if self._terminal is None:
            self._counters.subscriptions_failed += 1
            self._finish(error)

    def stop(self) -> None:
        """End because the server stops, with the cursor to resume from."""
        cursor = str(self.resume_cursor())
        self.end(ServerStopping(f"the server is stopping; resume after {cursor}", cursor))

    def end_if_compacted(self) -> None:
        """End one that waits for demand, and whose next record retention has taken meanwhile.

        One that has demand learns of it where it reads.
        """
        self.settle()
        if self._demand != 0 or self._terminal is not None:
            return
        if (compacted := self._compacted()) is not None:
            self.end(compacted)

    def wake(self) -> None:
        """Let a waiting ``receive`` look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def error(self) -> TailraceError | None:
        """Why it has ended; None while it has not."""
        return self._terminal

    @property
    def held_bytes(self) -> int:
        """Bytes of the last message, while the transport has not come back for the next."""
        return 0 if self._held is None else len(self._held.data)

    def stalled_for(self, now: float) -> float:
        """Return for how many seconds the transport has been busy with the last message."""
        return 0.0 if self._held is None else now - self._handed_at

    def resume_cursor(self) -> Cursor:
        """Return the cursor behind everything that was handed over, as far as is safe; also after the end."""
        return Cursor(self.acknowledgement.catalog_uuid, *self._safe_point()[1:])

    @property
    def awaits_time(self) -> bool:
        """Whether a start by time is still to come, so that its cursor alone would go on too early."""
        return self._waits_for is not None and self._waits_for.timestamp is not None

    @property
    def codec(self) -> Codec:
        """The wire form of its captures."""
        return self._delivery.codec

    @property
    def frame_request(self) -> FrameRequest:
        """What it wants of every batch."""
        return FrameRequest(self._publisher.predicate, self._delivery.codec, self._delivery.content)

    def complete_below(self) -> int:
        """Return the first version of which something that matches may still come."""
        safe, view = self._safe_point(), self._observer.view
        if safe.rows >= view.end_row and self._waits_for is None:
            return view.published + 1
        return safe.version + (safe.index == END)

    def statistics(self) -> SubscriptionStatistics:
        """Return the figures of this moment."""
        self.settle()
        observer, safe = self._observer, self._safe_point()
        return SubscriptionStatistics(
            subscription_id=self.acknowledgement.subscription_id,
            mode=self._intake.mode.value,
            demand=self._demand,
            delivered=self._delivered,
            delivered_bytes=self._delivered_bytes,
            position=Position(safe.version, safe.index),
            queued=self._intake.queued,
            lag_records=0 if self._awaits_start else max(0, observer.view.end_row - safe.rows),
            resyncs=self._intake.resyncs,
            returns=self._intake.returns,
        )

    @property
    def _awaits_start(self) -> bool:
        """Whether nothing is published yet of what it wants."""
        start, observer = self._waits_for, self._observer
        return (
            start is not None and observer.renewed(start).wanted.version > observer.view.published
        )

    async def _advance(self) -> Frames | None:
        """Do one thing that brings the next message nearer; return it if it is ready."""
        intake = self._intake
        if self._waits_for is not None:
            await self._resolve_start(self._waits_for)
            return None
        outcome = Outcome.FILLED if intake.queue else self._refill()
        match outcome:
            case Outcome.FILLED:
                return await self._deliver()
            case Outcome.OVERRUN:
                await self._read_log()
            case Outcome.CAUGHT_UP:
                self._publisher.caught_up(self)
                await self._wait()
        return None

    def _look_ahead(self) -> None:
        """Say so if nothing that is routed is left for it, also before it is asked for a message."""
        intake = self._intake
        if self._waits_for is not None or (
            not intake.queue and intake.next.row >= self._observer.routed
        ):
            self._publisher.caught_up(self)

    async def _read_again(self, missing: SegmentMissing) -> None:
        """Go on by position: what the queue refers to was compacted, or is gone for good."""
        self._intake.put_back()
        self._publisher.ring.forget_segment(missing.path)
        try:
            await self._observer.recover(missing, self._intake.next.row)
        except TailraceError as error:
            self.end(self._compacted() or error)

    def _refill(self) -> Outcome:
        intake = self._intake
        before = intake.resyncs, intake.returns
        outcome = intake.refill(self._publisher.ring, self._observer.routed)
        self._counters.resyncs += intake.resyncs - before[0]
        self._counters.returns += intake.returns - before[1]
        return outcome

    async def _read_log(self) -> None:
        observer, intake = self._observer, self._intake
        view = observer.view
        if (compacted := self._compacted()) is not None:
            raise compacted
        scan = await observer.reading.scan(view, intake.next.row, self._publisher.predicate)
        if self._terminal is None:
            intake.accept(scan)

    def _compacted(self) -> PositionCompacted | None:
        """Return the error of one whose next record neither the ring nor the log has; None for any other."""
        if self._waits_for is not None:
            return self._observer.compacted(self._waits_for)
        observer, row = self._observer, self._intake.next.row
        if row >= observer.view.first_row or self._publisher.ring.floor <= row < observer.routed:
            return None
        safe = self._safe_point()
        position = Position(safe.version, safe.index)
        return PositionCompacted(position, observer.view.oldest, observer.newest)

    def _begin(self, beginning: Beginning) -> None:
        self._intake = Intake(
            beginning.mark, beginning.before, captures_max=self._delivery.queue_captures
        )
        self._start_row = beginning.before.rows
        self._waits_for = None if beginning.published else beginning

    async def _resolve_start(self, start: Beginning) -> None:
        """Turn a start that lay above the newest version into a mark, once it is published.

        Raises:
            PositionCompacted: It was published and trimmed meanwhile.
        """
        if (compacted := self._compacted()) is not None:
            raise compacted
        self._waits_for = start = self._observer.renewed(start)
        self._start_row = start.before.rows
        if self._observer.view.published < start.wanted.version:
            self._publisher.caught_up(self)
            await self._wait()
        else:
            self._begin(await self._observer.begin_at(start.wanted, start.ordinal))

    async def _deliver(self) -> Frames | None:
        """Join what is ready, from the first slice on, to one message.

        All waiting comes before the first capture leaves the queue, so a cancelled call takes
        nothing.
        """
        queue, cutter = self._intake.queue, self._cutter
        if self._large.keeps_waiting(self):
            await self._wait()
            return None
        first = queue[0]
        block = await cutter.block(first)
        frames = cutter.fitting(first, block, self._demand, self._message_bytes)
        if frames is None:
            frames = await cutter.header_only(first, block)
        if self._terminal is not None or not self._may_leave(frames):
            return None
        frames = self._taken(first, frames, self._time())
        if first.start < first.stop:
            self._look_for_more()
        return frames

    def _taken(self, first: Slice, frames: Frames, now: float) -> Frames:
        """Take frames of the first slice out of the queue, with what can be joined to them."""
        intake = self._intake
        intake.deliver(frames.count, frames.last)
        if first.start == first.stop:
            self._cutter.taken(first)
            if intake.queue:
                frames = self._cutter.joined(intake, frames, self._demand, self._message_bytes)
            self._look_for_more()
        self._count(frames.count, len(frames.data))
        self._held, self._handed_at = frames, now
        return frames

    @property
    def _message_bytes(self) -> int:
        """What its next message is cut to."""
        return min(self._delivery.message_bytes, self._large.message_bytes_max)

    def _may_leave(self, frames: Frames) -> bool:
        """Return whether there is room for a message; one that may not leave is made again in its turn."""
        size = len(frames.data)
        if size <= self._message_bytes:
            return True
        self._asked = True
        return self._large.admit(self, size, reads=self._reads_large)

    def _let_go(self) -> None:
        """Let go of the last message: the transport has come back for the next."""
        if self._held is not None and self._asked:
            self._large.release(self)
            self._asked, self._reads_large = False, True
        self._held = None

    def _count(self, captures: int, size: int) -> None:
        if self._demand is not None:
            self._demand -= captures
        self._delivered += captures
        self._delivered_bytes += size
        self._counters.captures_delivered += captures
        self._counters.bytes_delivered += size

    def _look_for_more(self) -> None:
        """Say so if it is taking the last of what is routed; to be called where a slice begins and ends."""
        queue = self._intake.queue
        if len(queue) > 1 or self._intake.next.row < self._observer.routed:
            return
        if queue:
            self._publisher.hungry(self)
        else:
            self._publisher.caught_up(self)

    def _heartbeat(self, now: float) -> Heartbeat:
        interval = self._delivery.heartbeat_interval_s
        self._heartbeat_at = now + interval
        self._counters.heartbeats_sent += 1
        safe = self._safe_point()
        return Heartbeat(
            published=self._observer.view.published,
            cursor=Cursor(self.acknowledgement.catalog_uuid, *safe[1:]),
            records_scanned=max(0, safe.rows - self._start_row),
            records_matched=self._intake.matched,
            next_within_s=interval,
        )

    def _safe_point(self) -> SafePoint:
        self.settle()
        if self._ended_at is not None:
            return self._ended_at
        if self._waits_for is not None:
            return self._waits_for.before
        observer = self._observer
        return self._intake.safe_point(
            self._publisher.ring, observer.routed, observer.routed_position
        )

    async def _wait(self) -> None:
        """Wait for a wake-up or the next heartbeat. Loses nothing: state is looked at again afterwards."""
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._timer = loop.call_at(self._heartbeat_at, self._heartbeat_due)
        self._waiter = loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _heartbeat_due(self) -> None:
        self._timer = None
        self.wake()

    def _finish(self, terminal: TailraceError) -> None:
        self._ended_at = self._safe_point()  # while the queue still says what was not handed over
        self._terminal = terminal
        self._counters.subscriptions_ended += 1
        self._held = None  # the transport may still be busy with it, and has it itself
        self._large.release(self)
        self._intake.queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._observer.detach(self, self._publisher)
        self.wake()
        if self.on_end is not None:
            self.on_end(terminal)
            self.on_end = None


def _again(error: TailraceError) -> TailraceError:
    """Return a copy to raise: a kept exception would keep every frame that it passed through."""
    again = copy(error)
    again.__cause__ = error.__cause__
    return again
