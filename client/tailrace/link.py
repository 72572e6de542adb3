"""The link between one subscription and the server: opens it, watches it, resumes it after a break.

::

    connect ──▶ acknowledgement ──▶ captures, heartbeats …
       ▲                                   │ broken: retriable error, or silence
       └──── wait with jitter ◀────────────┘
             resume strictly after the last capture received, or the last heartbeat's cursor

Captures received before a break stay valid and do not come again. Demand adds up and saturates. A new
connection requests only the captures that are still owed (requested and not received), in the message that
subscribes. Later requests follow on the same call, and those made in one turn of the loop are sent as one.
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
    """One subscription's demand, over all its connections."""

    __slots__ = ("_waiter", "received", "requested")

    def __init__(self) -> None:
        """Begin with none."""
        self.requested = 0
        """Captures asked for since the beginning."""
        self.received = 0
        """Captures that came."""
        self._waiter: asyncio.Future[None] | None = None

    def request(self, n: int) -> None:
        """Ask for ``n`` captures more.

        Raises:
            InvalidRequest: ``n`` is not positive.
            TypeError: ``n`` is not a whole number; nothing was asked for.
        """
        n = whole("request", n)
        if n <= 0:
            raise InvalidRequest(
                f"request({n}): demand must be positive (Reactive Streams rule 3.9)"
            )
        self.requested = min(self.requested + n, self.received + DEMAND_MAX)
        self.wake()

    async def wait(self) -> None:
        """Wait until something was requested, or until ``wake``; one connection at a time does."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def wake(self) -> None:
        """Wake the connection, which checks the demand again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def whole(name: str, n: object) -> int:
    """Return a number of captures as an int.

    Raises:
        TypeError: It is not a whole number; ``name`` is what was called so.
    """
    try:
        return operator.index(n)  # type: ignore[arg-type]  # it says so itself
    except TypeError:
        raise TypeError(f"{name}({n!r}): demand is a whole number of captures") from None


class DemandRequests:
    """The request messages of one connection: the subscribe, then demand as it grows, until closed."""

    __slots__ = ("_closed", "_demand", "_first", "_told")

    def __init__(self, demand: Demand, first: DemandRequest) -> None:
        """Take the demand that is owed now into the first message."""
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
        """End it; gRPC waits for the next message of a call even when that has ended."""
        self._closed = True
        self._demand.wake()


def subscribing(request: SubscribeRequest | SubscribeSystemRequest) -> DemandRequest:
    """Return the first message of a connection."""
    if request.DESCRIPTOR.name == "SubscribeRequest":
        return DemandRequest(subscribe=request)  # type: ignore[arg-type]  # told by its name
    return DemandRequest(subscribe_system=request)  # type: ignore[arg-type]


_PATIENCE: Final = 2.0
"""A heartbeat is missed after this many times the announced interval …"""

_PATIENCE_MIN_S: Final = 1.0
"""… but not sooner than this: a busy loop is not a dead server."""

_DOUBLINGS_MAX: Final = 5

GRACE_S: Final = 0.1
"""Seconds within which a message that came while the event loop was busy is seen."""


def patience_s(interval_s: float) -> float:
    """Return the seconds of silence to allow when a heartbeat was announced within ``interval_s``."""
    return max(_PATIENCE_MIN_S, interval_s * _PATIENCE)


@asynccontextmanager
async def silence(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError if the block takes longer, unless only the event loop was busy.

    After a long turn of the event loop, a timer that is due and a message that came are handled together, and
    the timer would win. So the timer only gives the message `GRACE_S` more.
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
    """A subscription lost its server and will try again."""

    error: TailraceError
    cursor: Cursor | None
    """It will resume strictly after this; None: nothing was acknowledged yet."""
    attempt: int
    """The attempt to come, counted from 1 since the last message."""
    wait_s: float
    """How long it waits before that."""


@dataclass(frozen=True, slots=True)
class Reconnected:
    """A subscription is connected again."""

    cursor: Cursor
    """It resumed strictly after this."""
    attempts: int
    """Attempts that it took."""
    acknowledgement: Acknowledgement


class LinkSink(Protocol):
    """The receiver of a link's messages. Called on the event loop; only ``room`` is awaited."""

    def acknowledged(self, acknowledgement: Acknowledgement) -> None:
        """The server has acknowledged the subscription, for the first time or again."""

    def deliver(self, captures: tuple[Capture, ...], nbytes: int) -> None:
        """Captures came, at least one, in a message of ``nbytes``."""

    def beat(self, heartbeat: Heartbeat | StateComplete) -> None:
        """A heartbeat came, or the end of a state, behind the captures that were delivered before."""

    async def room(self) -> None:
        """Wait until another message can be taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """How a link behaves; no part of what is subscribed to."""

    retry: Retry
    timeouts: Timeouts
    clock: Clock = field(default_factory=SystemClock)
    on_disconnect: Callable[[Disconnected], None] | None = None
    """Called before each wait; what it raises ends the subscription."""
    on_reconnect: Callable[[Reconnected], None] | None = None
    """Called after each acknowledgement but the first; what it raises ends the subscription."""


class Link:
    """One subscription's link. ``run`` is its only task.

    Between connections it keeps the cursor and the demand: both cover exactly the captures that the sink has.
    """

    def __init__(
        self,
        transport: Transport,
        request: SubscribeRequest | SubscribeSystemRequest,
        options: LinkOptions,
    ) -> None:
        """Keep what to subscribe to; nothing is sent before ``run``."""
        self.demand = Demand()
        self.cursor: Cursor | None = None
        """Everything up to it was received; before the first acknowledgement a saved one, or None."""
        self._transport = transport
        self._request = request
        self._content = wire.content_of(request.body)
        self._options = options
        self._where_version: int | None = None
        """That of the acknowledgements; None: no condition was without one."""
        self._epoch = 0
        """That of the last acknowledgement of a named subscription; 0: none."""
        self._begun = False
        """True if a capture has come, ever. Until then a resume sends the start by time again."""
        self._patience_s = 0.0
        self._wait_s = 0.0
        """For so long the server may wait for a version before it acknowledges."""
        if isinstance(request, SubscribeRequest) and request.HasField("wait_for_version"):
            self._wait_s = request.wait_ms / 1000

    def begin_after(self, saved: Cursor) -> None:
        """Go on after a saved cursor, whatever start the request names."""
        self.cursor, self._begun = saved, True

    @property
    def has_start(self) -> bool:
        """True if the request names a start; else the server chooses it, and later it would choose another.

        One that begins with a state begins with it again until a row was finished with.
        """
        request = self._request
        given = request.HasField("since_version") or request.HasField("after")
        given = given or (isinstance(request, SubscribeRequest) and bool(request.initial))
        return self.cursor is not None or given or request.HasField("from_time")

    @property
    def begins_by_time(self) -> bool:
        """True if its start is a time, which no cursor may replace until the first capture has come."""
        return not self._begun and self._request.HasField("from_time")

    async def run(self, sink: LinkSink) -> None:
        """Bring everything to the sink until the subscription ends for good.

        Raises:
            TailraceError: Why it ended. ``SubscriptionBroken`` if attempts ran out; ``ConnectTimeout`` if
                the first connection did not come about in time.
        """
        options = self._options
        attempts = Attempts(options.retry, options.timeouts, options.clock, self._wait_s)
        while True:
            try:
                # 1. One connection, until it breaks. `_serve` only ever returns by an error.
                await self._serve(sink, attempts)
            except TailraceError as error:
                # 2. Decide whether to try again. The wait is known before the user hears of the break, so
                #    that `Disconnected` can name it; an error that no retry helps is raised here.
                wait_s = attempts.wait_after(error, str(self.cursor))
                if options.on_disconnect is not None:
                    options.on_disconnect(Disconnected(error, self.cursor, attempts.number, wait_s))
                # 3. Wait with jitter, or all clients of a restarted server come back in the same moment.
                await options.clock.sleep(wait_s)

    async def _serve(self, sink: LinkSink, attempts: Attempts) -> None:
        """Serve one connection until it breaks; never returns."""
        requests = DemandRequests(self.demand, self._first())
        stream = self._transport.open("SubscribeWithDemand", requests)
        try:
            # Note the resume cursor and the epoch before the sink gets the acknowledgement: if the sink raises,
            # or the connection breaks at once, the place that the server chose must not be lost.
            acknowledgement = await self._acknowledge(stream, attempts.patience_s)
            self._note(acknowledgement, attempts)
            sink.acknowledged(acknowledgement)
            while True:
                # Room first: while the user is behind, nothing is read, HTTP/2's window fills, and the
                # server waits. To read first would take a message for which there is no room.
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
                f"neither capture nor heartbeat for {patience_s:g} s", str(self.cursor)
            ) from None

    def _take(self, data: bytes | None, sink: LinkSink, attempts: Attempts) -> None:
        message = wire.subscribe_parts(data)
        # A message counts, an acknowledgement does not: a server that only ever acknowledges and breaks
        # must run into the limit of attempts.
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
        # Marks come behind the captures of their message: their cursors are later ones.
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
