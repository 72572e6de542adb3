"""Peers that misbehave, on bare sockets: nothing is read and nothing is answered unless a test does it.

One way for each transport: how a connection is opened, how it subscribes, how it pings.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from tailrace.transport.grpc import SERVICE
from tailrace.v1.capture_pb2 import BODY_AFTER
from tailrace.v1.change_capture_pb2 import SubscribeRequest
from tests.support import raw_http2

if TYPE_CHECKING:
    from collections.abc import Callable

_RECEIVE_BYTES: Final = 4096
"""Of the kernel's buffer: what is not read must stay with the server."""
_LIVE: Final = "/v1/catalogs/shop/changes/live"
_GRAPHQL: Final = "subscription { onCatalogChange(sinceVersion: 0) { cursor afterText } }"


class Peer:
    """One connection; a context manager that drops it."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        try:
            self._socket.connect((host, int(port)))
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    async def say(self, data: bytes) -> None:
        """Send all of it."""
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    def push(self, data: bytes) -> bool:
        """Send what is taken at once; return whether the connection still stands."""
        try:
            self._socket.send(data)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        return True

    def sip(self, size: int) -> bytes:
        """Return at most so many bytes of those that are there."""
        try:
            return self._socket.recv(size)
        except (BlockingIOError, ConnectionError):
            return b""

    async def open(self, way: Way) -> None:
        """Open the connection as far as it is opened without a subscription."""
        await self.say(way.hello)
        await self.until(way.welcome)

    async def until(self, mark: bytes) -> None:
        """Read up to and with a mark."""
        found = b""
        while mark not in found:
            data = await asyncio.get_running_loop().sock_recv(self._socket, 256)
            assert data, found
            found = found[-len(mark) :] + data

    async def rest(self) -> bytes:
        """Read to the end and return its last 64 KiB."""
        found = b""
        try:
            while data := await asyncio.get_running_loop().sock_recv(self._socket, 1 << 20):
                found = (found + data)[-(1 << 16) :]
        except ConnectionError:
            pass
        return found


@dataclass(frozen=True)
class Way:
    """One transport as a peer on a bare socket sees it."""

    name: str
    hello: bytes
    """Opens the connection, as far as it is opened without a subscription."""
    welcome: bytes
    """What the server answers; a client of WebSockets has to wait for it."""
    subscribe: Callable[[int], bytes]
    """Return the bytes of the n-th subscribe, from the oldest version, with bodies."""
    begun: bytes
    """What the server says of a subscription first."""
    pings: bytes
    """A few of what this transport has for a ping, or what may be sent in its place."""


def frame(opcode: int, data: bytes) -> bytes:
    """Return a client's WebSocket frame, masked with zeros."""
    if len(data) < 126:
        return bytes([0x80 | opcode, 0x80 | len(data)]) + bytes(4) + data
    return bytes([0x80 | opcode, 0xFE]) + len(data).to_bytes(2, "big") + bytes(4) + data


def message(**members: object) -> bytes:
    """Return a message of a sub-protocol as a frame."""
    return frame(1, json.dumps(members).encode())


def _upgrade(path: str, subprotocol: str) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Protocol: {subprotocol}\r\n\r\n"
    ).encode()


def _rest(n: int) -> bytes:
    begin = message(type="connection_init") if n == 1 else b""
    wish = {"sinceVersion": 0, "body": ["after"]}
    return begin + message(type="subscribe", id=str(n), payload=wish)


def _graphql(n: int) -> bytes:
    begin = message(type="connection_init") if n == 1 else b""
    return begin + message(type="subscribe", id=str(n), payload={"query": _GRAPHQL})


def _events(_: int) -> bytes:
    path = f"{_LIVE}?sinceVersion=0&body=after"
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode()


def _graphql_events(_: int) -> bytes:
    path = f"/v1/catalogs/shop/graphql?query={quote(_GRAPHQL)}"
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode()


def _grpc(n: int) -> bytes:
    request = SubscribeRequest(
        catalog="shop", since_version=0, body=[BODY_AFTER]
    ).SerializeToString()
    return raw_http2.request(f"/{SERVICE}/Subscribe", request, stream=2 * n - 1)


_WS_PINGS: Final = frame(9, b"x" * 100) * 100

_UPGRADED: Final = b"\r\n\r\n"

REST: Final = Way(
    name="REST over WebSocket",
    hello=_upgrade(_LIVE, "tailrace.v1"),
    welcome=_UPGRADED,
    subscribe=_rest,
    begun=b'"subscribed"',
    pings=_WS_PINGS,
)
GRAPHQL: Final = Way(
    name="GraphQL over WebSocket",
    hello=_upgrade("/v1/catalogs/shop/graphql", "graphql-transport-ws"),
    welcome=_UPGRADED,
    subscribe=_graphql,
    begun=b'"next"',
    pings=_WS_PINGS,
)
EVENTS: Final = Way(
    name="server-sent events",
    hello=b"",
    welcome=b"",
    subscribe=_events,
    begun=b"event: subscribed",
    pings=b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100,
)
GRAPHQL_EVENTS: Final = Way(
    name="GraphQL over server-sent events",
    hello=b"",
    welcome=b"",
    subscribe=_graphql_events,
    begun=b"event: next",
    pings=EVENTS.pings,
)
GRPC: Final = Way(
    name="gRPC",
    hello=raw_http2.hello(window=2**31 - 1, connection_window=2**30),
    welcome=b"",
    subscribe=_grpc,
    begun=b"shop",
    pings=raw_http2.frame(raw_http2.PING, 0, 0, struct.pack(">Q", 7)) * 100,
)
