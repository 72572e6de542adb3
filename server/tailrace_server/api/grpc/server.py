"""The gRPC server: the service, health and reflection on one port, and its graceful stop.

The handlers of gRPC's health and reflection services decode requests inside grpc.aio. There, bytes that are no
message and methods that are not implemented raise an error, which is logged with a traceback as often as a peer
likes. So both services are wrapped here, and such a request is answered with an error.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer

from tailrace.transport.grpc import SERVICE
from tailrace_server.access.door import Door
from tailrace_server.api.connection_age import ConnectionAge
from tailrace_server.api.face_watch import reachable
from tailrace_server.api.grpc.connections import (
    UnreadWatch,
    bound_send_buffers,
    disconnect,
    disconnect_all,
    pending_calls_max,
)
from tailrace_server.api.grpc.guard import guarded
from tailrace_server.api.grpc.listener import accepting_server, forget, knock
from tailrace_server.api.grpc.service import ChangeCaptureService
from tailrace_server.api.send_guard import SendGuard
from tailrace_server.api.settings import GrpcSettings
from tailrace_server.api.transport_security.proxies import NO_PROXIES
from tailrace_server.units import Address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from tailrace_server.api.transport_security.files import TlsFiles
    from tailrace_server.api.transport_security.proxies import TrustedProxies
    from tailrace_server.engine.engine import Engine

    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]


_UNCOMPRESSED: Final = 1
"""The compressions that core accepts, as bits: only the first, no compression. A compressed request is refused
before it is unpacked, since 61 KB unpack to 64 MiB. Requests are small."""
_PORT_TRIES: Final = 100
_PORT_RETRY_S: Final = 0.02
"""Number of tries, and seconds between them, for a port that an earlier server of this process is about to
close."""
_CUT_AGAIN_S: Final = 0.25
_LIFETIME_S: Final = 10 * 365 * 86_400.0
"""A deadline longer than any stream is open."""
_log = structlog.get_logger("tailrace.grpc")
_NAMES = (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)


@dataclass(frozen=True, slots=True)
class GrpcStatistics:
    """The figures of the server's guards since the server began."""

    streams_too_slow: int
    """Number of streams ended by the send deadline."""
    streams_refused: int
    """Number of streams refused because their connection had too many open."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Number of calls that have ended with each error, by machine code."""
    connections_cut: int = 0
    """Number of connections ended because of unfinished requests."""


class GrpcServer:
    """The gRPC server of one engine. Make and use it on one event loop."""

    name = "grpc"

    def __init__(
        self,
        engine: Engine,
        settings: GrpcSettings | None = None,
        *,
        tls: TlsFiles | None = None,
        door: Door | None = None,
        proxies: TrustedProxies = NO_PROXIES,
    ) -> None:
        """Make a server that does not listen before ``start`` or ``listen``.

        Args:
            engine: The engine to serve.
            settings: The bounds of the server; None: the defaults.
            tls: The certificate and key; None: plain text.
            door: The authentication of callers; None: every caller is anonymous.
            proxies: The proxies that are trusted to report the client behind them.
        """
        self._proxies = proxies
        self._door = door or Door()
        self._settings = settings or GrpcSettings()
        self._tls = tls
        self._guard = SendGuard(engine.settings.send_deadline_s)
        self._unread = UnreadWatch(engine.memory, self._settings.request_s)
        self._pending_max = pending_calls_max(engine.settings.memory_bytes)
        bounds = engine.settings
        self._age = ConnectionAge(bounds.max_connection_age_s, bounds.max_connection_age_grace_s)
        unread = self._unread  # not this server, which would be in a cycle with its service
        self._service = ChangeCaptureService(
            *(engine, self._settings, self._guard, self._unread, self._age, proxies),
            disconnect=lambda peer: disconnect(peer, unread.port),
        )
        self._watching: asyncio.Task[None] | None = None
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # made at import time
        self._address = Address("", 0)
        self._server: grpc.aio.Server | None = None
        self._earlier: dict[grpc.aio.Server, asyncio.Task[None]] = {}
        """Replaced servers, each with the task that waits for its last stream."""
        self.ended = asyncio.Event()
        """Set when the loop that accepts calls has ended with an error."""

    async def start(self, address: str) -> int:
        """Listen on ``host:port``, accept calls, and return the port; port 0 chooses a free one.

        Raises:
            OSError: The address cannot be listened on, most often because it is in use.
        """
        port = await self.listen(address)
        await self.accept()
        return port

    async def listen(self, address: str) -> int:
        """Listen, and return the port. Until ``accept``, health is NOT_SERVING and all other calls wait.

        Raises:
            OSError: The address cannot be listened on, most often because it is in use.
        """
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        asked = Address.parse(address)
        self._address = asked._replace(port=await self._listen(asked))
        self._watching = asyncio.create_task(
            self._unread.run(self._address.port), name="watch of what is unread"
        )
        return self._address.port

    async def accept(self) -> None:
        """Begin to answer calls, including those since ``listen``: the engine has opened its catalogs."""
        self._service.accepting.set()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def _set_health(self, status: Any) -> None:
        for name in ("", SERVICE):
            await self._health.set(name, status)

    async def _listen(self, address: Address) -> int:
        """Start a server of core on an address, and return the port.

        Raises:
            OSError: The address cannot be listened on.
        """
        settings = self._settings
        server = accepting_server(
            (
                # A second server on the same port is a mistake; it must not share its connections silently.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", settings.request_bytes),
                ("grpc.compression_enabled_algorithms_bitset", _UNCOMPRESSED),
                ("grpc.server.max_pending_requests", self._pending_max // 2),
                ("grpc.server.max_pending_requests_hard_limit", self._pending_max),
                # With the probe, core enlarges the window of every stream to what the connection could carry,
                # up to megabytes, even for calls that no handler has accepted. Reading a message opens the
                # window in any case.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.max_send_message_length", -1),
                ("grpc.server_handshake_timeout_ms", int(settings.handshake_s * 1000)),
                *self._age.core_options(),
                ("grpc.keepalive_time_ms", int(settings.keepalive_s * 1000)),
                ("grpc.keepalive_timeout_ms", int(settings.keepalive_timeout_s * 1000)),
                (
                    "grpc.http2.min_recv_ping_interval_without_data_ms",
                    int(settings.ping_interval_min_s * 1000),
                ),
            ),
            guarded(self.services(), self._door, self._service.count_error, self._proxies),
            self._on_crash,
            self._unread.took,
        )
        try:
            if self._tls is None:
                port = server.add_insecure_port(str(address))
            else:
                port = server.add_secure_port(str(address), self._tls.grpc_credentials())
        except RuntimeError as error:
            raise OSError(
                errno.EADDRINUSE,
                f"cannot listen on {address}: port in use, or not an address of this machine",
            ) from error
        # Before the start: connections inherit the bound from the listener.
        bound_send_buffers(int(port), settings.grpc_send_buffer_bytes)
        await server.start()
        self._server = server
        return int(port)

    def services(self) -> Mapping[str, Mapping[str, grpc.RpcMethodHandler[Any, Any]]]:
        """Return the handlers without authentication: for each service, its handlers by method."""
        return {SERVICE: self._service.handlers(), **standard_services(self._health, _NAMES)}

    async def knock(self) -> None:
        """Make a call to the port, and return once it is answered.

        Raises:
            OSError: Nothing listens, or there is no answer.
        """
        await knock(reachable(self._address), self._tls)

    async def listen_again(self) -> None:
        """Put a new server on the port; open streams stay with the old one until they end.

        Raises:
            OSError: The port cannot be listened on.
        """
        if self._server is not None:
            self._retire(self._server)
        # Core closes the old listener soon, in another thread, and does not report when.
        for _ in range(_PORT_TRIES):
            if _is_free(self._address):
                break
            await asyncio.sleep(_PORT_RETRY_S)
        await self._listen(self._address)
        self.ended.clear()

    def _on_crash(self, server: grpc.aio.Server, error: BaseException) -> None:
        """Close a listener that no longer accepts calls: clients are refused at once and do not wait."""
        _log.error("gRPC has ended", exc_info=error)
        error.with_traceback(
            None
        )  # its frames refer to a call, and the server ends only when all calls have
        if server is self._server:
            self._retire(server)
        self.ended.set()

    def _retire(self, server: grpc.aio.Server) -> None:
        """Stop accepting calls on a server; its open streams continue until they end."""
        self._server = None
        waiting = asyncio.create_task(_stop(server, None), name="streams of an earlier listener")
        self._earlier[server] = waiting
        waiting.add_done_callback(lambda _: self._earlier.pop(server, None))

    def statistics(self) -> GrpcStatistics:
        """Return the current figures."""
        return GrpcStatistics(
            self._guard.expired,
            self._service.refused,
            dict(self._service.errors),
            self._unread.cut,
        )

    async def stop(self, deadline_s: float) -> None:
        """Accept no more calls, end every stream with its resume cursor, and wait until the streams have ended.

        Connections that remain after ``deadline_s`` are cut. Idempotent.
        """
        # Take the server first, so that a second call does not stop it again.
        server, self._server = self._server, None
        earlier = dict(self._earlier)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
        if server is None and not earlier:
            return
        await self._health.enter_graceful_shutdown()
        # Subscriptions end before the servers stop: a status with the resume cursor needs an open call.
        self._service.stop_subscriptions()
        cutting = asyncio.create_task(self._cut_after(deadline_s), name="cut gRPC")
        # All servers stop at the same time, so that they share one deadline.
        async with asyncio.TaskGroup() as tasks:
            for each in (*filter(None, (server,)), *earlier):
                tasks.create_task(_stop(each, deadline_s))
        await asyncio.gather(*earlier.values())
        cutting.cancel()
        await asyncio.wait((cutting,))

    async def _cut_after(self, deadline_s: float) -> None:
        """Wait ``deadline_s``, then cut the connections that remain, again and again until cancelled.

        Without this, core would wait up to 20 s for each peer to read its goodbye, and for the handshake
        timeout of a peer that has sent nothing yet.
        """
        await asyncio.sleep(deadline_s)
        while True:
            await asyncio.to_thread(disconnect_all, self._address.port)
            await asyncio.sleep(_CUT_AGAIN_S)


def _is_free(address: Address) -> bool:
    """Return True if an address can be listened on. Core would write a line to stderr for a port in use."""
    kind, *_, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    with socket.socket(kind) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(place)
            trial.listen()
        except OSError:
            return False
    return True


async def _stop(server: grpc.aio.Server, deadline_s: float | None) -> None:
    """Close the listener of a server, and return when its last stream has ended.

    Args:
        server: The server, which may have crashed.
        deadline_s: Seconds after which open streams are cut; None = never.
    """
    deadline_s = _LIFETIME_S if deadline_s is None else deadline_s
    # If the server has crashed, the first call closes the listener and raises the error of the crash again.
    with suppress(Exception):
        await server.stop(deadline_s)
    await server.stop(deadline_s)
    forget(server)


def standard_services(health: object, names: Iterable[str]) -> Mapping[str, Mapping[str, Handler]]:
    """Return the handlers of health and reflection: for each service, its handlers by method.

    Args:
        health: The servicer of the health service.
        names: The services that reflection lists in addition to itself.
    """
    found = _Services()
    health_pb2_grpc.add_HealthServicer_to_server(health, found)
    shown = ReflectionServicer((*names, reflection.SERVICE_NAME))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(shown, found)
    return found


class _Services(dict[str, "dict[str, Handler]"]):
    """A dict in place of a server: it collects the handlers that are added."""

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Ignore generic handlers: the same handlers are added as registered ones."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Collect the handlers of a service."""
        self[service] = {name: _forgiving(handler) for name, handler in handlers.items()}


def _forgiving(handler: Any) -> Handler:
    """Return a handler that serves valid requests like the original, and answers others with an error."""
    if handler.stream_stream is not None:

        async def both(data: AsyncIterator[bytes], context: Context) -> AsyncIterator[object]:
            async for answer in handler.stream_stream(_decoded(handler, data, context), context):
                yield answer

        return grpc.stream_stream_rpc_method_handler(
            both, response_serializer=handler.response_serializer
        )

    async def one(data: bytes, context: Context) -> object:
        behaviour = handler.unary_unary or handler.unary_stream
        try:
            return await behaviour(await _decode(handler, data, context), context)
        except NotImplementedError:
            await context.abort(
                grpc.StatusCode.UNIMPLEMENTED, "this server does not have the method"
            )

    make: Any = (
        grpc.unary_unary_rpc_method_handler
        if handler.unary_unary is not None
        else grpc.unary_stream_rpc_method_handler
    )
    made: Handler = make(one, response_serializer=handler.response_serializer)
    return made


async def _decoded(
    handler: Any, data: AsyncIterator[bytes], context: Context
) -> AsyncIterator[object]:
    async for each in data:
        yield await _decode(handler, each, context)


async def _decode(handler: Any, data: bytes, context: Context) -> object:
    try:
        return handler.request_deserializer(data)
    except DecodeError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise
