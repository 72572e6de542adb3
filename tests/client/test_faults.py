"""Our client against a network and a server that fail: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import tailrace
from tailrace import Operation, Retry
from tailrace_server.api.grpc import GrpcServer
from tailrace_server.engine.engine import Engine
from tailrace_server.resources.settings import EngineSettings
from tests.support.held_port import HeldPort
from tests.support.model import ModelMutation
from tests.support.polling import until
from tests.support.proxy import FaultyProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.inprocess import ModelWriter
    from tests.support.model import Coordinates

PATIENCE_S = 60.0


@pytest.fixture
async def server(log_root: Path, writer: ModelWriter) -> AsyncIterator[int]:
    settings = EngineSettings(heartbeat_interval_s=0.1, ring_captures=100)
    async with Engine(log_root, settings) as engine:
        server = GrpcServer(engine)
        try:
            yield await server.start("127.0.0.1:0")
        finally:
            await server.stop(0.5)


def rows(count: int) -> list[ModelMutation]:
    return [
        ModelMutation("product", str(n), Operation.UPSERT, None, {"id": n}) for n in range(count)
    ]


async def take(captures: tailrace.Subscription, count: int) -> list[Coordinates]:
    async with asyncio.timeout(PATIENCE_S):
        found = [await anext(captures) for _ in range(count)]
    return [(each.version, each.index, each.ordinal) for each in found]


@pytest.mark.slow
async def test_cuts_at_any_byte_lose_nothing_and_double_nothing(
    server: int, writer: ModelWriter, quick_retry: Retry
) -> None:
    chance = random.Random(5)
    writer.write(rows(2000))
    received: list[Coordinates] = []
    async with (
        FaultyProxy(server) as proxy,
        tailrace.connect(f"127.0.0.1:{proxy.port}", retry=quick_retry) as client,
        client.subscribe("shop", since=0, demand=300) as captures,
    ):
        for _ in range(20):
            proxy.cut_after(chance.randrange(1, 3_000))
            before = proxy.cuts
            writer.write(rows(200))
            written = len(writer.log.expected(()))
            while proxy.cuts == before and len(received) < written:
                received += await take(captures, 1)
            await until(lambda: proxy.cuts > before)  # noqa: B023 - heartbeats bring it about, now
        proxy.cut()
        expected = writer.log.expected(())
        received += await take(captures, len(expected) - len(received))
        assert captures.statistics().reconnects >= 10
        assert proxy.cuts >= 20
    assert received == expected


@pytest.mark.slow
async def test_a_stalled_network_is_noticed_by_its_silence(
    server: int, writer: ModelWriter, quick_retry: Retry
) -> None:
    lost: asyncio.Queue[tailrace.Disconnected] = asyncio.Queue()
    async with (
        FaultyProxy(server) as proxy,
        tailrace.connect(f"127.0.0.1:{proxy.port}", retry=quick_retry) as client,
        client.subscribe("shop", since=0, on_disconnect=lost.put_nowait) as captures,
    ):
        writer.write(rows(5))
        received = await take(captures, 6)
        proxy.stall()
        writer.write(rows(5))
        async with asyncio.timeout(PATIENCE_S):
            first = await lost.get()
        assert isinstance(first.error, tailrace.HeartbeatMissed)
        proxy.flow()
        received += await take(captures, 6)
    assert received == writer.log.expected(())


@asynccontextmanager
async def serving(log_root: Path, port: HeldPort) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command ``tailrace serve`` on a port; yields the process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tailrace_server", "serve", "--log", str(log_root)),
        *("--grpc", port.address, "--http", "127.0.0.1:0", "--log-format", "json"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            async for line in process.stderr:
                told = json.loads(line)
                if told["event"] == "serving":
                    break
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.slow
async def test_contract_35_a_server_killed_at_any_instant_costs_its_subscribers_nothing(
    log_root: Path, writer: ModelWriter, quick_retry: Retry
) -> None:
    chance = random.Random(3)
    writer.write(rows(500))
    port = HeldPort()
    async with serving(log_root, port) as process:
        client = tailrace.connect(port.address, retry=quick_retry)
        async with client, client.subscribe("shop", since=0, demand=200) as captures:
            received = await take(captures, 250)
            process.kill()
            await process.wait()
            for _ in range(3):
                writer.write(rows(100), rows(100))
                async with serving(log_root, port) as process:
                    received += await take(captures, chance.randrange(210, 250))
            async with serving(log_root, port):
                expected = writer.log.expected(())
                received += await take(captures, len(expected) - len(received))
            assert captures.statistics().reconnects >= 3
    assert received == expected
