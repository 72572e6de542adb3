"""Whom a subscription is for, from what gRPC and HTTP know of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from tailrace_server.capture.delivery.peer import Peer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import HTTPConnection

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


def over_grpc(peer: str, metadata: Iterable[tuple[str, str | bytes]] | None) -> Peer:
    """Return the other end of a call; grpc names it ``ipv4:127.0.0.1:50112`` or ``ipv6:%5B::1%5D:50112``."""
    kind, _, address = unquote(peer).partition(":")
    agent = next((value for name, value in metadata or () if name == "user-agent"), "")
    if isinstance(agent, bytes):
        agent = agent.decode(errors="replace")
    return Peer(GRPC, address if kind.startswith("ipv") else "", agent[:_CLIENT_CHARS])


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
