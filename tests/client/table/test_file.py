"""The file of a live table: exact through kills, and nobody else's."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import tailrace
from tailrace import Area, CatalogReplaced, Criteria, Retry, TableChange, TableFileError
from tailrace.table import sqlite
from tailrace.table.sqlite import InSqlite, contents_of
from tailrace_server.wal.catalog import drop_catalog
from tests.client.table.shop import Rows, Shop, served, typed
from tests.conformance.shop import update, upsert
from tests.server.grants.test_names_of_conditions import rename
from tests.server.grants.test_names_of_conditions import write as write_tasks
from tests.support.inprocess import ModelWriter
from tests.support.model import ModelLog
from tests.support.polling import until
from tests.support.programs import Program

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PATIENCE_S = 60.0
FOLLOWING = """
import asyncio, sys, tailrace

async def main():
    async with (
        tailrace.connect(sys.argv[1]) as client,
        client.table("shop", "product", path=sys.argv[2]) as table,
    ):
        print("entered at", table.version, flush=True)
        while True:
            print(await table.wait_until(table.version + 1), flush=True)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE_S):
        yield


LOADING = """
import asyncio, sys
from tailrace import Criteria
from tailrace.table.sqlite import InSqlite

async def main():
    contents = InSqlite(sys.argv[1], "shop", Criteria(entity_type=("product",)), typed=True)
    await contents.open()
    await contents.begin_again()
    print("loading", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


def held(path: Path) -> tuple[int, Rows]:
    """Return version and rows of a file, as any program reads them."""
    database = sqlite3.connect(path)
    try:
        database.execute("BEGIN")
        [(cursor,)] = database.execute("SELECT cursor FROM about").fetchall()
        rows = database.execute("SELECT primary_key, image FROM rows").fetchall()
    finally:
        database.close()
    return int(cursor.split(".")[2]), {key: typed(json.loads(image)) for key, image in rows}


@pytest.mark.slow
async def test_a_program_that_is_killed_goes_on_from_exactly_what_its_file_holds(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    shop = Shop(writer)
    shop.trade(20)
    path = tmp_path / "product.sqlite"
    chance = random.Random(5)
    async with served(log_root) as port:
        command = (sys.executable, "-c", FOLLOWING, f"127.0.0.1:{port}", str(path))
        reached = 0
        for _ in range(2):
            before = shop.version
            async with Program(*command, folder=tmp_path) as program:
                [entered] = await program.printed(1)
                assert int(entered.split()[-1]) >= before
                for lines in range(2, chance.randrange(4, 30)):
                    shop.trade(1)
                    await program.printed(lines)
                shop.trade(5)
                program.process.kill()
                await program.process.wait()
            version, rows = held(path)
            assert rows == shop.states[version]
            assert version >= reached
            reached = version
            shop.trade(10)
        async with (
            tailrace.connect(f"127.0.0.1:{port}") as client,
            client.table("shop", "product", path=path) as table,
        ):
            await table.wait_until(shop.version)
            assert dict(table) == shop.states[table.version] == shop.states[-1]
    assert held(path) == (shop.version, shop.states[-1])


async def test_types_that_rows_had_are_kept_in_the_file(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    """A program that begins anew reads rows by the columns that the file has for them."""
    shop = Shop(writer)
    shop.trade(30)
    path = tmp_path / "product.sqlite"
    async with served(log_root) as port, tailrace.connect(f"127.0.0.1:{port}") as client:
        for _ in range(2):
            async with client.table("shop", "product", path=path) as table:
                await table.wait_until(shop.version)
                assert dict(table) == shop.states[-1]
            shop.trade(20)


async def test_what_is_not_its_own_is_refused_by_name(
    log_root: Path, writer: ModelWriter, tmp_path: Path, quick_retry: Retry
) -> None:
    writer.write([upsert("1"), upsert("1", "order")])
    path = tmp_path / "product.sqlite"
    other, text = tmp_path / "other.sqlite", tmp_path / "notes.txt"
    database = sqlite3.connect(other)
    database.execute("CREATE TABLE something (id INTEGER)")
    database.close()
    text.write_text("no database at all, though it is long enough to be taken for one" * 20)
    async with (
        served(log_root) as port,
        tailrace.connect(f"127.0.0.1:{port}", retry=quick_retry) as client,
    ):

        async def enter(path: Path, entity_type: str = "product", *, images: bool = False) -> None:
            async with client.table("shop", entity_type, path=path, typed=not images):
                pass

        await enter(path)
        with pytest.raises(TableFileError, match=r"holds entity type 'product'.*not .*'order'"):
            await enter(path, "order")
        with pytest.raises(TableFileError, match=r"typed=True, not .*typed=False"):
            await enter(path, images=True)
        with pytest.raises(TableFileError, match="database of another program"):
            await enter(other)
        with pytest.raises(TableFileError, match="not a database"):
            await enter(text)
        with pytest.raises(TableFileError, match="unable to open"):
            await enter(tmp_path / "missing" / "product.sqlite")
        database = sqlite3.connect(path)
        database.execute("PRAGMA user_version = 99")
        database.close()
        with pytest.raises(TableFileError, match="newer tailrace"):
            await enter(path)
        database = sqlite3.connect(path)
        database.execute("PRAGMA user_version = 1")
        database.close()
        # Another log of the same name: the file is kept as it is.
        writer.writer.close()
        drop_catalog(log_root, "shop")
        again = ModelWriter(log_root, "shop", ModelLog())
        again.write([upsert("2")])
        again.writer.close()
    async with served(log_root) as port, tailrace.connect(f"127.0.0.1:{port}") as client:
        with pytest.raises(CatalogReplaced):
            async with client.table("shop", "product", path=path):
                pass
    assert held(path) == (1, {"1": {"id": "1"}})


async def test_a_file_of_one_condition_goes_on_with_it_and_refuses_another(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    writer.write([upsert("1", price=200), upsert("2", price=50)])
    path = tmp_path / "product.sqlite"
    async with served(log_root) as port, tailrace.connect(f"127.0.0.1:{port}") as client:

        async def enter(where: str | None, version: int = 0, **parameters: object) -> list[str]:
            async with client.table(
                "shop", "product", path=path, where=where, parameters=parameters
            ) as table:
                await table.wait_until(version)
                return sorted(table)

        assert await enter("price > :least::DECIMAL", least=100) == ["1"]
        writer.write(
            [update("1", {"price": 200}, {"price": 20}), update("2", {"price": 50}, {"price": 500})]
        )
        assert await enter("price > :least::DECIMAL", 2, least=100) == ["2"]
        for where, parameters in (("price > :least::DECIMAL", {"least": 101}), (None, {})):
            with pytest.raises(
                TableFileError, match=r"rows by .*price > :least.*, not .*; use another file"
            ):
                await enter(where, 0, **parameters)
    assert held(path)[1].keys() == {"2"}


@pytest.mark.parametrize(
    "knows_version", [True, False], ids=["new file", "file of an older client"]
)
async def test_a_file_goes_on_with_the_columns_of_its_condition_or_is_read_anew(
    log_root: Path, tmp_path: Path, knows_version: bool
) -> None:
    """The source renames the column and gives its name to another one while no program has the file."""
    write_tasks(log_root, {"id": 1, "status": "open"})
    path = tmp_path / "task.sqlite"
    async with served(log_root) as port, tailrace.connect(f"127.0.0.1:{port}") as client:
        async with client.table("shop", "task", path=path, where="status = 'open'"):
            pass
        rename(log_root)
        if not knows_version:
            database = sqlite3.connect(path)
            database.execute("DROP TABLE loaded")
            database.close()
        async with client.subscribe("shop", since=0) as captures:
            while (await anext(captures)).version < 2:
                pass
        async with client.table("shop", "task", path=path, where="status = 'open'") as table:
            await table.wait_until(2)
            assert {*table} == ({"1", "2"} if knows_version else {"3"})


async def test_a_file_of_the_first_format_has_all_rows(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    """It knew no conditions: it goes on without one, and refuses one."""
    writer.write([upsert("1", price=200)])
    path = tmp_path / "product.sqlite"
    async with served(log_root) as port, tailrace.connect(f"127.0.0.1:{port}") as client:
        async with client.table("shop", "product", path=path):
            pass
        database = sqlite3.connect(path)
        database.execute("ALTER TABLE about DROP COLUMN condition")
        database.execute("PRAGMA user_version = 1")
        database.close()
        with pytest.raises(TableFileError, match=r"holds .* all rows, .* not .* rows by"):
            async with client.table("shop", "product", path=path, where="price > 100"):
                pass
        writer.write([upsert("2", price=20)])
        async with client.table("shop", "product", path=path) as table:
            await table.wait_until(2)  # the server may not have seen it when it was entered
            assert sorted(table) == ["1", "2"]


@pytest.mark.parametrize("while_loading", [False, True])
async def test_a_file_has_one_table_at_a_time(
    log_root: Path, writer: ModelWriter, tmp_path: Path, while_loading: bool
) -> None:
    """The second is refused, also while the first has only begun to load; then it may have the file."""
    writer.write([upsert(str(key)) for key in range(30)])
    path, link = tmp_path / "product.sqlite", tmp_path / "other.sqlite"
    async with served(log_root) as port, tailrace.connect(f"127.0.0.1:{port}") as client:
        if while_loading:
            rows = Criteria(area=Area.DATA, entity_type=("product",))
            first = InSqlite(str(path), "shop", rows, typed=True)
            assert await first.open() is None
            await first.begin_again()
            close = first.close
        else:
            table = client.table("shop", "product", path=path)
            await table.__aenter__()
            close = table.close
        link.symlink_to(path)
        for name in (path, link):
            with pytest.raises(TableFileError, match="another table has the file open"):
                async with client.table("shop", "product", path=name):
                    pass
        if while_loading:
            await first.add([])
        await close()
        async with client.table("shop", "product", path=link) as table:
            assert len(table) == 30
    assert len(held(path)[1]) == 30


@pytest.mark.slow
async def test_a_file_is_free_when_the_process_that_loads_it_is_killed(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    writer.write([upsert("1")])
    path = tmp_path / "product.sqlite"
    command = (sys.executable, "-c", LOADING, str(path))
    async with served(log_root) as port, tailrace.connect(f"127.0.0.1:{port}") as client:
        async with Program(*command, folder=tmp_path) as program:
            await program.printed(1)
            with pytest.raises(TableFileError, match="another table has the file open"):
                async with client.table("shop", "product", path=path):
                    pass
            program.process.kill()
            await program.process.wait()
        async with client.table("shop", "product", path=path) as table:
            assert list(table) == ["1"]


async def test_the_write_ahead_log_of_the_file_stays_small(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    """Some thirteen megabytes come and go, and no more than twelve of them are in it at once."""
    path = tmp_path / "product.sqlite"
    writer.write([upsert("1")])
    async with (
        served(log_root) as port,
        tailrace.connect(f"127.0.0.1:{port}") as client,
        client.table("shop", "product", path=path) as table,
    ):
        for version in range(2, 10):
            writer.write([upsert(str(key), text="x" * 160_000) for key in range(10)])
            await table.wait_until(version)
        assert len(table) == 10
        assert path.with_name(path.name + "-wal").stat().st_size < 12_000_000
    assert held(path)[0] == 9


async def test_a_quiet_table_keeps_how_far_it_has_come(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    """Versions of other tables move the cursor in the file on, also if the program is killed then."""
    path = tmp_path / "product.sqlite"
    writer.write([upsert("1")])
    async with (
        served(log_root) as port,
        tailrace.connect(f"127.0.0.1:{port}") as client,
        client.table("shop", "product", path=path),
    ):
        writer.write([upsert("1", "order")])
        await until(lambda: held(path)[0] == 2)


async def test_rows_and_version_are_of_one_moment_while_the_file_is_written_back(
    log_root: Path, writer: ModelWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_LOG_BYTES", -1)  # it is written back all the time
    shop = Shop(writer)
    shop.write(upsert("1"))
    async with (
        served(log_root) as port,
        tailrace.connect(f"127.0.0.1:{port}") as client,
        client.table("shop", "product", path=tmp_path / "product.sqlite") as table,
    ):
        for key in range(2, 12):
            shop.write(upsert(str(key)))
            while table.version < shop.version:
                assert dict(table) == shop.states[table.version]
                await asyncio.sleep(0)


async def test_who_listens_while_a_version_is_applied_is_told_its_changes(
    log_root: Path, writer: ModelWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    apply = InSqlite._apply

    def held_up(self: InSqlite, *arguments: Any) -> None:
        begun.set()
        go_on.wait(PATIENCE_S)
        apply(self, *arguments)

    monkeypatch.setattr(InSqlite, "_apply", held_up)
    writer.write([upsert("1")])
    async with (
        served(log_root) as port,
        tailrace.connect(f"127.0.0.1:{port}") as client,
        client.table("shop", "product", path=tmp_path / "product.sqlite") as table,
    ):
        writer.write([upsert("2")])
        await until(begun.is_set)
        changes = table.changes()
        go_on.set()
        change = await anext(changes)
        assert isinstance(change, TableChange)
        assert (change.version, change.primary_key) == (2, "2")


async def test_a_thread_that_writes_is_waited_for_however_often_its_task_is_cancelled(
    tmp_path: Path,
) -> None:
    """Else the file would be closed, or a transaction rolled back, beneath it."""
    written = threading.Event()
    contents = contents_of(tmp_path / "x", "shop", Criteria(entity_type=("product",)), typed=True)
    assert isinstance(contents, InSqlite)
    task = asyncio.create_task(contents._in_thread(written.wait, PATIENCE_S))
    for _ in range(30):
        await asyncio.sleep(0)
        task.cancel()
    assert not task.done()
    written.set()
    with pytest.raises(asyncio.CancelledError):
        await task
