"""The gRPC server: the service, health and reflection on one port, and its graceful stop.

The handlers of gRPC's health service and reflection decode requests inside grpc.aio: bytes that are no message,
and methods that are left open, raise there and are logged with a traceback, as often as a peer likes. So both
services are wrapped here, and such a request gets an error as its answer.
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
"""The set of compressions that core takes, as bits: only the first, none. A compressed request is refused
before it is unpacked. 61 KB unpack to 64 MiB, and requests are small."""
_PORT_TRIES: Final = 100
_PORT_RETRY_S: Final = 0.02
"""How often, and how soon again, a port is tried that an earlier server of ours is about to leave."""
_CUT_AGAIN_S: Final = 0.25
_LIFETIME_S: Final = 10 * 365 * 86_400.0
"""Longer than any stream is open."""
_log = structlog.get_logger("tailrace.grpc")
_NAMES = (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)


@dataclass(frozen=True, slots=True)
class GrpcStatistics:
    """The figures of its guards, since it began."""

    streams_too_slow: int
    """Streams that the send deadline has ended."""
    streams_refused: int
    """Streams refused because their connection had too many open."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Errors that calls have ended with, by machine code."""
    connections_cut: int = 0
    """Connections ended because they sent what they did not finish."""


class GrpcServer:
    """One engine over gRPC. Make and use it on one event loop."""

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
        """Keep what to serve, and who lets callers in; nothing listens before ``start``.

        Without ``tls`` it speaks plain text. The word of ``proxies`` is taken for the client behind them.
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
        """Servers that another has replaced, each with the task in which it waits for its last stream."""
        self.ended = asyncio.Event()
        """Set when the loop that accepts calls has ended by an error."""

    async def start(self, address: str) -> int:
        """Listen on ``host:port``, accept, and return the port; port 0 takes a free one.

        Raises:
            OSError: The address cannot be listened on, most often because it is in use.
        """
        port = await self.listen(address)
        await self.accept()
        return port

    async def listen(self, address: str) -> int:
        """Listen, and return the port. Until ``accept`` health is NOT_SERVING, and all other calls wait.

        Raises:
            OSError: As ``start``.
        """
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        asked = Address.parse(address)
        self._address = asked._replace(port=await self._listen(asked))
        self._watching = asyncio.create_task(
            self._unread.run(self._address.port), name="watch of what is unread"
        )
        return self._address.port

    async def accept(self) -> None:
        """Answer calls, those that have come since ``listen`` too: the engine has opened its catalogs."""
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
                # Else core opens the window of every stream by what a connection could carry, up to megabytes:
                # also for calls that nobody has taken yet. A message that is read opens it in any case.
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
                errno.EADDRINUSE, f"cannot listen on {address}: in use or not an address of ours"
            ) from error
        bound_send_buffers(int(port), settings.grpc_send_buffer_bytes)
        await server.start()
        self._server = server
        return int(port)

    def services(self) -> Mapping[str, Mapping[str, grpc.RpcMethodHandler[Any, Any]]]:
        """Return the handlers of all methods, by method, by service, as they are behind the door."""
        return {SERVICE: self._service.handlers(), **standard_services(self._health, _NAMES)}

    async def knock(self) -> None:
        """Make a call to the port, and return once it is answered.

        Raises:
            OSError: Nothing listens, or there is no answer.
        """
        await knock(reachable(self._address), self._tls)

    async def listen_again(self) -> None:
        """Put a new server on the port; streams that are open stay with the old one until they end.

        Raises:
            OSError: The port cannot be listened on.
        """
        if self._server is not None:
            self._retire(self._server)
        # Core closes the old listener soon, in a thread of its own, and does not say when.
        for _ in range(_PORT_TRIES):
            if _is_free(self._address):
                break
            await asyncio.sleep(_PORT_RETRY_S)
        await self._listen(self._address)
        self.ended.clear()

    def _on_crash(self, server: grpc.aio.Server, error: BaseException) -> None:
        """Close a listener that no longer accepts: clients are then refused at once and do not wait."""
        _log.error("gRPC has ended", exc_info=error)
        error.with_traceback(
            None
        )  # its frames hold a call, without whose end the server never ends
        if server is self._server:
            self._retire(server)
        self.ended.set()

    def _retire(self, server: grpc.aio.Server) -> None:
        """Stop accepting, and let open streams end by themselves."""
        self._server = None
        waiting = asyncio.create_task(_stop(server, None), name="streams of an earlier listener")
        self._earlier[server] = waiting
        waiting.add_done_callback(lambda _: self._earlier.pop(server, None))

    def statistics(self) -> GrpcStatistics:
        """Return the figures of this moment."""
        return GrpcStatistics(
            self._guard.expired,
            self._service.refused,
            dict(self._service.errors),
            self._unread.cut,
        )

    async def stop(self, deadline_s: float) -> None:
        """Take no more calls, end every stream with its resume cursor, and wait for them to leave.

        Connections that remain after ``deadline_s`` are cut. Idempotent.
        """
        server, self._server = self._server, None
        earlier = dict(self._earlier)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
        if server is None and not earlier:
            return
        await self._health.enter_graceful_shutdown()
        self._service.stop_subscriptions()
        cutting = asyncio.create_task(self._cut_after(deadline_s), name="cut gRPC")
        async with asyncio.TaskGroup() as tasks:
            for each in (*filter(None, (server,)), *earlier):
                tasks.create_task(_stop(each, deadline_s))
        await asyncio.gather(*earlier.values())
        cutting.cancel()
        await asyncio.wait((cutting,))

    async def _cut_after(self, deadline_s: float) -> None:
        """Cut the connections that are left after so long, until cancelled.

        Core says goodbye on each of them, and waits up to 20 s for a peer to read that; one that has said
        nothing yet has its handshake's time.
        """
        await asyncio.sleep(deadline_s)
        while True:
            await asyncio.to_thread(disconnect_all, self._address.port)
            await asyncio.sleep(_CUT_AGAIN_S)


def _is_free(address: Address) -> bool:
    """Return whether an address can be listened on. Asked of core, a port in use costs a line on stderr."""
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
        server: May have crashed.
        deadline_s: When streams that are still open are cut; None = never.
    """
    deadline_s = _LIFETIME_S if deadline_s is None else deadline_s
    # Of a server that has crashed the first call closes the listener and raises the error once more.
    with suppress(Exception):
        await server.stop(deadline_s)
    await server.stop(deadline_s)
    forget(server)


def standard_services(health: object, names: Iterable[str]) -> Mapping[str, Mapping[str, Handler]]:
    """Return the handlers of both by method, by service.

    Args:
        health: The servicer of the health service.
        names: Services that the reflection lists besides itself.
    """
    found = _Services()
    health_pb2_grpc.add_HealthServicer_to_server(health, found)
    shown = ReflectionServicer((*names, reflection.SERVICE_NAME))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(shown, found)
    return found


class _Services(dict[str, "dict[str, Handler]"]):
    """Takes the place of a server that handlers are added to."""

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Pass them over: the same come as registered ones."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Keep the handlers of a service."""
        self[service] = {name: _forgiving(handler) for name, handler in handlers.items()}


def _forgiving(handler: Any) -> Handler:
    """Return a handler that does the same for good requests, and answers bad ones."""
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
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this server does not have it")

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
