"""Raw subscribers over HTTP: sockets and event streams without decoding, that count a marker in the text.

Arguments: address, path, markers that each must get, options as JSON: ``marker``, ``payloads`` (of the
subscribe messages, one a client), ``protocol`` (the sub-protocol; without one they read server-sent
events). Prints "subscribed" once every socket is initialised, then one JSON line when every client has
everything.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from typing import Any

import uvloop

_CHUNK = 1 << 18


def _frame(message: object) -> bytes:
    """Return a client's text frame, masked with zeros."""
    data = json.dumps(message).encode()
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return b"\x81" + size + bytes(4) + data


class Client:
    """One connection with one subscription."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.done_at = 0.0

    @classmethod
    async def open(cls, address: str, path: str, protocol: str | None) -> Client:
        """Connect; a socket is initialised too."""
        host, _, port = address.rpartition(":")
        client = cls(*await asyncio.open_connection(host, int(port), limit=1 << 20))
        if protocol is not None:
            await client._shake_hands(address, path, protocol)
        return client

    async def _shake_hands(self, address: str, path: str, protocol: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        self.writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Protocol: {protocol}\r\n\r\n".encode()
        )
        answer = await self.reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in answer, answer
        self.writer.write(_frame({"type": "connection_init"}))
        await self.reader.readuntil(b"connection_ack")

    def subscribe(self, payload: object) -> None:
        """Ask for changes on a socket."""
        self.writer.write(_frame({"type": "subscribe", "id": "1", "payload": payload}))

    def ask(self, address: str, path: str) -> None:
        """Ask for changes as server-sent events."""
        self.writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n\r\n".encode()
        )

    async def run(self, marker: bytes, wanted: int) -> None:
        """Read until the last marker."""
        count, rest = 0, b""
        while count < wanted:
            chunk = await self.reader.read(_CHUNK)
            assert chunk, "the server closed"
            assert b'"error"' not in chunk, chunk[:500]
            data = rest + chunk
            count += data.count(marker)
            rest = data[len(data) - len(marker) + 1 :]
        self.done_at = time.perf_counter()


async def main(address: str, path: str, wanted: int, options: dict[str, Any]) -> None:
    """Subscribe, read, report."""
    payloads, protocol = options["payloads"], options.get("protocol")
    clients = [await Client.open(address, path, protocol) for _ in payloads]
    print("subscribed", flush=True)
    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for client, payload in zip(clients, payloads, strict=True):
            if protocol is None:
                client.ask(address, path)
            else:
                client.subscribe(payload)
            tasks.create_task(client.run(options["marker"].encode(), wanted))
    seconds = max(client.done_at for client in clients) - started
    print(json.dumps({"seconds": seconds, "captures": wanted * len(clients)}), flush=True)


if __name__ == "__main__":
    _, _address, _path, _wanted, _options = sys.argv
    uvloop.run(main(_address, _path, int(_wanted), json.loads(_options)))
