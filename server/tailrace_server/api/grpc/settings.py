"""The bounds of the gRPC face; docs/settings.md is made from these fields."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace_server.capture.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    """Bounds of the gRPC server."""

    request_bytes: int = setting(
        4 << 20,
        "bytes",
        "largest request: 10,000 keys of 400 bytes; above it core refuses it by its length, before it is there",
    )
    request_s: float = setting(
        10.0,
        "seconds",
        "how long a connection may have sent more than 64 KiB of what it does not finish; then it is cut",
    )
    grpc_send_buffer_bytes: int = setting(
        512 << 10,
        "bytes",
        "of the kernel for each connection, its own overhead included; left to itself it takes megabytes for "
        "each client that does not read from its socket",
    )
    subscribe_deadline_s: float = setting(
        10.0, "seconds", "how long SubscribeWithDemand waits for its first message"
    )
    streams_per_connection: int = setting(
        10_000, "calls", "open at once on one connection; above it a new one is INVALID_REQUEST"
    )
    handshake_s: float = setting(
        10.0, "seconds", "how long a new connection may stay without saying that it is HTTP/2"
    )
    keepalive_s: float = setting(
        30.0, "seconds", "how often a silent connection is probed: finds peers that vanished"
    )
    keepalive_timeout_s: float = setting(
        20.0, "seconds", "how long a probe may stay unanswered, an unread socket included"
    )
    ping_interval_min_s: float = setting(
        10.0, "seconds", "how often a client may probe us; more often costs it the connection"
    )
