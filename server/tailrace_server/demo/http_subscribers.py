"""The demo's subscribers over HTTP: a separate program with a minimal client for each HTTP protocol.

::

    graphql    WebSocket, graphql-transport-ws    onCatalogChange, images as text
    rest       WebSocket, tailrace.v1             several captures a message
    events     HTTP, server-sent events           one capture an event

The program prints each capture and heartbeat in JSON, and the subscription's id as ``{"does": …}``. It imports
nothing of the server: its input is an address, a catalog, and criteria in JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
from websockets import Subprotocol
from websockets.asyncio.client import connect

if TYPE_CHECKING:
    from collections.abc import Callable

QUERY: Final = """
subscription ($criteria: [Criteria!]) {
  onCatalogChange(sinceVersion: 0, criteria: $criteria, signals: true) {
    version index ordinal cursor commitTimestamp area operation entityType primaryKey changed
    containerType containerName before: beforeText after: afterText
  }
}
"""
_IMAGES: Final = ("before", "after")


async def graphql(server: str, catalog: str, criteria: list[object]) -> None:
    """Subscribe to a catalog over graphql-transport-ws, and print until the connection ends."""
    payload = {"query": QUERY, "variables": {"criteria": criteria}}
    url = f"ws://{server}/v1/catalogs/{quote(catalog)}/graphql"
    await _socket(url, "graphql-transport-ws", payload, _graphql_message)


async def rest(server: str, catalog: str, criteria: list[object]) -> None:
    """Subscribe to a catalog over the WebSocket sub-protocol of the REST face, and print until it ends."""
    payload = {"sinceVersion": 0, "criteria": criteria, "body": ["before", "after"]}
    url = f"ws://{server}/v1/catalogs/{quote(catalog)}/changes/live"
    await _socket(url, "tailrace.v1", payload, _rest_message)


async def events(server: str, catalog: str, criteria: list[object]) -> None:
    """Subscribe to a catalog by server-sent events, as an ``EventSource`` does, and print until it ends."""
    host, _, port = server.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
    target = f"/v1/catalogs/{quote(catalog)}/changes/live?sinceVersion=0&body=before,after"
    if criteria:
        target += f"&criteria={quote(json.dumps(criteria))}"
    # HTTP/1.0: the response has no chunked encoding, and ends with the connection.
    writer.write(
        f"GET {target} HTTP/1.0\r\nHost: {server}\r\nAccept: text/event-stream\r\n\r\n".encode()
    )
    status = await reader.readline()
    if b" 200 " not in status:
        raise SystemExit(status.decode())
    await reader.readuntil(b"\r\n\r\n")
    # Fields arrive line by line; ``event`` and ``id`` precede ``data``, and a blank line ends an event.
    name, cursor = b"", b""
    async for line in reader:
        field, _, value = line.rstrip(b"\n").partition(b": ")
        match field:
            case b"event":
                name = value
            case b"id":
                cursor = value
            case b"data":
                _event(name, cursor, value)
            case _:
                name = b""


def _event(name: bytes, cursor: bytes, data: bytes) -> None:
    match name:
        case b"":
            _write(data)
        case b"subscribed":
            _name(json.loads(data)["subscriptionId"])
        case b"heartbeat":
            _heartbeat(cursor.decode())
        case _:
            raise SystemExit(data.decode())


async def _socket(
    url: str, subprotocol: str, payload: object, take: Callable[[msgspec.Raw], None]
) -> None:
    """Subscribe once, by the messages of graphql-transport-ws, and pass each ``next`` payload to ``take``."""
    async with connect(
        url, subprotocols=[Subprotocol(subprotocol)], max_size=None, proxy=None
    ) as socket:
        await socket.send(json.dumps({"type": "connection_init"}))
        await socket.recv()
        await socket.send(json.dumps({"type": "subscribe", "id": "1", "payload": payload}))
        async for text in socket:
            message = msgspec.json.decode(text, type=_Message)
            match message.type:
                case "next":
                    take(message.payload)
                case "subscribed":
                    _name(msgspec.json.decode(message.payload)["subscriptionId"])
                case "heartbeat":
                    _heartbeat(msgspec.json.decode(message.payload)["resumeCursor"])
                case _:
                    raise SystemExit(str(text))


class _Message(msgspec.Struct):
    type: str
    payload: msgspec.Raw = msgspec.Raw()


class _Captures(msgspec.Struct):
    captures: list[msgspec.Raw]


def _rest_message(payload: msgspec.Raw) -> None:
    for capture in msgspec.json.decode(payload, type=_Captures).captures:
        _write(bytes(capture))


def _graphql_message(payload: msgspec.Raw) -> None:
    result: dict[str, Any] = msgspec.json.decode(payload)
    signals = result.get("extensions", {})
    if "acknowledgement" in signals:
        _name(signals["acknowledgement"]["subscriptionId"])
    elif "heartbeat" in signals:
        _heartbeat(signals["heartbeat"]["resumeCursor"])
    else:
        capture = result["data"]["onCatalogChange"]
        for name in _IMAGES:
            if capture[name] is not None:
                capture[name] = msgspec.Raw(capture[name].encode())
        _write(msgspec.json.encode(capture))


def _name(subscription_id: str) -> None:
    _write(msgspec.json.encode({"does": f"subscription {subscription_id}"}))


def _heartbeat(cursor: str) -> None:
    _write(msgspec.json.encode({"heartbeat": True, "cursor": cursor}))


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    ways = {each.__name__: each for each in (graphql, rest, events)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=ways)
    parser.add_argument("--server", required=True)
    parser.add_argument("--catalog", required=True)
    parser.add_argument("--criteria", type=json.loads, default=[])
    given = parser.parse_args()
    asyncio.run(ways[given.way](given.server, given.catalog, given.criteria))
