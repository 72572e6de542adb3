"""Grants that name a view: they give what equal grants of its entity type would, and nothing by other names."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product as every
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from tailrace.criteria import After, Area, Content, Criteria, FromState
from tailrace.errors import InvalidRequest, NotPermitted, TailraceError
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.filters.claims import read_claimed
from tailrace_server.grants.grant import ALL_COLUMNS, EVERYTHING, Allowance, Columns, Grant
from tailrace_server.grants.principal import ANONYMOUS, IN_PROCESS
from tailrace_server.reads.sql_request import SqlRequest
from tailrace_server.wal.record.mutation import Mutation
from tests.server.grants.test_views import CHANGES, history, subscribe
from tests.server.reads.test_state import rows_of, state
from tests.server.reads.test_view_rows import CHEAP, PRODUCTS, RENAMED, write
from tests.server.sql.test_change_tables import define
from tests.server.sql.test_query import product, products
from tests.support.inprocess import receive
from tests.support.principals import Holder

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.filters.tree import Condition
    from tailrace_server.grants.principal import Principal

VIEWS = {
    "cheap": (("id", "name"), "price < 10"),
    "dear": ((), "price >= 10"),
    "names": (("name",), ""),
}
COLUMNS = {
    "all": ALL_COLUMNS,
    "listed": Columns(frozenset({"name", "price"}), listed=True),
    "hidden": Columns(frozenset({"id"})),
}
KEYS = (None, frozenset({"1", "4"}))
WHERES = ("", "name <> 'stool' AND price > 0")


def condition(*texts: str) -> Condition | None:
    """Return some conditions as one."""
    found = " AND ".join(f"({each})" for each in texts if each)
    return read_claimed(found).filled({}) if found else None


def granted(*allowances: Allowance) -> Holder:
    return Holder({"shop": Grant(allowances)})


def of_view(name: str, **more: Any) -> Allowance:
    return Allowance(frozenset({name}), **more)


async def sql(engine: Engine, text: str, caller: Principal) -> list[Any]:
    found: list[Any] = []
    with await engine.reads.sql(caller, IN_PROCESS, "shop", SqlRequest(statement=text)) as read:
        async for frames in read:
            found += map(json.loads, frames.data.splitlines())
    return found


async def everything_of(engine: Engine, name: str, caller: Principal) -> list[Any]:
    """Return what a caller is given by a name, in each way that there is."""
    asked = Criteria(area=Area.DATA, entity_type=(name,))
    past = await history(engine, asked, caller=caller)
    live = await receive(await subscribe(engine, asked, caller=caller), len(past))
    # What a row was before or changed by is not in a state, so that its place alone says which it is.
    now = await rows_of(await state(engine, caller, name))
    rows = await sql(engine, f"SELECT * FROM {name} ORDER BY _version", caller)
    changes = await sql(engine, f"SELECT * FROM CHANGES('{name}')", caller)
    start = FromState()
    first = await receive(await subscribe(engine, asked, caller=caller, start=start), len(now))
    return [past, live, now, rows, changes, first]


async def test_contract_47_a_grant_of_a_view_gives_what_an_equal_one_of_its_entity_type_does(
    log_root: Path,
) -> None:
    products(log_root)
    for name, (columns, where) in VIEWS.items():
        text = f"CREATE VIEW {name} AS SELECT {', '.join(columns) or '*'} FROM product"
        define(log_root, text + (f" WHERE {where}" if where else ""))
    async with Engine(log_root) as engine:
        for each in CHANGES:
            write(log_root, each)
        write(log_root, product(4, "pot", "4.00"), product(5, "jug", "40.00"))
        await engine.view(ANONYMOUS, "shop", 5 + len(CHANGES))  # wherever the tailer is
        counted = 0
        for name, kind, keys, where in every(VIEWS, COLUMNS, KEYS, WHERES):
            columns, of_rows = VIEWS[name]
            shown = [
                each for each in columns or ("id", "name", "price") if COLUMNS[kind].shows(each)
            ]
            equal = Allowance(
                PRODUCTS,
                keys,
                Columns(frozenset(shown), listed=True),
                rows=condition(of_rows, where),
            )
            mine = of_view(name, primary_keys=keys, columns=COLUMNS[kind], rows=condition(where))
            expected = await everything_of(engine, "product", granted(equal))
            found = await everything_of(engine, name, granted(mine))
            assert found == expected, (name, kind, keys, where)
            counted += len(expected[0])
        assert counted > 100


async def refused(engine: Engine, caller: Principal, *asked: Criteria) -> str:
    with pytest.raises(TailraceError) as found:
        await subscribe(engine, *asked, caller=caller)
    return str(found.value)


async def test_contract_47_a_view_that_is_granted_tells_nothing_of_what_it_hides(
    log_root: Path,
) -> None:
    products(log_root)
    define(log_root, CHEAP)
    define(log_root, "CREATE VIEW other AS SELECT id FROM product")
    define(log_root, "CREATE CDC cheap_cdc ON cheap")
    caller = granted(of_view("cheap", columns=Columns(frozenset({"id"}))))
    view = Criteria(entity_type=("cheap",))
    async with Engine(log_root) as engine:
        # 1. By its name alone: its entity type and what else is defined are as if they were not there.
        for name in ("product", "other", "cheap_cdc", "nothing"):
            asked = Criteria(entity_type=(name,))
            assert await refused(engine, caller, asked) == f"entity type {name!r} is not granted"
            with pytest.raises(NotPermitted, match="is not granted"):
                await state(engine, caller, name)
            with pytest.raises(InvalidRequest, match=f"there is no table '{name}'"):
                await sql(engine, f"SELECT * FROM {name}", caller)
            with pytest.raises(InvalidRequest, match=f"there is no table '{name}'"):
                await sql(engine, f"SELECT * FROM CHANGES('{name}')", caller)
        assert "ask for it by itself" in await refused(engine, caller, view, Criteria())
        # 2. Columns that it does not show, or that are not granted, are no columns.
        told = []
        for column in ("price", "id", "pryce"):
            why = await refused(engine, caller, replace(view, where=f"{column} < '2'"))
            told.append(why)
            why = await refused(engine, caller, replace(view, container_name=(column,)))
            told[-1] += why
            with pytest.raises(InvalidRequest) as error:
                await state(engine, caller, "cheap", columns=(column,))
            told[-1] += str(error.value)
            with pytest.raises(InvalidRequest) as error:
                await sql(engine, f"SELECT {column} FROM cheap", caller)
            told[-1] = f"{told[-1]}{error.value}".replace(f"'{column}'", "…")
        assert len(set(told)) == 1
        assert "price" not in told[0]
        # 3. What SQL says of it.
        assert [row[:4] for row in await sql(engine, "SHOW TABLES", caller)] == [
            ["cheap", "view", 1, ""]
        ]
        (row,) = await sql(engine, "SHOW VIEWS", caller)
        assert row[:4] == ["cheap", "product", "name", None]
        described = [name for name, *_ in await sql(engine, "DESCRIBE cheap", caller)]
        assert described == ["name", "_primary_key", "_version", "_index", "_commit_timestamp"]
        plan = str(await sql(engine, "EXPLAIN SELECT * FROM cheap", caller))
        assert "price" not in plan
        assert "bytes" not in plan
        # 4. No expression sees a row that is not in it, whatever DuckDB computes first.
        seen = (
            "SELECT name FROM cheap WHERE CASE WHEN name <> 'chair' THEN error(name) ELSE TRUE END"
        )
        assert await sql(engine, seen, caller) == [["chair"]]
        assert await sql(engine, "SELECT count(*) FROM cheap", caller) == [[1]]
        # 5. The acknowledgement and the statistics have what was asked, and not the condition.
        stream = await subscribe(engine, replace(view, where="name <> 'x'"), caller=caller)
        assert {str(one.where) for one in stream.options.use.effective} == {"name <> 'x'"}


async def test_contract_47_names_in_grants_of_a_view_are_those_of_its_definition(
    log_root: Path,
) -> None:
    products(log_root)
    define(log_root, CHEAP)
    write(log_root, Mutation("article", "3", after=b'{"id":3,"title":"mug","cost":9,"name":"no"}'),
          mapping=RENAMED)  # fmt: skip
    mine = of_view("cheap", columns=Columns(frozenset({"name"}), listed=True),
                   rows=condition("name <> 'chair' OR price < 1"))  # fmt: skip
    caller = granted(mine)
    async with Engine(log_root) as engine:
        live = await subscribe(engine, Criteria(entity_type=("cheap",)), caller=caller)
        (found,) = await receive(live, 1)
        assert found["after"] == {"title": "mug"}
        assert await rows_of(await state(engine, caller, "cheap")) == {"3": {"title": "mug"}}
        assert await sql(engine, "SELECT name FROM cheap", caller) == [["mug"]]
        # What the condition needs is dropped: it ends, and no name of a hidden column is told.
        dropped = "[entity_types.article.columns]\ncost = { dropped = true }"
        write(log_root, Mutation("article", "5", after=b'{"id":5}'), mapping=dropped)
        with pytest.raises(InvalidRequest, match="needs a column that the source has dropped"):
            await receive(live, 10)
        for each in (subscribe(engine, Criteria(entity_type=("cheap",)), caller=caller),
                     state(engine, caller, "cheap")):  # fmt: skip
            with pytest.raises(InvalidRequest, match="needs a column that the source has dropped"):
                await each
        with pytest.raises(InvalidRequest, match="there is no table"):
            await sql(engine, "SELECT * FROM cheap", caller)


async def test_contract_47_grants_of_a_view_and_of_its_entity_type(log_root: Path) -> None:
    products(log_root)
    write(log_root, product(3, "mug", "9.99"))
    define(log_root, CHEAP)
    of_one = of_view("cheap", rows=condition("id = 1"))
    cases: list[tuple[tuple[Allowance, ...], list[str]]] = [
        # All that the view has by the entity type: it counts alone. Else who names the view does.
        ((of_one, Allowance(PRODUCTS)), ["1", "3"]),
        ((of_one, *EVERYTHING.allowances), ["1", "3"]),
        ((of_one, Allowance(PRODUCTS, columns=Columns(frozenset({"price"})))), ["1"]),
        ((of_one, Allowance(PRODUCTS, frozenset({"3"}))), ["1"]),
        # Several that name it add up.
        ((of_one, of_view("cheap", primary_keys=frozenset({"3"}))), ["1", "3"]),
    ]
    async with Engine(log_root) as engine:
        for allowances, keys in cases:
            caller = granted(*allowances)
            assert sorted(await rows_of(await state(engine, caller, "cheap"))) == keys
            rows = await sql(engine, "SELECT _primary_key FROM cheap ORDER BY 1", caller)
            assert [key for (key,) in rows] == keys
            found = await history(engine, Criteria(entity_type=("cheap",)), caller=caller)
            assert sorted({each["primaryKey"] for each in found}) == keys
        mixed = granted(of_one, of_view("cheap", columns=Columns(frozenset({"id"}))))
        nothing = granted(of_view("cheap", columns=Columns(frozenset({"price"}), listed=True)))
        unfit = granted(of_view("cheap", rows=condition("colour = 'red'")))
        for caller, words in (
            (mixed, "show other columns"),
            (nothing, "nothing of 'cheap' is granted"),
            (unfit, "the server's log says why"),
        ):
            assert words in await refused(engine, caller, Criteria(entity_type=("cheap",)))
            with pytest.raises(NotPermitted, match=words):
                await state(engine, caller, "cheap")
            with pytest.raises((InvalidRequest, NotPermitted), match=f"no table|{words}"):
                await sql(engine, "SELECT * FROM cheap", caller)
        keyed = granted(of_view("cheap", primary_keys=frozenset({"3"})))
        why = await refused(engine, keyed, Criteria(entity_type=("cheap",), primary_key=("1",)))
        assert why == "primary key '1' is not granted"


async def test_contract_47_a_stream_of_a_view_ends_when_its_grant_or_its_view_does(
    log_root: Path,
) -> None:
    products(log_root)
    view = Criteria(entity_type=("cheap",))
    caller = granted(of_view("cheap"))
    async with Engine(log_root) as engine:
        # A policy may name what is not there yet: then it gives nothing, and the operator is told once.
        with capture_logs() as lines:
            for _ in range(2):
                assert await history(engine, view, caller=caller) == []
        assert [(each["event"], each["entity_type"]) for each in lines] == [
            ("grant names what is not there", "cheap")
        ]
        define(log_root, CHEAP)
        for other, goes_on in (
            (Grant((of_view("cheap", columns=ALL_COLUMNS),)), True),
            (EVERYTHING, True),
            (Grant((of_view("cheap", rows=condition("id = 1")),)), False),
            (Grant((of_view("cheap", columns=Columns(frozenset({"id"}))),)), False),
            (Grant((of_view("names"),)), False),
        ):
            caller.grants = {"shop": Grant((of_view("cheap"),))}
            stream = await subscribe(engine, view, caller=caller)
            read = await engine.state(caller, "shop", asked_state(), codec=JSON)
            caller.grants = {"shop": other}
            await engine.end_what_is_not_granted()
            for each in (stream, read):
                assert (each.error is None) == goes_on
            read.close()
            stream.cancel()
        # A view that takes its place is granted as it is defined then.
        caller.grants = {"shop": Grant((of_view("cheap"),))}
        stream = await subscribe(engine, view, caller=caller)
        await receive(stream, 1)
        define(log_root, "DROP VIEW cheap")
        define(log_root, "CREATE VIEW cheap AS SELECT name FROM product WHERE price > 10")
        with pytest.raises(InvalidRequest, match="defined again"):
            await receive(stream, 10)
        after = After(stream.resume_cursor())
        write(log_root, product(7, "desk", "70.00"))
        again = await subscribe(engine, view, caller=caller, start=after)
        assert [each["after"] for each in await receive(again, 1)] == [{"name": "desk"}]


def asked_state() -> Any:
    from tailrace_server.reads.state_request import StateRequest

    return StateRequest(entity_type="cheap")


async def test_contract_47_a_view_without_images_is_keys_alone(log_root: Path) -> None:
    products(log_root)
    define(log_root, CHEAP)
    caller = granted(of_view("cheap", bodies=False))
    view = Criteria(entity_type=("cheap",))
    async with Engine(log_root) as engine:
        with pytest.raises(NotPermitted, match="bodies are not granted"):
            await subscribe(engine, view, caller=caller)
        found = await history(engine, view, caller=caller, content=Content.HEADER)
        assert [each["primaryKey"] for each in found] == ["1"]
        with pytest.raises(NotPermitted, match="bodies are not granted"):
            await sql(engine, "SELECT * FROM cheap", caller)
