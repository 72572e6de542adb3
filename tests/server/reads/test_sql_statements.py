"""Statements in SQL inside the engine: grants, bounds, ends. What SQL answers is in tests/server/sql/."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from tailrace.errors import (
    CatalogReplaced,
    CursorAhead,
    HistoryReplaced,
    InvalidRequest,
    NotPermitted,
    PositionCompacted,
    ServerFull,
    ServerStopping,
)
from tailrace_server.child_processes import children_of
from tailrace_server.engine.engine import Engine
from tailrace_server.filters.claims import read_claimed
from tailrace_server.grants.grant import Action, Allowance, Columns, Grant
from tailrace_server.grants.principal import ANONYMOUS, IN_PROCESS
from tailrace_server.reads import sql_statements
from tailrace_server.reads.sql_request import SqlForm, SqlRequest
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.support.inprocess import PATIENCE_S, observer_of
from tests.support.polling import until
from tests.support.principals import Holder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tailrace_server.grants.principal import Principal
    from tailrace_server.reads.sql_read import SqlRead

ENDLESS = "SELECT count(*) FROM range(1000000000000)"
PRODUCTS = frozenset({"product"})
TYPED = SchemaMapping.parse(
    """
    [entity_types.product]
    key = ["id"]
    [entity_types.product.columns]
    id = { type = "VARCHAR" }
    name = { type = "VARCHAR" }
    price = { type = "BIGINT" }
    [entity_types.day.columns]
    at = { type = "DATE" }
    """
)


def row(key: str, entity_type: str = "product", **columns: object) -> Mutation:
    return Mutation(entity_type, key, after=json.dumps({"id": key, **columns}).encode())


@pytest.fixture
def write(log_root: Path) -> Iterator[LogWriter]:
    """A writer of ``shop``, which has two products and an order in two versions."""
    with LogWriter.open(log_root, "shop", mapping=TYPED) as writer:
        commit(writer, row("1", name="chair", price=2), row("o", "order", total=7))
        commit(writer, row("2", name="table", price=3))
        yield writer


def commit(writer: LogWriter, *mutations: Mutation) -> None:
    writer.append(mutations)
    writer.commit(publish=True)


@pytest.fixture
async def engine(log_root: Path, write: LogWriter) -> AsyncIterator[Engine]:
    async with Engine(log_root, EngineSettings(sql_statements=1)) as found:
        yield found


async def begun(engine: Engine, text: str, caller: Principal = ANONYMOUS, **more: Any) -> SqlRead:
    asked = SqlRequest(statement=text, **more)
    return await engine.reads.sql(caller, IN_PROCESS, "shop", asked)


async def ask(engine: Engine, text: str, caller: Principal = ANONYMOUS, **more: Any) -> list[Any]:
    found: list[Any] = []
    with await begun(engine, text, caller, **more) as read:
        async for frames in read:
            found += map(json.loads, frames.data.splitlines())
    return found


def granted(*allowances: Allowance) -> Holder:
    return Holder({"shop": Grant(allowances)})


async def test_rows_that_a_condition_does_not_show_are_not_there(engine: Engine) -> None:
    caller = granted(
        Allowance(
            PRODUCTS,
            columns=Columns(frozenset({"price"})),
            rows=read_claimed("price = {most}").filled({"most": "3"}),
        )
    )
    assert await ask(engine, "SELECT name FROM product", caller) == [["table"]]
    assert await ask(engine, "SELECT count(*) FROM product WHERE id = '1'", caller) == [[0]]
    at_1 = "SELECT count(*) FROM product FOR VERSION AS OF 1"
    assert await ask(engine, at_1, caller) == [[0]]
    changes = "SELECT _commit_version, _change_type, after.name FROM CHANGES('product')"
    assert await ask(engine, changes, caller) == [[2, "insert", "table"]]


async def test_a_change_table_shows_what_enters_and_leaves_the_rows_that_are_granted(
    engine: Engine, write: LogWriter
) -> None:
    operator = granted(Allowance(actions=frozenset(Action)))
    for text in (
        "CREATE CDC product_cdc ON product INCLUDE (PRE, POST, CHANGE)",
        "CREATE VIEW named AS SELECT id, name FROM product WHERE name IS NOT NULL",
        "CREATE CDC named_cdc ON named INCLUDE (PRE)",
    ):
        await ask(engine, text, operator)
    low, high = ({"id": "2", "name": "table", "price": price} for price in (3, 30))
    for before, after in (
        (low, high),
        (high, high | {"name": "desk"}),
        (high | {"name": "desk"}, low),
    ):
        old, new = (json.dumps(each).encode() for each in (before, after))
        commit(write, Mutation("product", "2", before=old, after=new))
    await engine.view(ANONYMOUS, "shop", 5)
    rows = read_claimed("price > {least}").filled({"least": "3"})
    caller = granted(Allowance(PRODUCTS, columns=Columns(frozenset({"price"})), rows=rows))
    found = await ask(engine, 'SELECT id, "CDC JSON" FROM product_cdc', caller)
    assert [(key, json.loads(each)) for key, each in found] == [
        (
            "2",
            {
                "event_type": "upsert",
                "pre_image": {},
                "change_image": {"name": "table"},
                "post_image": {"name": "table"},
            },
        ),
        (
            "2",
            {
                "event_type": "upsert",
                "pre_image": {"name": "table"},
                "change_image": {"name": "desk"},
                "post_image": {"name": "desk"},
            },
        ),
        ("2", {"event_type": "delete", "pre_image": {"name": "desk"}}),
    ]
    of_view = await ask(engine, 'SELECT "CDC JSON" FROM named_cdc', caller)
    assert [json.loads(each)["event_type"] for (each,) in of_view] == ["upsert", "upsert", "delete"]
    asked = "SELECT _commit_version FROM CHANGES('product') WHERE _change_type = 'delete'"
    assert await ask(engine, asked, caller) == [[5]]
    changes = "SELECT _change_type, before.name AS old, after.name FROM CHANGES('named')"
    assert await ask(engine, changes, caller) == [
        ["insert", None, "table"],
        ["update", "table", "desk"],
        ["delete", "desk", None],
    ]


async def test_what_is_not_granted_is_not_there(engine: Engine) -> None:
    """A hidden table and a hidden column are told as those that do not exist, and no hint has their names."""
    caller = granted(Allowance(PRODUCTS, columns=Columns(frozenset({"price"}))))
    assert await ask(engine, "SELECT name FROM product ORDER BY id", caller) == [
        ["chair"],
        ["table"],
    ]
    assert [name for name, *_ in await ask(engine, "SHOW TABLES", caller)] == ["product"]
    described = [name for name, *_ in await ask(engine, "DESCRIBE product", caller)]
    assert "name" in described
    assert "price" not in described
    for hidden, unknown in (
        ('"order"', '"ordre"'),
        ("product WHERE price > 1", "product WHERE pryce > 1"),
    ):
        told = []
        for text in (hidden, unknown):
            with pytest.raises(InvalidRequest) as error:
                await ask(engine, f"SELECT 1 FROM {text}", caller)
            told.append(str(error.value))
        assert told[0].replace("order", "ordre").replace("price", "pryce") == told[1]
        assert "did you mean" not in told[1]


async def test_who_operates_a_catalog_defines_and_others_see_what_they_may_of_it(
    engine: Engine,
) -> None:
    operator = granted(Allowance(None, actions=frozenset(Action)))
    for text in (
        "CREATE CDC product_cdc ON product INCLUDE (PRE, POST)",
        'CREATE CDC order_cdc ON "order"',
        "CREATE VIEW names AS SELECT name FROM product",
        "CREATE VIEW cheap AS SELECT name FROM product WHERE price < 3",
        "CREATE CDC cheap_cdc ON cheap",
    ):
        assert "created" in str(await ask(engine, text, operator))
    caller = granted(Allowance(PRODUCTS, columns=Columns(frozenset({"price"}))))
    reader = granted(Allowance(None, actions=frozenset(Action) - {Action.OPERATE}))
    for each in (reader, caller):
        with pytest.raises(NotPermitted, match="operate the catalog"):
            await ask(engine, "DROP CDC product_cdc", each)
    # What needs a hidden table or column is not there, and no image has that column.
    shown = [name for name, *_ in await ask(engine, "SHOW TABLES", caller)]
    assert shown == ["product", "names", "product_cdc"]
    for hidden in ("order_cdc", "cheap", "cheap_cdc"):
        with pytest.raises(InvalidRequest, match="there is no table"):
            await ask(engine, f"SELECT * FROM {hidden}", caller)
    rows = await ask(engine, 'SELECT "CDC JSON" FROM product_cdc', caller)
    assert json.loads(rows[0][0])["post_image"] == {"name": "chair"}


async def test_rows_and_cells_are_shown_as_they_are_granted(
    engine: Engine, write: LogWriter
) -> None:
    """Key 1 with its name, every row with its price: other names are null, and their changes do not show."""
    caller = granted(
        Allowance(PRODUCTS, frozenset({"1"}), Columns(frozenset({"id", "name"}), listed=True)),
        Allowance(PRODUCTS, columns=Columns(frozenset({"id", "price"}), listed=True)),
    )
    text = "SELECT id, name, price FROM product ORDER BY id"
    assert await ask(engine, text, caller) == [["1", "chair", 2], ["2", None, 3]]
    after = row("2", name="desk", price=3).after
    commit(write, Mutation("product", "2", after=after, changed=("name",)))
    changes = "SELECT _primary_key, after.name FROM CHANGES('product') ORDER BY _commit_version"
    seen = await ask(engine, changes, caller, wait_for_version=3)
    assert seen == [["1", "chair"], ["2", None]]
    only_one = granted(Allowance(PRODUCTS, frozenset({"1"})))
    assert await ask(engine, text, only_one) == [["1", "chair", 2]]
    assert await ask(engine, changes, only_one) == [["1", "chair"]]


async def test_a_value_that_does_not_fit_is_not_told_where_it_is_hidden(
    engine: Engine, write: LogWriter
) -> None:
    """Of day 1 its name and date, of others the name: a date that no reader can hold stays with them."""
    days = frozenset({"day"})
    caller = granted(
        Allowance(days, frozenset({"1"})),
        Allowance(days, columns=Columns(frozenset({"at"}))),
    )
    hidden = row("2", "day", name="b", at="12024-02-29")
    commit(write, row("1", "day", name="a", at="2024-02-29"), hidden)
    text = "SELECT name, at FROM day ORDER BY _primary_key"
    seen = [["a", "2024-02-29"], ["b", None]]
    assert await ask(engine, text, caller, wait_for_version=3) == seen
    changes = "SELECT after.name, after.at FROM CHANGES('day') ORDER BY _index"
    assert await ask(engine, changes, caller) == seen
    operator = granted(Allowance(None, actions=frozenset(Action)))
    await ask(engine, "CREATE VIEW past AS SELECT name FROM day WHERE at < '2025-01-01'", operator)
    await ask(engine, "CREATE CDC past_cdc ON past", operator)
    # A row that hides the column of the condition is not in the view.
    assert await ask(engine, "SELECT name FROM past", caller) == [["a"]]
    assert await ask(engine, "SELECT after.name FROM CHANGES('past')", caller) == [["a"]]
    told = await ask(engine, "SELECT \"CDC JSON\"->>'$.change_image.name' FROM past_cdc", caller)
    assert told == [["a"]]


async def test_changes_from_before_a_rename_are_granted_under_the_name_that_they_have(
    log_root: Path,
) -> None:
    renamed = SchemaMapping.parse(
        """
        [entity_types.item]
        renamed_from = "product"
        [entity_types.item.columns]
        cost = { type = "BIGINT", renamed_from = "price" }
        """
    )
    with LogWriter.open(log_root, "shop", mapping=TYPED) as writer:
        commit(writer, row("1", name="chair", price=77))
    with LogWriter.open(log_root, "shop", mapping=renamed) as writer:
        commit(writer, row("2", "item", name="table", cost=3))
    hidden = Columns(frozenset({"price"}))
    text = "SELECT _primary_key FROM CHANGES('item') ORDER BY _commit_version"
    async with Engine(log_root) as engine:
        operator = granted(Allowance(None, actions=frozenset(Action)))
        await ask(engine, "CREATE CDC item_cdc ON item INCLUDE (POST)", operator)
        both = granted(Allowance(PRODUCTS | {"item"}, columns=hidden))
        assert await ask(engine, text, both) == [["1"], ["2"]]
        images = await ask(engine, 'SELECT "CDC JSON" FROM item_cdc', both)
        assert '"cost":3' in images[1][0]
        assert "77" not in images[0][0]
        assert await ask(engine, text, granted(Allowance(frozenset({"item"})))) == [["2"]]
        other = granted(Allowance(frozenset({"item"})), Allowance(PRODUCTS, columns=hidden))
        with pytest.raises(NotPermitted, match="had another name in version 1"):
            await ask(engine, text, other)
        later = text.replace("'item'", "'item', 2")
        assert await ask(engine, later, other) == [["2"]]


async def test_tables_need_images(engine: Engine) -> None:
    with pytest.raises(NotPermitted, match="bodies are not granted"):
        await ask(engine, "SELECT 1", granted(Allowance(bodies=False)))


async def test_a_reader_that_goes_away_ends_its_statement_at_once(engine: Engine) -> None:
    """Its place is free again, though it was computing: the engine runs one statement only."""
    running = asyncio.create_task(ask(engine, ENDLESS))
    await until(lambda: engine.reads.statements.statistics().computing == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(PATIENCE_S):
        assert await ask(engine, "SELECT 1") == [[1]]


async def test_a_server_that_stops_ends_its_statements_and_begins_no_more(engine: Engine) -> None:
    running = asyncio.create_task(ask(engine, ENDLESS))
    await until(lambda: engine.reads.statements.statistics().computing == 1)
    engine.stop_subscriptions()
    with pytest.raises(ServerStopping):
        await running
    with pytest.raises(ServerStopping):
        await ask(engine, "SELECT 1")


async def test_one_statement_too_many_is_refused_when_it_has_waited(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with await begun(engine, "SELECT 1"), monkeypatch.context() as patched:
        patched.setattr(sql_statements, "_PATIENCE_S", 0.01)
        with pytest.raises(ServerFull, match="sql_statements"):
            await ask(engine, "SELECT 1")
    assert await ask(engine, "SELECT 1") == [[1]]


async def test_an_answer_of_any_length_is_computed_as_it_is_taken(engine: Engine) -> None:
    """A billion rows: those that nobody takes are not made."""
    with await begun(engine, "SELECT * FROM range(1000000000)", form=SqlForm.LINES) as read:
        messages = aiter(read)
        frames = await anext(messages)
        assert json.loads(frames.data.splitlines()[0]) == {"range": 0}
        assert frames.count < 10_000


async def test_a_statement_has_the_bounds_of_the_server(log_root: Path, write: LogWriter) -> None:
    async with Engine(log_root, EngineSettings(sql_s=0.2)) as engine:
        with pytest.raises(InvalidRequest, match="took longer than"):
            await ask(engine, ENDLESS)
    async with Engine(log_root, EngineSettings(sql_rows=10)) as engine:
        with pytest.raises(InvalidRequest, match="more than 10 rows"):
            await ask(engine, "SELECT * FROM range(11)")


async def test_the_process_of_a_statement_that_has_ended_has_the_next_one(engine: Engine) -> None:
    others = set(children_of(os.getpid()))

    async def ended() -> set[int]:
        await until(lambda: not engine.statistics(ANONYMOUS).sql.statements)
        return set(children_of(os.getpid())) - others

    assert await ask(engine, "SELECT count(*) FROM product") == [[2]]
    processes = await ended()
    assert len(processes) == 1
    for again in ("SELECT name FROM product", "SELECT count(*) FROM CHANGES('product', 1, 2)"):
        assert await ask(engine, again)
        assert await ended() == processes
    for wrong in ("SELECT nme FROM product", "SELECT name FROM product FOR VERSION AS OF 'x'"):
        with pytest.raises(InvalidRequest):
            await ask(engine, wrong)
        assert await ended() == processes


async def test_statements_are_counted_by_how_they_end(engine: Engine) -> None:
    def counts() -> tuple[int, ...]:
        sql = engine.statistics(ANONYMOUS).sql
        return sql.statements, sql.answered, sql.refused, sql.left

    assert await ask(engine, "SELECT name FROM product WHERE price = 2") == [["chair"]]
    for wrong in ("SELECT", "SELECT nme FROM product"):
        with pytest.raises(InvalidRequest):
            await ask(engine, wrong)
    with await begun(engine, "SELECT * FROM range(1000000000)") as read:
        assert counts() == (1, 1, 2, 0)
        frames = aiter(read)
        await anext(frames)
        await frames.aclose()  # type: ignore[attr-defined]
    await until(lambda: counts() == (0, 1, 2, 1))
    sql = engine.statistics(ANONYMOUS).sql
    assert (sql.computing, sql.computing_s > 0, sql.answer_bytes > len('["chair"]')) == (
        0,
        True,
        True,
    )


async def test_a_caller_who_leaves_leaves_no_error_behind(engine: Engine) -> None:
    """Nothing awaits the job of its statement any more, and asyncio logs such errors with a traceback."""
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    for text in (ENDLESS, "SELECT * FROM range(1000000000) r(i) WHERE i > 999999990"):
        asking = asyncio.create_task(ask(engine, text))
        await until(lambda: engine.statistics(ANONYMOUS).sql.computing == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: not engine.statistics(ANONYMOUS).sql.statements)
    gc.collect()
    assert errors == []


async def test_a_poll_is_bound_by_the_server(engine: Engine, write: LogWriter) -> None:
    """From the version that is asked for to the one that is published; and what is below it is refused."""
    text = "SELECT _primary_key FROM CHANGES('product', $from, $to) ORDER BY _commit_version"
    with await begun(engine, text, since_version=2) as read:
        assert (read.since_version, read.version) == (2, 2)
        first = read.closed_until
    assert await ask(engine, text, since_version=2) == [["2"]]
    assert await ask(engine, text, since_version=3) == []
    commit(write, row("3", name="lamp"))
    assert await ask(engine, text, from_time=first, wait_for_version=3) == [["3"]]
    with pytest.raises(
        InvalidRequest,
        match=r"must read changes from \$from on: CHANGES\('product', \$from, \$to\)",
    ):
        await ask(engine, "SELECT 1", since_version=1)
    with pytest.raises(InvalidRequest, match=r"\$from: since_version"):
        await ask(engine, text, since_version=1, parameters={"from": 1})
    write.trim(before=3)
    observer = observer_of(engine, "shop")
    await until(lambda: observer.log.view.oldest.version == 3)
    with pytest.raises(PositionCompacted):
        await ask(engine, text, since_version=2)
    assert await ask(engine, text, since_version=0) == [["3"]]


async def test_a_poll_behind_what_the_log_does_not_have_is_refused(engine: Engine) -> None:
    """A log that was restored from an older copy would be asked for ever. A cursor says which one was read."""
    text = "SELECT _primary_key FROM CHANGES('product', $from, $to) ORDER BY _commit_version"
    with await begun(engine, text, since_version=1) as read:
        cursor = read.cursor
    assert await ask(engine, text, after=cursor) == []
    assert await ask(engine, text, after=replace(cursor, version=1, commit_timestamp=None)) == [
        ["2"]
    ]
    with pytest.raises(CursorAhead) as ahead:
        await ask(engine, text, since_version=4)
    assert ahead.value.newest.version == 2
    with pytest.raises(CursorAhead):
        await ask(engine, text, after=replace(cursor, version=3))
    with pytest.raises(HistoryReplaced):
        await ask(engine, text, after=replace(cursor, commit_timestamp=1))
    with pytest.raises(CatalogReplaced):
        await ask(engine, text, after=replace(cursor, catalog_uuid=uuid4()))
    with pytest.raises(InvalidRequest, match="a poll reads whole versions"):
        await ask(engine, text, after=replace(cursor, index=0))
    with pytest.raises(InvalidRequest, match="not since_version and after"):
        await ask(engine, text, since_version=1, after=cursor)
