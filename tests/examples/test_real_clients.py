"""The clients that people already have, each by its example: they print exactly the changes.

The server is killed once and stopped once meanwhile, and more is written before it is back. A proxy cuts them
at random bytes, in the middle of a row too. Nobody misses a change or is shown one twice.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest
from grpc import StatusCode

import tailrace
from tailrace import Area, ContainerType, Criteria, Operation
from tailrace.transport.grpc import SERVICE
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import DeclaredColumn, DeclaredType, SchemaMapping
from tests.process.commands import KILL, TERMINATE, ServerProcess
from tests.support.browser import chromium
from tests.support.inprocess import know
from tests.support.programs import PATIENCE_S, Program, found
from tests.support.proxy import FaultyProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from playwright.async_api import Page

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGES = ("websocket", "eventsource", "graphql-ws", "apollo")
PROGRAMS = {
    "node/ws.js": "http",
    "node/graphql-ws.js": "http",
    "node/graphql-sse.js": "http",
    "node/grpc.js": "grpc",
    "python/rest_websocket.py": "http",
    "python/graphql_gql.py": "http",
    "python/events_httpx.py": "http",
    "python/grpc_by_reflection.py": "grpc",
}
"""The examples that are programs, and which listener each asks."""
QUICK = {"WEBSOCKETS_BACKOFF_INITIAL_DELAY": "0.5"}
"""The library's own first wait for a lost server is up to 5 s."""

REFUSED_S = 1.5
"""How long connections are refused: the examples try once a second, and nobody else sees that they do."""
LARGE = 3 << 19
"""Bytes of a row that is above what a library takes at once by default."""
TOO_LARGE = 5 << 20
"""Bytes of a row that comes without its body."""
LEFT_OUT = re.compile(r"\(\d{7} bytes left out\)")


class Shop:
    """Writes transactions, and knows what an example prints of them: a line for each change of a product."""

    def __init__(self, root: Path) -> None:
        know(root, "shop", {"product": ("id", "name", "price"), "order": ("id",)})
        # A change of product's columns comes with its first row: examples of its rows do not show it.
        columns = {"name": DeclaredColumn(role=ContainerType.ASSOCIATED_DATA)}
        mapping = SchemaMapping({"product": DeclaredType(columns)})
        self._writer = LogWriter.open(root, "shop", mapping=mapping)
        self._version = 0
        self.lines: list[str] = []

    def close(self) -> None:
        self._writer.close()

    def trade(self, transactions: int, *, note: str = "Tee, grün") -> None:
        """Publish transactions of four records, two of them of products."""
        for number in range(transactions):
            self._version += 1
            key = str(number % 7)
            old = f"{key}0"
            row = {"id": key, "name": f"{note} “{number}”", "price": number + 0.5}
            removal = Operation.REMOVE if number % 2 else Operation.EXPIRE
            order, other = (Mutation("order", id, after=_text({"id": id})) for id in (key, old))
            upsert = Mutation("product", key, after=_text(row))
            gone = Mutation("product", old, operation=removal, before=_text({**row, "id": old}))
            self._writer.append([order, upsert, other, gone])
            upserted, removed = (3, 5) if self._version == 1 else (2, 4)
            image = _text(row).decode() if len(note) < TOO_LARGE else "(left out)"
            self.lines.append(f"{self._version}:{upserted} UPSERT {key} {image}")
            self.lines.append(f"{self._version}:{removed} {removal.name} {old} null")
        self._writer.commit()
        self._writer.publish()


def _text(row: dict[str, object]) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.fixture
def shop(log_root: Path) -> Iterator[Shop]:
    shop = Shop(log_root)
    yield shop
    shop.close()


@asynccontextmanager
async def pages_served() -> AsyncIterator[str]:
    """Serve the pages as their package says, on a free port; gives their origin."""
    folder = EXAMPLES / "browser"
    start = json.loads((folder / "package.json").read_text())["scripts"]["start"].split()
    assert start[0] == "esbuild"
    command = [each.replace("127.0.0.1:5173", "127.0.0.1:0") for each in start[1:]]
    async with Program(folder / "node_modules/.bin/esbuild", *command, folder=folder) as program:
        yield (await program.noted("Local:")).split()[-1].rstrip("/")


async def shown(page: Page, count: int) -> list[str]:
    """Return the lines of a page once there are so many."""
    await page.wait_for_function(
        "count => document.querySelector('pre').textContent.split('\\n').length > count", arg=count
    )
    return (await page.locator("pre").inner_text()).splitlines()


async def test_pages_show_exactly_the_changes_through_a_kill_and_a_stop(
    log_root: Path, shop: Shop
) -> None:
    """Native WebSocket, EventSource, graphql-ws and Apollo Client, of an origin that the server allows."""
    shop.trade(5)
    async with pages_served() as origin, chromium() as browser:
        server = ServerProcess(log_root, options=("--ws-origins", origin))
        pages: dict[str, Page] = {}
        broken: list[str] = []
        browser.on("weberror", lambda error: broken.append(str(error.error)))
        for end in (KILL, TERMINATE, None):
            async with server.up() as command:
                if not pages:
                    for name in PAGES:
                        pages[name] = await browser.new_page()
                        address = f"{origin}/{name}.html?server={server.http}&catalog=shop"
                        await pages[name].goto(address)
                await _all_have(shop, pages)
                shop.trade(10)
                await _all_have(shop, pages)
                if end is not None:
                    command.send(end)
                    await command.process.wait()
            shop.trade(3)
        assert not broken


async def test_pages_go_on_exactly_where_they_were_cut(log_root: Path, shop: Shop) -> None:
    _trade_large_rows(shop)
    async with pages_served() as origin, chromium() as browser, AsyncExitStack() as stack:
        server = ServerProcess(log_root, options=("--ws-origins", origin))
        await stack.enter_async_context(server.up())

        async def follow(name: str) -> None:
            page = await browser.new_page()
            async with cutting(server.http) as proxy:
                address = f"127.0.0.1:{proxy.port}"
                await page.goto(f"{origin}/{name}.html?server={address}&catalog=shop")
                await _cut_again_and_again(proxy, random.Random(name))
                lines = await shown(page, len(shop.lines))
                assert (name, _without_sizes(lines)) == (name, shop.lines)
                await page.close()

        async with asyncio.TaskGroup() as tasks:
            for name in PAGES:
                tasks.create_task(follow(name))


def _trade_large_rows(shop: Shop) -> None:
    """Publish rows above what libraries take by default, rows whose bodies are left out, and others between."""
    shop.trade(1, note="x" * LARGE)
    for size in (TOO_LARGE, LARGE, TOO_LARGE):
        shop.trade(15, note="x" * 10_000)
        shop.trade(1, note="x" * size)
    shop.trade(15)


@asynccontextmanager
async def cutting(address: str) -> AsyncIterator[FaultyProxy]:
    """Stand before a listener, and cut the first who connects in the middle of the first row."""
    async with FaultyProxy(int(address.rpartition(":")[2])) as proxy:
        proxy.cut_after(LARGE // 2)
        yield proxy


async def _cut_again_and_again(proxy: FaultyProxy, chance: random.Random) -> None:
    """Cut at random bytes, of a handshake as of rows; then refuse connections for a while."""
    any_place = (int(2 ** chance.uniform(0, 16)) for _ in range(4))
    # The large row comes whole at the second attempt, and the next large one is behind all that follow.
    for size in (LARGE + chance.randrange(100_000), *any_place, LARGE // 2):
        async with asyncio.timeout(PATIENCE_S):
            await proxy.was_cut()
        proxy.cut_after(size, politely=chance.random() < 0.5)
    async with asyncio.timeout(PATIENCE_S):
        await proxy.was_cut()
    await proxy.refuse()
    await asyncio.sleep(REFUSED_S)
    await proxy.accept()


def _without_sizes(lines: list[str]) -> list[str]:
    return [LEFT_OUT.sub("(left out)", line) for line in lines]


async def _all_have(shop: Shop, pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        assert (name, await shown(page, len(shop.lines))) == (name, shop.lines)


async def test_a_page_shows_why_an_event_stream_is_refused_for_good(
    log_root: Path, shop: Shop
) -> None:
    async with pages_served() as origin, chromium() as browser:
        server = ServerProcess(log_root, options=("--ws-origins", origin))
        async with server.up():
            page = await browser.new_page()
            await page.goto(f"{origin}/eventsource.html?server={server.http}&catalog=shpo")
            (line,) = await shown(page, 1)
            assert "no catalog named 'shpo'; known catalogs: shop" in line


async def test_a_page_of_another_origin_is_refused(log_root: Path, shop: Shop) -> None:
    shop.trade(1)
    server = ServerProcess(log_root)
    async with pages_served() as origin, chromium() as browser, server.up():
        page = await browser.new_page()
        async with page.expect_console_message(lambda note: "CORS" in note.text):
            await page.goto(f"{origin}/eventsource.html?server={server.http}")
        refused = asyncio.Event()
        page.on("websocket", lambda socket: socket.on("socketerror", lambda _: refused.set()))
        await page.goto(f"{origin}/websocket.html?server={server.http}")
        async with asyncio.timeout(PATIENCE_S):
            await refused.wait()
        assert await page.locator("pre").inner_text() == ""


async def test_programs_print_exactly_the_changes_through_a_kill_and_a_stop(
    log_root: Path, shop: Shop
) -> None:
    """Node: ws, graphql-ws, graphql-sse, grpc-js. Python: websockets, gql, httpx, gRPC by reflection."""
    shop.trade(5)
    server = ServerProcess(log_root)
    programs: dict[str, Program] = {}
    async with AsyncExitStack() as stack:
        for end in (KILL, TERMINATE, None):
            async with server.up() as command:
                if not programs:
                    for path, face in PROGRAMS.items():
                        programs[path] = await stack.enter_async_context(
                            program(path, "shop", "--server", getattr(server, face))
                        )
                await _all_printed(shop, programs)
                shop.trade(10)
                await _all_printed(shop, programs)
                if end is not None:
                    command.send(end)
                    await command.process.wait()
            shop.trade(3)


async def test_programs_wait_for_a_server_and_go_on_exactly_where_they_were_cut(
    log_root: Path, shop: Shop
) -> None:
    """Nobody listens when they start: each says so, and tries again."""
    _trade_large_rows(shop)
    server = ServerProcess(log_root)
    async with server.up(), AsyncExitStack() as stack:
        proxies: list[FaultyProxy] = []
        programs: dict[str, Program] = {}

        async def begin(path: str, proxy: FaultyProxy) -> None:
            await programs[path].noted("")
            await proxy.accept()
            proxy.cut_after(LARGE // 2)
            await _cut_again_and_again(proxy, random.Random(path))

        async with asyncio.TaskGroup() as tasks:
            for path, face in PROGRAMS.items():
                proxy = await stack.enter_async_context(cutting(getattr(server, face)))
                await proxy.refuse()
                proxies.append(proxy)
                run = program(path, "shop", "--server", f"127.0.0.1:{proxy.port}")
                programs[path] = await stack.enter_async_context(run)
                tasks.create_task(begin(path, proxy))
        await _all_printed(shop, programs)
        for proxy in proxies:  # once more, in what is live
            proxy.cut_after(100)
        shop.trade(3)
        for proxy in proxies:
            await proxy.was_cut()
        shop.trade(3)
        await _all_printed(shop, programs)


async def test_grpc_js_comes_back_after_whatever_a_proxy_ends_a_call_with() -> None:
    """What a server does not say itself has no details: those of a proxy that resets streams or stops."""
    codes = [StatusCode.INTERNAL, StatusCode.CANCELLED, StatusCode.UNKNOWN, StatusCode.ABORTED]

    async def end(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.abort(codes.pop(0) if codes else StatusCode.NOT_FOUND, "ended by a proxy")

    handlers = {"Subscribe": grpc.unary_stream_rpc_method_handler(end)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with program("node/grpc.js", "shop", "--server", f"127.0.0.1:{port}") as called:
            async with asyncio.timeout(PATIENCE_S):
                assert await called.process.wait() == 1
    finally:
        await server.stop(0)
    assert not codes


async def test_each_program_prints_a_refusal_in_one_line(log_root: Path, shop: Shop) -> None:
    server = ServerProcess(log_root)

    async def refuse(path: str) -> None:
        arguments = "shpo", "--server", getattr(server, PROGRAMS[path])
        async with program(path, *arguments) as refused:
            async with asyncio.timeout(PATIENCE_S):
                assert (path, await refused.process.wait()) == (path, 1)
            await refused.noted("no catalog named 'shpo'; known catalogs: shop")
            assert (path, len(refused.notes)) == (path, 1)

    async with server.up(), asyncio.TaskGroup() as tasks:
        for path in PROGRAMS:
            tasks.create_task(refuse(path))


def program(path: str, *arguments: str) -> Program:
    """Return a run of an example as its head says."""
    runs = sys.executable if path.endswith(".py") else found("node")
    return Program(runs, EXAMPLES / path, *arguments, folder=EXAMPLES.parent, environment=QUICK)


async def _all_printed(shop: Shop, programs: dict[str, Program]) -> None:
    for path, each in programs.items():
        lines = await each.printed(len(shop.lines))
        assert (path, _without_sizes(lines)) == (path, shop.lines)


async def test_contract_13_a_paused_grpc_js_reader_bounds_what_it_is_sent(
    log_root: Path, shop: Shop
) -> None:
    """A neighbour has everything while it waits; then it gets the same."""
    shop.trade(1_500, note="x" * 10_000)
    server = ServerProcess(log_root)
    products = Criteria(area=Area.DATA, entity_type=("product",))
    async with (
        server.up(),
        program("node/grpc.js", "shop", "--server", server.grpc, "--by-hand") as paused,
        tailrace.connect(server.grpc) as client,
        asyncio.timeout(PATIENCE_S),
    ):
        await paused.printed(1)
        content = tailrace.Content.AFTER
        async with client.subscribe("shop", products, since=0, content=content) as captures:
            for _ in shop.lines:
                await anext(captures)
        (held,) = (await server.get("/subscriptions")).json()
        # 15 MB wait. What may be on its way: the window, two sockets' buffers, sixteen messages in grpc-js.
        assert held["delivered_bytes"] < 4 << 20
        paused.end_input()
        assert await paused.printed(len(shop.lines)) == shop.lines
