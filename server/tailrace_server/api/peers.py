"""The client of a request: its transport, address and program, as gRPC and HTTP report them."""

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
"""Most characters of a program's name, which is retained as long as the subscription."""


def over_http(transport: str, connection: HTTPConnection) -> Peer:
    """Return the client of a request or WebSocket; behind a trusted proxy, the one that it reports."""
    client = connection.client
    address = "" if client is None else _joined(client.host, client.port)
    return Peer(transport, address, connection.headers.get("user-agent", "")[:_CLIENT_CHARS])


def over_grpc(
    peer: str,
    metadata: Iterable[tuple[str, str | bytes]] | None,
    trusted: TrustedProxies = NO_PROXIES,
) -> Peer:
    """Return the client of a call; behind a trusted proxy, the client that the proxy reports."""
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
    """Return the address and port of a call's client; grpc writes ``ipv4:10.0.0.1:50``, ``ipv6:%5B::1%5D:50``.

    Behind a trusted proxy they are what the proxy reports, with port 0 if it reports no port. The address is
    empty if the client has none.
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
    """Return host and port as one text; port 0 means an unknown port."""
    if not port:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
