"""The sockets of one server: how many may be open, who stopped reading, and how they all end.

::

    handshake ─▶ room? ─▶ sub-protocol? ─▶ SocketConnection over GuardedSocket ─▶ closed, counted by code
                  429          4406

A message is written when the transport has room. One that had none for the send deadline ends its socket: the
reader gets SUBSCRIBER_TOO_SLOW behind its unread bytes, and is cut if it does not take that either.

A refusal for a name that the peer gives (an origin, a sub-protocol, a host) is logged once for each name.
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
"""Most names of one kind that are logged. Anybody can make up more, and the metrics count them all."""
_SHOWN: Final = 200


_MESSAGES_AT_ONCE: Final = 256
"""Messages joined to one write; together they are about as large as one message of captures."""


@dataclass(frozen=True, slots=True)
class SocketStatistics:
    """The sockets and event streams of a server, now."""

    open: int
    opened: int
    """Since it began."""
    refused: int
    """Handshakes and streams refused because too many were open."""
    subscriptions_refused: int
    """Subscribes refused because their socket had too many open."""
    tasks: int
    """Tasks of the event loop, those of other faces and of the engine too."""
    inbound_refused: int
    """Senders refused because peers sent more at once than there is room for."""
    guards: Mapping[str, int]
    """Connections ended by each guard, by its name: ``send_deadline``, ``pings_unread``, ``close_4400`` …"""
    errors: Mapping[tuple[str, str], int]
    """Errors sent to clients, by transport and machine code."""


class Attended(Protocol):
    """A connection that carries several operations."""

    refused: int
    """Operations refused because it had too many."""

    def stop(self) -> None:
        """End the connection once its operations have ended. The engine ends the operations."""


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
        """Begin with none, and open the accounts of HTTP in ``memory``; ``turns`` are the event loop's."""
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
        """Return the protocol class of HTTP for uvicorn."""
        return http_protocol.configured(
            head_s=self.settings.request_head_s,
            send_deadline_s=self.guard.deadline_s,
            inbound=self.inbound,
            turns=self._turns,
            on_cut=self.count,
            age=self._age,
        )

    def protocol(self) -> type[GuardedProtocol]:
        """Return the protocol class of WebSockets for uvicorn."""
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
        """Serve a handshake and everything after it with the face of the sub-protocol that is chosen.

        Args:
            websocket: The handshake.
            faces: By sub-protocol.
        """
        # 1. Refusals with an HTTP status, before the handshake: a page of a foreign origin, then a server
        #    that is full. The origin comes first, or such pages could take the room of others.
        foreign = self._foreign_origin(websocket)
        if foreign is not None:
            self.count("origin")
            self._origins_refused.tell(foreign, setting="ws_origins")
            await self.refuse(websocket, _origin_refused(foreign), 403)
            return
        if not self.enter():
            await self.refuse(websocket, self.refusal(), 429)
            return
        # 2. From `enter` on the socket counts, so every way out passes `leave`.
        try:
            offered = websocket.scope["subprotocols"]
            chosen = next((name for name in faces if name in offered), None)
            await websocket.accept(chosen)
            # 3. A wrong sub-protocol is refused after the handshake: browsers show a close code to the page,
            #    but not the status of a handshake.
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
        """Answer a handshake with a status and a Problem Details object; no socket is opened."""
        self.count_error("http", error.code)
        body = encoded_refusal(error, status)
        await websocket.send_denial_response(Response(body, status, media_type=PROBLEM_TYPE))

    async def nowhere(self, websocket: WebSocket) -> None:
        """Refuse a handshake at a path that has no WebSocket."""
        text = f"no WebSocket is at {websocket.url.path}; /v1/openapi.json lists the paths"
        await self.refuse(websocket, InvalidRequest(text), 404)

    def _foreign_origin(self, websocket: WebSocket) -> str | None:
        """Return the origin of a page that may not read from this server; None if the request is allowed.

        A browser lets any page open a WebSocket to any server that it reaches, loopback included, and only
        sends the server the page's origin.
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
                connection.end_for_age()
                loop = asyncio.get_running_loop()
                timers.append(loop.call_later(self._age.grace_s, protocol.cut, GUARD))

            timers.append(self._age.call_later(grow_old))
            try:
                await self._run(connection)
            finally:
                for timer in filter(None, timers):
                    timer.cancel()
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
        """Stop the connection when the server stops, and add its refusals to the statistics at its end."""
        self._connections.add(connection)
        if self._stopping:
            connection.stop()
        try:
            yield
        finally:
            self._connections.discard(connection)
            self._subscriptions_refused += connection.refused

    def enter(self) -> bool:
        """Count a connection that opens; return False if too many are open."""
        if self._open >= self.settings.http_connections:
            self._refused += 1
            return False
        self._open += 1
        self._opened += 1
        self._empty.clear()
        return True

    def leave(self) -> None:
        """Count a connection that has ended."""
        self._open -= 1
        if not self._open:
            self._empty.set()

    def refusal(self) -> InvalidRequest:
        """Return the error for a connection above the limit."""
        limit = self.settings.http_connections
        return InvalidRequest(f"{limit} live connections are open, the limit (http_connections)")

    def count(self, guard: str) -> None:
        """Count a connection that a guard ended."""
        self._guards[guard] += 1

    def count_error(self, transport: str, code: str) -> None:
        """Count an error that was sent over ``http`` or ``websocket``, by its machine code."""
        self._errors[transport, code] += 1

    def count_close(self, code: int) -> None:
        """Count a socket that we closed with a code."""
        self.count(f"close_{int(code)}")

    def statistics(self) -> SocketStatistics:
        """Return the figures of this moment."""
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
        """Close every socket once its subscriptions have sent their last messages; wait up to the deadline."""
        self._stopping = True
        for connection in tuple(self._connections):
            connection.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._empty.wait()


class GuardedSocket(Guarded):
    """A socket of `GuardedProtocol`: parts are written as they are, and the guards hold."""

    def __init__(
        self,
        protocol: GuardedProtocol,
        websocket: WebSocket,
        guard: SendGuard,
        loop_turns: LoopTurns,
    ) -> None:
        """Bind to one connection."""
        self._loop_turns = loop_turns
        super().__init__()
        self._protocol = protocol
        self._websocket = websocket
        self._guard = guard
        self._turn = asyncio.Lock()
        self.dropped = False
        """True if it was cut for want of memory."""

    def __enter__(self) -> GuardedSocket:
        self._guard.watch(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.forget(self)

    async def receive(self) -> str | None:
        """Return the next text message; None once the peer is gone."""
        return await _text(self._websocket)

    async def turn(self) -> None:
        """Wait until this socket may begin something."""
        await self._loop_turns.turn(self._websocket.scope["client"])

    async def send(self, *parts: bytes | memoryview) -> None:
        """Write one message when there is room, one writer after the other; wait for a large one to be taken.

        Only then is its share of the memory free for others: until the kernel has it, the transport does.
        Waiting writers wake one by one: all at once they would overrun the transport's bound together.
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
                # Its operation has ended, not the socket: the next message may not begin within this one.
                deque(frames, 0)
                raise
        # uvicorn's sends do not yield while there is room: a fast reader would keep the loop to itself.
        await asyncio.sleep(0)

    async def send_all(
        self, head: bytes, payloads: Sequence[bytes | memoryview], tail: bytes
    ) -> None:
        """Write a message for each payload, many at once; as ``send``."""
        if len(payloads) == 1:
            await self.send(head, payloads[0], tail)  # uncopied: it may be large
            return
        for start in range(0, len(payloads), _MESSAGES_AT_ONCE):
            async with self._turn:
                await self._room()
                self._protocol.write_texts(head, payloads[start : start + _MESSAGES_AT_ONCE], tail)
            await asyncio.sleep(0)

    async def room(self) -> None:
        """Wait for room as a writer does, with its deadline."""
        async with self._turn:
            await self._room()

    async def _room(self) -> None:
        """Wait until the transport has room."""
        protocol = self._protocol
        # Checked after the wait as well: the guard wakes a writer by setting `writable`, and then it must not
        # write.
        if not protocol.writable.is_set():
            self.blocked_since = asyncio.get_running_loop().time()
            try:
                await protocol.writable.wait()
            finally:
                self.blocked_since = None
        if self.expired or protocol.gone:
            raise ReaderGone

    async def close(self, code: int, reason: str) -> None:
        """Close, whether or not the peer reads."""
        self._protocol.close_with(code, close_reason(reason))

    def initialised(self) -> None:
        """Allow messages of full size."""
        self._protocol.initialised()

    def begun(self, nbytes: int) -> None:
        """Charge the bytes of a subscribe to the inbound budget; a negative number gives them back."""
        self._protocol.begun(nbytes)

    def _end_stream(self) -> None:
        self._protocol.too_slow()

    def _drop(self) -> None:
        self.dropped = True
        self._protocol.cut(MEMORY)


class RefusalLog:
    """A log of refused names of one kind, for instance hosts or origins; each name is logged once."""

    def __init__(self, kind: str) -> None:
        """Begin without a name."""
        self._kind = kind
        self._told: set[str] = set()

    def tell(self, name: str, **cure: str) -> None:
        """Log that a name was refused, once; ``cure`` is the remedy."""
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
        raise malformed("binary frames have no meaning here; send text")
    return str(text)


def _host_of(origin: str) -> str:
    """Return host and port of an origin as a request names them; nothing of what has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:  # a bracket without its other one
        return ""


def _origin_refused(origin: str) -> InvalidRequest:
    return InvalidRequest(
        f"pages of {origin} may not open WebSockets here; allow them with the setting ws_origins"
    )
