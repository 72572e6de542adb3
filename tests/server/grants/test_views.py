"""Views in criteria: what a subscriber of a view is told of the changes of its entity type."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.criteria import (
    After,
    Area,
    CatchUp,
    ContainerType,
    Content,
    Criteria,
    FromState,
    Operation,
    Since,
)
from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest, NotPermitted
from tailrace.position import Position
from tailrace_server.codecs import CDCV2, JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.filters.claims import read_claimed
from tailrace_server.grants.grant import Allowance, Columns, Grant
from tailrace_server.grants.principal import ANONYMOUS, IN_PROCESS
from tailrace_server.named.requests import NamedReader, NewSubscription
from tailrace_server.reads.sql_request import SqlRequest
from tailrace_server.resources.settings import SubscriptionLimits
from tailrace_server.wal.record.mutation import Mutation
from tests.server.reads.test_view_rows import CHEAP, PRODUCTS, write
from tests.server.sql.test_change_tables import define
from tests.server.sql.test_query import image, product, products
from tests.support.inprocess import objects, receive
from tests.support.principals import Holder

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tailrace_server.grants.principal import Principal
    from tailrace_server.live.subscription import Subscription

VIEW = Criteria(entity_type=("cheap",))
OLDEST = Since(Position(0, 0))


def change(key: int, before: str, after: str, *changed: str) -> Mutation:
    """Return an update of a row, each image as ``name price``."""
    old, new = (image(key, *each.split()) for each in (before, after))
    part = json.dumps({name: json.loads(new)[name] for name in changed}, separators=(",", ":"))
    return Mutation(
        "product", str(key), before=old, after=new, change=part.encode(), changed=changed
    )


def told(captures: Iterable[dict[str, Any]]) -> list[str]:
    """Return captures in short: key, transition, names of what changed, and the images."""
    found = []
    for each in captures:
        parts = [each["primaryKey"] or "*", each.get("transition", "")]
        for name in ("changed", "before", "after"):
            value = each[name]
            if value is not None:
                words = value if name == "changed" else [f"{k}={v}" for k, v in value.items()]
                parts.append(f"{name}({' '.join(words)})")
        found.append(" ".join(parts))
    return found


async def subscribe(
    engine: Engine, *criteria: Criteria, caller: Principal = ANONYMOUS, **more: Any
) -> Subscription:
    more = {"start": OLDEST, "content": Content.BODY, "codec": JSON, **more}
    return await engine.subscribe(caller, "shop", criteria, **more)


async def history(
    engine: Engine, *criteria: Criteria, caller: Principal = ANONYMOUS, **more: Any
) -> list[dict[str, Any]]:
    more = {"content": Content.BODY, "codec": JSON, **more}
    with await engine.history(caller, "shop", criteria, **more) as read:
        return [each async for frames in read for each in objects(frames)]


async def ended(subscription: Subscription) -> str:
    """Return why a subscription ends, whatever comes before it."""
    with pytest.raises(InvalidRequest) as refused:
        await receive(subscription, 1_000)
    return str(refused.value)


CHANGES = (
    change(1, "chair 2.00", "stool 2.00", "name"),
    change(1, "stool 2.00", "stool 3.00", "price"),  # within, of a column that it does not show
    change(1, "stool 3.00", "stool 30.00", "price"),
    change(1, "stool 30.00", "bench 30.00", "name"),  # outside
    change(1, "bench 30.00", "bench 4.00", "price"),
    Mutation("order", "1", after=b'{"a":1}'),
    Mutation("product", "1", Operation.REMOVE, before=image(1, "bench", "4.00")),
    Mutation("product", None, Operation.REMOVE),
)
TOLD = [
    "1 UPDATE changed(name) before(id=1 name=chair) after(id=1 name=stool)",
    "1 LEAVE changed() before(id=1 name=stool)",
    "1 ENTER changed() after(id=1 name=bench)",
    "1 LEAVE before(id=1 name=bench)",
    "* ",
]


async def test_contract_50_a_view_is_subscribed_by_its_name_live_from_the_log_and_as_state(
    log_root: Path,
) -> None:
    products(log_root)
    define(log_root, CHEAP)
    async with Engine(log_root) as engine:
        live = await subscribe(engine, VIEW, start=FromState())
        assert told(await receive(live, 1)) == ["1 ENTER after(id=1 name=chair)"]
        for each in CHANGES:
            write(log_root, each)
        assert told(await receive(live, len(TOLD))) == TOLD
        found = await history(engine, VIEW)
        assert told(found) == ["1 ENTER after(id=1 name=chair)", *TOLD]
        assert {each["entityType"] for each in found} == {"product"}
        # `change` has columns of the view alone, as the images have.
        assert [each["change"] for each in found[1:4]] == [{"name": "stool"}, None, {}]
        assert found == await receive(await subscribe(engine, VIEW), len(found))
        latest = SubscriptionLimits(catch_up=CatchUp.LATEST)
        newest = await receive(await subscribe(engine, VIEW, limits=latest), 1)
        assert told(newest) == TOLD[-1:]
        # What else is asked for applies on top of it, by the names of the view.
        asked = replace(VIEW, where="name = :name", parameters={"name": "stool"})
        assert [each.split(" ", 2)[:2] for each in told(await history(engine, asked))] == [
            ["1", "ENTER"],
            ["1", "LEAVE"],
            ["*", ""],
        ]
        assert told(await history(engine, replace(VIEW, primary_key=("2",)))) == ["* "]
        single = replace(VIEW, container_type=(ContainerType.ATTRIBUTE,))
        columns = [each["containerName"] for each in await history(engine, single)]
        assert columns == ["id", "name", "name"]
        order = replace(VIEW, entity_type=("cheap", "order"))
        assert sum(each["entityType"] == "order" for each in await history(engine, order)) == 2


async def test_a_view_without_a_condition_is_columns_alone(log_root: Path) -> None:
    products(log_root)
    define(log_root, "CREATE VIEW names AS SELECT name FROM product")
    async with Engine(log_root) as engine:
        live = await subscribe(engine, Criteria(entity_type=("names",)))
        write(log_root, change(1, "chair 2.00", "chair 3.00", "price"))
        write(log_root, *(product(key, f"p{key}", "1") for key in range(20, 60)))
        found = await receive(live, 44)
        assert {frozenset(each["after"] or ("name",)) for each in found} == {frozenset({"name"})}
        assert "transition" not in found[0]


async def test_contract_50_columns_of_a_view_are_followed_and_what_it_loses_ends_its_subscriptions(
    log_root: Path,
) -> None:
    products(log_root)
    define(log_root, CHEAP)
    define(log_root, "CREATE VIEW names AS SELECT name FROM product")
    renamed = """
    [entity_types.product.columns]
    title = { renamed_from = "name" }
    name = {}
    cost = { renamed_from = "price" }
    """
    async with Engine(log_root) as engine:
        live = [
            await subscribe(engine, Criteria(entity_type=(name,))) for name in ("cheap", "names")
        ]
        before = [await receive(live[0], 1), await receive(live[1], 4)]
        assert told(before[0]) == ["1 ENTER after(id=1 name=chair)"]
        text = b'{"id":3,"title":"mug","cost":9,"name":"other"}'
        write(log_root, Mutation("product", "3", after=text), mapping=renamed)
        assert told(await receive(live[0], 1)) == ["3 ENTER after(id=3 title=mug)"]
        assert told(await receive(live[1], 1)) == ["3  after(title=mug)"]
        asked = replace(VIEW, where="name = 'mug'")  # as the view calls it
        assert told(await history(engine, asked)) == ["3 ENTER after(id=3 title=mug)"]
        # The entity type has another name: who asks anew after the last cursor misses nothing.
        cursor = Cursor.parse((await history(engine, VIEW))[-1]["cursor"])
        moved = '[entity_types.article]\nrenamed_from = "product"'
        text = b'{"id":4,"title":"jug","cost":9,"name":"other"}'
        write(log_root, Mutation("article", "4", after=text), mapping=moved)
        for each in live:
            assert "renamed its entity type to article" in await ended(each)
        again = await subscribe(engine, VIEW, start=After(cursor))
        assert told(await receive(again, 1)) == ["4 ENTER after(id=4 title=jug)"]
        assert len(await history(engine, VIEW)) == 3
        # A column of the condition is gone.
        dropped = "[entity_types.article.columns]\ncost = { dropped = true }"
        write(log_root, Mutation("article", "5", after=b'{"id":5}'), mapping=dropped)
        assert "view cheap needs column 'cost', which the source has dropped" in await ended(again)
        with pytest.raises(InvalidRequest, match="view cheap needs column 'price'"):
            await subscribe(engine, VIEW)


async def test_what_a_view_does_not_have_is_refused(log_root: Path) -> None:
    products(log_root)
    define(log_root, CHEAP)
    define(log_root, "CREATE VIEW named AS SELECT name FROM product WHERE price < 10")
    wrong: list[tuple[list[Criteria], str]] = [
        ([replace(VIEW, where="price < 3")], "no column 'price'.*id, name"),
        ([replace(VIEW, where="name <")], "where"),
        ([replace(VIEW, container_name=("price",))], "view cheap has no column 'price'"),
        ([replace(VIEW, area=Area.SCHEMA)], "no records of the schema"),
        ([VIEW, Criteria()], "other criteria ask for all of them"),
        ([VIEW, Criteria(entity_type=("product",), primary_key=("1",))], "ask for all of them"),
        ([VIEW, Criteria(entity_type=("named",))], "show different columns"),
    ]
    async with Engine(log_root) as engine:
        for criteria, words in wrong:
            with pytest.raises(InvalidRequest, match=words):
                await subscribe(engine, *criteria)
        with pytest.raises(InvalidRequest, match="CDCV2"):
            await subscribe(engine, VIEW, codec=CDCV2)
        write(log_root, Mutation("cheap", "1", after=b'{"a":1}'))
        await engine.view(ANONYMOUS, "shop", 5)
        with pytest.raises(InvalidRequest, match="an entity type and a view: DROP the view"):
            await subscribe(engine, VIEW, limits=SubscriptionLimits())


async def test_contract_50_a_view_in_use_cannot_be_dropped_here_and_ends_what_reads_it(
    log_root: Path,
) -> None:
    products(log_root)
    define(log_root, CHEAP)
    async with Engine(log_root) as engine:
        await engine.named.create(
            ANONYMOUS, "shop", NewSubscription(name="bills", criteria=(VIEW,), place="earliest")
        )
        with pytest.raises(InvalidRequest, match="needed by the named subscription bills"):
            define(log_root, "DROP VIEW cheap")
        bills = NamedReader("bills")
        named = await engine.subscribe(
            ANONYMOUS, "shop", content=Content.BODY, codec=JSON, named=bills
        )
        assert told(await receive(named, 1)) == ["1 ENTER after(id=1 name=chair)"]
        await engine.named.delete(ANONYMOUS, "shop", "bills")
        live = await subscribe(engine, VIEW)
        await receive(live, 1)
        with pytest.raises(InvalidRequest, match="view cheap is in use by 1 subscription"):
            await engine.reads.sql(
                ANONYMOUS, IN_PROCESS, "shop", SqlRequest(statement="DROP VIEW cheap")
            )
        define(
            log_root, "DROP VIEW cheap"
        )  # by another process, which knows nothing of this server
        why = await ended(live)
        assert "view cheap has been dropped; to continue with its successor" in why
        assert str(live.resume_cursor()) in why


@pytest.mark.parametrize(
    ("allowance", "expected"),
    [
        (Allowance(PRODUCTS, rows=read_claimed("name <> 'stool'").filled({})), [
            "1 ENTER after(id=1 name=chair)", "1 LEAVE before(id=1 name=chair)",
            "1 ENTER after(id=1 name=bench)", "1 LEAVE before(id=1 name=bench)", "* "]),
        (Allowance(PRODUCTS, columns=Columns(frozenset({"id"}))), [
            "1 ENTER after(name=chair)",
            "1 UPDATE changed(name) before(name=chair) after(name=stool)",
            "1 LEAVE changed() before(name=stool)", "1 ENTER changed() after(name=bench)",
            "1 LEAVE before(name=bench)", "* "]),
        (Allowance(PRODUCTS, frozenset({"2"})), ["* "]),
    ],
)  # fmt: skip
async def test_contract_47_a_view_is_followed_as_it_is_granted(
    log_root: Path, allowance: Allowance, expected: list[str]
) -> None:
    products(log_root)
    define(log_root, CHEAP)
    define(log_root, "CREATE VIEW named AS SELECT name FROM product WHERE price < 10")
    caller = Holder({"shop": Grant((allowance,))})
    name = "named" if allowance.columns.names else "cheap"
    async with Engine(log_root) as engine:
        for each in CHANGES:
            write(log_root, each)
        await engine.view(ANONYMOUS, "shop", 4 + len(CHANGES))  # wherever the tailer is
        asked = Criteria(entity_type=(name,))
        assert told(await history(engine, asked, caller=caller)) == expected
        live = await subscribe(engine, asked, caller=caller)
        assert told(await receive(live, len(expected))) == expected
        hides = Holder(
            {"shop": Grant((Allowance(PRODUCTS, columns=Columns(frozenset({"price"}))),))}
        )
        with pytest.raises(NotPermitted, match=f"entity type '{name}' is not granted"):
            await subscribe(engine, asked, caller=hides)
