"""A subscription as an async iterator.

Use it under ``async with``; entering returns when the server has acknowledged. One task reads ahead, never
more than the demand: captures requested and not yet taken by you are at most ``demand``, topped up when half
of them are taken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

from tailrace.capture import Heartbeat, StateComplete
from tailrace.checkpoint import CheckpointStore, load_from, save_to
from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest, SubscriptionClosed, TailraceError, again, kept
from tailrace.event_loop import OnOneLoop
from tailrace.link import whole
from tailrace.typed.schemas import TypedBatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from tailrace.capture import Acknowledgement, Capture
    from tailrace.link import Link
    from tailrace.named import Acknowledger
    from tailrace.typed.schemas import TypedSubscription

BUFFER_BYTES_MAX: Final = 64 << 20
"""Above it nothing more is read from the connection until the user has taken some; the server then waits."""

_T = TypeVar("_T")
_Batch = tuple["Capture", ...]
_Message = _Batch | Heartbeat | StateComplete


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """One subscription, now."""

    taken: int
    """Captures that the user has taken."""
    buffered: int
    """Captures received and not yet taken."""
    buffered_bytes: int
    """Their size on the wire, message by message."""
    outstanding: int
    """Captures requested and not yet taken, buffered ones included; never above the demand."""
    reconnects: int


class Messages(Generic[_T]):
    """An endless stream of what a subscription brings; abandoning it loses nothing."""

    __slots__ = ("_next",)

    def __init__(self, take: Callable[[], Awaitable[_T]]) -> None:
        """Keep how to take the next one."""
        self._next = take

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _T:
        """Return the next one; raises as iterating the subscription does."""
        return await self._next()


class Subscription(OnOneLoop):
    """One subscriber's stream of captures; made by ``Client.subscribe``.

    Iterating gives captures, ``batches()`` tuples of them as they came, ``messages()`` heartbeats, too. One
    task at a time may iterate. An iteration that was cancelled has taken nothing.
    """

    def __init__(
        self,
        open_link: Callable[[], Link],
        start: Callable[[Subscription], asyncio.Task[None]],
        *,
        demand: int,
        checkpoint: CheckpointStore | None,
        typing: TypedSubscription | None = None,
        acknowledger: Acknowledger | None = None,
    ) -> None:
        """Keep how to begin; nothing is sent before the context is entered."""
        if whole("demand", demand) < 0:
            raise InvalidRequest(
                f"demand {demand}: it cannot be negative; 0 leaves it to `request`"
            )
        if checkpoint is not None and not isinstance(checkpoint, CheckpointStore):
            raise InvalidRequest(
                f"checkpoint {checkpoint!r}: it has to be a CheckpointStore; for a file, FileCheckpoint(path)"
            )
        self._open_link = open_link
        self._start = start
        self._demand = demand
        """Captures to keep requested; 0: the user asks."""
        self._checkpoint = checkpoint
        self._typing = typing
        self._acknowledger = acknowledger  # of a named subscription; None for any other
        self._acknowledged: int | None = 0
        """Captures taken, if all of them are acknowledged; None: they are not."""
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._acknowledgement: Acknowledgement | None = None
        self._reconnects = -1
        self._buffer: deque[tuple[_Batch, int] | Heartbeat | StateComplete] = deque()
        self._buffered = 0
        self._buffered_bytes = 0
        self._current: list[Capture] = []
        """The rest of the current batch, last first: a capture that was taken is not referenced here."""
        self._taken = 0
        self._passed_over = 0
        """Captures that came for the typing of others alone. Each was asked for beside the demand."""
        self._committed: int | None = 0
        """Of them, those that a saved cursor covers; None: nothing may be saved before the first commit."""
        self._saved: Cursor | None = None
        """The cursor in the checkpoint store; None: an earlier one, or none."""
        self._cursor: Cursor | None = None
        """Of the last message wholly taken; that of a batch under way comes from ``_last``."""
        self._last: Capture | None = None
        self._ended: TailraceError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        """Subscribe and wait for the acknowledgement.

        With an empty checkpoint store, and no start, the place where it begins is saved: it would be another
        one the next time.

        Raises:
            TailraceError: The server refused, or could not be reached in time.
        """
        if self._task is not None or self._ended is not None:
            raise SubscriptionClosed("a subscription is entered once; subscribe again")
        self._note_loop()
        if self._acknowledger is not None:
            self._acknowledger.begin(self.shut)
        saved = await load_from(self._checkpoint) if self._checkpoint is not None else None
        # 1. The link, with the saved cursor in place of any start. Demand is set before the task begins, so
        #    that the first message carries it.
        self._link = self._open_link()
        if saved is not None:
            self._link.begin_after(saved)
        begins_now = not self._link.has_start
        if self._link.begins_by_time:
            self._committed = None
        if self._demand:
            self._link.demand.request(self._demand)
        # 2. The reading task, and its first news: an acknowledgement, or why there is none.
        self._task = self._start(self)
        self._task.add_done_callback(self._forget_task)
        try:
            while self._acknowledgement is None:
                if self._ended is not None:
                    raise again(self._ended)
                await self._wait()
            # 3. A start that the server chose is saved at once: a process killed before its first commit
            #    would otherwise begin elsewhere next time, and miss what lies between.
            if begins_now and self._checkpoint is not None:
                await save_to(self._checkpoint, self.cursor)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; of a named subscription what was acknowledged is durable first.

        Raises:
            TailraceError: It could not be made durable, and the body raised nothing itself.
        """
        try:
            if self._acknowledger is not None and self._ended is None:
                await self._acknowledger.flush()
        except TailraceError:
            if error is None:
                raise
        finally:
            await self.close()

    @property
    def acknowledgement(self) -> Acknowledgement:
        """The server's answer to the latest subscribe."""
        if self._acknowledgement is None:
            raise SubscriptionClosed("the subscription has not been entered")
        return self._acknowledgement

    @property
    def cursor(self) -> Cursor:
        """Everything up to it has been taken: the cursor to save, and to resume strictly after.

        Of captures taken one by one, the last is included: ask when you are done with it.
        """
        if self._last is not None:
            return self._last.cursor
        if self._cursor is None:
            raise SubscriptionClosed("the subscription has not been entered")
        return self._cursor

    async def commit(self) -> None:
        """Save ``cursor`` in the checkpoint store that the subscription was made with.

        While all that was taken is committed, heartbeats that are passed save theirs by themselves, on every
        form of iteration: retention takes what lies behind, also where nothing matches for a long time.

        Raises:
            InvalidRequest: It was made without one.
        """
        if self._checkpoint is None:
            raise InvalidRequest("commit: subscribe with checkpoint= to say where cursors are kept")
        taken, cursor = self._taken, self.cursor
        await save_to(self._checkpoint, cursor)
        self._committed, self._saved = taken, cursor

    async def acknowledge(
        self, up_to: Capture | Cursor | None = None, *, durable: bool = False
    ) -> None:
        """Tell the server that a named subscription need not send captures up to one again.

        It is sent within a second, with later ones, and when the subscription is left. Captures come again
        if it was not sent. While all that was taken is acknowledged, heartbeats that are passed are, too.

        Args:
            up_to: The last capture that is done, or a cursor; None = everything that was taken.
            durable: Send it now, and return when it is in the log.

        Raises:
            InvalidRequest: The subscription has no name, or the capture lies before what was acknowledged.
            SubscriptionTakenOver: Another reader has the name by now.
            TransportError: With ``durable``, the server cannot be reached.
        """
        if self._acknowledger is None:
            raise InvalidRequest("acknowledge: subscribe with name= to have the server keep it")
        if self._ended is not None:
            raise again(self._ended)
        everything = self.cursor
        cursor = (
            everything if up_to is None else up_to if isinstance(up_to, Cursor) else up_to.cursor
        )
        # A later heartbeat acknowledges itself only if its cursor covers no capture that is under way.
        self._acknowledged = self._taken if cursor >= everything else None
        if durable:
            await self._acknowledger.flush(cursor)
        else:
            self._acknowledger.note(cursor)

    def request(self, n: int) -> None:
        """Ask for ``n`` captures beside what is topped up; with ``demand=0`` nothing else is asked for.

        Raises:
            InvalidRequest: ``n`` is not positive; the subscription has ended with the same error (rule 3.9).
            TypeError: ``n`` is not a whole number; the subscription continues.
        """
        if self._link is None:
            raise SubscriptionClosed("the subscription has not been entered")
        self._check_loop()
        try:
            self._link.demand.request(n)
        except InvalidRequest as error:
            self.shut(error)
            raise

    def statistics(self) -> SubscriptionStatistics:
        """Return the figures of this moment."""
        requested = self._link.demand.requested if self._link is not None else 0
        return SubscriptionStatistics(
            taken=self._taken,
            buffered=self._buffered,
            buffered_bytes=self._buffered_bytes,
            outstanding=requested - self._taken - self._passed_over,
            reconnects=max(0, self._reconnects),
        )

    async def close(self) -> None:
        """End the stream; what was not taken is dropped. Idempotent.

        Raises:
            InvalidRequest: Another event loop entered it; nothing is waited for.
        """
        self._check_loop()
        self.end(SubscriptionClosed("the subscription was closed"))
        if self._acknowledger is not None:
            self._acknowledger.stop()
        self._buffer.clear()
        self._current.clear()
        self._buffered = self._buffered_bytes = 0
        task = self._task
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Capture:
        """Return the next capture.

        Raises:
            TailraceError: The subscription has ended, after everything received before was taken.
        """
        while not self._current:
            message = await self._next_message()
            if isinstance(message, tuple):
                self._current = list(reversed(message))
        capture = self._current.pop()
        self._last = capture
        self._count(1)
        return capture

    def batches(self) -> Messages[tuple[Capture, ...]]:
        """Iterate over captures as they came, at least one at a time, in order."""
        return Messages(self._next_batch)

    def messages(self) -> Messages[tuple[Capture, ...] | Heartbeat | StateComplete]:
        """Iterate over captures as they came and heartbeats between them, in order.

        Of heartbeats in a row only the last is kept. A ``StateComplete`` follows the rows of a state.
        """
        return Messages(self._take_message)

    async def _next_batch(self) -> _Batch:
        while not isinstance(message := await self._take_message(), tuple):
            pass
        return message

    async def _take_message(self) -> _Message:
        if self._current:
            message: _Message = tuple(reversed(self._current))
            self._current.clear()
        else:
            message = await self._next_message()
        if isinstance(message, tuple):
            self._last = message[-1]
            self._count(len(message))
        return message

    async def _next_message(self) -> _Message:
        # Captures received before an error are delivered first. A cancelled wait leaves the buffer as it is.
        self._check_loop()
        while not self._buffer or await self._prepared(self._buffer[0]):
            if self._buffer:
                continue  # another message may be the first by now
            if self._ended is not None:
                raise again(self._ended)
            if self._link is None:
                raise SubscriptionClosed(
                    "the subscription has not been entered: iterate inside async with"
                )
            await self._wait()
        message = self._buffer.popleft()
        # Its cursor is past all captures before it, which have all been taken by now.
        if isinstance(message, Heartbeat | StateComplete):
            self._cursor, self._last = message.cursor, None
            if self._acknowledger is not None and self._acknowledged == self._taken:
                self._acknowledger.note(message.cursor)
            return message
        batch, nbytes = message
        self._freed(nbytes)
        return batch

    def _freed(self, nbytes: int) -> None:
        self._buffered_bytes -= nbytes
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def _prepared(self, message: tuple[_Batch, int] | Heartbeat | StateComplete) -> bool:
        """Do with a message what has to be awaited before it is taken; return whether anything was done."""
        if isinstance(message, Heartbeat | StateComplete):
            return await self._saved_heartbeat(message)
        if self._typing is None or isinstance(message[0], TypedBatch):
            return False
        batch = await self._typing.typed(message[0])
        if self._buffer and self._buffer[0] is message:  # a close during the wait clears it
            self._replace_first(batch, message[1])
        return True

    def _replace_first(self, batch: TypedBatch, nbytes: int) -> None:
        """Put the wanted captures of the first message in its place; none are no message."""
        self._buffer.popleft()
        if batch:
            self._buffer.appendleft((batch, nbytes))
        else:
            self._freed(nbytes)
        if batch.passed_over:
            assert self._link is not None
            # Schema changes came for the typing alone and used up demand: request as many captures again.
            self._passed_over += batch.passed_over
            self._buffered -= batch.passed_over
            self._link.demand.request(batch.passed_over)

    async def _saved_heartbeat(self, message: Heartbeat | StateComplete) -> bool:
        """Save the cursor of a heartbeat where all that was taken is committed; return whether it was.

        It is still in the buffer then: a call that is cancelled takes nothing.
        """
        if (
            self._checkpoint is None
            or self._committed != self._taken
            or self._saved == message.cursor
        ):
            return False
        await save_to(self._checkpoint, message.cursor)
        self._saved = message.cursor
        return True

    def _count(self, captures: int) -> None:
        """Note captures as taken; ask for as many again when half of the demand is used up."""
        self._taken += captures
        self._buffered -= captures
        assert self._link is not None
        if not self._demand or self._ended is not None:
            return
        # At half, not at each capture: one request message then covers half a demand of captures, and the
        # server always has demand while the user keeps up.
        outstanding = self._link.demand.requested - self._taken - self._passed_over
        if outstanding <= self._demand // 2:
            self._link.demand.request(self._demand - outstanding)

    async def _wait(self) -> None:
        if self._waiter is not None:
            raise InvalidRequest("one task at a time may iterate a subscription")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Called by the link and the client.

    async def run(self) -> None:
        """Read ahead until the subscription ends; the client owns the task."""
        assert self._link is not None
        try:
            await self._link.run(self)
        except asyncio.CancelledError:
            self.end(SubscriptionClosed("the subscription was closed"))
            raise
        except Exception as error:
            self.end(kept(error))

    def _forget_task(self, _: object) -> None:
        """Forget a task that is done: it keeps what ended it, that its frames, and they this object."""
        self._task = None

    def end(self, error: TailraceError) -> None:
        """Let iteration end with an error, once what was received is taken. Only the first one counts."""
        if self._ended is None:
            self._ended = error
            self._wake()

    def shut(self, error: TailraceError) -> None:
        """Let iteration end with an error, once what was received is taken, and receive nothing more."""
        self.end(error)
        if self._task is not None:
            self._task.cancel()

    def acknowledged(self, acknowledgement: Acknowledgement) -> None:
        """Note the acknowledgement, of the first connection or a later one."""
        if self._acknowledgement is None:
            self._cursor = acknowledgement.resume_cursor
        self._acknowledgement = acknowledgement
        if self._acknowledger is not None:
            self._acknowledger.epoch = acknowledgement.epoch
        self._reconnects += 1
        self._wake()

    def deliver(self, captures: tuple[Capture, ...], nbytes: int) -> None:
        """Keep captures for the user."""
        self._buffer.append((captures, nbytes))
        self._buffered += len(captures)
        self._buffered_bytes += nbytes
        self._wake()

    def beat(self, heartbeat: Heartbeat | StateComplete) -> None:
        """Store a mark between captures for the user; it replaces a heartbeat right before it."""
        if self._buffer and isinstance(self._buffer[-1], Heartbeat):
            self._buffer.pop()
        self._buffer.append(heartbeat)
        self._wake()

    async def room(self) -> None:
        """Wait until the buffer is below its bound."""
        while self._buffered_bytes > BUFFER_BYTES_MAX:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
