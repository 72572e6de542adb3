"""A subscription as an async iterator.

Use it under ``async with``; entering returns when the server has acknowledged. One task reads ahead: at most
``demand`` captures are requested and not yet taken. The demand is topped up when half of them are taken.
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
"""Size of the buffer above which nothing is read from the connection, in bytes; the server then waits."""

_T = TypeVar("_T")
_Batch = tuple["Capture", ...]
_Message = _Batch | Heartbeat | StateComplete


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """The figures of a subscription at the time of the call."""

    taken: int
    """Number of captures that the user has taken."""
    buffered: int
    """Number of captures received and not yet taken."""
    buffered_bytes: int
    """Size of the buffered messages on the wire, in bytes."""
    outstanding: int
    """Number of captures requested and not yet taken, buffered ones included; at most the demand."""
    reconnects: int


class Messages(Generic[_T]):
    """An endless iterator over the messages of a subscription; abandoning it loses nothing."""

    __slots__ = ("_next",)

    def __init__(self, take: Callable[[], Awaitable[_T]]) -> None:
        """Store the function that takes the next element."""
        self._next = take

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _T:
        """Return the next element; raise the same errors as the iteration over the subscription."""
        return await self._next()


class Subscription(OnOneLoop):
    """A subscriber's stream of captures; made by ``Client.subscribe``.

    Iterating returns captures, ``batches()`` tuples of captures as they came, ``messages()`` heartbeats as
    well. One task at a time may iterate. A cancelled call of the iteration has taken nothing.
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
        """Store how to begin; entering the context sends the request."""
        if whole("demand", demand) < 0:
            raise InvalidRequest(
                f"demand {demand}: must not be negative; 0 leaves requests to `request`"
            )
        if checkpoint is not None and not isinstance(checkpoint, CheckpointStore):
            raise InvalidRequest(
                f"checkpoint {checkpoint!r}: must be a CheckpointStore; for a file, FileCheckpoint(path)"
            )
        self._open_link = open_link
        self._start = start
        self._demand = demand
        """Number of captures to keep requested; 0: the user requests captures."""
        self._checkpoint = checkpoint
        self._typing = typing
        self._acknowledger = acknowledger  # of a named subscription; None for any other
        self._acknowledged: int | None = 0
        """Value of ``_taken`` at an acknowledgement of all taken captures; None: not all were acknowledged."""
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._acknowledgement: Acknowledgement | None = None
        self._reconnects = -1
        self._buffer: deque[tuple[_Batch, int] | Heartbeat | StateComplete] = deque()
        self._buffered = 0
        self._buffered_bytes = 0
        self._current: list[Capture] = []
        """Rest of the current batch, last capture first, so that taken captures are not referenced."""
        self._taken = 0
        self._passed_over = 0
        """Number of captures that were used only to type others; for each, one more was requested."""
        self._committed: int | None = 0
        """Value of ``_taken`` at the last commit; None: heartbeats may not be saved before the first commit."""
        self._saved: Cursor | None = None
        """Cursor that this object saved last in the checkpoint store; None: it has saved none."""
        self._cursor: Cursor | None = None
        """Cursor of the last message taken as a whole; within a batch, ``_last`` has the cursor."""
        self._last: Capture | None = None
        self._ended: TailraceError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        """Subscribe and wait for the acknowledgement.

        With an empty checkpoint store and no start, the start that the server chose is saved.

        Raises:
            TailraceError: The server refused the request, or could not be reached in time.
        """
        if self._task is not None or self._ended is not None:
            raise SubscriptionClosed("a subscription can be entered only once; subscribe again")
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
        # 2. Start the reading task, and wait for the acknowledgement or the error.
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
        """Close; before that, make the acknowledgements of a named subscription durable.

        Raises:
            TailraceError: An acknowledgement failed. Not raised if the body has raised an error.
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
        """Cursor after everything that was taken: save it, and resume strictly after it.

        It includes the last capture taken, so read it when that capture is processed.
        """
        if self._last is not None:
            return self._last.cursor
        if self._cursor is None:
            raise SubscriptionClosed("the subscription has not been entered")
        return self._cursor

    async def commit(self) -> None:
        """Save ``cursor`` in the checkpoint store of the subscription.

        While all taken captures are committed, the iteration also saves the cursors of heartbeats. Otherwise
        retention would overtake the saved cursor if nothing matches for a long time.

        Raises:
            InvalidRequest: The subscription has no checkpoint store.
        """
        if self._checkpoint is None:
            raise InvalidRequest("commit: subscribe with checkpoint= to store cursors")
        taken, cursor = self._taken, self.cursor
        await save_to(self._checkpoint, cursor)
        self._committed, self._saved = taken, cursor

    async def acknowledge(
        self, up_to: Capture | Cursor | None = None, *, durable: bool = False
    ) -> None:
        """Acknowledge captures of a named subscription; the server does not deliver them again.

        It is sent within a second, and when the context is left. Captures that were not acknowledged come
        again. While all taken captures are acknowledged, the iteration also acknowledges heartbeats.

        Args:
            up_to: The last processed capture, or a cursor; None = everything that was taken.
            durable: True to send it now, and to return when it is stored in the log.

        Raises:
            InvalidRequest: The subscription has no name, or ``up_to`` is before an earlier acknowledgement.
            SubscriptionTakenOver: Another reader has taken over the named subscription.
            TransportError: With ``durable``, the server cannot be reached.
        """
        if self._acknowledger is None:
            raise InvalidRequest(
                "acknowledge: subscribe with name= to store the position at the server"
            )
        if self._ended is not None:
            raise again(self._ended)
        everything = self.cursor
        cursor = (
            everything if up_to is None else up_to if isinstance(up_to, Cursor) else up_to.cursor
        )
        # Later heartbeats may be acknowledged only if no capture before them is still being processed.
        self._acknowledged = self._taken if cursor >= everything else None
        if durable:
            await self._acknowledger.flush(cursor)
        else:
            self._acknowledger.note(cursor)

    def request(self, n: int) -> None:
        """Request ``n`` captures in addition to the demand; with ``demand=0`` there are no other requests.

        Raises:
            InvalidRequest: ``n`` is not positive. The subscription ends with the same error (rule 3.9).
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
        """Return the current figures."""
        requested = self._link.demand.requested if self._link is not None else 0
        return SubscriptionStatistics(
            taken=self._taken,
            buffered=self._buffered,
            buffered_bytes=self._buffered_bytes,
            outstanding=requested - self._taken - self._passed_over,
            reconnects=max(0, self._reconnects),
        )

    async def close(self) -> None:
        """End the stream and drop the captures that were not taken. Idempotent.

        Raises:
            InvalidRequest: Another event loop entered the subscription.
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
            TailraceError: The subscription has ended. All captures received before the end are returned first.
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
        """Return an iterator over batches: tuples of at least one capture, as they came, in order."""
        return Messages(self._next_batch)

    def messages(self) -> Messages[tuple[Capture, ...] | Heartbeat | StateComplete]:
        """Return an iterator over batches of captures, and the heartbeats between them, in order.

        A heartbeat right after another replaces it. A ``StateComplete`` follows the rows of a state.
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
        # Captures received before an error are returned first. A cancelled wait leaves the buffer as it is.
        self._check_loop()
        while not self._buffer or await self._prepared(self._buffer[0]):
            if self._buffer:
                continue  # during the wait another message may have become the first
            if self._ended is not None:
                raise again(self._ended)
            if self._link is None:
                raise SubscriptionClosed(
                    "the subscription has not been entered: iterate inside async with"
                )
            await self._wait()
        message = self._buffer.popleft()
        # All captures before this mark have been taken, so its cursor may be saved and acknowledged.
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
        """Do the awaitable work for a message before it is taken; return True if something was awaited."""
        if isinstance(message, Heartbeat | StateComplete):
            return await self._saved_heartbeat(message)
        if self._typing is None or isinstance(message[0], TypedBatch):
            return False
        batch = await self._typing.typed(message[0])
        if self._buffer and self._buffer[0] is message:  # a close during the wait clears it
            self._replace_first(batch, message[1])
        return True

    def _replace_first(self, batch: TypedBatch, nbytes: int) -> None:
        """Replace the first message by its matching captures; remove it if there are none."""
        self._buffer.popleft()
        if batch:
            self._buffer.appendleft((batch, nbytes))
        else:
            self._freed(nbytes)
        if batch.passed_over:
            assert self._link is not None
            # Schema changes that only serve the typing have used up demand: request as many captures again.
            self._passed_over += batch.passed_over
            self._buffered -= batch.passed_over
            self._link.demand.request(batch.passed_over)

    async def _saved_heartbeat(self, message: Heartbeat | StateComplete) -> bool:
        """Save the cursor of a heartbeat if all taken captures are committed; return True if it was saved.

        The heartbeat stays in the buffer meanwhile: a cancelled call takes nothing.
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
        """Count captures as taken; request as many again when half of the demand is used up."""
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
            raise InvalidRequest("only one task at a time may iterate a subscription")
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
        """Forget a finished task: it would keep its error, the error its frames, and they this object."""
        self._task = None

    def end(self, error: TailraceError) -> None:
        """End the iteration with an error after all received captures are taken; the first error wins."""
        if self._ended is None:
            self._ended = error
            self._wake()

    def shut(self, error: TailraceError) -> None:
        """End the iteration as ``end`` does, and stop the reading task."""
        self.end(error)
        if self._task is not None:
            self._task.cancel()

    def acknowledged(self, acknowledgement: Acknowledgement) -> None:
        """Store the acknowledgement of the first connection or of a later one."""
        if self._acknowledgement is None:
            self._cursor = acknowledgement.resume_cursor
        self._acknowledgement = acknowledgement
        if self._acknowledger is not None:
            self._acknowledger.epoch = acknowledgement.epoch
        self._reconnects += 1
        self._wake()

    def deliver(self, captures: tuple[Capture, ...], nbytes: int) -> None:
        """Buffer captures for the user."""
        self._buffer.append((captures, nbytes))
        self._buffered += len(captures)
        self._buffered_bytes += nbytes
        self._wake()

    def beat(self, heartbeat: Heartbeat | StateComplete) -> None:
        """Buffer a mark between captures for the user; it replaces a heartbeat right before it."""
        if self._buffer and isinstance(self._buffer[-1], Heartbeat):
            self._buffer.pop()
        self._buffer.append(heartbeat)
        self._wake()

    async def room(self) -> None:
        """Wait until the buffer is below its bound."""
        while self._buffered_bytes > BUFFER_BYTES_MAX:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
