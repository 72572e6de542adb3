"""Raw GraphQL subscribers: sockets without decoding, that count ``next`` messages by their text.

Arguments: address, path, changes that each must get, documents as JSON (one a client). Prints "subscribed" once
every socket is initialised, then one JSON line when every client has everything.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time

import uvloop

_NEXT = b'"next"'
_CHUNK = 1 << 18


def _frame(message: object) -> bytes:
    """Return a client's text frame, masked with zeros."""
    data = json.dumps(message).encode()
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return b"\x81" + size + bytes(4) + data


class Client:
    """One socket with one subscription."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.done_at = 0.0

    @classmethod
    async def open(cls, address: str, path: str) -> Client:
        """Connect and initialise."""
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
        key = base64.b64encode(os.urandom(16)).decode()
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: graphql-transport-ws\r\n\r\n".encode()
        )
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in answer, answer
        writer.write(_frame({"type": "connection_init"}))
        await reader.readuntil(b"connection_ack")
        return cls(reader, writer)

    async def run(self, document: str, wanted: int) -> None:
        """Subscribe and read until the last change."""
        self.writer.write(_frame({"type": "subscribe", "id": "1", "payload": {"query": document}}))
        count, rest = 0, b""
        while count < wanted:
            chunk = await self.reader.read(_CHUNK)
            assert chunk, "the server closed"
            assert b'"error"' not in chunk, chunk[:500]
            data = rest + chunk
            count += data.count(_NEXT)
            rest = data[len(data) - len(_NEXT) + 1 :]
        self.done_at = time.perf_counter()


async def main(address: str, path: str, wanted: int, documents: list[str]) -> None:
    """Subscribe, read, report."""
    clients = [await Client.open(address, path) for _ in documents]
    print("subscribed", flush=True)
    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for client, document in zip(clients, documents, strict=True):
            tasks.create_task(client.run(document, wanted))
    seconds = max(client.done_at for client in clients) - started
    print(json.dumps({"seconds": seconds, "captures": wanted * len(clients)}), flush=True)


if __name__ == "__main__":
    _, _address, _path, _wanted, _documents = sys.argv
    uvloop.run(main(_address, _path, int(_wanted), json.loads(_documents)))
