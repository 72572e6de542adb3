"""The baseline of the HTTP faces: bare Starlette that sends constant bytes again and again, made once.

Arguments: messages to each client, text of one message, text of one event stream's chunk. The same uvicorn
and loop as ours. Prints a JSON line with its address once it listens.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route, WebSocketRoute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.requests import Request
    from starlette.websockets import WebSocket


class Unattended(uvicorn.Server):
    """A server that a signal just ends."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


async def serve(application: Any) -> None:
    """Serve an ASGI application, and say where, until terminated."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    config = uvicorn.Config(
        application,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Unattended(config).serve(sockets=[listener]))
        print(json.dumps({"grpc": f"127.0.0.1:{listener.getsockname()[1]}"}), flush=True)


async def main(messages: int, text: str, chunk: str) -> None:
    """Serve until terminated."""

    async def live(websocket: WebSocket) -> None:
        await websocket.accept(websocket.scope["subprotocols"][0])
        await websocket.receive_text()
        await websocket.send_text('{"type":"connection_ack"}')
        await websocket.receive_text()
        for _ in range(messages):
            await websocket.send_text(text)
        await websocket.receive_text()

    async def events(request: Request) -> StreamingResponse:
        async def chunks() -> AsyncIterator[bytes]:
            data = chunk.encode()
            for _ in range(messages):
                yield data
            await asyncio.Event().wait()

        return StreamingResponse(chunks(), media_type="text/event-stream")

    await serve(Starlette(routes=[WebSocketRoute("/", live), Route("/", events)]))


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
