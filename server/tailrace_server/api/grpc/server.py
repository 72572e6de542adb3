"""The gRPC server: the service, health and reflection on one port, and its graceful stop."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tailrace.transport.grpc import SERVICE
from tailrace_server.api.grpc.service import ChangeCaptureService
from tailrace_server.api.grpc.settings import GrpcSettings
from tailrace_server.api.send_guard import SendGuard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_server.capture.engine import Engine

_RECEIVED: Final = 16
"""Times ``request_bytes`` up to which gRPC takes a request. The service refuses it by name from one time on;
beyond this gRPC does, without an ErrorInfo, so that nobody can fill the memory with one request."""
_NAMES = (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)


@dataclass(frozen=True, slots=True)
class GrpcStatistics:
    """What its guards have done, since it began."""

    streams_too_slow: int
    """Streams that the send deadline has ended."""
    streams_refused: int
    """Streams refused because their connection had too many open."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Errors that calls have ended with, by machine code."""


class GrpcServer:
    """One engine over gRPC. Make and use it on one event loop."""

    def __init__(
        self,
        engine: Engine,
        settings: GrpcSettings | None = None,
        *,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """Keep what to serve; nothing listens before ``start``."""
        self._settings = settings or GrpcSettings()
        self._credentials = credentials
        self._guard = SendGuard(engine.settings.send_deadline_s)
        self._service = ChangeCaptureService(engine, self._settings, self._guard)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # made at import time
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str) -> int:
        """Listen on ``host:port`` and return the port; port 0 takes a free one.

        Raises:
            OSError: The address cannot be listened on, most often because it is in use.
        """
        settings = self._settings
        server = grpc.aio.server(
            options=(
                # A second server on the same port is a mistake; it must not share its connections silently.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", _RECEIVED * settings.request_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.server_handshake_timeout_ms", int(settings.handshake_s * 1000)),
                ("grpc.keepalive_time_ms", int(settings.keepalive_s * 1000)),
                ("grpc.keepalive_timeout_ms", int(settings.keepalive_timeout_s * 1000)),
                (
                    "grpc.http2.min_recv_ping_interval_without_data_ms",
                    int(settings.ping_interval_min_s * 1000),
                ),
            )
        )
        server.add_generic_rpc_handlers((self._service.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((*_NAMES, reflection.SERVICE_NAME), server)
        try:
            if self._credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise OSError(
                errno.EADDRINUSE, f"cannot listen on {address}: in use or not an address of ours"
            ) from error
        await server.start()
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._server = server
        return int(port)

    def statistics(self) -> GrpcStatistics:
        """Return the figures of this moment."""
        return GrpcStatistics(
            self._guard.expired, self._service.refused, dict(self._service.errors)
        )

    async def stop(self, deadline_s: float) -> None:
        """Take no more calls, end every stream with its resume cursor, and wait for them to leave.

        What has not left after ``deadline_s`` is cut. Idempotent.
        """
        server, self._server = self._server, None
        if server is None:
            return
        await self._health.enter_graceful_shutdown()
        self._service.stop_subscriptions()
        await server.stop(deadline_s)
