"""Behind the proxies of docs/proxies.md, with the configurations that stand there."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx
import pytest
from websockets import Subprotocol
from websockets.asyncio.client import connect

import tailrace
from tailrace_server.api.grpc import GrpcServer
from tailrace_server.api.rest.live import SUBPROTOCOL
from tailrace_server.api.settings import HttpSettings
from tailrace_server.capture.engine import Engine
from tailrace_server.capture.settings import EngineSettings
from tests.conformance.http_drivers import listening
from tests.conformance.shop import SHOP
from tests.support.inprocess import PATIENCE_S, ModelWriter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PAGE = Path(__file__).parents[2] / "docs" / "proxies.md"
LIVE = "/v1/catalogs/shop/changes/live"
HEARTBEAT_S = 0.3
QUIET_S = 4.0
"""Twice the time-out of the proxies here; 60 s on the page."""

NGINX = """\
daemon off;
worker_processes 1;
error_log stderr warn;
pid {folder}/pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{block}
}}
"""
"""What stands around the page's block, so that nothing is written elsewhere."""


class Ports(NamedTuple):
    """Where a proxy listens."""

    http: int
    grpc: int


def free_ports() -> Ports:
    """Return two ports that are free now: neither program tells which it was given."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return Ports(one.getsockname()[1], two.getsockname()[1])


def configuration(language: str, ports: Ports, http: int, grpc: int) -> str:
    """Return the block of the page, for these ports and with short time-outs."""
    (block,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.S)
    for old, new in (
        ("127.0.0.1:7412", f"127.0.0.1:{http}"),
        ("127.0.0.1:7411", f"127.0.0.1:{grpc}"),
        ("listen 8080", f"listen 127.0.0.1:{ports.http}"),
        ("listen 8081", f"listen 127.0.0.1:{ports.grpc}"),
        ("bind :8080", f"bind 127.0.0.1:{ports.http}"),
        ("bind :8081", f"bind 127.0.0.1:{ports.grpc}"),
        (" 60s", f" {QUIET_S / 2:.0f}s"),
    ):
        block = block.replace(old, new)
    assert str(ports.http) in block
    assert str(ports.grpc) in block
    return str(block)


@asynccontextmanager
async def proxied(program: str, folder: Path, http: int, grpc: int) -> AsyncIterator[Ports]:
    """Run a proxy in front of two ports until it is left."""
    ports = free_ports()
    path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert path is not None, f"{program} is missing: apt-get install {program}"
    block = configuration(program, ports, http, grpc)
    file = folder / f"{program}.conf"
    if program == "nginx":
        block = NGINX.format(folder=folder, block=block)
        options = ["-p", str(folder), "-e", "stderr", "-c", str(file)]
    else:
        options = ["-db", "-f", str(file)]
    file.write_text(block)
    process = await asyncio.create_subprocess_exec(path, *options)
    try:
        for port in ports:
            async with asyncio.timeout(PATIENCE_S):
                while not await listens(port):
                    assert process.returncode is None, f"{program} has ended"
        yield ports
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def listens(port: int) -> bool:
    """Return whether somebody listens on a port."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        await asyncio.sleep(0.02)
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def over_grpc(port: int, quiet: asyncio.Barrier) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    broken: list[tailrace.Disconnected] = []
    async with tailrace.connect(f"127.0.0.1:{port}") as client:
        assert [each.name for each in await client.list_catalogs()] == ["shop"]
        async with client.read_changes("shop", since=0) as history:
            found += [(each.version, each.index) async for each in history]
        async with client.subscribe(
            "shop", after=None, since=3, on_disconnect=broken.append
        ) as captures:
            await until_quiet(quiet)
            while (capture := await anext(captures)).version < len(SHOP):
                found.append((capture.version, capture.index))
    assert broken == []
    return found


async def over_websocket(port: int, quiet: asyncio.Barrier) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    async with connect(
        f"ws://127.0.0.1:{port}{LIVE}", subprotocols=[Subprotocol(SUBPROTOCOL)], proxy=None
    ) as ws:
        await ws.send('{"type": "connection_init"}')
        await ws.send('{"type": "subscribe", "id": "1", "payload": {"sinceVersion": 0}}')
        await until_quiet(quiet)
        async for text in ws:
            message = json.loads(text)
            for each in message.get("payload", {}).get("captures", ()):
                if each["version"] == len(SHOP):
                    return found
                found.append((each["version"], each["index"]))
    raise AssertionError("the socket ended")


async def over_events(port: int, quiet: asyncio.Barrier) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    async with (
        httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http,
        http.stream(
            "GET",
            f"http://127.0.0.1:{port}{LIVE}?sinceVersion=0",
            headers={"accept": "text/event-stream"},
        ) as answer,
    ):
        lines = answer.aiter_lines()
        assert await anext(lines) == "event: subscribed"  # at once, or it is buffered
        await until_quiet(quiet)
        async for line in lines:
            if line.startswith('data: {"version":'):
                each = json.loads(line.removeprefix("data: "))
                if each["version"] == len(SHOP):
                    return found
                found.append((each["version"], each["index"]))
    raise AssertionError("the stream ended")


async def until_quiet(quiet: asyncio.Barrier) -> None:
    """Stay as long as a proxy's time-out twice over; what comes meanwhile is kept."""
    await quiet.wait()
    await asyncio.sleep(
        QUIET_S
    )  # what is proved is that nothing ends: there is no event to wait for
    await quiet.wait()


@pytest.mark.slow
@pytest.mark.parametrize("program", ["nginx", "haproxy"])
async def test_every_face_works_behind_a_proxy_and_outlives_its_time_outs(
    log_root: Path, writer: ModelWriter, tmp_path: Path, program: str
) -> None:
    writer.write(*SHOP[:-1])
    bounds = EngineSettings(heartbeat_interval_s=HEARTBEAT_S)
    settings = HttpSettings(ws_ping_interval_s=HEARTBEAT_S)
    async with (
        Engine(log_root, bounds) as engine,
        listening(engine, settings=settings) as face,
    ):
        server = GrpcServer(engine)
        port = await server.start("127.0.0.1:0")
        try:
            async with (
                asyncio.timeout(3 * PATIENCE_S),
                proxied(program, tmp_path, face.address.port, port) as ports,
                asyncio.TaskGroup() as tasks,
            ):
                quiet = asyncio.Barrier(4)
                grpc = tasks.create_task(over_grpc(ports.grpc, quiet))
                websocket = tasks.create_task(over_websocket(ports.http, quiet))
                events = tasks.create_task(over_events(ports.http, quiet))
                await quiet.wait()
                await quiet.wait()
                writer.write(SHOP[-1])
                async with httpx.AsyncClient(trust_env=False) as http:
                    answer = await http.get(
                        f"http://127.0.0.1:{ports.http}/v1/catalogs/shop/changes",
                        headers={"accept": "application/x-ndjson"},
                    )
        finally:
            await server.stop(1.0)
    expected = [(v, i) for v, i, _ in writer.log.expected(()) if v < len(SHOP)]
    assert websocket.result() == events.result() == expected
    assert grpc.result() == expected + [each for each in expected if each[0] >= 3]
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [(each["version"], each["index"]) for each in lines[:-1]][: len(expected)] == expected
    assert lines[-1]["end"] is True
