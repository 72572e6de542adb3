"""Connections of a limited age; that nobody loses anything by it: tests/conformance/test_ends.py."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc.aio
import pytest
from websockets import ConnectionClosed, Subprotocol
from websockets.asyncio.client import connect

import tailrace
from tailrace.transport.grpc import SERVICE
from tailrace.v1.change_capture_pb2 import SubscribeRequest
from tailrace_server.api.connection_age import ConnectionAge
from tailrace_server.api.grpc import GrpcServer
from tailrace_server.api.rest.live import SUBPROTOCOL
from tailrace_server.engine.engine import Engine
from tailrace_server.resources.settings import EngineSettings
from tests.conformance.http_drivers import listening
from tests.conformance.shop import SHOP
from tests.support.inprocess import PATIENCE_S, ModelWriter
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tailrace_server.api.server.http import HttpFace

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LIVE_PATH = "/v1/catalogs/shop/changes/live"


@asynccontextmanager
async def http(root: Path, **settings: float) -> AsyncIterator[HttpFace]:
    """Serve a log root over HTTP."""
    bounds = EngineSettings(**settings)  # type: ignore[arg-type]
    async with Engine(root, bounds) as engine, listening(engine) as face:
        yield face


async def head(reader: asyncio.StreamReader) -> bytes:
    """Return the head of an answer, in lower case, its body read as well where its length is told."""
    async with asyncio.timeout(PATIENCE_S):
        found = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b"content-length: " in found:
            await reader.readexactly(int(found.partition(b"content-length: ")[2].split(b"\r")[0]))
    return found


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return what still comes until the connection ends."""
    async with asyncio.timeout(PATIENCE_S):
        return await reader.read()


async def test_without_an_age_there_is_no_timer() -> None:
    assert ConnectionAge().call_later(lambda: None) is None
    assert ConnectionAge().core_options() == ()


async def test_ends_are_spread_and_core_refuses_calls_before_and_cuts_after_them() -> None:
    age = ConnectionAge(100, 30)
    now = asyncio.get_running_loop().time()
    ends = set()
    for _ in range(100):
        timer = age.call_later(lambda: None)
        assert timer is not None
        ends.add(timer.when() - now)
        timer.cancel()
    assert 100 <= min(ends) < max(ends) <= 121
    told = dict(age.core_options())
    drawn_ms = told["grpc.max_connection_age_ms"]
    assert drawn_ms * 1.1 <= 100_000
    assert drawn_ms * 0.9 + told["grpc.max_connection_age_grace_ms"] >= (120 + 30) * 1000


async def test_an_idle_connection_closes_and_a_busy_one_says_that_it_will(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write(*SHOP)
    monkeypatch.setattr("tailrace_server.api.connection_age._SPREAD", 0.0)
    async with http(log_root, max_connection_age_s=1) as face:
        begun, begun_writer = await asyncio.open_connection(*face.address)
        begun_writer.write(HEALTH[:-2])
        idle, idle_writer = await asyncio.open_connection(*face.address)
        idle_writer.write(HEALTH)
        assert b"connection: close" not in await head(idle)
        assert await ended(idle) == b""
        begun_writer.write(HEALTH[-2:])
        assert b"connection: close" in await head(begun)
        assert await ended(begun) == b""
        idle_writer.close()
        begun_writer.close()


async def test_an_event_stream_says_when_to_come_back_and_its_connection_closes(
    log_root: Path, writer: ModelWriter
) -> None:
    async with http(log_root, max_connection_age_s=0.2) as face:
        reader, stream = await asyncio.open_connection(*face.address)
        stream.write(f"GET {LIVE_PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        said = await ended(reader)
        stream.close()
    assert b"\nretry: " in said
    assert b"SUBSCRIPTION_BROKEN" in said.rpartition(b"event: error")[2]
    assert said.endswith(b"0\r\n\r\n")  # whole, so that no proxy takes it for an error


async def test_what_outlives_the_grace_is_cut(log_root: Path, writer: ModelWriter) -> None:
    async with http(log_root, max_connection_age_s=0.1, max_connection_age_grace_s=0.1) as face:
        reader, stream = await asyncio.open_connection(*face.address)
        stream.write(HEALTH[:-2])
        assert await ended(reader) == b""
        stream.close()
        assert face.sockets.statistics().guards == {"max_connection_age": 1}


@pytest.mark.parametrize("subprotocol", [SUBPROTOCOL, "graphql-transport-ws"])
async def test_a_socket_without_subscriptions_closes_with_1001(
    log_root: Path, writer: ModelWriter, subprotocol: str
) -> None:
    path = LIVE_PATH if subprotocol == SUBPROTOCOL else "/v1/catalogs/shop/graphql"
    async with http(log_root, max_connection_age_s=0.5) as face:
        async with connect(
            f"ws://{face.address}{path}", subprotocols=[Subprotocol(subprotocol)]
        ) as socket:
            with pytest.raises(ConnectionClosed) as raised:
                await socket.recv()
        assert raised.value.rcvd is not None
        assert raised.value.rcvd.code == 1001
        assert "max_connection_age" in raised.value.rcvd.reason


async def test_our_client_goes_on_over_many_ages_on_new_connections(
    log_root: Path, writer: ModelWriter
) -> None:
    reconnected: list[tailrace.Reconnected] = []
    settings = EngineSettings(max_connection_age_s=0.1, heartbeat_interval_s=0.05)
    async with Engine(log_root, settings) as engine:
        server = GrpcServer(engine)
        target = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
        try:
            async with (
                asyncio.timeout(PATIENCE_S),
                tailrace.connect(target, retry=tailrace.Retry(first_s=0.01)) as client,
                client.subscribe("shop", since=0, on_reconnect=reconnected.append) as captures,
            ):
                for transaction in SHOP:
                    writer.write(transaction)
                    count = len(reconnected)
                    await until(lambda count=count: len(reconnected) > count)  # type: ignore[misc]
                expected = writer.log.expected(())
                received = [await anext(captures) for _ in expected]
        finally:
            await server.stop(1.0)
    assert [(each.version, each.index, each.ordinal) for each in received] == expected


async def test_a_new_call_of_an_old_channel_is_not_on_the_old_connection(
    log_root: Path, writer: ModelWriter
) -> None:
    """Or it would never reach another server behind a balancer."""
    peers: set[str] = set()
    settings = EngineSettings(max_connection_age_s=0.2)
    async with Engine(log_root, settings) as engine:
        server = GrpcServer(engine)
        target = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
        request = SubscribeRequest(catalog="shop").SerializeToString()
        try:
            async with grpc.aio.insecure_channel(
                target, (("grpc.use_local_subchannel_pool", 1),)
            ) as channel:
                for _ in range(3):
                    call = channel.unary_stream(f"/{SERVICE}/Subscribe", None, None)(request)
                    await call.read()
                    peers.update(server._service._open)
                    async with asyncio.timeout(PATIENCE_S):
                        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        finally:
            await server.stop(1.0)
    assert len(peers) == 3
