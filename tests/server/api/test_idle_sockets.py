"""WebSockets whose caller comes late, or is no longer let in: what they are charged to, and when they end."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import websockets
from websockets.asyncio.client import connect

from tailrace_server.access.door import Identified
from tailrace_server.access.settings import QuotaSettings
from tailrace_server.api.websocket.connection import SocketConnection
from tests.server.api.guarded import Guarded, guarding
from tests.support.inprocess import PATIENCE_S, ModelWriter
from tests.support.issuer import TokenIssuer, issuing
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

PATHS = {
    "/v1/catalogs/shop/changes/live": "tailrace.v1",
    "/v1/catalogs/shop/graphql": "graphql-transport-ws",
}


@pytest.fixture
def issuer() -> Iterator[TokenIssuer]:
    with issuing() as found:
        yield found


@pytest.fixture
async def guarded(
    log_root: Path, writer: ModelWriter, tmp_path: Path, issuer: TokenIssuer
) -> AsyncIterator[Guarded]:
    """One stream a principal."""
    quotas = QuotaSettings(quota_streams=1, quota_address_share=100)
    async with guarding(log_root, tmp_path, issuer, quotas) as found:
        yield found


async def opened(guarded: Guarded, path: str) -> Any:
    protocol = websockets.Subprotocol(PATHS[path])
    url = f"ws://127.0.0.1:{guarded.face.address.port}{path}"
    return await connect(url, subprotocols=[protocol])


async def init(socket: Any, token: str) -> tuple[int | None, str]:
    """Say who is there; return the close code and reason, or None where the socket is let in."""
    await socket.send(json.dumps({"type": "connection_init", "payload": {"token": token}}))
    async with asyncio.timeout(PATIENCE_S):
        try:
            assert json.loads(await socket.recv())["type"] == "connection_ack"
        except websockets.ConnectionClosed:
            return socket.close_code, socket.close_reason or ""
    return None, ""


def expire(guarded: Guarded) -> None:
    """Let the token of the one socket be over."""
    [entrance] = guarded.door.sockets
    principal = entrance.principal
    assert isinstance(principal, Identified)
    principal.identity = replace(principal.identity, expires_at=time.time() - 1)


@pytest.mark.parametrize("path", PATHS)
async def test_a_socket_that_is_idle_ends_after_its_token(guarded: Guarded, path: str) -> None:
    socket = await opened(guarded, path)
    async with socket, asyncio.timeout(PATIENCE_S):
        assert await init(socket, guarded.issuer.token()) == (None, "")
        expire(guarded)
        [connection] = guarded.face.sockets._connections
        assert isinstance(connection, SocketConnection)
        await until(lambda: connection._refused_at is not None)
        assert connection._refused_at is not None
        connection._refused_at -= 10  # so long it has been idle
        await socket.wait_closed()
    assert socket.close_code == 4403
    assert socket.close_reason.startswith("TOKEN_EXPIRED")


async def test_a_socket_goes_on_by_a_newer_token_that_comes_late(guarded: Guarded) -> None:
    path = "/v1/catalogs/shop/changes/live"
    socket = await opened(guarded, path)
    async with socket, asyncio.timeout(PATIENCE_S):
        assert await init(socket, guarded.issuer.token()) == (None, "")
        expire(guarded)
        await socket.send(json.dumps({"type": "subscribe", "id": "1", "payload": {}}))
        while (said := json.loads(await socket.recv()))["type"] != "error":
            pass
        assert said["payload"]["code"] == "TOKEN_EXPIRED"
        newer = {"token": guarded.issuer.token(600)}
        await socket.send(json.dumps({"type": "token", "payload": newer}))
        await socket.send(json.dumps({"type": "subscribe", "id": "2", "payload": {}}))
        assert json.loads(await socket.recv())["type"] == "subscribed"


async def test_a_late_token_is_charged_to_whom_it_proves(guarded: Guarded) -> None:
    """Or whoever opens sockets without a header would have as many as he likes."""
    first, second, other = [
        await opened(guarded, "/v1/catalogs/shop/changes/live") for _ in range(3)
    ]
    async with second, other:
        async with first:
            assert await init(first, guarded.issuer.token()) == (None, "")
            code, reason = await init(second, guarded.issuer.token())
            assert (code, reason.partition(":")[0]) == (1013, "QUOTA_EXCEEDED")
            assert await init(other, guarded.issuer.token(sub="bo")) == (None, "")
        # What the first one had is given back with it.
        async with asyncio.timeout(PATIENCE_S):
            while True:
                again = await opened(guarded, "/v1/catalogs/shop/graphql")
                async with again:
                    if await init(again, guarded.issuer.token()) == (None, ""):
                        break
