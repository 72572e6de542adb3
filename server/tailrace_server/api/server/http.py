"""HTTP of the server process, on uvicorn: ``/health``, ``/metrics``, the operator's page; the faces at ``/v1``.

Until the engine has opened its catalogs, ``/health`` answers 503 with the status ``starting``, and other
requests wait. Then it answers 200 and ``{"status": "serving", "catalogs": n, "faults": [], "subscriptions":
n}`` while subscribers are accepted. ``faults`` says what is wrong, as `resources.faults` lists it, with kind,
subject and reason; the status is then ``degraded``, and 503 while a face does not accept. From the first signal
on it answers 503 with the status ``stopping``, so that a load balancer sends no client here while open
subscriptions end. `api/operator` has the page at ``/``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from uvicorn.protocols.http.h11_impl import RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected

from tailrace.errors import InvalidRequest, NotPermitted
from tailrace_server.access.door import Door
from tailrace_server.api.connection_age import ConnectionAge
from tailrace_server.api.errors import PROBLEM_TYPE, encoded_problem, http_status
from tailrace_server.api.face_watch import reachable
from tailrace_server.api.graphql import GraphqlFace
from tailrace_server.api.graphql.errors import encoded_errors
from tailrace_server.api.http.guard import BrowserSessions, SessionFace, caller_of, with_door
from tailrace_server.api.http.protocol import AnsweredConnection
from tailrace_server.api.http.requests import accepted
from tailrace_server.api.http.streaming import CONNECTION
from tailrace_server.api.operator import OperatorFace, RecentLines
from tailrace_server.api.rest import RestFace, http_problem
from tailrace_server.api.rest.history import HEADERS
from tailrace_server.api.rest.sql import SQL_HEADERS
from tailrace_server.api.rest.state import STATE_HEADERS
from tailrace_server.api.send_guard import drop
from tailrace_server.api.server import metrics
from tailrace_server.api.server.middleware import with_hosts, with_no_store, with_proxies
from tailrace_server.api.settings import HttpSettings
from tailrace_server.api.transport_security.certificate_names import (
    CERTIFICATE_NAMES,
    names_of_transport,
)
from tailrace_server.api.transport_security.proxies import NO_PROXIES
from tailrace_server.api.transport_security.self_probe import opened
from tailrace_server.api.websocket import Sockets
from tailrace_server.errors import CannotStart
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.hosts import Hosts
from tailrace_server.resources.faults import ServerFault
from tailrace_server.units import Address

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import CollectorRegistry
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tailrace_server.api.transport_security.files import TlsFiles, TlsMaterial
    from tailrace_server.api.transport_security.proxies import TrustedProxies
    from tailrace_server.engine.engine import Engine
    from tailrace_server.grants.principal import Principal
    from tailrace_server.resources.event_loop import LoopTurns

_BACKLOG: Final = 1024
_CUT_AGAIN_S: Final = 0.25
_TLS_SHUTDOWN_S: Final = 2.0
"""How long a peer may take to agree to the end of TLS, once it has been sent all that there is."""
_HEALTH: Final = "/health"
_AT_ONCE: Final = (_HEALTH, "/metrics")
_CLOSE: Final = (b"connection", b"close")
_EVERYWHERE: Final = [
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
]
"""Header fields of every answer for browsers; pages have a policy of their own besides."""


class _Uvicorn(uvicorn.Server):
    """Uvicorn without its signal handlers, and with bounds for the handshakes of TLS.

    The handlers would raise the signal again after ``serve()``: then the other faces would never stop in good
    order. The process has one handler, in stop_deadline.py.
    """

    tls: ssl.SSLContext | None = None
    """The TLS of the next listener; None is plain text."""
    handshake_s: float = 10.0
    servers: list[asyncio.base_events.Server] = []  # noqa: RUF012 - uvicorn has none before it starts

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on sockets; there is no lifespan to start."""
        loop, tls = asyncio.get_running_loop(), self.tls
        self.servers = [
            await loop.create_server(
                self._protocol,
                sock=each,
                ssl=tls,
                backlog=self.config.backlog,
                ssl_handshake_timeout=None if tls is None else self.handshake_s,
                # A peer that does not take part in the end of its connection is not waited for.
                ssl_shutdown_timeout=None if tls is None else _TLS_SHUTDOWN_S,
            )
            for each in sockets or ()
        ]
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        """Return what serves one connection, made as uvicorn does."""
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


class HttpFace:
    """The HTTP listener; ``serve`` runs until ``stop``."""

    name = "http"

    def __init__(
        self,
        engine: Engine,
        registry: CollectorRegistry,
        address: Address,
        settings: HttpSettings | None = None,
        *,
        not_accepting: Callable[[], Mapping[str, str]] = dict,
        lines: RecentLines | None = None,
        accepting: bool = True,
        door: Door | None = None,
        tls: TlsFiles | None = None,
        proxies: TrustedProxies = NO_PROXIES,
    ) -> None:
        """Bind the address; nothing is answered before ``serve``.

        Args:
            engine: What is served.
            registry: What ``/metrics`` shows; the metrics of these faces are added to it.
            address: Where to listen; port 0 takes a free one.
            settings: Bounds; None = the defaults.
            not_accepting: Returns why faces do not accept, by name, for ``/health``.
            lines: The warnings and errors that the page shows; None = none.
            accepting: False where ``accept`` will say that requests are to be answered.
            door: The check of callers; None = all are let in.
            tls: What it speaks; None is plain text.
            proxies: Whose word is taken for the client behind them.

        Raises:
            CannotStart: The address is in use or not ours.
        """
        settings = settings or HttpSettings()
        hosts = Hosts(address.host, settings.hosts)
        self._send_buffer_bytes = settings.http_send_buffer_bytes
        self._socket = self._bound(address)
        self.address = bound_to(self._socket, address)
        self.stopping = False
        self._door = door or Door()
        self._accepting = asyncio.Event()
        if accepting:
            self.accept()
        self.ended = asyncio.Event()
        """Never set: that this listener is gone is only seen from outside."""
        self._not_accepting = not_accepting
        self._tls = tls
        self._listening = asyncio.Lock()
        """Held while the listener is replaced."""
        self._cutting: asyncio.TimerHandle | None = None
        """Runs from ``stop`` on: when what is left is cut."""
        self._engine = engine
        self._registry = registry
        bounds = engine.settings
        age = ConnectionAge(bounds.max_connection_age_s, bounds.max_connection_age_grace_s)
        self.sockets = Sockets(settings, bounds.send_deadline_s, engine.memory, engine.turns, age)
        metrics.register_sockets(registry, self.sockets.statistics)
        graphql = GraphqlFace(engine, settings, self.sockets)
        metrics.register_graphql(registry, graphql.documents.statistics)
        operator = OperatorFace(
            engine, settings, self.sockets, health=self._state, lines=lines or RecentLines()
        )
        sessions = BrowserSessions()
        routed = Starlette(
            routes=[
                Route(_HEALTH, self._health),
                Route("/metrics", self._metrics),
                *operator.routes(),
                *SessionFace(sessions).routes(),
                *RestFace(engine, settings, self.sockets).routes(),
                *graphql.routes(),
                # Without it a path that has none would be refused with 403, and no body.
                WebSocketRoute("/{path:path}", self.sockets.nowhere),
            ],
            exception_handlers={HTTPException: http_problem},
        )
        self.routes = routed.routes
        """The served application, behind the door."""
        # From the innermost outwards: what is last here sees a request first.
        application = self._once_accepting(routed)
        application = with_door(application, self._door, self.sockets, sessions, encoded_errors)
        application = with_hosts(_with_origins(application, settings), hosts, self.sockets)
        application = with_proxies(
            _in_turns(application, engine.turns), proxies, settings.root_path
        )
        self._server = _Uvicorn(
            uvicorn.Config(
                _with_connection(with_no_store(application)),
                http=self.sockets.http_protocol(),
                ws=self.sockets.protocol(),
                ws_max_size=settings.ws_message_bytes,
                ws_ping_interval=settings.ws_ping_interval_s,
                ws_ping_timeout=settings.ws_ping_timeout_s,
                # Deflate would cost ten times what everything else does.
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=max(1, round(settings.http_keepalive_s)),
                server_header=False,
                # Else uvicorn believes every proxy on loopback, and whom FORWARDED_ALLOW_IPS names.
                proxy_headers=False,
                headers=_EVERYWHERE,
            )
        )
        self._server.handshake_s = settings.request_head_s
        if tls is not None:
            self._server.tls = tls.material.context()
            tls.add_listener(self._renew_tls)

    def _bound(self, address: Address) -> socket.socket:
        """Return a socket that listens on an address, and whose connections have a bounded send buffer.

        Left to the kernel it grows to megabytes for each reader that stalls. It doubles what it is given.
        """
        listener = bind(address, "--http")
        size = max(1, self._send_buffer_bytes // 2)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        return listener

    async def serve(self) -> None:
        """Answer until ``stop``; the socket is closed on return."""
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            if self._cutting is not None:
                self._cutting.cancel()
            self._socket.close()

    def accept(self) -> None:
        """Answer requests, those that have come before too: the engine has opened its catalogs."""
        self._accepting.set()

    def _once_accepting(self, application: ASGIApp) -> ASGIApp:
        """Let everything but ``/health`` wait until requests are answered."""

        async def gate(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] != _HEALTH:
                await self._accepting.wait()
            await application(scope, receive, send)

        return gate

    async def knock(self) -> None:
        """Ask for ``/health``, and return once an answer has begun.

        Raises:
            OSError: Nothing listens, or there is no answer.
        """
        address = reachable(self.address)
        async with opened(address, self._tls, "http/1.1") as streams:
            if streams is None:
                return
            reader, writer = streams
            writer.write(f"GET /health HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
            if not await reader.readline():
                raise OSError("the connection ended without an answer")

    async def listen_again(self) -> None:
        """Put a new socket on the port; open connections continue.

        Raises:
            CannotStart: The port cannot be listened on.
        """
        async with self._listening:
            for listener in self._server.servers:
                listener.close()
            self._socket.close()
            self._socket = self._bound(self.address)
            await self._server.startup(sockets=[self._socket])
            self.ended.clear()

    async def _renew_tls(self, material: TlsMaterial) -> None:
        """Let new connections have new files; those that are open, or in their handshake, continue.

        The context of a listener cannot be replaced, nor can a CA be taken out of one. So a second listener is
        put on a copy of the same socket before the first one goes: clients that come meanwhile wait in its
        queue.
        """
        self._server.tls = material.context()
        async with self._listening:
            if not self._server.servers or self.stopping:
                return
            earlier, copy = self._server.servers, self._socket.dup()
            await self._server.startup(sockets=[copy])
            for listener in earlier:
                listener.close()
            self._socket.close()
            self._socket = copy

    async def drain(self, deadline_s: float) -> None:
        """Let live connections send their last messages and close; the engine has ended their subscriptions.

        ``/health`` continues to answer. Connections that remain after ``deadline_s`` are cut by ``stop``.
        Idempotent.
        """
        await self.sockets.stop(deadline_s)

    def stop(self, deadline_s: float = 1.0) -> None:
        """Accept no more and let ``serve`` return once what is under way has been answered.

        Answers that are not sent and read after ``deadline_s`` are cut. Idempotent.
        """
        self._server.should_exit = True
        if self._cutting is None:
            self._cutting = asyncio.get_running_loop().call_later(deadline_s, self._cut)

    def _cut(self) -> None:
        """Drop every connection, and end what works for one; repeated, as a connection may have come since."""
        state = self._server.server_state
        for connection in tuple(state.connections):
            drop(connection.transport)
        # Each of them learns first that nobody is there any more: the loop keeps this order.
        for task in state.tasks:
            task.cancel()
        self._cutting = asyncio.get_running_loop().call_later(_CUT_AGAIN_S, self._cut)

    async def _health(self, request: Request) -> Response:
        if not self._accepting.is_set():
            starting = {"status": "starting", "catalogs": 0, "faults": [], "subscriptions": 0}
            return JSONResponse(starting, 503)
        body = self._state(caller_of(request))
        # For the sake of one catalog the others are not taken away: what they need can be had here.
        return JSONResponse(body, 503 if self.stopping or self._not_accepting() else 200)

    def _state(self, caller: Principal) -> dict[str, Any]:
        """Return what ``/health`` answers once the catalogs are open; to some, the status alone."""
        not_accepting = [
            ServerFault("face_not_accepting", name, reason)
            for name, reason in self._not_accepting().items()
        ]
        of_tls = () if self._tls is None else self._tls.faults()
        degraded = (*not_accepting, *of_tls, *self._door.faults(), *self._engine.faults(ANONYMOUS))
        status = "stopping" if self.stopping else "degraded" if degraded else "serving"
        if not self._engine.shows_itself_to(caller):
            return {"status": status}
        return {
            "status": status,
            "catalogs": len(self._engine.catalogs(caller)),
            "faults": [asdict(each) for each in degraded],
            "subscriptions": self._engine.counters.subscriptions,
        }

    async def _metrics(self, request: Request) -> Response:
        if not self._engine.shows_itself_to(caller_of(request)):
            refusal = NotPermitted(
                "statistics of every catalog are not granted: the metrics have them all"
            )
            return Response(encoded_problem(refusal), http_status(refusal), media_type=PROBLEM_TYPE)
        try:
            kind = accepted(request, (metrics.TEXT_TYPE, metrics.OPENMETRICS_TYPE))
        except HTTPException:  # a client that names another type reads text more likely than a 406
            kind = metrics.TEXT_TYPE
        text, media_type = metrics.expose(self._registry, kind)
        return Response(text, media_type=media_type, headers={"Vary": "Accept"})


def _in_turns(application: ASGIApp, turns: LoopTurns) -> ASGIApp:
    """Let requests begin in turns, but for those by which an operator sees how the server is."""

    async def in_turns(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in _AT_ONCE:
            await turns.turn(scope.get("client"))
        await application(scope, receive, send)

    return in_turns


def _with_connection(application: ASGIApp) -> ASGIApp:
    """Hand the connection to those who may have to cut it; uvicorn keeps it beside ``send``."""

    async def outermost(scope: Scope, receive: Receive, send: Send) -> None:
        cycle = getattr(send, "__self__", None)
        if (transport := getattr(cycle, "transport", None)) is not None:
            names = names_of_transport(transport)
            if names:
                scope[CERTIFICATE_NAMES] = names
        if isinstance(cycle, RequestResponseCycle):
            scope[CONNECTION] = connection = AnsweredConnection(cycle)
            if connection.aged:
                scope["headers"].append(_CLOSE)  # uvicorn answers it in kind
        try:
            if _has_two_lengths(scope):
                await _two_lengths()(scope, receive, send)
                return
            await application(scope, receive, send)
        except asyncio.CancelledError:
            # Only `_cut` cancels these tasks. Uvicorn would log it as an error of ours, with its frames.
            if scope["type"] == "websocket":
                raise ClientDisconnected from None
        finally:
            scope.pop(CONNECTION, None)  # it holds the cycle, and that the scope

    return outermost


def _has_two_lengths(scope: Scope) -> bool:
    names = {name for name, _ in scope["headers"]}
    return b"transfer-encoding" in names and b"content-length" in names


def _two_lengths() -> Response:
    """Refuse a request that a proxy may end elsewhere than we do: what is left of it would be another's."""
    error = InvalidRequest("a request has Content-Length or Transfer-Encoding, never both")
    return Response(encoded_problem(error), 400, {"Connection": "close"}, PROBLEM_TYPE)


def _with_origins(application: ASGIApp, settings: HttpSettings) -> ASGIApp:
    """Let pages of other origins read answers, event streams included; `Sockets` checks WebSockets itself.

    Without an answer of ours a browser keeps what it was sent from a page of another origin.
    """
    if not settings.ws_origins and not settings.http_origins:
        return application
    origins = settings.readers
    return CORSMiddleware(
        application,
        allow_origins=("*",) if origins.any else (),
        allow_origin_regex=origins.pattern.pattern,
        allow_methods=("GET", "POST", "PUT", "DELETE"),
        allow_headers=("*",),
        expose_headers=("ETag", *dict.fromkeys((*HEADERS, *STATE_HEADERS, *SQL_HEADERS))),
    )


def bind(address: Address, flag: str) -> socket.socket:
    """Return a listening socket on an address.

    Raises:
        CannotStart: The address is in use, not ours, or not to be resolved; names the flag.
    """
    try:
        kind, *_, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        return socket.create_server(place[:2], family=kind, backlog=_BACKLOG)
    except socket.gaierror as error:
        raise CannotStart(f"{flag} {address}: {error.strerror}") from error
    except OSError as error:
        # Not its own text, which repeats the address.
        raise CannotStart(f"{flag} {address}: {os.strerror(error.errno or 0).lower()}") from error


def bound_to(listener: socket.socket, asked: Address) -> Address:
    """Return where a socket listens: the host as asked, the port as given."""
    return Address(asked.host, listener.getsockname()[1])
