"""A live table is the fold of history at every version, in memory and in a file."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

import tailrace
from tailrace import (
    CatalogReplaced,
    ColumnsChanged,
    EntityTypeUnknown,
    InvalidRequest,
    Operation,
    PositionCompacted,
    Retry,
    SubscriberTooSlow,
    SubscriptionClosed,
    TableChange,
    TableRestarted,
    Transition,
    ValueNotHeld,
)
from tailrace_server.wal.catalog import drop_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.upkeep.retention import trim
from tests.client.table.shop import Rows, Shop, served
from tests.conformance.shop import remove, update, upsert
from tests.server.grants.test_names_of_conditions import OPEN, rename
from tests.server.grants.test_names_of_conditions import write as write_tasks
from tests.server.rows.test_added_again import BY_VERSION, STEPS, write
from tests.server.sql.test_change_tables import define
from tests.support.inprocess import ModelWriter
from tests.support.model import ModelLog, ModelMutation
from tests.support.polling import until
from tests.support.proxy import FaultyProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PATIENCE_S = 60.0
KINDS = ("memory", "file")


@pytest.fixture(params=KINDS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Return where a table is kept, as ``client.table`` takes it."""
    return {} if request.param == "memory" else {"path": tmp_path / "product.sqlite"}


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE_S):
        yield


class Checked:
    """Compares a table with the history at every version that becomes visible, and folds its changes."""

    def __init__(self, table: tailrace.Table, shop: Shop) -> None:
        self.versions: list[int] = []
        self.restarts = 0
        self._table = table
        self._shop = shop
        self._folded: Rows = dict(table)
        self._changes = table.changes()

    async def check_until(self, version: int) -> None:
        while self._table.version < version:
            await self._table.wait_until(self._table.version + 1)
            self.check()

    def check(self) -> None:
        version = self._table.version
        self.versions.append(version)
        assert dict(self._table) == self._shop.states[version]
        assert len(self._table) == len(self._shop.states[version])

    async def fold(self) -> None:
        """Take the changes that wait; what they make is the table."""
        while self._changes._waiting:
            change = await anext(self._changes)
            if isinstance(change, TableRestarted):
                self.restarts += 1
                self._folded = dict(self._table)
            elif change.primary_key is None:
                self._folded = {}
            else:
                assert change.before == self._folded.get(change.primary_key)
                if change.new is None:
                    del self._folded[change.primary_key]
                else:
                    self._folded[change.primary_key] = change.after
        assert self._folded == self._shop.states[self._table.version]


async def test_contract_48_a_live_table_is_the_fold_of_history_at_every_version_through_breaks(
    log_root: Path, writer: ModelWriter, kept: dict[str, Any], quick_retry: Retry
) -> None:
    shop = Shop(writer)
    shop.trade(10)
    chance = random.Random(3)
    async with (
        served(log_root, ring_captures=64) as port,
        FaultyProxy(port) as proxy,
        tailrace.connect(f"127.0.0.1:{proxy.port}", retry=quick_retry) as client,
        client.table("shop", "product", **kept) as table,
    ):
        assert table.version >= 10
        checked = Checked(table, shop)
        checked.check()
        for _ in range(8):
            proxy.cut_after(int(2 ** chance.uniform(0, 13)), politely=chance.random() < 0.5)
            shop.trade(12)
            await checked.check_until(shop.version)
            await checked.fold()
        assert proxy.cuts >= 1
        assert len(checked.versions) >= 9
        assert checked.restarts == 0
        await until(lambda: table.lost is None)


async def test_rows_are_a_mapping_and_changes_say_what_was_before(
    log_root: Path, writer: ModelWriter, kept: dict[str, Any]
) -> None:
    writer.write([upsert("1", name="chair"), upsert("ключ", name=None)])
    async with (
        served(log_root) as port,
        tailrace.connect(f"127.0.0.1:{port}") as client,
        client.table("shop", "product", **kept) as table,
    ):
        assert table["1"] == {"id": "1", "name": "chair"}
        assert table.image("ключ") == upsert("ключ", name=None).image("after")
        assert ("1" in table, "2" in table, table.get("2")) == (True, False, None)
        assert sorted(table) == ["1", "ключ"]
        with pytest.raises(KeyError):
            table["2"]
        changes = table.changes()
        writer.write([upsert("1", name="stool"), remove("ключ"), remove("never was")])
        assert await table.wait_until(2) == 2
        first, second = await anext(changes), await anext(changes)
        assert isinstance(first, TableChange)
        assert isinstance(second, TableChange)
        assert (first.version, first.primary_key) == (2, "1")
        assert (first.before["name"], first.after["name"]) == ("chair", "stool")
        assert (second.primary_key, second.after) == ("ключ", None)
        writer.write([ModelMutation("product", None, Operation.REMOVE, None, None)])
        async for change in changes:
            assert isinstance(change, TableChange)
            assert (change.version, change.primary_key, change.new) == (3, None, None)
            break
        assert not table
        # Versions of other tables move it on as well.
        writer.write([upsert("1", "order")])
        assert await table.wait_until(4) == 4
    with pytest.raises(SubscriptionClosed):
        table["1"]
    with pytest.raises(SubscriptionClosed):
        await anext(changes)


async def test_contract_49_a_condition_gives_a_live_view_of_the_rows_that_meet_it(
    log_root: Path, writer: ModelWriter, kept: dict[str, Any]
) -> None:
    """What enters is put, what leaves is taken away, and each change says which it was."""
    writer.write([upsert("1", price=200), upsert("2", price=50), upsert("3", price=300)])
    async with (
        served(log_root) as port,
        tailrace.connect(f"127.0.0.1:{port}") as client,
        client.table(
            *("shop", "product"),
            where="price > :least::DECIMAL",
            parameters={"least": 100},
            **kept,
        ) as table,
    ):
        assert {key: row["price"] for key, row in table.items()} == {"1": 200, "3": 300}
        changes = table.changes()
        writer.write(
            [
                update("1", {"price": 200}, {"price": 201}),  # stays in
                update("2", {"price": 50}, {"price": 150}),  # enters
                update("3", {"price": 300}, {"price": 3}),  # leaves, and is still there
                upsert("4", price=4),  # is out
            ]
        )
        # Fewer records come than there are in the version: it is whole all the same.
        assert await table.wait_until(2) == 2
        assert {key: row["price"] for key, row in table.items()} == {"1": 201, "2": 150}
        gone = ModelMutation("product", "1", Operation.REMOVE, {"id": "1", "price": 201}, None)
        out = ModelMutation("product", "3", Operation.REMOVE, {"id": "3", "price": 3}, None)
        writer.write([gone, out])
        writer.write([ModelMutation("product", None, Operation.REMOVE, None, None)])
        assert await table.wait_until(4) == 4
        assert not table
        came = [await anext(changes) for _ in range(5)]
    told = [
        (each.version, each.primary_key, each.transition, each.operation)
        for each in came
        if isinstance(each, TableChange)
    ]
    assert told == [
        (2, "1", Transition.UPDATE, Operation.UPSERT),
        (2, "2", Transition.ENTER, Operation.UPSERT),
        (2, "3", Transition.LEAVE, Operation.UPSERT),
        (3, "1", Transition.LEAVE, Operation.REMOVE),
        (4, None, None, Operation.REMOVE),
    ]


async def test_a_condition_that_cannot_be_meant_is_refused(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert("1", price=200)])
    async with served(log_root) as port, tailrace.connect(f"127.0.0.1:{port}") as client:
        with pytest.raises(InvalidRequest, match="needs where"):
            client.table("shop", "product", parameters={"least": 100})
        with pytest.raises(InvalidRequest, match="prize"):
            async with client.table("shop", "product", where="prize > 100"):
                pass


async def test_images_by_choice(log_root: Path, writer: ModelWriter, kept: dict[str, Any]) -> None:
    row = upsert("1", name="chair")
    writer.write([row])
    async with (
        served(log_root) as port,
        tailrace.connect(f"127.0.0.1:{port}") as client,
        client.table("shop", "product", typed=False, **kept) as table,
    ):
        assert dict(table) == {"1": row.image("after")}


async def test_each_row_keeps_the_types_of_its_version(
    log_root: Path, kept: dict[str, Any]
) -> None:
    def append(sql_type: str, key: str, price: bytes = b"1", encoding: str = "json") -> None:
        text = f'[entity_types.product.columns.price]\ntype = "{sql_type}"\nencoding = "{encoding}"'
        with LogWriter.open(log_root, "shop", mapping=SchemaMapping.parse(text)) as log:
            log.append([Mutation("product", key, after=b'{"price":%b}' % price)])

    append("BIGINT", "1")
    async with (
        served(log_root) as port,
        tailrace.connect(f"127.0.0.1:{port}") as client,
        client.table("shop", "product", **kept) as table,
    ):
        append("DOUBLE", "2")
        append("DATE", "3", b"2147483647", "debezium.Date")
        await table.wait_until(3)
        assert [type(table[key]["price"]) for key in "12"] == [int, float]
        # A value that its type cannot hold is told to whoever reads that row; the others are read.
        with pytest.raises(ValueNotHeld, match="infinity"):
            table["3"]
        assert table.image("3") == b'{"price":2147483647}'
    with pytest.raises(SubscriptionClosed):
        await table.wait_until(4)


async def test_a_slow_iteration_is_told_that_it_missed_changes_and_holds_up_nobody(
    log_root: Path, writer: ModelWriter, kept: dict[str, Any]
) -> None:
    writer.write([upsert("1")])
    async with (
        served(log_root) as port,
        tailrace.connect(f"127.0.0.1:{port}") as client,
        client.table("shop", "product", backlog=3, **kept) as table,
    ):
        slow, quick = table.changes(), table.changes()
        for version in range(2, 7):
            writer.write([upsert("1", name=str(version))])
            await table.wait_until(version)
            change = await anext(quick)
            assert change.version == version
        missed = await anext(slow)
        assert isinstance(missed, TableRestarted)
        assert isinstance(missed.because, SubscriberTooSlow)
        later = [(await anext(slow)).version for _ in range(len(slow._waiting))]
        assert later == [*range(missed.version + 1, 7)]
        # A version that has more changes than may wait is one restart.
        writer.write([upsert(str(key)) for key in range(5)])
        large = await anext(quick)
        assert isinstance(large, TableRestarted)
        assert len(table) == 5


async def test_a_table_whose_changes_are_compacted_is_read_anew_and_says_so(
    log_root: Path, writer: ModelWriter, tmp_path: Path
) -> None:
    shop = Shop(writer)
    shop.trade(8)
    path = tmp_path / "product.sqlite"
    async with (
        served(log_root) as port,
        tailrace.connect(f"127.0.0.1:{port}") as client,
        client.table("shop", "product", path=path) as table,
    ):
        assert dict(table) == shop.states[8]
    shop.trade(30)
    trim(log_root / "shop", 20, 0)
    async with served(log_root) as port, tailrace.connect(f"127.0.0.1:{port}") as client:
        with pytest.raises(PositionCompacted):
            async with client.subscribe("shop", since=9):
                pass
        async with client.table("shop", "product", path=path) as table:
            assert dict(table) == shop.states[table.version] == shop.states[-1]


async def test_a_column_that_is_added_again_has_no_values_of_the_dropped_one(
    log_root: Path, kept: dict[str, Any]
) -> None:
    """The table is read anew where its source drops a column: rows that have not changed still have it."""
    write(log_root, *STEPS[:1])
    async with (
        served(log_root) as port,
        tailrace.connect(f"127.0.0.1:{port}") as client,
        client.table("shop", "product", **kept) as table,
    ):
        assert dict(table) == BY_VERSION[1]
        changes = table.changes()
        for version in (2, 3):
            write(log_root, STEPS[version - 1])
            await table.wait_until(version)
            assert dict(table) == BY_VERSION[version]
        restarted = await anext(changes)
        assert isinstance(restarted, TableRestarted)
        assert isinstance(restarted.because, ColumnsChanged)


async def test_a_condition_means_the_same_columns_through_breaks(
    log_root: Path, kept: dict[str, Any], quick_retry: Retry
) -> None:
    """Of a subscription and of a table: the source gives the column's name to another one meanwhile."""
    write_tasks(log_root, {"id": 1, "status": "open"})
    async with (
        served(log_root) as port,
        FaultyProxy(port) as proxy,
        tailrace.connect(f"127.0.0.1:{proxy.port}", retry=quick_retry) as client,
        client.table("shop", "task", where="status = 'open'", **kept) as table,
        client.subscribe("shop", OPEN) as captures,
    ):
        rename(log_root)
        await table.wait_until(2)
        assert (await anext(captures)).primary_key == "2"
        assert {*table} == {"1", "2"}
        proxy.cut_after(0)
        await until(lambda: table.lost is not None or proxy.cuts >= 2)
        write_tasks(log_root, {"id": 4, "status": "open"}, {"id": 5, "state": "open"})
        await table.wait_until(3)
        assert (await anext(captures)).primary_key == "5"
        assert {*table} == {"1", "2", "5"}


async def test_a_catalog_that_is_replaced_starts_the_table_again(
    log_root: Path, writer: ModelWriter, kept: dict[str, Any], quick_retry: Retry
) -> None:
    writer.write([upsert("1")], [upsert("2")])
    async with (
        served(log_root) as port,
        tailrace.connect(f"127.0.0.1:{port}", retry=quick_retry) as client,
        client.table("shop", "product", **kept) as table,
    ):
        changes = table.changes()
        writer.writer.close()
        drop_catalog(log_root, "shop")
        await until(lambda: table.lost is not None)
        assert sorted(table) == ["1", "2"]
        third = asyncio.create_task(table.wait_until(3))
        other = ModelWriter(log_root, "shop", ModelLog())
        other.write([upsert("3")])
        restarted = await anext(changes)
        assert isinstance(restarted, TableRestarted)
        assert isinstance(restarted.because, CatalogReplaced)
        assert (restarted.version, sorted(table)) == (1, ["3"])
        with pytest.raises(CatalogReplaced):  # version 3 would be of the other log
            await third
        other.write([upsert("4")])
        assert await table.wait_until(2) == 2
        change = await anext(changes)
        assert isinstance(change, TableChange)
        assert change.primary_key == "4"
        other.writer.close()


async def test_a_table_that_is_renamed_ends_and_says_what_it_is_called(
    log_root: Path, kept: dict[str, Any]
) -> None:
    with LogWriter.open(log_root, "shop") as log:
        log.append([Mutation("product", "1", after=b'{"id":1}')])
    async with (
        served(log_root) as port,
        tailrace.connect(f"127.0.0.1:{port}") as client,
        client.table("shop", "product", **kept) as table,
    ):
        changes = table.changes()
        mapping = SchemaMapping.parse('[entity_types.article]\nrenamed_from = "product"\n')
        with LogWriter.open(log_root, "shop", mapping=mapping) as log:
            log.append([Mutation("article", "2", after=b'{"id":2}')])
        with pytest.raises(EntityTypeUnknown, match="known: article"):
            await table.wait_until(2)
        with pytest.raises(EntityTypeUnknown):
            await anext(changes)
        with pytest.raises(EntityTypeUnknown):
            table["1"]
        with pytest.raises(EntityTypeUnknown):
            _ = table.version


async def test_what_a_table_cannot_be_is_told_as_it_is_entered(
    log_root: Path, writer: ModelWriter, kept: dict[str, Any]
) -> None:
    writer.write([upsert("1")])
    async with served(log_root) as port, tailrace.connect(f"127.0.0.1:{port}") as client:
        define(log_root, "CREATE VIEW all_of_it AS SELECT * FROM product")
        with pytest.raises(InvalidRequest, match="'all_of_it' is a view of 'product'"):
            async with client.table("shop", "all_of_it"):
                pass
        with pytest.raises(EntityTypeUnknown, match="widget"):
            async with client.table("shop", "widget", **kept):
                pass
        with pytest.raises(InvalidRequest, match="backlog 0"):
            client.table("shop", "product", backlog=0)
        table = client.table("shop", "product")
        with pytest.raises(SubscriptionClosed, match="has not been entered"):
            len(table)
        async with table:
            with pytest.raises(InvalidRequest, match="version 'x'"):
                await table.wait_until("x")  # type: ignore[arg-type]
            with pytest.raises(SubscriptionClosed, match="entered only once"):
                await table.__aenter__()
