"""``tailrace serve`` over HTTP, as a process: what a subscriber of the socket sees of a stop."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import websockets
from websockets.asyncio.client import connect

from tests.process.commands import TERMINATE, ServerProcess
from tests.process.test_serve import write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


async def test_contract_26_a_stop_hands_each_socket_its_resume_cursor(log_root: Path) -> None:
    """Idle sockets are closed, and the process ends by itself."""
    write(log_root, 3)
    server = ServerProcess(log_root)
    async with server.up() as command:
        url = f"ws://{server.http}/v1/catalogs/shop/changes/live"
        offered = [websockets.Subprotocol("tailrace.v1")]
        async with (
            connect(url, subprotocols=offered) as idle,
            connect(url, subprotocols=offered) as socket,
        ):
            await socket.send('{"type":"connection_init"}')
            await socket.send('{"type":"subscribe","id":"1","payload":{"sinceVersion":0}}')
            messages = [json.loads(await socket.recv()) for _ in range(3)]
            assert [each["type"] for each in messages] == ["connection_ack", "subscribed", "next"]
            last = messages[-1]["payload"]
            assert len(last["captures"]) == 6
            page = (await server.get("/v1/catalogs/shop/changes")).json()
            assert page["captures"] == last["captures"]
            metrics = (await server.get("/metrics")).text
            assert "tailrace_live_connections 2.0" in metrics
            command.send(TERMINATE)
            error = json.loads(await socket.recv())
            assert error["payload"]["code"] == "SERVER_STOPPING"
            cursor = error["payload"]["figures"]["resume_cursor"]
            assert cursor.split(".")[:3] == last["cursor"].split(".")[:3]
            for each in (idle, socket):
                with pytest.raises(websockets.ConnectionClosed):
                    await each.recv()
                assert each.close_code == 1001
        assert await command.end() == 0
