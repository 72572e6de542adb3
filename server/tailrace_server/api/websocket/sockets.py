"""The WebSockets and event streams of one server: their limits, their guards, their counts and their shutdown.

::

    handshake ─▶ room? ─▶ sub-protocol? ─▶ SocketConnection over GuardedSocket ─▶ closed, counted by code
                  429          4406

A message is written when the transport has room. If the transport has no room for the whole send deadline, the
socket ends: the close SUBSCRIBER_TOO_SLOW follows the unread bytes, and the connection is cut if the peer does
not read the close either.

A refusal because of a name that the peer sent (an origin, a sub-protocol, a host) is logged once for each name.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

import structlog
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect

from tailrace.errors import InvalidRequest
from tailrace_server.api.byte_budget import ByteBudget, ReadTurns
from tailrace_server.api.connection_age import GUARD, ConnectionAge
from tailrace_server.api.errors import PROBLEM_TYPE, encoded_refusal
from tailrace_server.api.http import protocol as http_protocol
from tailrace_server.api.http.compression import Encoders
from tailrace_server.api.send_guard import (
    MEMORY,
    ON_ITS_WAY_BYTES,
    TOO_SLOW,
    Guarded,
    ReaderGone,
    SendGuard,
)
from tailrace_server.api.websocket.connection import Face, SocketConnection, close_reason
from tailrace_server.api.websocket.messages import CloseCode, malformed
from tailrace_server.api.websocket.protocol import EXTENSION, GuardedProtocol, configured
from tailrace_server.resources.memory import ANSWERS_SHARE, RECEIVED_SHARE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from starlette.websockets import WebSocket

    from tailrace_server.api.http.protocol import GuardedHttpProtocol
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.resources.event_loop import LoopTurns
    from tailrace_server.resources.memory import MemoryBook


_log = structlog.get_logger("tailrace.http")

_NAMES_MAX: Final = 100
"""Limit of the names of one kind that are logged: a peer can invent any number. Metrics count every refusal."""
_SHOWN: Final = 200
"""Characters of a name that are logged."""


_MESSAGES_AT_ONCE: Final = 256
"""Maximum number of messages joined to one write; their total size is about that of a message of captures."""


@dataclass(frozen=True, slots=True)
class SocketStatistics:
    """Figures of a server's WebSockets and event streams at one moment."""

    open: int
    opened: int
    """Number of connections opened since the server started."""
    refused: int
    """Handshakes and streams refused because too many were open."""
    subscriptions_refused: int
    """Subscribes refused because their socket had too many subscriptions open."""
    tasks: int
    """Number of all tasks in the event loop, including tasks of other faces and of the engine."""
    inbound_refused: int
    """Senders refused because the received bytes of all peers exceeded the inbound budget."""
    guards: Mapping[str, int]
    """Number of connections ended, by guard: ``send_deadline``, ``pings_unread``, ``close_4400`` …"""
    errors: Mapping[tuple[str, str], int]
    """Number of errors sent to clients, by transport and machine code."""


class Attended(Protocol):
    """A connection that carries several operations, and that `Sockets` stops at shutdown."""

    refused: int
    """Number of operations refused because the connection had too many."""

    def stop(self) -> None:
        """End the connection when its operations have ended. The engine ends the operations."""


class Sockets:
    """All WebSockets and event streams of one server process."""

    def __init__(
        self,
        settings: HttpSettings,
        send_deadline_s: float,
        memory: MemoryBook,
        turns: LoopTurns,
        age: ConnectionAge | None = None,
    ) -> None:
        """Start without connections.

        Args:
            settings: Limits of connections and requests.
            send_deadline_s: How long a message may stay unread, in seconds.
            memory: The memory budget of the process; accounts for HTTP are opened in it.
            turns: The turns of the event loop, shared with the engine.
            age: The maximum age of a connection; None means no maximum.
        """
        self._loop_turns = turns
        self.settings = settings
        self._age = age or ConnectionAge()
        self._turns = ReadTurns()
        self.inbound = inbound = ByteBudget(memory.memory_bytes // RECEIVED_SHARE)
        self.answers = answers = ByteBudget(memory.memory_bytes // ANSWERS_SHARE)
        memory.open("received over HTTP", inbound.bytes_max, lambda: inbound.bytes)
        memory.open("unread answers", answers.bytes_max, lambda: answers.bytes)
        self.encoders = Encoders(memory)
        self.guard = SendGuard(send_deadline_s)
        self._connections: set[Attended] = set()
        self._open = self._opened = self._refused = self._subscriptions_refused = 0
        self._guards: Counter[str] = Counter()
        self._errors: Counter[tuple[str, str]] = Counter()
        self._origins = settings.origins
        self._origins_refused = RefusalLog("origin")
        self._subprotocols_refused = RefusalLog("subprotocol")
        self._stopping = False
        self._empty = asyncio.Event()
        self._empty.set()

    def http_protocol(self) -> type[GuardedHttpProtocol]:
        """Return the class that uvicorn uses for an HTTP connection."""
        return http_protocol.configured(
            head_s=self.settings.request_head_s,
            send_deadline_s=self.guard.deadline_s,
            inbound=self.inbound,
            turns=self._turns,
            on_cut=self.count,
            age=self._age,
        )

    def protocol(self) -> type[GuardedProtocol]:
        """Return the class that uvicorn uses for a WebSocket."""
        return configured(
            pings_unread=self.settings.ws_pings_unread,
            init_message_bytes=self.settings.ws_init_message_bytes,
            send_deadline_s=self.guard.deadline_s,
            message_s=self.settings.request_body_s,
            inbound=self.inbound,
            turns=self._turns,
            on_cut=self.count,
        )

    async def serve(self, websocket: WebSocket, faces: Mapping[str, Face]) -> None:
        """Accept a WebSocket and serve it until it closes, with the face of the chosen sub-protocol.

        Args:
            websocket: The handshake.
            faces: The faces by sub-protocol. The first of them that the client also offers is chosen.
        """
        # 1. Refuse with an HTTP status, before the handshake: first a page of a foreign origin, then any client
        #    if the server is full. The origin is checked first, so that such pages cannot use up the limit.
        foreign = self._foreign_origin(websocket)
        if foreign is not None:
            self.count("origin")
            self._origins_refused.tell(foreign, setting="ws_origins")
            await self.refuse(websocket, _origin_refused(foreign), 403)
            return
        if not self.enter():
            await self.refuse(websocket, self.refusal(), 429)
            return
        # 2. After `enter` the socket is counted, so every way out must call `leave`.
        try:
            offered = websocket.scope["subprotocols"]
            chosen = next((name for name in faces if name in offered), None)
            await websocket.accept(chosen)
            # 3. Refuse an unknown sub-protocol after the handshake: a page can read a close code, but not the
            #    status of a handshake.
            if chosen is None:
                self.count_close(CloseCode.SUBPROTOCOL)
                self._subprotocols_refused.tell(", ".join(offered), offer=", ".join(faces))
                await websocket.close(
                    CloseCode.SUBPROTOCOL, f"sub-protocol not acceptable: offer {', '.join(faces)}"
                )
                return
            await self._serve(websocket, faces[chosen])
        except WebSocketDisconnect:
            return
        finally:
            self.leave()

    async def refuse(self, websocket: WebSocket, error: InvalidRequest, status: int = 400) -> None:
        """Refuse a handshake with an HTTP status and a Problem Details object."""
        self.count_error("http", error.code)
        body = encoded_refusal(error, status)
        await websocket.send_denial_response(Response(body, status, media_type=PROBLEM_TYPE))

    async def nowhere(self, websocket: WebSocket) -> None:
        """Refuse a handshake at a path that has no WebSocket."""
        text = f"there is no WebSocket at {websocket.url.path}; /v1/openapi.json lists the paths"
        await self.refuse(websocket, InvalidRequest(text), 404)

    def _foreign_origin(self, websocket: WebSocket) -> str | None:
        """Return the request's origin if its pages may not read from this server; None if they may.

        A browser lets any page open a WebSocket to any server that it can reach, also on loopback. It only
        sends the page's origin, so the server must check the origin.
        """
        origin = websocket.headers.get("origin")
        if origin is None or _host_of(origin) == websocket.headers.get("host"):
            return None
        return None if self._origins.has(origin) else origin

    async def _serve(self, websocket: WebSocket, face: Face) -> None:
        count = partial(self.count_error, "websocket")
        protocol: GuardedProtocol = websocket.scope["extensions"][EXTENSION]
        with GuardedSocket(protocol, websocket, self.guard, self._loop_turns) as socket:
            connection = SocketConnection(socket, face, self.settings, count)
            face.entrance.watch(connection.end_refused)
            timers: list[asyncio.TimerHandle | None] = []

            def grow_old() -> None:
                # Subscriptions get the grace to send their resume cursors; then the connection is cut.
                connection.end_for_age()
                loop = asyncio.get_running_loop()
                timers.append(loop.call_later(self._age.grace_s, protocol.cut, GUARD))

            timers.append(self._age.call_later(grow_old))
            try:
                await self._run(connection)
            finally:
                for timer in filter(None, timers):
                    timer.cancel()
            # A socket that was dropped for its memory is counted by `cut`.
            if socket.expired and not socket.dropped:
                self.count(TOO_SLOW)

    async def _run(self, connection: SocketConnection) -> None:
        try:
            with self.attended(connection):
                await connection.run()
        finally:
            if connection.closed_with is not None:
                self.count_close(connection.closed_with)

    @contextmanager
    def attended(self, connection: Attended) -> Iterator[None]:
        """Register a connection for the block: a server that stops also stops this connection.

        At the end of the block the connection's refusals are added to the statistics.
        """
        self._connections.add(connection)
        # `stop` may have run between the handshake and this moment.
        if self._stopping:
            connection.stop()
        try:
            yield
        finally:
            self._connections.discard(connection)
            self._subscriptions_refused += connection.refused

    def enter(self) -> bool:
        """Count a new connection and return True; return False if the limit is reached."""
        if self._open >= self.settings.http_connections:
            self._refused += 1
            return False
        self._open += 1
        self._opened += 1
        self._empty.clear()
        return True

    def leave(self) -> None:
        """Remove an ended connection from the count of open ones."""
        self._open -= 1
        if not self._open:
            self._empty.set()

    def refusal(self) -> InvalidRequest:
        """Return the error for a connection above the limit."""
        limit = self.settings.http_connections
        return InvalidRequest(
            f"{limit} live connections are already open, the limit (http_connections)"
        )

    def count(self, guard: str) -> None:
        """Count a connection that a guard ended."""
        self._guards[guard] += 1

    def count_error(self, transport: str, code: str) -> None:
        """Count an error that was sent over ``http`` or ``websocket``, by its machine code."""
        self._errors[transport, code] += 1

    def count_close(self, code: int) -> None:
        """Count a socket that the server closed with this code."""
        self.count(f"close_{int(code)}")

    def statistics(self) -> SocketStatistics:
        """Return the current figures."""
        subscriptions = self._subscriptions_refused + sum(
            each.refused for each in self._connections
        )
        return SocketStatistics(
            open=self._open,
            opened=self._opened,
            refused=self._refused,
            subscriptions_refused=subscriptions,
            tasks=len(asyncio.all_tasks()),
            inbound_refused=self.inbound.refused,
            guards=dict(self._guards),
            errors=dict(self._errors),
        )

    async def stop(self, deadline_s: float) -> None:
        """Close each socket after the last messages of its subscriptions; wait at most ``deadline_s``."""
        self._stopping = True
        for connection in tuple(self._connections):
            connection.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._empty.wait()


class GuardedSocket(Guarded):
    """The socket of one connection: writes message parts uncopied, waits for room, and enforces the guards."""

    def __init__(
        self,
        protocol: GuardedProtocol,
        websocket: WebSocket,
        guard: SendGuard,
        loop_turns: LoopTurns,
    ) -> None:
        """Bind to the protocol of one connection."""
        self._loop_turns = loop_turns
        super().__init__()
        self._protocol = protocol
        self._websocket = websocket
        self._guard = guard
        self._turn = asyncio.Lock()
        self.dropped = False
        """True if the connection was cut to free memory."""

    def __enter__(self) -> GuardedSocket:
        self._guard.watch(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.forget(self)

    async def receive(self) -> str | None:
        """Return the next text message; None once the peer is gone."""
        return await _text(self._websocket)

    async def turn(self) -> None:
        """Wait until this socket may begin an operation or parse a large message."""
        await self._loop_turns.turn(self._websocket.scope["client"])

    async def send(self, *parts: bytes | memoryview) -> None:
        """Write one message when the transport has room; wait until the kernel has taken a large message.

        The message's memory can be released only then, because the transport holds its bytes until the kernel
        takes them. Writers take turns: if all woke at once, they would together exceed the transport's limit.
        """
        async with self._turn:
            await self._room()
            large = sum(map(len, parts)) > ON_ITS_WAY_BYTES
            frames = self._protocol.write_text(parts)
            try:
                for _ in frames:
                    if large:
                        await self._room()
            except asyncio.CancelledError:
                # Only the operation has ended, not the socket. Write the remaining frames of this message, or
                # the next message would begin in the middle of it.
                deque(frames, 0)
                raise
        # Yield: while there is room nothing above waits, and a fast reader would monopolise the event loop.
        await asyncio.sleep(0)

    async def send_all(
        self, head: bytes, payloads: Sequence[bytes | memoryview], tail: bytes
    ) -> None:
        """Write one message for each payload, up to 256 in one write; wait and raise like ``send``."""
        if len(payloads) == 1:
            await self.send(head, payloads[0], tail)  # uncopied: it may be large
            return
        for start in range(0, len(payloads), _MESSAGES_AT_ONCE):
            async with self._turn:
                await self._room()
                self._protocol.write_texts(head, payloads[start : start + _MESSAGES_AT_ONCE], tail)
            await asyncio.sleep(0)

    async def room(self) -> None:
        """Wait until the transport has room, under the send deadline."""
        async with self._turn:
            await self._room()

    async def _room(self) -> None:
        """Wait until the transport has room."""
        protocol = self._protocol
        # `expired` is checked after the wait: the guard wakes a writer by setting `writable`, and that writer
        # must not write any more.
        if not protocol.writable.is_set():
            self.blocked_since = asyncio.get_running_loop().time()
            try:
                await protocol.writable.wait()
            finally:
                self.blocked_since = None
        if self.expired or protocol.gone:
            raise ReaderGone

    async def close(self, code: int, reason: str) -> None:
        """Close without waiting for the peer to read earlier bytes."""
        self._protocol.close_with(code, close_reason(reason))

    def initialised(self) -> None:
        """Allow messages of full size."""
        self._protocol.initialised()

    def begun(self, nbytes: int) -> None:
        """Add the size of a subscribe to the inbound budget; a negative number releases it."""
        self._protocol.begun(nbytes)

    def _end_stream(self) -> None:
        self._protocol.too_slow()

    def _drop(self) -> None:
        self.dropped = True
        self._protocol.cut(MEMORY)


class RefusalLog:
    """Logs refused names of one kind, for example hosts or origins, each name once."""

    def __init__(self, kind: str) -> None:
        """Start without logged names; ``kind`` is the word for a name in the log."""
        self._kind = kind
        self._told: set[str] = set()

    def tell(self, name: str, **cure: str) -> None:
        """Log once that a name was refused; ``cure`` has the log fields that say how to allow it."""
        shown = name[:_SHOWN]
        if shown in self._told or len(self._told) > _NAMES_MAX:
            return
        self._told.add(shown)
        _log.warning(f"{self._kind} refused", **{self._kind: shown}, **cure)
        if len(self._told) > _NAMES_MAX:
            _log.warning(f"further refusals by {self._kind} are counted only", told=_NAMES_MAX + 1)


async def _text(websocket: WebSocket) -> str | None:
    message = await websocket.receive()
    if message["type"] != "websocket.receive":
        return None
    text = message.get("text")
    if text is None:
        raise malformed("binary frames are not supported; send text")
    return str(text)


def _host_of(origin: str) -> str:
    """Return the host and port of an origin, in the form of a ``Host`` header; empty if the origin has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:  # For example an opening bracket without a closing one.
        return ""


def _origin_refused(origin: str) -> InvalidRequest:
    return InvalidRequest(
        f"pages of {origin} may not open WebSockets here; allow them with the setting ws_origins"
    )
