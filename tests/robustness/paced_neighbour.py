"""A neighbour of hostile peers, as a process of its own: it writes at a steady pace, and reads what it wrote.

    python -m tests.robustness.paced_neighbour ROOT GRPC HTTP [GRPC HTTP]

ROOT is a log root, and each two addresses are a server of it. Every 50 ms a small transaction is written. It is
read from each server over gRPC and over a WebSocket. Each reading is a line of stdout: the server, from 0,
the transport, when the transaction began to be written, and how long after that it was there; in seconds of the
machine's monotonic clock. A neighbour that is cut off ends with an error.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Final

from websockets import Subprotocol
from websockets.asyncio.client import connect

import tailrace
from tailrace_server.process import poll_in_calling_thread
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation

PACE_S: Final = 0.05
LIVE: Final = "/v1/catalogs/shop/changes/live"


def write(writer: LogWriter) -> None:
    """Publish one transaction that says when."""
    image = json.dumps({"begun": time.monotonic()}).encode()
    writer.append([Mutation("paced", "1", after=image)])
    writer.commit(publish=True)


async def write_paced(root: Path) -> None:
    """Write at a steady pace, or as fast as the machine lets it."""
    writer = LogWriter.open(root, "shop", take_over=True)
    while True:
        await asyncio.gather(asyncio.to_thread(write, writer), asyncio.sleep(PACE_S))


def tell(number: int, transport: str, begun: float) -> None:
    """Print that a transaction is there."""
    print(json.dumps([number, transport, begun, time.monotonic() - begun]), flush=True)


def end(why: object) -> None:
    """End for being cut off, which a client would mend by itself."""
    print(why, file=sys.stderr, flush=True)
    os._exit(1)


async def read_over_grpc(number: int, address: str) -> None:
    """Read what is written from now on."""
    async with (
        tailrace.connect(address) as client,
        client.subscribe(
            "shop",
            tailrace.Criteria(area=tailrace.Area.DATA, entity_type=("paced",)),
            content=tailrace.Content.AFTER,
            on_disconnect=end,
        ) as captures,
    ):
        async for capture in captures:
            assert capture.after is not None
            tell(number, "gRPC", json.loads(capture.after)["begun"])


async def read_over_websocket(number: int, address: str) -> None:
    """As over gRPC."""
    url = f"ws://{address}{LIVE}"
    async with connect(url, subprotocols=[Subprotocol("tailrace.v1")], proxy=None) as socket:
        wish = {"criteria": [{"area": "DATA", "entityType": ["paced"]}], "body": ["after"]}
        await socket.send(json.dumps({"type": "connection_init"}))
        await socket.send(json.dumps({"type": "subscribe", "id": "1", "payload": wish}))
        async for text in socket:
            payload = json.loads(text).get("payload", {})
            for capture in payload.get("captures", ()):
                tell(number, "WebSocket", capture["after"]["begun"])
    end("the WebSocket was closed")


async def main(root: str, *addresses: str) -> None:
    """Write and read until the process ends."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(len(addresses) // 2):
            grpc, http = addresses[2 * number : 2 * number + 2]
            tasks.create_task(read_over_grpc(number, grpc))
            tasks.create_task(read_over_websocket(number, http))
        tasks.create_task(write_paced(Path(root)))


if __name__ == "__main__":
    poll_in_calling_thread()
    asyncio.run(main(*sys.argv[1:]))
