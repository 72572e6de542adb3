"""Values that are not known: no grant shows a row because of one, and filters say where they do not decide."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest

from tailrace.criteria import Content, Criteria, FromState, Operation, Since
from tailrace.errors import ColumnsChanged, InvalidRequest
from tailrace.position import Position
from tailrace.schema import Column, Origin, Schema
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.filters.claims import read_claimed
from tailrace_server.filters.tree import ChangeNotJudged
from tailrace_server.grants.grant import Allowance, Grant
from tailrace_server.grants.principal import ANONYMOUS, IN_PROCESS
from tailrace_server.log_cache.frames import Frames
from tailrace_server.reads.sql_request import SqlRequest
from tailrace_server.reads.state_request import StateRequest
from tailrace_server.resources.settings import SubscriptionLimits
from tailrace_server.wal.catalog import create_catalog, open_writer
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.record.unavailable import PLACEHOLDER
from tests.support.inprocess import PATIENCE_S, has_passed, objects
from tests.support.principals import Holder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tailrace_server.grants.principal import Principal
    from tailrace_server.live.subscription import Subscription

Row = dict[str, Any]
Keys = tuple[set[str], set[str]]
"""Keys of the rows that are in, and of those that may be."""
UNKNOWN: Final = object()
_SOON: Final = SubscriptionLimits(heartbeat_interval_s=0.02)
EVERY: Final = Criteria(entity_type=("item",))


def columns(t: tuple[str, str] = ("VARCHAR", "json"), *, key: bool = True) -> tuple[Column, ...]:
    return (
        Column("id", sql_type="VARCHAR", key=int(key), origin=Origin.DECLARED, id=1),
        Column("t", sql_type=t[0], encoding=t[1], origin=Origin.DECLARED, id=2),
        Column("n", sql_type="BIGINT", origin=Origin.DECLARED, id=3),
    )


def begin(root: Path, columns: Sequence[Column]) -> None:
    create_catalog(root, "shop")
    alter(root, columns, 1)


def alter(root: Path, columns: Sequence[Column], id: int) -> None:
    with open_writer(root, "shop", writer="log-writer") as writer:
        schema = Schema(id, {"item": tuple(columns)})
        writer.commit(batch_id=100 * (id - 1), schema_changes=[(-1, schema)])


def append(root: Path, *transactions: Sequence[Mutation]) -> None:
    with LogWriter.open(root, "shop") as log:
        for each in transactions:
            log.append([*each])
        log.commit(publish=True)


def upsert(
    key: str, t: Any, n: Any = 1, before: Row | None = None, *, update: bool = False
) -> Mutation:
    image = json.dumps({"id": key, "t": t, "n": n}).encode()
    old = None if before is None else json.dumps(before).encode()
    return Mutation("item", key, before=old, after=image, changed=("t",) if update else None)


def tenant(where: str) -> Holder:
    rows = read_claimed(where).filled({})
    return Holder({"shop": Grant((Allowance(frozenset({"item"}), rows=rows),))})


async def read_state(
    engine: Engine, caller: Principal, where: str | None = None, of: str = "item"
) -> Keys:
    asked = StateRequest(entity_type=of, where=where)
    found: Keys = set(), set()
    with await engine.state(caller, "shop", asked, codec=JSON) as read:
        async for frames in read:
            for each in objects(frames):
                found[each.get("transition") == "UNKNOWN"].add(each["primaryKey"])
    return found


def fold(captures: list[dict[str, Any]], into: Keys) -> None:
    for each in captures:
        key = each["primaryKey"]
        for keys in into:
            keys.discard(key)
        if each["transition"] in ("ENTER", "UPDATE"):
            into[0].add(key)
        elif each["transition"] == "UNKNOWN":
            into[1].add(key)


async def history(engine: Engine, caller: Principal, asked: Criteria) -> list[dict[str, Any]]:
    read = await engine.history(caller, "shop", [asked], content=Content.BODY, codec=JSON)
    with read:
        return [each async for frames in read for each in objects(frames)]


async def received(stream: Subscription, version: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            message = await stream.receive()
            if isinstance(message, Frames):
                found += objects(message)
            elif has_passed(message.cursor, version):
                return found


async def sql(engine: Engine, caller: Principal, statement: str) -> list[list[Any]]:
    with await engine.reads.sql(
        caller, IN_PROCESS, "shop", SqlRequest(statement=statement)
    ) as read:
        return [json.loads(line) async for piece in read for line in piece.data.splitlines()]


def possible(judge: Callable[[Row], bool], row: Row) -> set[bool]:
    """Return the answers that a condition may have, trying values for the one that is not known."""
    if row["t"] is not UNKNOWN:
        return {judge(row)}
    return {judge({**row, "t": value}) for value in (None, "a", "b")}


CONDITIONS: dict[str, Callable[[Row], bool]] = {
    "t IS NULL": lambda row: row["t"] is None,
    "t IS NOT NULL": lambda row: row["t"] is not None,
    "t = 'a'": lambda row: row["t"] == "a",
    "NOT t IN ('a')": lambda row: row["t"] == "b",
    "t = 'a' OR n > 1": lambda row: row["t"] == "a" or row["n"] > 1,
    "t IS DISTINCT FROM 'a' AND n > 1": lambda row: row["t"] != "a" and row["n"] > 1,
    "t LIKE 'a%' AND n = 1": lambda row: row["t"] == "a" and row["n"] == 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("identity", ["whole", "key", "nothing"])
@pytest.mark.parametrize("declared", [True, False])
async def test_contract_47_49_changes_add_up_to_the_state_where_values_are_not_known(
    log_root: Path, identity: str, declared: bool
) -> None:
    random = Random(f"{identity} {declared}")
    begin(log_root, columns(key=declared))
    state: dict[str, Row] = {}
    changes: list[tuple[str, Row | None, Row | None]] = []
    written: list[Mutation] = []
    for _ in range(60):
        key = random.choice("123456")
        before = state.get(key)
        after = {
            "id": key,
            "t": random.choice([None, "a", "b", UNKNOWN]),
            "n": random.choice([1, 2]),
        }
        if before is None and after["t"] is UNKNOWN:
            after["t"] = "a"
        images = [
            None
            if each is None
            else json.dumps(
                {**each, "t": PLACEHOLDER if each["t"] is UNKNOWN else each["t"]}
            ).encode()
            for each in (before, after)
        ]
        if before is not None and random.random() < 0.3:
            if identity == "key":
                images[0] = b'{"id":"%s","t":null,"n":null}' % key.encode()
            elif identity == "nothing":
                images[0] = None
            written.append(Mutation("item", key, Operation.REMOVE, images[0], None))
            changes.append((key, state.pop(key), None))
            continue
        if identity != "whole":
            images[0] = None
        names = ("id", "t", "n") if before is not None else None
        written.append(Mutation("item", key, Operation.UPSERT, images[0], images[1], changed=names))
        changes.append((key, before, after))
        state[key] = after
    append(log_root, *([each] for each in written[:30]))
    async with Engine(log_root) as engine:
        asked = {text: Criteria(entity_type=("item",), where=text) for text in CONDITIONS}
        live = {
            text: await engine.subscribe(
                ANONYMOUS,
                "shop",
                [one],
                start=FromState(),
                content=Content.BODY,
                codec=JSON,
                limits=_SOON,
            )
            for text, one in asked.items()
        }
        append(log_root, *([each] for each in written[30:]))
        await engine.view(ANONYMOUS, "shop", 60)
        shown = 0
        for text, judge in CONDITIONS.items():
            answers = {key: possible(judge, row) for key, row in state.items()}
            sure = {key for key, found in answers.items() if found == {True}}
            expected = sure, {key for key, found in answers.items() if len(found) == 2}
            # 1. State, history from its beginning, and live behind a state.
            assert await read_state(engine, ANONYMOUS, text) == expected, text
            folded: Keys = set(), set()
            fold(await history(engine, ANONYMOUS, asked[text]), folded)
            assert folded == expected, text
            folded = set(), set()
            fold(await received(live[text], 60), folded)
            assert folded == expected, text
            # 2. Who is granted the rows by the condition is shown those that certainly meet it.
            caller = tenant(text)
            assert await read_state(engine, caller) == (sure, set()), text
            rows = await sql(engine, caller, "SELECT _primary_key FROM item")
            assert {key for (key,) in rows} == sure, text
            told = await _until_refused(engine, caller)
            for version, key, before, after in told:
                was, now = changes[version - 1][1:]
                assert key == changes[version - 1][0]
                assert (before is None) or (was is not None and possible(judge, was) == {True})
                assert (after is None) or (now is not None and possible(judge, now) == {True})
            shown += len(told)
        assert shown


async def _until_refused(engine: Engine, caller: Principal) -> list[tuple[int, str, Any, Any]]:
    """Return the changes that a caller is sent up to one of which nobody knows whether he may see it."""
    read = await engine.history(caller, "shop", [EVERY], content=Content.BODY, codec=JSON)
    found: list[dict[str, Any]] = []
    with suppress(ChangeNotJudged), read:
        async for frames in read:
            found += objects(frames)
    return [(each["version"], each["primaryKey"], each["before"], each["after"]) for each in found]


TYPE_CHANGES: Final = {
    "a day becomes a moment": (("DATE", "debezium.Date"), ("TIMESTAMP", "debezium.Timestamp"), 3, 5),
    "a moment becomes a text": (("TIMESTAMP", "debezium.MicroTimestamp"), ("VARCHAR", "debezium.Uuid"), 3, "x"),
    "a truth becomes a number": (("BOOLEAN", "json"), ("SMALLINT", "json"), True, 1),
    "a number becomes a truth": (("SMALLINT", "json"), ("BOOLEAN", "json"), 7, True),
    "a number is too large": (("BIGINT", "json"), ("INTEGER", "json"), 1 << 40, 1),
    "a text becomes bytes": (("VARCHAR", "json"), ("VARBINARY", "base64"), "no base64!", "eA=="),
}  # fmt: skip


@pytest.mark.parametrize("change", TYPE_CHANGES)
async def test_a_value_that_the_newest_type_cannot_hold_is_not_null(
    log_root: Path, change: str
) -> None:
    old, new, value, other = TYPE_CHANGES[change]
    begin(log_root, columns(old))
    append(log_root, [upsert("1", value)], [upsert("2", None)])
    async with Engine(log_root) as engine:
        asked = {
            text: Criteria(entity_type=("item",), where=text)
            for text in ("t IS NULL", "t IS NOT NULL")
        }
        live = {
            text: await engine.subscribe(
                ANONYMOUS,
                "shop",
                [one],
                start=FromState(),
                content=Content.BODY,
                codec=JSON,
                limits=_SOON,
            )
            for text, one in asked.items()
        }
        alter(log_root, columns(new), 2)
        append(log_root, [upsert("3", other)], [upsert("4", None)])
        await engine.view(ANONYMOUS, "shop", 4)
        for text, expected in {"t IS NULL": {"2", "4"}, "t IS NOT NULL": {"1", "3"}}.items():
            assert await read_state(engine, ANONYMOUS, text) == (expected, set())
            for captures in (
                await received(live[text], 4),
                await history(engine, ANONYMOUS, asked[text]),
                await history(engine, tenant(text), EVERY),
            ):
                folded: Keys = set(), set()
                fold(captures, folded)
                assert folded == (expected, set())
            caller = tenant(text)
            assert await read_state(engine, caller) == (expected, set())
            keys = await sql(engine, caller, "SELECT _primary_key FROM item")
            assert {key for (key,) in keys} == expected
            keys = await sql(engine, caller, "SELECT _primary_key FROM CHANGES('item')")
            assert {key for (key,) in keys} == expected


@pytest.mark.parametrize("granted", [False, True])
async def test_a_type_that_cannot_carry_the_values_that_are_compared_ends_those_who_follow(
    log_root: Path, granted: bool
) -> None:
    """A row that is in by its day is undecided by its moment, and no change says so."""
    begin(log_root, columns(("DATE", "debezium.Date")))
    append(log_root, [upsert("1", 20_000)], [upsert("9", None)])
    where = "t > '2000-01-01'"
    caller = tenant(where) if granted else ANONYMOUS
    asked = EVERY if granted else Criteria(entity_type=("item",), where=where)
    async with Engine(log_root) as engine:
        stream = await engine.subscribe(caller, "shop", [asked], codec=JSON, limits=_SOON)
        alter(log_root, columns(("TIMESTAMP", "debezium.Timestamp")), 2)
        append(log_root, [upsert("2", 1_800_000_000_000)])
        error, words = (InvalidRequest, "cannot be judged") if granted else (ColumnsChanged, "'t'")
        with pytest.raises(error, match=words):
            await received(stream, 9)
        state = {"2"}, (set() if granted else {"1"})
        assert await read_state(engine, caller, None if granted else where) == state


async def test_a_view_in_sql_is_refused_where_nobody_knows_whether_a_row_is_in(
    log_root: Path,
) -> None:
    begin(log_root, columns())
    append(log_root, [upsert("1", "a")], [upsert("2", PLACEHOLDER, n=2)])
    async with Engine(log_root) as engine:
        for where, expected in {"t = 'a' AND n = 1": ["1"], "t = 'a' OR n = 2": ["1", "2"]}.items():
            name = f"v{expected[-1]}"
            await sql(engine, ANONYMOUS, f"CREATE VIEW {name} AS SELECT id FROM item WHERE {where}")
            asked = f"SELECT id FROM {name} ORDER BY id"
            assert await sql(engine, ANONYMOUS, asked) == [[each] for each in expected]
        await sql(engine, ANONYMOUS, "CREATE VIEW v AS SELECT id FROM item WHERE t IS NULL")
        for table in ("v", "CHANGES('v')"):
            with pytest.raises(InvalidRequest, match=r"view v(,| at) 2:1: .*--images full"):
                await sql(engine, ANONYMOUS, f"SELECT * FROM {table}")
        assert await read_state(engine, ANONYMOUS, of="v") == (set(), {"2"})


@pytest.mark.parametrize("declared", [True, False])
async def test_a_removal_with_the_key_alone_tells_nobody_of_a_row_that_is_not_granted(
    log_root: Path, declared: bool
) -> None:
    """Also where the schema has no key: missing metadata does not make a table one without a key."""
    begin(log_root, columns(key=declared))
    gone = b'{"id":"1","t":null,"n":null}'
    append(log_root, [upsert("1", "a")], [Mutation("item", "1", Operation.REMOVE, before=gone)])
    async with Engine(log_root) as engine:
        asked = Criteria(entity_type=("item",), where="t = 'a'")
        moves = [
            (each["transition"], each["before"]) for each in await history(engine, ANONYMOUS, asked)
        ]
        assert moves == [("ENTER", None), ("LEAVE", None)]
        caller = tenant("t IS NULL")
        assert await _until_refused(engine, caller) == []
        stream = await engine.subscribe(
            caller, "shop", [EVERY], start=Since(Position(1, 0)), codec=JSON
        )
        with pytest.raises(InvalidRequest, match="version 2 has a change"):
            await received(stream, 9)
        with pytest.raises(InvalidRequest, match="version 2 has a change"):
            await sql(engine, caller, "SELECT * FROM CHANGES('item')")
