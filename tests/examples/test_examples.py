"""The examples do what they say."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.count_by_hand import count
from examples.replica import replicate
from tailrace import CatalogUnknown, Operation
from tailrace_server.api.grpc import GrpcServer
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.resources.settings import EngineSettings
from tests.support.model import ModelMutation
from tests.support.polling import until
from tests.support.programs import Program
from tests.support.proxy import FaultyProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.inprocess import ModelWriter

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


@asynccontextmanager
async def served(engine: Engine, port: int = 0) -> AsyncIterator[int]:
    server = GrpcServer(engine)
    bound = await server.start(f"127.0.0.1:{port}")
    try:
        yield bound
    finally:
        await server.stop(1.0)


class Shop:
    """Makes up transactions, and knows what the tables must look like."""

    def __init__(self, writer: ModelWriter) -> None:
        self._writer = writer
        self._random = random.Random(11)
        self.rows: dict[tuple[str, str], dict[str, object]] = {}
        self.prices: list[str] = []
        """What is printed by who watches the prices of products."""
        self.version = 0

    @property
    def products(self) -> dict[str, dict[str, object]]:
        return {key: row for (kind, key), row in self.rows.items() if kind == "product"}

    def trade(self, transactions: int) -> None:
        for _ in range(transactions):
            self._writer.write([self._change() for _ in range(self._random.randrange(8))])
            self.version += 1

    def insert_large(self, size: int) -> None:
        row: dict[str, object] = {"id": "large", "price": 1, "note": "x" * size}
        self._writer.write([ModelMutation("product", "large", Operation.UPSERT, None, row)])
        self.rows["product", "large"] = row
        self.version += 1

    def _change(self) -> ModelMutation:
        entity_type = self._random.choice(["product", "order"])
        key = str(self._random.randrange(50))
        place = entity_type, key
        before = self.rows.get(place)
        if self._random.random() < 0.01:
            for each in [each for each in self.rows if each[0] == entity_type]:
                del self.rows[each]
            return ModelMutation(entity_type, None, Operation.REMOVE, None, None)
        if before is not None and self._random.random() < 0.3:
            del self.rows[place]
            return ModelMutation(entity_type, key, Operation.REMOVE, before, None)
        after: dict[str, object] = {"id": key, "price": self._random.randrange(100)}
        if entity_type == "product" and (before is None or before["price"] != after["price"]):
            old = "(new)" if before is None else _price(before)
            self.prices.append(f"product {key}: {old} -> {_price(after)}")
        self.rows[place] = after
        return ModelMutation(entity_type, key, Operation.UPSERT, before, after)


def _price(row: dict[str, object]) -> str:
    return json.dumps({"price": row["price"]}, separators=(",", ":"))


def copied(path: Path) -> tuple[int, dict[str, object]]:
    """Return version and rows of a replica's file, as another process reads them."""
    database = sqlite3.connect(path)
    try:
        database.execute("BEGIN")
        (cursor,) = database.execute("SELECT cursor FROM about").fetchone()
        rows = database.execute("SELECT primary_key, image FROM rows").fetchall()
    finally:
        database.close()
    return int(cursor.split(".")[2]), {key: json.loads(image) for key, image in rows}


@asynccontextmanager
async def replica_process(port: int, path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.replica", "shop", "product", str(path)),
        *("--server", f"127.0.0.1:{port}"),
        cwd=ROOT,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def reaches(path: Path, version: int) -> None:
    """Wait until a replica's file contains a version."""

    def contains() -> bool:
        try:
            return copied(path)[0] >= version
        except (sqlite3.OperationalError, TypeError, AttributeError):
            return False  # no file, no table or no row yet

    await until(contains)


@pytest.mark.slow
async def test_a_replica_equals_the_log_through_kills_stalls_and_reconnects(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    shop = Shop(writer)
    path = tmp_path / "shop.sqlite"
    settings = EngineSettings(heartbeat_interval_s=0.2, ring_captures=64)
    async with Engine(log_root, settings) as engine:
        async with served(engine) as port:
            shop.trade(60)
            async with replica_process(port, path) as replica:
                await reaches(path, 60)
                shop.trade(60)
                replica.send_signal(signal.SIGSTOP)
                shop.trade(60)
                replica.send_signal(signal.SIGCONT)
                await reaches(path, 100)
                replica.kill()
            shop.trade(100)
            async with replica_process(port, path):
                await reaches(path, shop.version)
                assert copied(path) == (shop.version, shop.products)
                shop.trade(50)
        # The server is gone; the next replica process finds the next one by itself.
        shop.trade(50)
        async with served(engine, port), replica_process(port, path) as replica:
            await reaches(path, shop.version)
            shop.trade(50)
            await reaches(path, shop.version)
            assert replica.returncode is None
    assert copied(path) == (shop.version, shop.products)


@pytest.mark.slow
async def test_programs_of_the_client_go_on_where_they_were_cut(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    """A replica, a watcher of prices and a counter by hand, each behind a proxy, with a row of 2 MiB."""
    shop = Shop(writer)
    shop.trade(30)
    shop.insert_large(2 << 20)
    path = tmp_path / "shop.sqlite"
    chance = random.Random(3)
    async with AsyncExitStack() as stack:
        settings = EngineSettings(heartbeat_interval_s=0.05)
        engine = await stack.enter_async_context(Engine(log_root, settings))
        port = await stack.enter_async_context(served(engine))
        proxies = [await stack.enter_async_context(FaultyProxy(port)) for _ in range(3)]
        watched, copying, counted = (f"127.0.0.1:{proxy.port}" for proxy in proxies)
        command = (sys.executable, "-u", "-m", "examples.watch_prices", "--server", watched)
        watcher = await stack.enter_async_context(Program(*command, folder=ROOT))
        await until(lambda: len(engine.subscriptions(ANONYMOUS)) == 1)
        shop.prices.clear()
        for proxy in proxies:
            proxy.cut_after(1_000)
        async with asyncio.TaskGroup() as tasks:
            replica = tasks.create_task(replicate(copying, "shop", "product", str(path)))
            counting = tasks.create_task(count(counted, "shop", 1_000))
            for number in range(6):
                for proxy in proxies:
                    async with asyncio.timeout(PATIENCE_S):
                        await proxy.was_cut()
                    if number < 5:
                        proxy.cut_after(int(2 ** chance.uniform(0, 12)), politely=number % 2 == 0)
                shop.trade(20)
            shop.trade(120)
            await counting
            await reaches(path, shop.version)
            replica.cancel()
        assert counting.result() == await count(f"127.0.0.1:{port}", "shop", 1_000)
        # Between the prices it says when it was cut, and a price that never comes is told by a time-out.
        printed = [line for line in watcher.lines if not line.startswith("lost: ")]
        while len(printed) < len(shop.prices):
            printed = await watcher.printed(len(watcher.lines) + 1)
            printed = [line for line in printed if not line.startswith("lost: ")]
        assert printed == shop.prices
    assert copied(path) == (shop.version, shop.products)
    assert shop.version == 271


async def test_counting_by_hand(log_root: Path, writer: ModelWriter) -> None:
    Shop(writer).trade(30)
    async with Engine(log_root) as engine, served(engine) as port, asyncio.timeout(PATIENCE_S):
        counts = await count(f"127.0.0.1:{port}", "shop", 50)
        assert counts.total() == 50
        assert counts["transaction TRANSACTION"] > 5
        with pytest.raises(CatalogUnknown):
            await count(f"127.0.0.1:{port}", "ship", 50)
