"""The faces under a server that is not ours: the plain path carries the same, without the guards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import uvicorn
import websockets
from starlette.applications import Starlette
from websockets.asyncio.client import connect

from tailrace_server.api.graphql import GraphqlFace
from tailrace_server.api.graphql.live import SUBPROTOCOL as GRAPHQL
from tailrace_server.api.http_server import bind, bound_to
from tailrace_server.api.rest import RestFace
from tailrace_server.api.rest.live import SUBPROTOCOL
from tailrace_server.api.settings import HttpSettings
from tailrace_server.api.websocket import Sockets
from tailrace_server.capture.engine import Engine
from tailrace_server.units import Address
from tests.conformance.shop import SHOP
from tests.server.api.rest.conftest import LIVE, closed, hear, say
from tests.server.api.rest.test_socket import subscribe
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

GRAPHQL_PATH = "/v1/catalogs/shop/graphql"


async def test_the_plain_path_carries_the_same(log_root: Path, writer: ModelWriter) -> None:
    writer.write(*SHOP)
    listener = bind(Address("127.0.0.1", 0), "--http")
    async with Engine(log_root) as engine, asyncio.TaskGroup() as tasks:
        settings = HttpSettings()
        sockets = Sockets(settings, engine.settings.send_deadline_s)
        faces = (RestFace(engine, settings, sockets), GraphqlFace(engine, settings, sockets))
        application = Starlette(routes=[route for face in faces for route in face.routes()])
        config = uvicorn.Config(
            application, ws="websockets-sansio", lifespan="off", log_config=None, access_log=False
        )
        server = uvicorn.Server(config)
        tasks.create_task(server._serve([listener]))  # `serve` would take the signals
        try:
            root = f"ws://{bound_to(listener, Address('127.0.0.1', 0))}"
            offered = [websockets.Subprotocol(SUBPROTOCOL)]
            async with connect(f"{root}{LIVE}", subprotocols=offered) as socket:
                await say(socket, {"type": "connection_init"})
                assert await hear(socket) == {"type": "connection_ack"}
                await say(socket, subscribe(sinceVersion=0))
                assert (await hear(socket))["type"] == "subscribed"
                count = len((await hear(socket))["payload"]["captures"])
                assert count == len(writer.log.expected(()))
                await say(socket, {"type": "nothing"})
                assert (await closed(socket))[0] == 4400
            offered = [websockets.Subprotocol(GRAPHQL)]
            async with connect(f"{root}{GRAPHQL_PATH}", subprotocols=offered) as socket:
                await say(socket, {"type": "connection_init"})
                assert await hear(socket) == {"type": "connection_ack"}
                query = (
                    "subscription { onCatalogChange(sinceVersion: 0) { version index ordinal } }"
                )
                await say(socket, {"type": "subscribe", "id": "1", "payload": {"query": query}})
                for version, index, ordinal in writer.log.expected(()):
                    place = {"version": version, "index": index, "ordinal": ordinal}
                    assert await hear(socket) == {
                        "id": "1",
                        "type": "next",
                        "payload": {"data": {"onCatalogChange": place}},
                    }
            await until(lambda: sockets.statistics().open == 0)
        finally:
            server.should_exit = True
            engine.stop_subscriptions()
    listener.close()
