"""A log root served over HTTP, and plain ways to it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvloop
import websockets
from websockets.asyncio.client import ClientConnection, connect

from tailrace_server.api.rest.live import SUBPROTOCOL
from tailrace_server.engine.engine import Engine
from tailrace_server.resources.settings import EngineSettings
from tests.conformance.entrances import OPEN, Entrance
from tests.conformance.http_drivers import listening
from tests.support.inprocess import PATIENCE_S, ModelWriter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tailrace_server.api.server.http import HttpFace
    from tailrace_server.api.settings import HttpSettings

LIVE = "/v1/catalogs/shop/changes/live"


@dataclass
class Served:
    """A running listener."""

    engine: Engine
    face: HttpFace
    http: httpx.AsyncClient
    entrance: Entrance = OPEN

    @property
    def port(self) -> int:
        return self.face.address.port

    @property
    def guards(self) -> dict[str, int]:
        return dict(self.face.sockets.statistics().guards)

    @asynccontextmanager
    async def socket(
        self, *, subprotocols: tuple[str, ...] = (SUBPROTOCOL,), init: bool = True
    ) -> AsyncIterator[ClientConnection]:
        """Open a socket, initialised unless told otherwise."""
        offered = [websockets.Subprotocol(name) for name in subprotocols] or None
        url = self.entrance.url("ws", self.port) + LIVE
        async with connect(
            url,
            subprotocols=offered,
            ssl=self.entrance.context,
            max_size=None,
            close_timeout=2,
        ) as socket:
            if init:
                await say(socket, {"type": "connection_init", **self.entrance.init})
                assert await hear(socket) == {"type": "connection_ack"}
            yield socket

    async def raw(self, *, receive_bytes: int | None = None) -> RawSocket:
        """Open a socket and leave its bytes to the test."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, limit=1 << 16, ssl=self.entrance.context
        )
        headers = "".join(f"{name}: {value}\r\n" for name, value in self.entrance.headers.items())
        key = base64.b64encode(os.urandom(16)).decode()
        writer.write(
            f"GET {LIVE} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{headers}"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n".encode()
        )
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101"), answer
        return RawSocket(reader, writer)


@dataclass
class RawSocket:
    """A socket whose frames are written by hand."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def frame(self, opcode: int, data: bytes, *, fin: bool = True) -> bytes:
        """Return a client's frame, masked with zeros."""
        first = opcode | (0x80 if fin else 0)
        if len(data) < 126:
            return bytes([first, 0x80 | len(data)]) + bytes(4) + data
        return bytes([first, 0x80 | 126]) + len(data).to_bytes(2, "big") + bytes(4) + data

    async def close_code(self) -> int:
        """Read to the close frame and return its code; 1006 where the connection just ends."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                while True:
                    first, size = await self.reader.readexactly(2)
                    if size == 126:
                        size = int.from_bytes(await self.reader.readexactly(2), "big")
                    elif size == 127:
                        size = int.from_bytes(await self.reader.readexactly(8), "big")
                    data = await self.reader.readexactly(size)
                    if first & 0x0F == 8:
                        return int.from_bytes(data[:2], "big")
            except (asyncio.IncompleteReadError, ConnectionError):
                return 1006

    def close(self) -> None:
        self.writer.transport.abort()


async def say(socket: ClientConnection, message: object) -> None:
    """Send a JSON message."""
    await socket.send(json.dumps(message))


async def hear(socket: ClientConnection) -> dict[str, Any]:
    """Return the next message."""
    async with asyncio.timeout(PATIENCE_S):
        found: dict[str, Any] = json.loads(await socket.recv())
    return found


async def closed(socket: ClientConnection) -> tuple[int, str]:
    """Wait for the close and return its code and reason."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            while True:
                await socket.recv()
        except websockets.ConnectionClosed:
            assert socket.close_code is not None
            return socket.close_code, socket.close_reason or ""


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run on the server's own loop: guards depend on when a transport writes and pauses."""
    return {"uvloop": uvloop.Loop}


@pytest.fixture
async def serve(log_root: Path, writer: ModelWriter) -> AsyncIterator[Any]:
    """Return a function that serves the log root, until the test ends."""
    async with AsyncExitStack() as stack:

        async def start(
            settings: HttpSettings | None = None, entrance: Entrance = OPEN, **engine: Any
        ) -> Served:
            engine.setdefault("heartbeat_interval_s", 0.05)
            served = await stack.enter_async_context(Engine(log_root, EngineSettings(**engine)))
            face = await stack.enter_async_context(
                listening(served, settings=settings, **entrance.served)
            )
            http = await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=entrance.url("http", face.address.port),
                    headers=entrance.headers,
                    verify=entrance.context or False,
                    timeout=PATIENCE_S,
                )
            )
            return Served(served, face, http, entrance)

        yield start
