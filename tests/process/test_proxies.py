"""Behind the proxies of docs/proxies.md, with the configurations that stand there."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
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
from tailrace_server.api.transport_security.proxies import TrustedProxies
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.resources.settings import EngineSettings
from tests.conformance.entrances import guarded
from tests.conformance.http_drivers import listening
from tests.conformance.shop import SHOP
from tests.support.browser import chromium
from tests.support.held_port import HeldPort
from tests.support.inprocess import PATIENCE_S, ModelWriter
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conformance.entrances import Entrance

PAGE = Path(__file__).parents[2] / "docs" / "proxies.md"
LIVE = "/changes/v1/catalogs/shop/changes/live"
HEARTBEAT_S = 0.3
QUIET_S = 4.0
"""Twice the time-out of the proxies here; 60 s on the page."""

PROXY = "127.0.0.3"
"""What the proxies connect from, and is trusted; clients are at 127.0.0.1."""
LIE = {"x-forwarded-for": "203.0.113.9"}
"""What a client says of itself."""

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
    proxy_bind {proxy};
    grpc_bind {proxy};
{block}
}}
"""
"""What stands around the page's block, so that nothing is written elsewhere."""


class Ports(NamedTuple):
    """Where a proxy listens, or the servers behind it."""

    http: int
    grpc: int
    through: int
    """gRPC over TLS as it comes."""


def configuration(language: str, folder: Path, ports: Ports, servers: Ports) -> str:
    """Return the block of the page, for these ports and files and with short time-outs."""
    (block,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.S)
    changes = [
        ("127.0.0.1:7412", f"127.0.0.1:{servers.http}"),
        ("127.0.0.1:7411", f"127.0.0.1:{servers.grpc}"),
        (" 60s", f" {QUIET_S / 2:.0f}s"),
    ]
    if language == "nginx":
        changes += [
            ("listen 8443", f"listen 127.0.0.1:{ports.http}"),
            ("listen 8444", f"listen 127.0.0.1:{ports.grpc}"),
            ("/etc/nginx/tailrace.crt", str(folder / "server.crt")),
            ("/etc/nginx/tailrace.key", str(folder / "server.key")),
        ]
    else:
        changes += [
            ("bind :8443", f"bind 127.0.0.1:{ports.http}"),
            ("bind :8444", f"bind 127.0.0.1:{ports.grpc}"),
            ("bind :8445", f"bind 127.0.0.1:{ports.through}"),
            ("127.0.0.1:7413", f"127.0.0.1:{servers.through}"),
            ("/etc/haproxy/tailrace.pem", str(folder / "server.pem")),
            ("defaults\n", f"defaults\n    source {PROXY}\n"),
        ]
    for old, new in changes:
        assert old in block, old
        block = block.replace(old, new)
    return str(block)


@asynccontextmanager
async def proxied(program: str, folder: Path, servers: Ports) -> AsyncIterator[Ports]:
    """Run a proxy in front of servers until it is left."""
    held = [HeldPort() for _ in Ports._fields]  # neither program tells which port it was given
    ports = Ports(*(each.number for each in held))
    path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert path is not None, f"{program} is missing: apt-get install {program}"
    block = configuration(program, folder, ports, servers)
    file = folder / f"{program}.conf"
    if program == "nginx":
        block = NGINX.format(folder=folder, block=block, proxy=PROXY)
        options = ["-p", str(folder), "-e", "stderr", "-c", str(file)]
    else:
        options = ["-db", "-f", str(file)]
    file.write_text(block)
    process = await asyncio.create_subprocess_exec(path, *options)
    try:
        for port in ports if program == "haproxy" else ports[:2]:
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


async def over_grpc(port: int, entrance: Entrance, quiet: asyncio.Barrier) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    broken: list[tailrace.Disconnected] = []
    async with tailrace.connect(
        f"127.0.0.1:{port}", tls=entrance.ca, token=entrance.token
    ) as client:
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


async def over_websocket(
    port: int, entrance: Entrance, quiet: asyncio.Barrier
) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    async with connect(
        entrance.url("ws", port) + LIVE,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        additional_headers=LIE,
        ssl=entrance.context,
        proxy=None,
    ) as ws:
        await ws.send(json.dumps({"type": "connection_init", **entrance.init}))
        await ws.send('{"type": "subscribe", "id": "1", "payload": {"sinceVersion": 0}}')
        await until_quiet(quiet)
        async for text in ws:
            message = json.loads(text)
            for each in message.get("payload", {}).get("captures", ()):
                if each["version"] == len(SHOP):
                    return found
                found.append((each["version"], each["index"]))
    raise AssertionError("the socket ended")


async def over_events(http: httpx.AsyncClient, quiet: asyncio.Barrier) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    headers = {"accept": "text/event-stream", **LIE}
    async with http.stream("GET", f"{LIVE}?sinceVersion=0", headers=headers) as answer:
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


async def the_page_works(port: int, token: str) -> None:
    """Look at the operator's page below the path, with its live tail."""
    async with chromium(ignore_https_errors=True) as browser:
        page = await browser.new_page()
        addresses: list[str] = []
        for event in ("request", "websocket"):
            page.on(event, lambda asked: addresses.append(asked.url))
        await page.goto(f"https://127.0.0.1:{port}/changes")
        await page.get_by_label("Token", exact=True).fill(token)
        await page.keyboard.press("Enter")
        await page.get_by_role("cell", name="shop").first.wait_for()
        await page.get_by_role("button", name="Follow").click()
        await page.get_by_text("Follows shop").wait_for()
    (first, *others) = addresses
    assert first == f"https://127.0.0.1:{port}/changes"
    assert f"wss://127.0.0.1:{port}{LIVE}" in others
    assert all(each.partition("://")[2].startswith(f"127.0.0.1:{port}/changes/") for each in others)


async def until_quiet(quiet: asyncio.Barrier) -> None:
    """Stay as long as a proxy's time-out twice over; what comes meanwhile is kept."""
    await quiet.wait()
    await asyncio.sleep(
        QUIET_S
    )  # what is proved is that nothing ends: there is no event to wait for
    await quiet.wait()


@pytest.mark.slow
@pytest.mark.parametrize("program", ["nginx", "haproxy"])
async def test_every_face_works_behind_a_proxy_that_ends_tls_and_outlives_its_time_outs(
    log_root: Path, writer: ModelWriter, tmp_path: Path, program: str
) -> None:
    writer.write(*SHOP[:-1])
    entrance = guarded(tmp_path)
    (tmp_path / "server.pem").write_bytes(
        (tmp_path / "server.crt").read_bytes() + (tmp_path / "server.key").read_bytes()
    )
    behind = {"door": entrance.served["door"], "proxies": TrustedProxies([PROXY])}
    bounds = EngineSettings(heartbeat_interval_s=HEARTBEAT_S)
    settings = HttpSettings(ws_ping_interval_s=HEARTBEAT_S, root_path="/changes")
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine(log_root, bounds))
        face = await stack.enter_async_context(listening(engine, settings=settings, **behind))
        grpc_ports = []
        for served in (behind, entrance.served):
            server = GrpcServer(engine, **served)
            grpc_ports.append(await server.start("127.0.0.1:0"))
            stack.push_async_callback(server.stop, 1.0)
        servers = Ports(face.address.port, *grpc_ports)
        await stack.enter_async_context(asyncio.timeout(3 * PATIENCE_S))
        ports = await stack.enter_async_context(proxied(program, tmp_path, servers))
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=entrance.url("http", ports.http),
                headers=entrance.headers,
                verify=entrance.context or False,
                trust_env=False,
                timeout=PATIENCE_S,
            )
        )
        over = [partial(over_grpc, ports.grpc, entrance)]
        if program == "haproxy":
            over.append(partial(over_grpc, ports.through, entrance))
        over += [partial(over_websocket, ports.http, entrance), partial(over_events, http)]
        quiet = asyncio.Barrier(len(over) + 1)
        async with asyncio.TaskGroup() as tasks:
            begun = [tasks.create_task(each(quiet)) for each in over]
            await quiet.wait()
            await until(lambda: len(engine.subscriptions(ANONYMOUS)) == len(over))
            peers = [each.options.peer.address for _, each in engine.subscriptions(ANONYMOUS)]
            if program == "nginx":
                await the_page_works(ports.http, str(entrance.token))
            documents = await http.get("/changes/v1/openapi.json", headers=LIE)
            await quiet.wait()
            writer.write(SHOP[-1])
            history = {"accept": "application/x-ndjson"}
            answer = await http.get("/changes/v1/catalogs/shop/changes", headers=history)
    # 1. Nothing is lost, nothing is held back, and no time-out has cut anything.
    expected = [(v, i) for v, i, _ in writer.log.expected(()) if v < len(SHOP)]
    *over_rpc, websocket, events = [each.result() for each in begun]
    assert websocket == events == expected
    for found in over_rpc:
        assert found == expected + [each for each in expected if each[0] >= 3]
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [(each["version"], each["index"]) for each in lines[:-1]][: len(expected)] == expected
    assert lines[-1]["end"] is True
    # 2. The proxy is believed about the client, and the client about nothing.
    through = [PROXY] if program == "haproxy" else []
    addresses = [each.rpartition(":")[0] or each for each in peers]
    assert sorted(addresses) == ["127.0.0.1"] * 3 + through
    assert documents.json()["servers"] == [{"url": "/changes"}]
