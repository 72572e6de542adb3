"""Follow products over REST's WebSocket, with websockets.

python examples/python/rest_websocket.py shop --server 127.0.0.1:7412
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from contextlib import suppress

from websockets import ConnectionClosed, Subprotocol
from websockets.asyncio.client import connect


async def follow(server: str, catalog: str) -> str:
    """Print changes until Ctrl-C; a lost server is waited for. Return why it was refused."""
    wish = {"body": ["after"], "criteria": [{"area": "DATA", "entityType": ["product"]}]}
    start: dict[str, object] = {"sinceVersion": 0}
    url = f"ws://{server}/v1/catalogs/{catalog}/changes/live"
    async for socket in connect(url, subprotocols=[Subprotocol("tailrace.v1")], max_size=8 << 20):
        try:
            await socket.send('{"type": "connection_init"}')
            subscribe = {"type": "subscribe", "id": "1", "payload": wish | start}
            await socket.send(json.dumps(subscribe))
            async for text in socket:
                match json.loads(text):
                    case {"type": "next", "payload": {"captures": captures, "cursor": cursor}}:
                        for capture in captures:
                            show(**capture)
                        start = {"after": cursor}  # whoever comes back goes on exactly here
                    case {"type": "error", "payload": {"retriable": False, "detail": detail}}:
                        return str(detail)
        except ConnectionClosed:
            continue
    raise AssertionError("connect tries for ever")


def show(
    *,
    version: int,
    index: int,
    operation: str,
    primaryKey: str,
    after: object = None,
    omittedBytes: int = 0,
    **_: object,
) -> None:
    """Print a change; the names are those of its JSON."""
    image = json.dumps(after, ensure_ascii=False, separators=(",", ":"))
    if omittedBytes:  # a row above maxMessageBytes, 4 MiB unless we ask for another bound
        image = f"({omittedBytes} bytes left out)"
    print(f"{version}:{index} {operation} {primaryKey} {image}", flush=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Follow products over a WebSocket.")
    arguments.add_argument("catalog", nargs="?", default="shop")
    arguments.add_argument("--server", default="127.0.0.1:7412")
    logging.basicConfig(
        format="%(message)s", level=logging.INFO
    )  # connect says that it tries again
    with suppress(KeyboardInterrupt):
        raise SystemExit(asyncio.run(follow(**vars(arguments.parse_args()))))
