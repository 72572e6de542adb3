"""Clients of subscriptions-transport-ws are told, in the messages that they show, what to speak."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import websockets
from structlog.testing import capture_logs
from websockets.asyncio.client import connect

from tailrace_server.api.graphql.transports.legacy_websocket import LEGACY_SUBPROTOCOL
from tests.server.api.graphql.conftest import PATH
from tests.server.api.rest.conftest import closed, hear, say

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.api.rest.conftest import Served
    from tests.support.inprocess import ModelWriter

    Serve = Callable[..., Awaitable[Served]]


async def test_a_legacy_client_is_told_in_its_words_and_the_log_once(
    serve: Serve, writer: ModelWriter
) -> None:
    served = await serve()
    offered = [websockets.Subprotocol(LEGACY_SUBPROTOCOL)]
    with capture_logs() as logs:
        for _ in range(2):
            url = f"ws://127.0.0.1:{served.port}{PATH}"
            async with connect(url, subprotocols=offered) as socket:
                assert socket.subprotocol == LEGACY_SUBPROTOCOL
                await say(socket, {"type": "connection_init", "payload": {}})
                await say(socket, {"type": "start", "id": "7", "payload": {"query": "{ a }"}})
                refused, failed = await hear(socket), await hear(socket)
                code, reason = await closed(socket)
            assert (refused["type"], failed["type"], failed["id"]) == (
                *("connection_error", "error"),
                "7",
            )
            assert refused["payload"] == failed["payload"]
            assert "graphql-transport-ws" in refused["payload"]["message"]
            assert (code, reason) == (4406, refused["payload"]["message"])
    assert [each for each in logs if each["event"] == "subprotocol refused"] == [
        {
            "event": "subprotocol refused",
            "log_level": "warning",
            "subprotocol": "graphql-ws",
            "offer": "graphql-transport-ws",
        }
    ]
    assert served.guards == {"close_4406": 2}


async def test_whoever_offers_both_is_served(serve: Serve, writer: ModelWriter) -> None:
    """As gql does, the legacy one first."""
    served = await serve()
    offered = [websockets.Subprotocol(name) for name in ("graphql-ws", "graphql-transport-ws")]
    async with connect(f"ws://127.0.0.1:{served.port}{PATH}", subprotocols=offered) as socket:
        await socket.send(json.dumps({"type": "connection_init"}))
        assert await hear(socket) == {"type": "connection_ack"}


async def test_nonsense_on_a_legacy_socket_ends_it_alike(serve: Serve, writer: ModelWriter) -> None:
    served = await serve()
    offered = [websockets.Subprotocol(LEGACY_SUBPROTOCOL)]
    async with connect(f"ws://127.0.0.1:{served.port}{PATH}", subprotocols=offered) as socket:
        await socket.send("[" * 50_000)
        assert (await hear(socket))["type"] == "connection_error"
        await socket.send(b"\x00")
        await say(socket, {"type": "start", "id": 7})
        assert (await closed(socket))[0] == 4406
