"""The client of a subscription, from the facts that gRPC and HTTP know of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from tailrace_server.api.transport_security.proxies import NO_PROXIES, client_of
from tailrace_server.grants.principal import Peer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import HTTPConnection

    from tailrace_server.api.transport_security.proxies import TrustedProxies

REST_WEBSOCKET: Final = "rest_websocket"
REST_EVENTS: Final = "rest_events"
GRAPHQL_WEBSOCKET: Final = "graphql_websocket"
GRAPHQL_EVENTS: Final = "graphql_events"
REST: Final = "rest"
GRAPHQL: Final = "graphql"
"""A request with one answer: history, a query."""
GRPC: Final = "grpc"

_CLIENT_CHARS: Final = 200
"""Kept of what a program calls itself: it is held for as long as the subscription."""


def over_http(transport: str, connection: HTTPConnection) -> Peer:
    """Return the other end of a request or a WebSocket; behind a trusted proxy, the one that it names."""
    client = connection.client
    address = "" if client is None else _joined(client.host, client.port)
    return Peer(transport, address, connection.headers.get("user-agent", "")[:_CLIENT_CHARS])


def over_grpc(
    peer: str,
    metadata: Iterable[tuple[str, str | bytes]] | None,
    trusted: TrustedProxies = NO_PROXIES,
) -> Peer:
    """Return the other end of a call; behind a trusted proxy, the one that it names."""
    given = tuple(metadata or ())
    agent = next((value for name, value in given if name == "user-agent"), "")
    if isinstance(agent, bytes):
        agent = agent.decode(errors="replace")
    host, port = grpc_address(peer, given, trusted)
    return Peer(GRPC, _joined(host, port) if host else "", agent[:_CLIENT_CHARS])


def grpc_address(
    peer: str,
    metadata: Iterable[tuple[str, str | bytes]] | None,
    trusted: TrustedProxies = NO_PROXIES,
) -> tuple[str, int]:
    """Return address and port of who makes a call: ``ipv4:10.0.0.1:50`` or ``ipv6:%5B::1%5D:50`` to grpc.

    Behind a trusted proxy they are what it says, port 0 where it says none. An empty address: it has none.
    """
    kind, _, address = unquote(peer).partition(":")
    if not kind.startswith("ipv"):
        return "", 0
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if trusted:
        headers = (
            (name.encode(), value if isinstance(value, bytes) else value.encode())
            for name, value in metadata or ()
        )
        found = client_of(host, headers, trusted)
        if found is not None and found.address is not None:
            return found.address, found.port
    return host, int(port)


def _joined(host: str, port: int) -> str:
    """Return both as one text; a port of 0 is one that a proxy has not sent."""
    if not port:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
