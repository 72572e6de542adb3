"""HTTP of the server process, on uvicorn: ``/health``, ``/metrics``, the operator's page; the faces at ``/v1``.

Until the engine has opened its catalogs, ``/health`` answers 503 with the status ``starting``, and other
requests wait. After that it answers 200 and ``{"status": "serving", "catalogs": n, "faults": [],
"subscriptions": n}``. ``faults`` lists what is wrong (`resources.faults`), each with kind, subject and reason.
With faults the status is ``degraded``; the answer is 503 only while a face does not accept connections. From
the first stop signal on it answers 503 with the status ``stopping``, so that a load balancer sends no client
here while open subscriptions end. `api/operator` has the page at ``/``.
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
"""Seconds that a peer may take to confirm the end of a TLS connection, after all bytes were sent."""
_HEALTH: Final = "/health"
_AT_ONCE: Final = (_HEALTH, "/metrics")
_CLOSE: Final = (b"connection", b"close")
_EVERYWHERE: Final = [
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
]
"""Header fields of every answer, for browsers; a page also has a content security policy."""


class _Uvicorn(uvicorn.Server):
    """Uvicorn without its signal handlers, and with bounds for TLS handshakes.

    Uvicorn's handlers would raise the signal again after ``serve()``, and the other faces would not stop in an
    orderly way. The process has one handler, in stop_deadline.py.
    """

    tls: ssl.SSLContext | None = None
    """The TLS context of the next listener; None is plain text."""
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
                # Do not wait long for a peer that does not confirm the end of its connection.
                ssl_shutdown_timeout=None if tls is None else _TLS_SHUTDOWN_S,
            )
            for each in sockets or ()
        ]
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        """Return the protocol object of one connection, made as uvicorn makes it."""
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
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
        """Bind the address; no request is answered before ``serve``.

        Args:
            engine: The engine to serve.
            registry: The metrics of ``/metrics``; those of the HTTP faces are added to it.
            address: The address to listen on; port 0 chooses a free one.
            settings: The bounds of the faces; None = the defaults.
            not_accepting: Returns the reasons of faces that do not accept connections, by name, for
                ``/health``.
            lines: The warnings and errors that the operator's page shows; None = no lines.
            accepting: False if requests must wait until ``accept`` is called.
            door: The authentication of callers; None = every caller is anonymous.
            tls: The certificate and key; None is plain text.
            proxies: The proxies that are trusted to report the client behind them.

        Raises:
            CannotStart: The address is in use or does not belong to this machine.
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
        """Never set: only a probe from outside can notice that this listener has ended."""
        self._not_accepting = not_accepting
        self._tls = tls
        self._listening = asyncio.Lock()
        """Held while the listener is replaced."""
        self._cutting: asyncio.TimerHandle | None = None
        """The timer, from ``stop`` on, that cuts the remaining connections."""
        self._engine = engine
        self._registry = registry
        bounds = engine.settings
        age = ConnectionAge(bounds.max_connection_age_s, bounds.max_connection_age_grace_s)
        self.sockets = Sockets(settings, bounds.send_deadline_s, engine.memory, engine.turns, age)
        metrics.register(registry, metrics.sockets, self.sockets.statistics)
        graphql = GraphqlFace(engine, settings, self.sockets)
        metrics.register(registry, metrics.documents, graphql.documents.statistics)
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
                # Without this route, a WebSocket to an unknown path would be refused with 403 and no body.
                WebSocketRoute("/{path:path}", self.sockets.nowhere),
            ],
            exception_handlers={HTTPException: http_problem},
        )
        self.routes = routed.routes
        """The routes of all faces, without authentication."""
        # From the innermost layer to the outermost: the last one here sees a request first.
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
                # Deflate would cost ten times as much as everything else together.
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=max(1, round(settings.http_keepalive_s)),
                server_header=False,
                # By default uvicorn trusts every proxy on loopback, and those that FORWARDED_ALLOW_IPS names.
                proxy_headers=False,
                headers=_EVERYWHERE,
            )
        )
        self._server.handshake_s = settings.request_head_s
        if tls is not None:
            self._server.tls = tls.material.context()
            tls.add_listener(self._renew_tls)

    def _bound(self, address: Address) -> socket.socket:
        """Return a socket that listens on an address and whose connections have a bounded send buffer.

        By default the kernel lets the buffer grow to megabytes for each stalled reader. The kernel doubles the
        value that it is given, so half of the setting is passed.
        """
        listener = bind(address, "--http")
        size = max(1, self._send_buffer_bytes // 2)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        return listener

    async def serve(self) -> None:
        """Answer requests until ``stop``; the socket is closed on return."""
        try:
            # Uvicorn returns when ``should_exit`` is set and all connections have ended or were cut.
            await self._server.serve(sockets=[self._socket])
        finally:
            if self._cutting is not None:
                self._cutting.cancel()
            self._socket.close()

    def accept(self) -> None:
        """Begin to answer requests, including waiting ones; the engine has opened its catalogs."""
        self._accepting.set()

    def _once_accepting(self, application: ASGIApp) -> ASGIApp:
        """Let all requests except for ``/health`` wait until ``accept`` is called."""

        async def gate(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] != _HEALTH:
                await self._accepting.wait()
            await application(scope, receive, send)

        return gate

    async def knock(self) -> None:
        """Request ``/health``, and return once an answer has begun.

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
        # The lock keeps a renewal of the TLS files, which also replaces the listener, from running meanwhile.
        async with self._listening:
            for listener in self._server.servers:
                listener.close()
            self._socket.close()
            self._socket = self._bound(self.address)
            await self._server.startup(sockets=[self._socket])
            self.ended.clear()

    async def _renew_tls(self, material: TlsMaterial) -> None:
        """Use new TLS files for new connections; open connections and handshakes continue with the old ones.

        The context of a listener cannot be replaced, and a CA cannot be removed from a context. So a second
        listener is put on a copy of the same socket before the first one is closed. Clients that connect
        meanwhile wait in the socket's queue.
        """
        self._server.tls = material.context()
        async with self._listening:
            if not self._server.servers or self.stopping:
                return
            # The new listener accepts before the old one is closed: no client is refused.
            earlier, copy = self._server.servers, self._socket.dup()
            await self._server.startup(sockets=[copy])
            for listener in earlier:
                listener.close()
            self._socket.close()
            self._socket = copy

    async def drain(self, deadline_s: float) -> None:
        """Drop every connection and cancel its task; repeat that for connections accepted meanwhile.

        ``/health`` continues to answer. Connections that remain after ``deadline_s`` are cut by ``stop``.
        Idempotent.
        """
        await self.sockets.stop(deadline_s)

    def stop(self, deadline_s: float = 1.0) -> None:
        """Accept no more connections, and let ``serve`` return once all requests are answered.

        Connections whose answers are not read after ``deadline_s`` are cut. Idempotent.
        """
        # Idle connections close at once; the timer is for those that stay busy.
        self._server.should_exit = True
        if self._cutting is None:
            self._cutting = asyncio.get_running_loop().call_later(deadline_s, self._cut)

    def _cut(self) -> None:
        """Drop every connection and cancel its task; repeat that later, for connections accepted meanwhile."""
        state = self._server.server_state
        for connection in tuple(state.connections):
            drop(connection.transport)
        # The event loop keeps this order: each task first learns that its connection is lost, then is
        # cancelled.
        for task in state.tasks:
            task.cancel()
        self._cutting = asyncio.get_running_loop().call_later(_CUT_AGAIN_S, self._cut)

    async def _health(self, request: Request) -> Response:
        if not self._accepting.is_set():
            starting = {"status": "starting", "catalogs": 0, "faults": [], "subscriptions": 0}
            return JSONResponse(starting, 503)
        body = self._state(caller_of(request))
        # A faulty catalog alone does not make the answer 503: the server can still serve the other catalogs.
        return JSONResponse(body, 503 if self.stopping or self._not_accepting() else 200)

    def _state(self, caller: Principal) -> dict[str, Any]:
        """Return the answer of ``/health`` once the catalogs are open; some callers get the status only."""
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
    """Let requests begin in turns, except for the paths by which an operator monitors the server."""

    async def in_turns(scope: Scope, receive: Receive, send: Send) -> None:
        # Health and metrics must answer even while many requests wait.
        if scope["path"] not in _AT_ONCE:
            await turns.turn(scope.get("client"))
        await application(scope, receive, send)

    return in_turns


def _with_connection(application: ASGIApp) -> ASGIApp:
    """Put the connection into the scope, for handlers that may have to cut it; uvicorn does not pass it."""

    async def outermost(scope: Scope, receive: Receive, send: Send) -> None:
        cycle = getattr(send, "__self__", None)
        if (transport := getattr(cycle, "transport", None)) is not None:
            names = names_of_transport(transport)
            if names:
                scope[CERTIFICATE_NAMES] = names
        if isinstance(cycle, RequestResponseCycle):
            scope[CONNECTION] = connection = AnsweredConnection(cycle)
            if connection.aged:
                scope["headers"].append(_CLOSE)  # uvicorn then answers with the same field
        try:
            if _has_two_lengths(scope):
                await _two_lengths()(scope, receive, send)
                return
            await application(scope, receive, send)
        except asyncio.CancelledError:
            # Only `_cut` cancels these tasks. Uvicorn would log the cancellation as an error with a traceback.
            if scope["type"] == "websocket":
                raise ClientDisconnected from None
        finally:
            scope.pop(
                CONNECTION, None
            )  # the connection refers to the cycle, and the cycle to the scope

    return outermost


def _has_two_lengths(scope: Scope) -> bool:
    names = {name for name, _ in scope["headers"]}
    return b"transfer-encoding" in names and b"content-length" in names


def _two_lengths() -> Response:
    """Return the refusal of a request with two lengths: a proxy may split it into other requests than we do."""
    error = InvalidRequest("a request must not have both Content-Length and Transfer-Encoding")
    return Response(encoded_problem(error), 400, {"Connection": "close"}, PROBLEM_TYPE)


def _with_origins(application: ASGIApp, settings: HttpSettings) -> ASGIApp:
    """Let pages of the allowed origins read answers and event streams; `Sockets` checks WebSockets itself.

    Without these header fields a browser hides an answer from a page of another origin.
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
        CannotStart: The address is in use, not of this machine, or cannot be resolved; the error names the
            flag.
    """
    try:
        kind, *_, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        return socket.create_server(place[:2], family=kind, backlog=_BACKLOG)
    except socket.gaierror as error:
        raise CannotStart(f"{flag} {address}: {error.strerror}") from error
    except OSError as error:
        # The error's own text would repeat the address.
        raise CannotStart(f"{flag} {address}: {os.strerror(error.errno or 0).lower()}") from error


def bound_to(listener: socket.socket, asked: Address) -> Address:
    """Return the address of a listening socket: the requested host, and the actual port."""
    return Address(asked.host, listener.getsockname()[1])
