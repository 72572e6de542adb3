"""A subscription that survives what carries it: CDCv2 statements, repeated and reordered on the way or not.

::

    server ──▶ updates, progress ──▶ anything that repeats or reorders ──▶ Reader ──▶ finished versions
                                                                              │
              subscribe again from its frontier ◀── the stream broke ◀────────┘

Nothing is kept for a resume but the reader and a cursor. The reader drops what it knows already. The cursor
shows the server that it still has the history that was read; what follows it is sent again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from tailrace import wire
from tailrace.cdcv2 import Progress, Reader, Update
from tailrace.clock import SystemClock
from tailrace.criteria import After, Since
from tailrace.errors import (
    CatalogReplaced,
    HeartbeatMissed,
    PositionCompacted,
    SubscriptionClosed,
    TailraceError,
    TransportError,
)
from tailrace.event_loop import OnOneLoop
from tailrace.link import GRACE_S, patience_s
from tailrace.position import END, Position
from tailrace.retry import Attempts

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tailrace.capture import Acknowledgement
    from tailrace.cdcv2 import Finished, ReaderStatistics, Statement, Waiting
    from tailrace.clock import Clock
    from tailrace.criteria import Start
    from tailrace.cursor import Cursor
    from tailrace.retry import Retry, Timeouts
    from tailrace.transport import Stream
    from tailrace.v1.change_capture_pb2 import SubscribeRequest, SubscribeResponse

_EARLY_MAX: Final = 10_000
"""Statements kept at most until the acknowledgement, which names their log, has come."""


class Row(NamedTuple):
    """One row as an update names it: two are the same if all three are."""

    entity_type: str
    key: str
    """Canonical key text."""
    image: bytes
    """The row as a JSON object, the source's own text byte for byte."""


class UpdateSubscription(OnOneLoop):
    """Finished versions of a catalog's rows; an async context manager, iterated by one task.

    Each element is ``Finished``: updates whose data is a ``Row`` and whose time is the version, each once, and
    the frontier below which nothing will come any more. Keep the frontier: it is the ``since`` to resume from.
    A cancelled ``__anext__`` loses nothing. Without iteration nothing is read, and the server waits.
    """

    def __init__(
        self,
        open_stream: Callable[[bytes], Stream],
        request: SubscribeRequest,
        *,
        retry: Retry,
        timeouts: Timeouts,
        clock: Clock | None = None,
    ) -> None:
        """Keep what to subscribe to; nothing is sent before the context is entered."""
        self._open_stream = open_stream
        self._request = request
        self._retry = retry
        self._timeouts = timeouts
        self._clock = clock or SystemClock()
        self._attempts = Attempts(retry, timeouts, self._clock)
        self._stream: Stream | None = None
        self._reading: asyncio.Task[bytes | None] | None = None
        """Task that receives the next message. It outlives a cancelled wait: no message is lost."""
        self._silent_at = 0.0
        """Time of the event loop after which silence is an error."""
        self._is_known = False
        """True if this stream was acknowledged, so that its statements are known to be of the same log."""
        self._reader: Reader[int] | None = None
        self._taken = 0
        """Frontier of what the user has taken; the reader may be further."""
        if request.since_version:
            self._begin(request.since_version)
        self._early: list[Statement[int]] = []
        self._finished: deque[Finished[int]] = deque()
        self._cursor: Cursor | None = None
        """Safe cursor of the last acknowledgement or heartbeat; None where only the frontier is asked for."""
        self._acknowledgement: Acknowledgement | None = None
        self._patience_s = timeouts.connect_s
        self._closed = False

    async def __aenter__(self) -> Self:
        """Subscribe and wait for the acknowledgement.

        Raises:
            TailraceError: The server refused, or could not be reached in time.
        """
        self._note_loop()
        self._attempts = Attempts(self._retry, self._timeouts, self._clock)
        try:
            while self._acknowledgement is None:
                await self._advance()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    @property
    def acknowledgement(self) -> Acknowledgement:
        """The server's answer to the latest subscribe."""
        if self._acknowledgement is None:
            raise SubscriptionClosed("the subscription has not been entered")
        return self._acknowledgement

    @property
    def frontier(self) -> int:
        """The first version that ``__anext__`` may still return: the ``since`` of a later subscription."""
        assert self._reader is not None
        return self._taken

    def why_waiting(self) -> list[Waiting[int]]:
        """Say which versions miss how many updates."""
        return [] if self._reader is None else self._reader.why_waiting()

    def statistics(self) -> ReaderStatistics:
        """Return the figures of this moment."""
        assert self._reader is not None
        return self._reader.statistics()

    def close(self) -> None:
        """End the stream. Idempotent.

        Raises:
            InvalidRequest: Another event loop entered it.
        """
        self._check_loop()
        self._closed = True
        self._leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Finished[int]:
        """Return what has become final since.

        Raises:
            CdcError: What came contradicts itself.
            CatalogReplaced: Another log has the name since the connection broke.
            TailraceError: The subscription has ended.
        """
        while not self._finished:
            if self._closed:
                raise SubscriptionClosed("the subscription was closed")
            await self._advance()
        finished = self._finished.popleft()
        (self._taken,) = finished.frontier
        return finished

    async def _advance(self) -> None:
        """Receive one message; after a break wait, so that the next call connects again."""
        self._check_loop()
        try:
            message = await self._receive()
        except TailraceError as error:
            self._leave()
            # Another task may have closed the subscription during the wait: then the error is its end.
            if self._closed:
                raise
            # Retention took the history at the cursor, and the reader has read all of it: no gap. Without the
            # cursor the next call begins at the frontier, and cannot notice a restored log.
            if self._is_trimmed(error):
                self._cursor = None
                return
            await self._clock.sleep(self._attempts.wait_after(error))
        else:
            self._attempts.number = 0
            self._take(message)

    async def _receive(self) -> SubscribeResponse:
        # 1. A stream, from the reader's frontier on: what is not finished is sent again, and the reader drops
        #    what it knows already.
        if self._stream is None:
            if self._reader is not None:
                for name in ("since_version", "since_index", "after", "from_time"):
                    self._request.ClearField(name)
                wire.set_start(self._request, self._restart())
            self._stream = self._open_stream(self._request.SerializeToString())
            self._patience_s = self._timeouts.connect_s
        # 2. The reading task, kept between calls: a wait that is cancelled leaves it, and its deadline, alone.
        loop = asyncio.get_running_loop()
        if self._reading is None:
            self._reading = asyncio.create_task(self._stream.receive())
            self._silent_at = loop.time() + self._patience_s
        # 3. Wait until the deadline, then a moment more: a message that came while the loop was busy is handled
        #    only in the turn after the timer's.
        reading = self._reading
        for seconds in (max(0.0, self._silent_at - loop.time()), GRACE_S):
            if not reading.done():
                await asyncio.wait((reading,), timeout=seconds)
        if not reading.done():
            raise HeartbeatMissed(f"nothing came for {self._patience_s:g} s")
        self._reading = None
        if reading.cancelled():
            raise SubscriptionClosed("the subscription was closed")
        try:
            return wire.subscribe_response(reading.result())
        finally:
            del reading  # it keeps the error that it ended with, and that this frame

    def _restart(self) -> Start:
        """Return where a new stream begins: at the frontier, or before it at a cursor.

        Versions are numbers, which a log that was restored from an older copy and written anew has too. Only a
        cursor distinguishes the two.
        """
        assert self._reader is not None
        (frontier,) = self._reader.frontier
        cursor = self._cursor
        if cursor is not None and cursor.index == END and cursor.version < frontier:
            return After(cursor)
        return Since(Position(frontier))

    def _is_trimmed(self, error: TailraceError) -> bool:
        """Return True if retention removed records between the cursor and the frontier, which was read."""
        if not isinstance(error, PositionCompacted) or self._cursor is None or self._reader is None:
            return False
        (frontier,) = self._reader.frontier
        return error.oldest <= Position(frontier)

    def _take(self, message: SubscribeResponse) -> None:
        if message.HasField("acknowledgement"):
            self._acknowledged(wire.acknowledgement(message.acknowledgement))
        if message.HasField("heartbeat"):
            heartbeat = wire.heartbeat(message.heartbeat)
            self._cursor = heartbeat.cursor
            self._patience_s = patience_s(heartbeat.next_within_s)
        if message.updates:
            self._receive_statement(
                [
                    Update(Row(each.entity_type, each.primary_key, each.data), each.time, each.diff)
                    for each in message.updates
                ]
            )
        if message.HasField("progress"):
            said = message.progress
            counts = tuple((each.time, each.count) for each in said.counts)
            self._receive_statement(Progress(tuple(said.lower), tuple(said.upper), counts))

    def _acknowledged(self, acknowledgement: Acknowledgement) -> None:
        before, found = self._acknowledgement, acknowledgement.catalog_uuid
        if before is not None and before.catalog_uuid != found:
            # A subscribe requests versions by number, and another log has the same numbers: its updates would
            # be mixed with those of the first log.
            self.close()
            raise CatalogReplaced(self._request.catalog, before.catalog_uuid, found)
        self._acknowledgement = acknowledgement
        self._cursor = acknowledgement.resume_cursor
        self._is_known = self._attempts.acknowledged = True
        self._patience_s = patience_s(acknowledgement.heartbeat_interval_s)
        if self._reader is None:
            start = acknowledgement.start
            self._begin(start.version + (start.index > 0))
        # Statements may overtake the acknowledgement. Until it names their log they wait, since those of
        # another log must not reach the reader.
        early, self._early = self._early, []
        for statement in early:
            self._receive_statement(statement)

    def _begin(self, version: int) -> None:
        self._reader = Reader(start=(version,))
        self._taken = version

    def _receive_statement(self, statement: Statement[int]) -> None:
        if self._is_known:
            assert self._reader is not None
            self._finished.extend(self._reader.receive(statement))
            return
        self._early.append(statement)
        if len(self._early) > _EARLY_MAX:
            raise TransportError(f"{_EARLY_MAX} statements came, and no acknowledgement")

    def _leave(self) -> None:
        stream, self._stream = self._stream, None
        reading, self._reading = self._reading, None
        self._is_known = False
        self._early.clear()
        # The reader and the taken frontier stay: they are all that a resume needs. Statements of this stream
        # that were not acknowledged go, because the next stream sends them again.
        if reading is not None:
            reading.cancel()
        if stream is not None:
            stream.close()
