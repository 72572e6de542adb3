"""Conditions through the engine: a live view, columns that are renamed or dropped, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.criteria import Area, Content, Criteria, FromState, Operation, Since
from tailrace.errors import EntityTypeUnknown, InvalidRequest, NotPermitted
from tailrace.position import Position
from tailrace.schema import Column, Schema
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.filters.claims import read_claimed
from tailrace_server.grants.grant import Allowance, Columns, Grant
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.reads.history import HistoryBounds
from tailrace_server.reads.state_request import StateRequest
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.server.rows.test_row_condition import COLUMNS, write
from tests.support.inprocess import objects, observer_of, receive
from tests.support.principals import Holder

if TYPE_CHECKING:
    from pathlib import Path


def image(key: str, price: int, named: str = "price") -> bytes:
    return b'{"id":"%s","%s":%d}' % (key.encode(), named.encode(), price)


def told(captures: list[dict[str, Any]]) -> list[tuple[str, str, bool, bool]]:
    """Return key, transition, and whether there is a row before and after."""
    return [
        (
            each["primaryKey"],
            each["transition"],
            each["before"] is not None,
            each["after"] is not None,
        )
        for each in captures
    ]


CONDITION = Criteria(entity_type=("product",), where="price > :least", parameters={"least": 4})


def renew(root: Path, price: Column, id: int) -> None:
    """Change the schema, as of the last version: a writer goes on with that."""
    with open_writer(root, "shop", writer="log-writer") as writer:
        schema = Schema(id, {"product": (*COLUMNS[:2], price)})
        writer.commit(batch_id=100 * id, schema_changes=[(-1, schema)])


def append(root: Path, *mutations: Mutation) -> None:
    with LogWriter.open(root, "shop") as log:
        log.append([*mutations])
        log.commit(publish=True)


async def test_a_live_view_follows_a_renamed_column_and_ends_once_it_is_dropped(
    log_root: Path,
) -> None:
    prices = {"1": 7, "2": 8, "4": 1}
    write(
        log_root,
        [Mutation("product", key, after=image(key, price)) for key, price in prices.items()],
    )
    async with Engine(log_root) as engine:
        subscription = await engine.subscribe(
            ANONYMOUS, "shop", [CONDITION], start=FromState(), content=Content.BODY, codec=JSON
        )
        assert sorted(told(await receive(subscription, 2))) == [
            ("1", "ENTER", False, True),
            ("2", "ENTER", False, True),
        ]
        renew(log_root, replace(COLUMNS[2], name="cost"), 2)
        append(
            log_root,
            Mutation("product", "1", before=image("1", 7, "cost"), after=image("1", 1, "cost")),
            Mutation("product", "3", after=image("3", 5, "cost")),
        )
        assert told(await receive(subscription, 2)) == [
            ("1", "LEAVE", True, False),
            ("3", "ENTER", False, True),
        ]
        # Who resumes may still have the former name.
        again = await engine.subscribe(ANONYMOUS, "shop", [CONDITION], codec=JSON)
        renew(log_root, replace(COLUMNS[2], name="cost", dropped=True), 3)
        append(log_root, Mutation("product", "5", after=b'{"id":"5"}'))
        for each in (subscription, again):
            with pytest.raises(InvalidRequest, match="'price' has been dropped"):
                await receive(each, 9)


async def test_another_table_under_the_same_name_is_not_judged_by_the_columns_of_the_first(
    log_root: Path,
) -> None:
    """Each of its columns would be NULL: a condition would be false of all rows, or true of all."""
    write(log_root, [Mutation("product", key, after=image(key, 7)) for key in "12"], 1)
    rows = read_claimed("price IS NULL").filled({})
    tenant = Holder({"shop": Grant((Allowance(frozenset({"product"}), rows=rows),))})
    async with Engine(log_root) as engine:
        asked = [
            await engine.subscribe(ANONYMOUS, "shop", [CONDITION], codec=JSON),
            await engine.subscribe(tenant, "shop", [Criteria()], codec=JSON),
        ]
        with open_writer(log_root, "shop", writer="log-writer") as writer:
            others = tuple(replace(each, id=each.id + 10) for each in COLUMNS)
            schema = Schema(2, {"archive": COLUMNS, "product": others})
            writer.commit(batch_id=200, schema_changes=[(-1, schema)])
        append(log_root, Mutation("product", "s", after=image("s", 9)))
        for each in asked:
            with pytest.raises(InvalidRequest, match="'product' was renamed"):
                await receive(each, 9)
        # The table of that name in an earlier version is the other one.
        state = StateRequest(entity_type="product", at_version=1)
        with await engine.state(tenant, "shop", state, codec=JSON) as read:
            assert [frames async for frames in read if frames.count] == []
        history = await engine.history(tenant, "shop", [Criteria()], codec=JSON)
        with pytest.raises(InvalidRequest, match="'product' was renamed"), history:
            async for _ in history:
                pass


async def test_contract_49_a_change_that_cannot_be_evaluated_ends_only_who_comes_to_it(
    log_root: Path,
) -> None:
    """All of it is one batch, which is judged as a whole."""
    gone = (
        b'{"id":"2","name":null,"price":null,"draft":null}'  # perhaps its source sent the key alone
    )
    written = [
        Mutation("product", "1", after=image("1", 7)),
        Mutation("product", "2", Operation.REMOVE, before=gone),
        Mutation("product", "1", before=image("1", 7), after=image("1", 8)),
    ]
    write(log_root, written, 1)
    rows = read_claimed("draft IS NOT TRUE").filled({})
    tenant = Holder({"shop": Grant((Allowance(frozenset({"product"}), rows=rows),))})

    async def changes(since: int, limit: int | None = None) -> list[tuple[int, str]]:
        bounds = HistoryBounds(lower=Since(Position(since, 0)))
        read = await engine.history(tenant, "shop", [asked], bounds=bounds, limit=limit, codec=JSON)
        found = []
        with read:
            async for frames in read:
                found += [(each["version"], each["transition"]) for each in objects(frames)]
        return found

    asked = Criteria(entity_type=("product",))
    async with Engine(log_root) as engine:
        assert await changes(3) == [(3, "UPDATE")]
        assert await changes(1, limit=5) == [(1, "ENTER")]
        for since in (1, 2):
            stream = await engine.subscribe(
                tenant, "shop", [asked], start=Since(Position(since, 0)), codec=JSON
            )
            if since == 1:
                assert [each["transition"] for each in await receive(stream, 1)] == ["ENTER"]
            with pytest.raises(InvalidRequest, match=r"version 2 has a change .*--images full"):
                await receive(stream, 9)
        # Live, too: what comes before it is handed over.
        stream = await engine.subscribe(tenant, "shop", [asked], codec=JSON)
        append(
            log_root,
            Mutation("product", "3", after=image("3", 1)),
            Mutation("product", "4", Operation.REMOVE, before=gone.replace(b"2", b"4")),
        )
        assert [each["primaryKey"] for each in await receive(stream, 1)] == ["3"]
        with pytest.raises(InvalidRequest, match="version 4 has a change"):
            await receive(stream, 9)


async def test_a_condition_is_checked_as_it_is_asked_for(log_root: Path) -> None:
    write(log_root, [Mutation("product", "1", after=image("1", 7))])
    hidden = Columns(frozenset({"price"}), listed=False)
    holder = Holder({"shop": Grant((Allowance(frozenset({"product"}), columns=hidden),))})
    async with Engine(log_root) as engine:
        for caller, criteria, error, words in (
            (
                ANONYMOUS,
                replace(CONDITION, where="pric > 4", parameters=()),
                InvalidRequest,
                "pric",
            ),
            (ANONYMOUS, replace(CONDITION, parameters=()), InvalidRequest, "no value"),
            (ANONYMOUS, replace(CONDITION, entity_type=("ghost",)), EntityTypeUnknown, "ghost"),
            (holder, CONDITION, NotPermitted, "'price' is not granted"),
        ):
            with pytest.raises(error, match=words):
                await engine.subscribe(caller, "shop", [criteria], codec=JSON)
            with pytest.raises(error, match=words):
                await engine.history(caller, "shop", [criteria], codec=JSON)
        allowed = replace(CONDITION, where="id = '1'", parameters=())
        history = await engine.history(holder, "shop", [allowed], codec=JSON, content=Content.AFTER)
        found = [each async for frames in history for each in objects(frames)]
    assert [each["after"] for each in found] == [{"id": "1"}]


async def test_equal_conditions_share_a_publisher_however_they_are_written(
    log_root: Path,
) -> None:
    write(log_root, [Mutation("product", "1", after=image("1", 7))])
    async with Engine(log_root) as engine:
        tree = {"column": "price", "gt": 4}
        for where in ("price > 4", "price>4", " price  > 4", tree, "price > 5"):
            one = replace(CONDITION, where=where, parameters=())
            await engine.subscribe(ANONYMOUS, "shop", [one], codec=JSON)
        assert len(observer_of(engine, "shop").publishers()) == 2


async def test_what_a_condition_costs_is_told_and_what_several_share_is_split(
    log_root: Path,
) -> None:
    """The second one finds nothing, and still costs."""
    write(log_root, [Mutation("product", "0", after=image("0", 1))])
    async with Engine(log_root) as engine:
        every = Criteria(entity_type=("product",))
        plain = await engine.subscribe(ANONYMOUS, "shop", [every], codec=JSON)

        async def costs() -> list[tuple[bool, int]]:
            found = [each.statistics() for each in observer_of(engine, "shop").publishers()]
            return [(each.conditions_cpu_s > 0, each.conditions_image_bytes) for each in found]

        for where in ("price > 4", "id LIKE '%x'"):
            one = replace(CONDITION, where=where, parameters=())
            await engine.subscribe(ANONYMOUS, "shop", [one], codec=JSON)
            append(log_root, Mutation("product", "1", after=image("1", 7)))
            await receive(plain, 1)  # it is handed what all have been routed
        nbytes = len(image("1", 7))
        assert await costs() == [(False, 0), (True, nbytes + nbytes // 2), (True, nbytes // 2)]


def test_criteria_with_a_condition_name_one_table() -> None:
    for wrong in (
        {"where": "price > 4"},
        {"where": "price > 4", "entity_type": ("a", "b")},
        {"where": "price > 4", "entity_type": ("a",), "area": Area.SCHEMA},
        {"parameters": {"least": 4}},
        {"where": "price > :a", "parameters": {"a": None}, "entity_type": ("a",)},
    ):
        with pytest.raises(InvalidRequest):
            Criteria(**wrong)
