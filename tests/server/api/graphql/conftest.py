"""A log root served over HTTP, and a client of graphql-transport-ws that hides nothing."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import websockets
from websockets.asyncio.client import ClientConnection, connect

from tailrace_server.api.graphql.websocket import SUBPROTOCOL
from tests.server.api.rest.conftest import (
    Served,
    hear,
    pytest_asyncio_loop_factories,
    say,
    serve,
)
from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["PATH", "Client", "ask", "client", "pytest_asyncio_loop_factories", "serve"]

PATH = "/v1/catalogs/shop/graphql"


class Client:
    """One socket, initialised."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self._count = 0

    async def subscribe(self, query: str, **variables: Any) -> str:
        """Begin an operation and return its id."""
        self._count += 1
        id = str(self._count)
        payload = {"query": query, "variables": variables}
        await say(self.socket, {"type": "subscribe", "id": id, "payload": payload})
        return id

    async def payload(self, id: str) -> Any:
        """Return the payload of the next message, which is a ``next`` of an operation."""
        message = await hear(self.socket)
        assert (message["type"], message["id"]) == ("next", id), message
        return message["payload"]

    async def payloads(self, id: str, count: int) -> list[Any]:
        """Return the payloads of so many."""
        return [await self.payload(id) for _ in range(count)]

    async def error(self, id: str) -> list[dict[str, Any]]:
        """Return the errors that an operation ends with, which is the next message."""
        message = await hear(self.socket)
        assert (message["type"], message["id"]) == ("error", id), message
        found: list[dict[str, Any]] = message["payload"]
        return found

    async def complete(self, id: str) -> None:
        """End an operation."""
        await say(self.socket, {"type": "complete", "id": id})


@asynccontextmanager
async def client(served: Served, path: str = PATH, *, init: bool = True) -> AsyncIterator[Client]:
    """Open a socket."""
    url = f"ws://127.0.0.1:{served.port}{path}"
    offered = [websockets.Subprotocol(SUBPROTOCOL)]
    async with connect(url, subprotocols=offered, max_size=None, close_timeout=2) as socket:
        if init:
            await say(socket, {"type": "connection_init"})
            assert await hear(socket) == {"type": "connection_ack"}
        yield Client(socket)


async def ask(served: Served, query: str, path: str = PATH, **variables: Any) -> dict[str, Any]:
    """Run a query by HTTP and return its data."""
    async with asyncio.timeout(PATIENCE_S):
        answer = await served.http.post(path, json={"query": query, "variables": variables})
    found: dict[str, Any] = answer.json()
    assert "errors" not in found, found
    data: dict[str, Any] = found["data"]
    return data
