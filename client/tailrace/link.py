"""The link between one subscription and the server: it connects, detects silence, and resumes after a break.

::

    connect ──▶ acknowledgement ──▶ captures, heartbeats …
       ▲                                   │ broken: retriable error, or silence
       └──── wait with jitter ◀────────────┘
             resume strictly after the last capture received, or the last heartbeat's cursor

Captures received before a break stay valid and do not come again. Demand adds up and saturates. A new
connection requests only the captures that were requested and not received yet, in its first message. Later
requests are sent on the same call; all requests made in one turn of the event loop are one message.
"""

from __future__ import annotations

import asyncio
import operator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from tailrace import wire
from tailrace.clock import SystemClock
from tailrace.criteria import After
from tailrace.errors import (
    ConnectTimeout,
    HeartbeatMissed,
    InvalidRequest,
    TailraceError,
    TransportError,
)
from tailrace.retry import Attempts
from tailrace.v1.change_capture_pb2 import DemandRequest, SubscribeRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tailrace.capture import Acknowledgement, Capture, Heartbeat, StateComplete
    from tailrace.clock import Clock
    from tailrace.cursor import Cursor
    from tailrace.retry import Retry, Timeouts
    from tailrace.transport import Stream, Transport
    from tailrace.v1.change_capture_pb2 import SubscribeSystemRequest

DEMAND_MAX: Final = 2**63 - 1


class Demand:
    """The demand of one subscription, over all its connections."""

    __slots__ = ("_waiter", "received", "requested")

    def __init__(self) -> None:
        """Begin with a demand of 0."""
        self.requested = 0
        """Number of captures requested since the beginning."""
        self.received = 0
        """Number of captures received since the beginning."""
        self._waiter: asyncio.Future[None] | None = None

    def request(self, n: int) -> None:
        """Request ``n`` more captures.

        Raises:
            InvalidRequest: ``n`` is not positive.
            TypeError: ``n`` is not a whole number; nothing was requested.
        """
        n = whole("request", n)
        if n <= 0:
            raise InvalidRequest(
                f"request({n}): demand must be positive (Reactive Streams rule 3.9)"
            )
        # Saturate what is outstanding, not the sum: an unbounded demand stays unbounded as captures come.
        self.requested = min(self.requested + n, self.received + DEMAND_MAX)
        self.wake()

    async def wait(self) -> None:
        """Wait until ``request`` or ``wake`` is called. Only one connection at a time may wait."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def wake(self) -> None:
        """Wake the waiting connection, which then checks the demand again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def whole(name: str, n: object) -> int:
    """Return a number of captures as an int; ``name`` is the name of the argument in the error.

    Raises:
        TypeError: ``n`` is not a whole number.
    """
    try:
        return operator.index(n)  # type: ignore[arg-type]  # it says so itself
    except TypeError:
        raise TypeError(f"{name}({n!r}): demand must be a whole number of captures") from None


class DemandRequests:
    """The requests of one connection: the subscribe message, then demand as it grows, until ``close``."""

    __slots__ = ("_closed", "_demand", "_first", "_told")

    def __init__(self, demand: Demand, first: DemandRequest) -> None:
        """Put the demand that is outstanding now into the first message."""
        self._demand = demand
        self._closed = False
        self._told = demand.requested
        if demand.requested > demand.received:
            first.request = demand.requested - demand.received
        self._first: DemandRequest | None = first

    def __aiter__(self) -> DemandRequests:
        return self

    async def __anext__(self) -> bytes:
        if self._first is not None:
            message, self._first = self._first, None
            return message.SerializeToString()
        while self._demand.requested == self._told and not self._closed:
            await self._demand.wait()
        if self._closed:
            raise StopAsyncIteration
        # All requests of this turn of the loop are one message. What the first message carried is part of
        # `_told`, so a resume never counts a capture twice.
        more = self._demand.requested - self._told
        self._told += more
        return DemandRequest(request=more).SerializeToString()

    def close(self) -> None:
        """End the iteration. gRPC waits for the next request even if the call itself has ended."""
        self._closed = True
        self._demand.wake()


def subscribing(request: SubscribeRequest | SubscribeSystemRequest) -> DemandRequest:
    """Return the first message of a connection."""
    if request.DESCRIPTOR.name == "SubscribeRequest":
        return DemandRequest(subscribe=request)  # type: ignore[arg-type]  # told by its name
    return DemandRequest(subscribe_system=request)  # type: ignore[arg-type]


_PATIENCE: Final = 2.0
"""Allowed silence, as a multiple of the announced heartbeat interval."""

_PATIENCE_MIN_S: Final = 1.0
"""Minimum of the allowed silence, in seconds: a busy event loop must not look like a dead server."""

_DOUBLINGS_MAX: Final = 5
"""Maximum number of times that failed attempts double the allowed silence."""

GRACE_S: Final = 0.1
"""Seconds after the end of the allowed silence in which a message that has arrived is still read."""


def patience_s(interval_s: float) -> float:
    """Return the allowed silence in seconds, if the server announced a heartbeat within ``interval_s``."""
    return max(_PATIENCE_MIN_S, interval_s * _PATIENCE)


@asynccontextmanager
async def silence(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError if the block takes longer, unless only the event loop was busy.

    After a long turn of the event loop, the loop handles timers that are due before messages that have arrived.
    So the timer does not raise at once, but gives a message `GRACE_S` more.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        due = loop.call_later(seconds, lambda: limit.reschedule(loop.time() + GRACE_S))
        try:
            yield
        finally:
            due.cancel()


@dataclass(frozen=True, slots=True)
class Disconnected:
    """Event: a subscription has lost its connection and will try again."""

    error: TailraceError
    cursor: Cursor | None
    """Cursor to resume strictly after; None: the server has not acknowledged the subscription yet."""
    attempt: int
    """Number of the next attempt, from 1; counted since the last message."""
    wait_s: float
    """Wait before that attempt, in seconds."""


@dataclass(frozen=True, slots=True)
class Reconnected:
    """Event: a subscription is connected again."""

    cursor: Cursor
    """Cursor that the subscription resumed strictly after."""
    attempts: int
    """Number of attempts that the reconnect took."""
    acknowledgement: Acknowledgement


class LinkSink(Protocol):
    """The receiver of a link's messages. Called on the event loop; only ``room`` is awaited."""

    def acknowledged(self, acknowledgement: Acknowledgement) -> None:
        """Handle an acknowledgement from the server, the first one or one after a reconnect."""

    def deliver(self, captures: tuple[Capture, ...], nbytes: int) -> None:
        """Take captures, at least one, that came in a message of ``nbytes`` bytes."""

    def beat(self, heartbeat: Heartbeat | StateComplete) -> None:
        """Take a heartbeat or the end of a state; it follows the captures that were delivered before."""

    async def room(self) -> None:
        """Wait until the sink can take another message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """Options of a link that are not part of the subscribe request."""

    retry: Retry
    timeouts: Timeouts
    clock: Clock = field(default_factory=SystemClock)
    on_disconnect: Callable[[Disconnected], None] | None = None
    """Callback before each wait. An exception in it ends the subscription."""
    on_reconnect: Callable[[Reconnected], None] | None = None
    """Callback after each acknowledgement except the first. An exception in it ends the subscription."""


class Link:
    """The link of one subscription. ``run`` is its only task.

    Between connections the link keeps the cursor and the demand. Both cover exactly the captures that were
    delivered to the sink.
    """

    def __init__(
        self,
        transport: Transport,
        request: SubscribeRequest | SubscribeSystemRequest,
        options: LinkOptions,
    ) -> None:
        """Store the subscribe request and the options; ``run`` sends the request."""
        self.demand = Demand()
        self.cursor: Cursor | None = None
        """Cursor up to which everything was received; before the first acknowledgement a saved cursor, or
        None."""
        self._transport = transport
        self._request = request
        self._content = wire.content_of(request.body)
        self._options = options
        self._where_version: int | None = None
        """``where_version`` of the last acknowledgement that had one; None: no acknowledgement had one."""
        self._epoch = 0
        """Epoch of the named subscription in the last acknowledgement; 0: no named subscription."""
        self._begun = False
        """True once a capture has come, or the cursor is a saved one. Until then a resume repeats a start by
        time."""
        self._patience_s = 0.0
        self._wait_s = 0.0
        """Maximum time that the server waits for the requested version before it acknowledges, in seconds."""
        if isinstance(request, SubscribeRequest) and request.HasField("wait_for_version"):
            self._wait_s = request.wait_ms / 1000

    def begin_after(self, saved: Cursor) -> None:
        """Resume after a saved cursor, in place of the start in the request."""
        self.cursor, self._begun = saved, True

    @property
    def has_start(self) -> bool:
        """True if there is a saved cursor or the request names a start; otherwise the server chooses the start.

        An initial state counts as a start: until the cursor of a row is saved, a later run begins with the
        state again.
        """
        request = self._request
        given = request.HasField("since_version") or request.HasField("after")
        given = given or (isinstance(request, SubscribeRequest) and bool(request.initial))
        return self.cursor is not None or given or request.HasField("from_time")

    @property
    def begins_by_time(self) -> bool:
        """True if the start is a time and no capture has come yet, so that no cursor may replace the time."""
        return not self._begun and self._request.HasField("from_time")

    async def run(self, sink: LinkSink) -> None:
        """Deliver everything to the sink, over as many connections as needed, until the subscription ends.

        Raises:
            TailraceError: The reason of the end. ``SubscriptionBroken`` if no attempts are left;
                ``ConnectTimeout`` if the first connection was not open in time.
        """
        options = self._options
        attempts = Attempts(options.retry, options.timeouts, options.clock, self._wait_s)
        while True:
            try:
                # 1. One connection, until it breaks. `_serve` never returns without an error.
                await self._serve(sink, attempts)
            except TailraceError as error:
                # 2. Decide whether to try again; `wait_after` raises errors that a retry does not help. The
                # wait    is computed before the user is notified, since `Disconnected` contains it.
                wait_s = attempts.wait_after(error, str(self.cursor))
                if options.on_disconnect is not None:
                    options.on_disconnect(Disconnected(error, self.cursor, attempts.number, wait_s))
                # 3. Wait with jitter, or all clients of a restarted server come back in the same moment.
                await options.clock.sleep(wait_s)

    async def _serve(self, sink: LinkSink, attempts: Attempts) -> None:
        """Serve one connection until it breaks; never return without an error."""
        requests = DemandRequests(self.demand, self._first())
        stream = self._transport.open("SubscribeWithDemand", requests)
        try:
            # Note the resume cursor and the epoch before the sink gets the acknowledgement: if the sink raises,
            # or the connection breaks at once, the place that the server chose must not be lost.
            acknowledgement = await self._acknowledge(stream, attempts.patience_s)
            self._note(acknowledgement, attempts)
            sink.acknowledged(acknowledgement)
            while True:
                # Wait for room first: while the user is slow, nothing is read, the HTTP/2 window fills, and the
                # server waits. Reading first would take a message for which there is no room.
                await sink.room()
                self._take(await self._receive(stream, attempts.number), sink, attempts)
        finally:
            requests.close()
            stream.close()

    def _note(self, acknowledgement: Acknowledgement, attempts: Attempts) -> None:
        if self.cursor is None:
            self.cursor = acknowledgement.resume_cursor
        if attempts.acknowledged and self._options.on_reconnect is not None:
            self._options.on_reconnect(Reconnected(self.cursor, attempts.number, acknowledgement))
        if acknowledgement.where_version is not None:
            self._where_version = acknowledgement.where_version
        attempts.acknowledged, self._epoch = True, acknowledgement.epoch

    def _first(self) -> DemandRequest:
        first = subscribing(self._request)
        # A resume: the cursor replaces the start that was given. It is newer, and a second start beside it
        # would be refused.
        if self.cursor is not None:
            part = first.subscribe if first.HasField("subscribe") else first.subscribe_system
            part.ClearField("since_version")
            part.ClearField("since_index")
            # Before the first capture the cursor is that of a heartbeat or an acknowledgement. It may lie
            # before the time, so the server needs both and takes the later one.
            if self._begun:
                part.ClearField("from_time")
            wire.set_start(part, After(self.cursor))
        # A column may be renamed while the subscription runs. The names of its conditions mean the columns of
        # the version in which it began, also after a break.
        if self._where_version is not None:
            for each in first.subscribe.criteria:
                if wire.has_condition(each) and not each.HasField("where_version"):
                    each.where_version = self._where_version
        # The epoch lets the server refuse this resume if another reader has taken the name meanwhile.
        if self._epoch:
            first.subscribe.epoch = self._epoch
        return first

    async def _acknowledge(self, stream: Stream, patience_s: float) -> Acknowledgement:
        try:
            async with asyncio.timeout(patience_s):
                data = await stream.receive()
        except TimeoutError:
            raise ConnectTimeout(
                f"no acknowledgement within {patience_s:g} s{self._transport.route}"
            ) from None
        message = wire.subscribe_response(data)
        if not message.HasField("acknowledgement"):
            raise TransportError("the first message is not an acknowledgement")
        acknowledgement = wire.acknowledgement(message.acknowledgement)
        self._expect_within(acknowledgement.heartbeat_interval_s)
        return acknowledgement

    async def _receive(self, stream: Stream, attempt: int) -> bytes | None:
        # The patience doubles with each attempt. On a slow line a large message takes longer than the
        # heartbeat interval, and the same patience would break every attempt at the same message.
        patience_s = self._patience_s * (1 << min(attempt, _DOUBLINGS_MAX))
        try:
            async with silence(patience_s):
                return await stream.receive()
        except TimeoutError:
            raise HeartbeatMissed(
                f"no capture and no heartbeat for {patience_s:g} s", str(self.cursor)
            ) from None

    def _take(self, data: bytes | None, sink: LinkSink, attempts: Attempts) -> None:
        message = wire.subscribe_parts(data)
        # Only a message resets the number of attempts. An acknowledgement does not: otherwise a server that
        # always breaks after the acknowledgement would be retried without limit.
        attempts.number = 0
        if message.captures:
            assert self.cursor is not None
            captures = wire.captures(
                message.captures, self.cursor.catalog_uuid, self._content, self.cursor
            )
            # Count and note captures before delivery: even if the sink raises, the next connection must neither
            # request these captures again nor count them as still requested.
            self.demand.received += len(captures)
            self.cursor, self._begun = captures[-1].cursor, True
            assert data is not None
            sink.deliver(captures, len(data))
        # Marks come after the captures of their message, since their cursors are later.
        if message.HasField("state_complete"):
            mark = wire.state_complete(message.state_complete)
            self.cursor = mark.cursor
            sink.beat(mark)
        if message.HasField("heartbeat"):
            heartbeat = wire.heartbeat(message.heartbeat)
            self._expect_within(heartbeat.next_within_s)
            self.cursor = heartbeat.cursor
            sink.beat(heartbeat)

    def _expect_within(self, seconds: float) -> None:
        self._patience_s = patience_s(seconds)
