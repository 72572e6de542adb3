"""The baseline of a browser: bare Starlette that sends a constant text at a pace; it serves the page, too.

Arguments: messages a second, messages in all, text of one message. Speaks as much of ``tailrace.v1`` as the
page needs. At the end it tells when it sent each message, by ``time.perf_counter``. Prints a JSON line with
its address once it listens.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
from starlette.applications import Starlette
from starlette.responses import FileResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles

from bench._bare_starlette import serve

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.websockets import WebSocket

HERE = Path(__file__).parent
LIBRARY = HERE.parent / "examples/browser/node_modules/graphql-ws/dist"


async def main(rate: int, messages: int, text: str) -> None:
    """Serve until terminated."""

    async def page(request: Request) -> FileResponse:
        return FileResponse(HERE / "_browser_page.html")

    async def live(websocket: WebSocket) -> None:
        await websocket.accept(websocket.scope["subprotocols"][0])
        await websocket.receive_text()
        await websocket.send_text('{"type":"connection_ack"}')
        await websocket.receive_text()
        await websocket.send_text('{"type":"subscribed"}')
        sent = []
        start_at = time.perf_counter() + 0.2
        for number in range(messages):
            await asyncio.sleep(max(0.0, start_at + number / rate - time.perf_counter()))
            sent.append(time.perf_counter())
            await websocket.send_text(text)
        await websocket.send_text(json.dumps({"type": "sent", "payload": sent}))
        await websocket.receive_text()

    await serve(
        Starlette(
            routes=[
                Route("/", page),
                Mount("/graphql-ws", StaticFiles(directory=LIBRARY)),
                WebSocketRoute("/", live),
            ]
        )
    )


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
