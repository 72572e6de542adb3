"""The bounds of the gRPC face; docs/settings.md is made from these fields."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace_server.resources.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    """Bounds of the gRPC server."""

    request_bytes: int = setting(
        4 << 20,
        "bytes",
        "largest request: 10,000 keys of 400 bytes; gRPC refuses a larger one by its length",
    )
    request_s: float = setting(
        10.0,
        "seconds",
        "how long a connection may have more than 64 KiB of unfinished requests before it is cut",
    )
    grpc_send_buffer_bytes: int = setting(
        512 << 10,
        "bytes",
        "buffer of the kernel for each connection; its default takes megabytes for each stalled "
        "client",
    )
    subscribe_deadline_s: float = setting(
        10.0, "seconds", "how long SubscribeWithDemand waits for its first message"
    )
    streams_per_connection: int = setting(
        10_000, "calls", "open calls of one connection; above it a new one is INVALID_REQUEST"
    )
    handshake_s: float = setting(
        10.0, "seconds", "how long a new connection may take to speak HTTP/2"
    )
    keepalive_s: float = setting(
        30.0, "seconds", "how often a silent connection is probed for peers that vanished"
    )
    keepalive_timeout_s: float = setting(
        20.0, "seconds", "how long a probe may stay unanswered, an unread socket included"
    )
    ping_interval_min_s: float = setting(
        10.0,
        "seconds",
        "shortest time between two pings of a client; more pings cost it the connection",
    )
