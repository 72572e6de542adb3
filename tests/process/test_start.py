"""The start of ``tailrace serve``: what its health says, and that the first subscriber finds it warm."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING

import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from websockets.asyncio.client import connect

import tailrace
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.process.commands import PATIENCE_S, Command
from tests.support.inprocess import know

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

_PATIENCE_S = 4 * PATIENCE_S
MANY = 600
"""Rows of a commit; more than are encoded without compiled loops."""
PORTS = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")


@pytest.fixture
def shop(log_root: Path) -> Path:
    """Return a log root with a catalog of some rows."""
    know(log_root, "shop", {"product": ("id", "text")})
    with LogWriter.open(log_root, "shop") as writer:
        writer.append(
            [
                Mutation("product", str(number), after=b'{"id":%d,"text":"x"}' % number)
                for number in range(MANY)
            ]
        )
        writer.commit()
        writer.publish()
    return log_root


async def test_health_says_starting_until_the_catalogs_are_open_and_who_comes_waits(
    shop: Path,
) -> None:
    (shop / "stuck").mkdir()
    pipe = shop / "stuck" / "catalog.json"
    os.mkfifo(pipe)  # whoever opens it waits for a writer
    arguments = ("serve", "--log", shop, *PORTS, "--opening-patience-s", "10m")
    async with Command(*arguments) as server, asyncio.timeout(_PATIENCE_S):
        addresses = json.loads(await server.note('"event": "starting"'))
        async with (
            httpx.AsyncClient(base_url=f"http://{addresses['http']}", trust_env=False) as http,
            grpc.aio.insecure_channel(addresses["grpc"]) as channel,
            tailrace.connect(addresses["grpc"]) as client,
            asyncio.TaskGroup() as tasks,
        ):
            answer = await http.get("/health")
            assert (answer.status_code, answer.json()["status"]) == (503, "starting")
            health = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await health.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            listed = tasks.create_task(http.get("/v1/catalogs"))
            asked = tasks.create_task(client.list_catalogs())
            assert not any('"event": "serving"' in each for each in server.notes)

            pipe.open("wb").close()  # the storage answers, with nothing of use
            assert (await health.read()).status == health_pb2.HealthCheckResponse.SERVING
            assert [each.name for each in await asked] == ["shop"]
            assert (await listed).status_code == 200
            assert (await http.get("/health")).json()["status"] == "degraded"  # for "stuck"
            health.cancel()


def _imports(notes: list[str]) -> Iterator[str]:
    """Yield the modules that ``-X importtime`` has told of."""
    for line in notes:
        if line.startswith("import time:"):
            yield line.rpartition("|")[2].strip()


async def test_the_first_subscriber_of_each_face_has_nothing_imported_or_compiled(
    shop: Path,
) -> None:
    """A server imports neither numba nor LLVM: another process has compiled its loops."""
    python = ("-X", "importtime", "-m", "tailrace_server")
    async with (
        Command("serve", "--log", shop, *PORTS, python=python) as server,
        asyncio.timeout(_PATIENCE_S),
    ):
        addresses = json.loads(await server.note('"event": "serving"'))
        await server.note("compiled loops loaded")
        before = set(_imports(server.notes))
        assert "tailrace_server.app" in before
        await _over_grpc(addresses["grpc"])
        await _over_events(
            f"http://{addresses['http']}/v1/catalogs/shop/changes/live?sinceVersion=0"
        )
        await _over_graphql(f"ws://{addresses['http']}/v1/catalogs/shop/graphql")
        base = f"http://{addresses['http']}"
        async with httpx.AsyncClient(base_url=base, trust_env=False) as http:
            for path in ("/health", "/metrics", "/v1/catalogs/shop/changes?sinceVersion=1"):
                assert (await http.get(path)).status_code == 200
        found = set(_imports(server.notes))
        assert found - before == set()
        assert not {each.partition(".")[0] for each in found} & {"numba", "llvmlite"}


async def _over_grpc(address: str) -> None:
    async with tailrace.connect(address) as client, client.subscribe("shop", since=0) as captures:
        assert [(await anext(captures)).version for _ in range(MANY + 1)] == [1] * (MANY + 1)


async def _over_events(address: str) -> None:
    async with (
        httpx.AsyncClient(trust_env=False) as http,
        http.stream("GET", address, headers={"accept": "text/event-stream"}) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        lines = answer.aiter_lines()
        async for line in lines:
            if "product" in line:
                break
        await lines.aclose()  # type: ignore[attr-defined]  # a generator


async def _over_graphql(address: str) -> None:
    async with connect(address, subprotocols=["graphql-transport-ws"], proxy=None) as socket:  # type: ignore[list-item]
        await socket.send(json.dumps({"type": "connection_init"}))
        await socket.recv()
        query = "subscription { onProductChange(sinceVersion: 0) { version } }"
        await socket.send(json.dumps({"id": "1", "type": "subscribe", "payload": {"query": query}}))
        assert json.loads(await socket.recv())["type"] == "next"
