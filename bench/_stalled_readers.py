"""Readers over HTTP that ask, read the beginning and nothing more; whoever is let go of comes again.

Bare sockets with a small buffer of the kernel: what is not read stays with the server.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from bench._log import CATALOG

_RECEIVE_BYTES: Final = 4096
_ESTABLISHED: Final = b"\x01"
"""First byte of the kernel's TCP_INFO."""
_BODY_BYTES: Final = 4_000_000
_LIVE: Final = f"/v1/catalogs/{CATALOG}/changes/live"
_HISTORY: Final = f"/v1/catalogs/{CATALOG}/changes"
_GRAPHQL: Final = f"/v1/catalogs/{CATALOG}/graphql"


@dataclass(frozen=True, slots=True)
class Face:
    """One face of the HTTP listener, as a reader of it asks for live changes or for history."""

    name: str
    path: str
    protocol: str | None
    """The sub-protocol; None where the answer is a stream."""
    accept: str = "text/event-stream"
    """The media type of that stream."""

    def request(self, address: str, version: int) -> bytes:
        """Return the request whose answer is a stream, of all rows with their images from a version on."""
        if self.path == _GRAPHQL:
            fields = "edges { node { afterText } }"
            ask = f"{{ changes(sinceVersion: {version}, first: 3) {{ {fields} }} }}"
            body = json.dumps({"query": ask})
            head = f"POST {self.path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len(body)}\r\n\r\n"
            return (head + body).encode()
        path = f"{self.path}?sinceVersion={version}&body=after"
        return f"GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: {self.accept}\r\n\r\n".encode()

    def wish(self, version: int) -> dict[str, Any]:
        """Return the payload of a subscribe to all rows with their images, from a version on."""
        if self.path == _GRAPHQL:
            field = f"onCatalogChange(sinceVersion: {version}) {{ cursor afterText }}"
            return {"query": f"subscription {{ {field} }}"}
        return {"sinceVersion": version, "body": ["after"]}


EVENTS: Final = Face("server-sent events", _LIVE, None)
REST: Final = Face("REST over WebSocket", _LIVE, "tailrace.v1")
GRAPHQL: Final = Face("GraphQL over WebSocket", _GRAPHQL, "graphql-transport-ws")
HISTORY: Final = (
    Face("history as JSON", _HISTORY, None, "application/json"),
    Face("history as NDJSON", _HISTORY, None, "application/x-ndjson"),
    Face("history as Arrow", _HISTORY, None, "application/vnd.apache.arrow.stream"),
    Face("history over GraphQL", _GRAPHQL, None, "application/json"),
)


def frame(message: object) -> bytes:
    """Return a client's text frame of a JSON message, masked with zeros."""
    data = json.dumps(message).encode()
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return b"\x81" + size + bytes(4) + data


def upgrade(address: str, path: str, protocol: str) -> bytes:
    """Return the request that opens a WebSocket."""
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Protocol: {protocol}\r\n\r\n"
    ).encode()


async def stall(address: str, face: Face, version: int, begun: list[int]) -> None:
    """Stall at a version, for ever; ``begun`` counts in its only item how often."""
    while True:
        with suppress(OSError, EOFError):
            await _once(address, face, version, begun)


async def send_unfinished(address: str) -> None:
    """Send 4 MB of a body and no more, again and again."""
    head = (
        f"POST {_LIVE} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {_BODY_BYTES + 1}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    data = head.encode() + b" " * _BODY_BYTES
    while True:
        with suppress(OSError), socket.socket() as peer:
            peer.setblocking(False)
            await loop.sock_connect(peer, (host, int(port)))
            await loop.sock_sendall(peer, data)
            await _gone(peer)


async def send_unfinished_message(address: str, face: Face) -> None:
    """Introduce itself on a WebSocket, send 4 MB of a message and no more, again and again."""
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    assert face.protocol is not None
    head = b"\x81\xff" + (_BODY_BYTES + 1).to_bytes(8, "big") + bytes(4)
    while True:
        with suppress(OSError, EOFError), socket.socket() as peer:
            peer.setblocking(False)
            await loop.sock_connect(peer, (host, int(port)))
            await loop.sock_sendall(peer, upgrade(address, face.path, face.protocol))
            await _read_until(peer, b"\r\n\r\n")
            await loop.sock_sendall(peer, frame({"type": "connection_init"}))
            await _read_until(peer, b"connection_ack")
            await loop.sock_sendall(peer, head + b" " * _BODY_BYTES)
            await _gone(peer)


async def _once(address: str, face: Face, version: int, begun: list[int]) -> None:
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        peer.setblocking(False)
        await loop.sock_connect(peer, (host, int(port)))

        if face.protocol is None:
            await loop.sock_sendall(peer, face.request(address, version))
            await _read_until(peer, b"HTTP/1.1 ")
        else:
            await loop.sock_sendall(peer, upgrade(address, face.path, face.protocol))
            await _read_until(peer, b"\r\n\r\n")
            await loop.sock_sendall(peer, frame({"type": "connection_init"}))
            await _read_until(peer, b"connection_ack")
            message = {"type": "subscribe", "id": "1", "payload": face.wish(version)}
            await loop.sock_sendall(peer, frame(message))
        begun[0] += 1
        await _gone(peer)


async def _read_until(peer: socket.socket, mark: bytes) -> None:
    """Read up to and with a mark.

    Raises:
        EOFError: The server has closed.
    """
    found = b""
    while mark not in found:
        data = await asyncio.get_running_loop().sock_recv(peer, 256)
        if not data:
            raise EOFError
        found = found[-len(mark) :] + data


async def _gone(peer: socket.socket) -> None:
    """Wait until the server has closed or reset a connection that is not read: the kernel's state tells."""
    while peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == _ESTABLISHED:  # noqa: ASYNC110 - see above
        await asyncio.sleep(0.2)
