"""A subscription to CDCv2 statements, which may be repeated and reordered on the way.

::

    server ──▶ updates, progress ──▶ anything that repeats or reorders ──▶ Reader ──▶ finished versions
                                                                              │
              subscribe again from its frontier ◀── the stream broke ◀────────┘

To resume, only the reader and a cursor are needed. The server sends everything after the cursor again, and the
reader drops what it knows already. The cursor also lets the server check that it has the history that was read.
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
"""Maximum number of statements that are stored until the acknowledgement, which identifies their log, comes."""


class Row(NamedTuple):
    """The data of an update: one row. Two rows are the same if entity type, key and image are equal."""

    entity_type: str
    key: str
    """Canonical text of the row's key."""
    image: bytes
    """The row as a JSON object, byte for byte as the source wrote it."""


class UpdateSubscription(OnOneLoop):
    """A subscription to complete versions of a catalog's rows; made by ``Client.subscribe_cdcv2``.

    It is used under ``async with`` and iterated by one task. Each element is a ``Finished``: updates, each
    once, whose data is a ``Row`` and whose time is the version; and the frontier, below which all versions are
    complete.
    Save the frontier: it is the ``since`` to resume from. A cancelled ``__anext__`` loses nothing. Messages are
    read only during the iteration; otherwise the server waits.
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
        """Store the request; entering the context sends it."""
        self._open_stream = open_stream
        self._request = request
        self._retry = retry
        self._timeouts = timeouts
        self._clock = clock or SystemClock()
        self._attempts = Attempts(retry, timeouts, self._clock)
        self._stream: Stream | None = None
        self._reading: asyncio.Task[bytes | None] | None = None
        """Task that receives the next message. It survives a cancelled wait, so that no message is lost."""
        self._silent_at = 0.0
        """Time of the event loop after which silence is an error."""
        self._is_known = False
        """True if this stream was acknowledged, so that its statements are known to belong to the same log."""
        self._reader: Reader[int] | None = None
        self._taken = 0
        """Frontier of the elements that the user has taken; the reader's frontier may be later."""
        if request.since_version:
            self._begin(request.since_version)
        self._early: list[Statement[int]] = []
        self._finished: deque[Finished[int]] = deque()
        self._cursor: Cursor | None = None
        """Cursor of the last acknowledgement or heartbeat; None: a resume uses the frontier only."""
        self._acknowledgement: Acknowledgement | None = None
        self._patience_s = timeouts.connect_s
        self._closed = False

    async def __aenter__(self) -> Self:
        """Subscribe and wait for the acknowledgement.

        Raises:
            TailraceError: The server refused the request, or could not be reached in time.
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
        """First version that was not returned yet: the ``since`` of a subscription that resumes this one."""
        assert self._reader is not None
        return self._taken

    def why_waiting(self) -> list[Waiting[int]]:
        """Return the versions that lack updates, with their number, and the holes between intervals."""
        return [] if self._reader is None else self._reader.why_waiting()

    def statistics(self) -> ReaderStatistics:
        """Return the current figures of the reader."""
        assert self._reader is not None
        return self._reader.statistics()

    def close(self) -> None:
        """End the stream. Idempotent.

        Raises:
            InvalidRequest: Another event loop entered the subscription.
        """
        self._check_loop()
        self._closed = True
        self._leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Finished[int]:
        """Return the next complete versions.

        Raises:
            CdcError: The received statements contradict each other.
            CatalogReplaced: After a reconnect, another log has the catalog's name.
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
        """Receive one message. After a break, wait for the time of the retry; the next call reconnects."""
        self._check_loop()
        try:
            message = await self._receive()
        except TailraceError as error:
            self._leave()
            # Another task may have closed the subscription during the wait; then do not reconnect.
            if self._closed:
                raise
            # Retention has removed the history at the cursor, but the reader has read all of it: there is no
            # gap. Resume from the frontier, without the cursor. The price: a restored log would not be noticed.
            if self._is_trimmed(error):
                self._cursor = None
                return
            await self._clock.sleep(self._attempts.wait_after(error))
        else:
            self._attempts.number = 0
            self._take(message)

    async def _receive(self) -> SubscribeResponse:
        # 1. Open a stream from the reader's frontier on. The server sends unfinished versions again, and the
        #    reader drops what it knows already.
        if self._stream is None:
            if self._reader is not None:
                for name in ("since_version", "since_index", "after", "from_time"):
                    self._request.ClearField(name)
                wire.set_start(self._request, self._restart())
            self._stream = self._open_stream(self._request.SerializeToString())
            self._patience_s = self._timeouts.connect_s
        # 2. Start the reading task, unless one is left from an earlier call: a cancelled wait does not touch
        # the    task and its deadline.
        loop = asyncio.get_running_loop()
        if self._reading is None:
            self._reading = asyncio.create_task(self._stream.receive())
            self._silent_at = loop.time() + self._patience_s
        # 3. Wait until the deadline, then a moment longer: if the event loop was busy, it handles a message
        # that    has arrived only in the turn after the timer.
        reading = self._reading
        for seconds in (max(0.0, self._silent_at - loop.time()), GRACE_S):
            if not reading.done():
                await asyncio.wait((reading,), timeout=seconds)
        if not reading.done():
            raise HeartbeatMissed(f"no message was received for {self._patience_s:g} s")
        self._reading = None
        if reading.cancelled():
            raise SubscriptionClosed("the subscription was closed")
        try:
            return wire.subscribe_response(reading.result())
        finally:
            del reading  # break the reference cycle between the task, its error and this frame

    def _restart(self) -> Start:
        """Return the start of a new stream: the last cursor if it is before the frontier, else the frontier.

        A cursor is preferred, since it identifies the history. A log that was restored from an older copy and
        written further has the same version numbers with other contents.
        """
        assert self._reader is not None
        (frontier,) = self._reader.frontier
        cursor = self._cursor
        if cursor is not None and cursor.index == END and cursor.version < frontier:
            return After(cursor)
        return Since(Position(frontier))

    def _is_trimmed(self, error: TailraceError) -> bool:
        """Return True if retention removed only records that the reader has read, before its frontier."""
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
        # Check the log before anything is changed: after a replacement the reader must not get another
        # statement.
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
            raise TransportError(f"{_EARLY_MAX} statements were received before an acknowledgement")

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
