"""Criteria: contract 29 to 32, conditions and views: 49 and 50."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tailrace import (
    After,
    Area,
    ColumnsChanged,
    ContainerType,
    Content,
    Criteria,
    FromState,
    Operation,
    Position,
    Since,
    Transition,
)
from tailrace_server.wal.catalog_writer import CatalogWriter
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.conformance.reading import collect, coordinates
from tests.conformance.shop import OLDEST, SHOP, remove, update, upsert
from tests.server.grants.test_names_of_conditions import OPEN, rename, write
from tests.server.sql.test_change_tables import define
from tests.support.inprocess import observer_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.conftest import Serve
    from tests.support.inprocess import ModelWriter


async def test_contract_29_an_empty_list_says_the_same_as_none(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    driver = await serve()
    expected = writer.log.expected(())
    for criteria in ((), (Criteria(),), (Criteria(entity_type=(), operation=()),)):
        subscription = await driver.subscribe(criteria, start=OLDEST)
        assert coordinates(await collect(subscription, len(expected))) == expected


async def test_contract_29_ten_thousand_keys_in_one_criteria_are_allowed(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert(str(number)) for number in range(0, 30_000, 1000)])
    driver = await serve()
    keys = tuple(str(number) for number in range(10_000))
    subscription = await driver.subscribe((Criteria(primary_key=keys),), start=OLDEST)
    received = await collect(subscription, 10)
    assert [each.primary_key for each in received] == [str(n) for n in range(0, 10_000, 1000)]


async def test_contract_29_areas_are_told_apart(serve: Serve, writer: ModelWriter) -> None:
    writer.write(*SHOP)
    driver = await serve()
    for area in (Area.DATA, Area.INFRASTRUCTURE):
        subscription = await driver.subscribe((Criteria(area=area),), start=OLDEST)
        received = await collect(subscription, len(writer.log.expected((Criteria(area=area),))))
        assert {each.area for each in received} == {area}


async def test_contract_30_names_match_whole_and_as_written(
    serve: Serve, writer: ModelWriter
) -> None:
    names = ("order", "orders", "Order", "order ", "ordér", "item.order")
    writer.write([upsert(str(place), name) for place, name in enumerate(names)])
    driver = await serve()
    for place, name in enumerate(names):
        subscription = await driver.subscribe(
            (Criteria(area=Area.DATA, entity_type=(name,)),), start=OLDEST
        )
        (only,) = await collect(subscription, 1)
        assert (only.entity_type, only.primary_key) == (name, str(place))


async def test_contract_31_a_removal_by_time_to_live_is_told_apart(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([remove("1"), remove("2", Operation.EXPIRE)])
    driver = await serve()
    for operation, key in ((Operation.REMOVE, "1"), (Operation.EXPIRE, "2")):
        subscription = await driver.subscribe((Criteria(operation=(operation,)),), start=OLDEST)
        (only,) = await collect(subscription, 1)
        assert (only.operation, only.primary_key) == (operation, key)


async def test_contract_32_equal_criteria_share_one_publisher(
    serve: Serve, writer: ModelWriter
) -> None:
    """Whatever their start, content and spelling."""
    writer.write(*SHOP)
    driver = await serve()
    spellings = (
        (Criteria(entity_type=("a", "b")), Criteria(primary_key=("1",))),
        (Criteria(primary_key=("1", "1")), Criteria(entity_type=("b", "a"))),
    )
    async with asyncio.TaskGroup() as group:
        for criteria in spellings:
            group.create_task(driver.subscribe(criteria))
            group.create_task(driver.subscribe(criteria, start=OLDEST, content=Content.BODY))
            group.create_task(driver.subscribe(criteria, start=Since(Position(9))))
    (publisher,) = observer_of(driver.engine, "shop").publishers()
    assert publisher.statistics().subscriptions == 6


async def test_contract_32_a_demand_makes_no_publisher_of_its_own(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    driver = await serve()
    for number in (None, 0, 3):
        await driver.subscribe((Criteria(entity_type=("product",)),), demand=number)
    (publisher,) = observer_of(driver.engine, "shop").publishers()
    assert publisher.statistics().subscriptions == 3


async def test_contract_29_columns_are_asked_for_by_their_role(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    """It is that of the record's own version: what was written before the mapping keeps its role."""
    image = b'{"id":"2","price":2,"note":"new","maker":"9"}'
    writer.write([upsert("1", "box", price=1, note="old", maker="9")])
    writer.writer.close()
    mapping = SchemaMapping.parse(
        """
        [entity_types.box.columns]
        price = { role = "PRICE" }
        note = { role = "ASSOCIATED_DATA" }
        maker = { role = "REFERENCE" }
        """
    )
    with LogWriter.open(log_root, "shop", mapping=mapping) as declaring:
        declaring.append([Mutation("box", "2", after=image)])
    driver = await serve()
    for role, expected in (
        (ContainerType.PRICE, [(2, 2, 2)]),
        (ContainerType.ASSOCIATED_DATA, [(2, 2, 3)]),
        (ContainerType.REFERENCE, [(2, 2, 4)]),
        (ContainerType.ATTRIBUTE, [*((1, 2, ordinal) for ordinal in (1, 2, 3, 4)), (2, 2, 1)]),
    ):
        criteria = Criteria(container_type=(role,))
        subscription = await driver.subscribe((criteria,), start=OLDEST)
        captures = await collect(subscription, len(expected))
        assert coordinates(captures) == expected
        assert {each.container_type for each in captures} == {role}
        await subscription.cancel()


async def test_contract_31_a_renamed_entity_type_has_its_old_name_before_and_its_new_one_after(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    """The record of the rename is filed under the old name."""
    writer.write([upsert("1", "item", name="chair")])
    writer.writer.close()
    mapping = SchemaMapping.parse('[entity_types.product2]\nrenamed_from = "item"')
    with LogWriter.open(log_root, "shop", mapping=mapping) as renaming:
        renaming.append([Mutation("product2", "1", after=b'{"id":"1","name":"sofa"}')])
    driver = await serve()
    for name, expected in (
        ("item", [(1, 1, 0), (1, 2, 0), (2, 1, 0)]),
        ("product2", [(2, 2, 0)]),
    ):
        subscription = await driver.subscribe((Criteria(entity_type=(name,)),), start=OLDEST)
        assert coordinates(await collect(subscription, len(expected))) == expected


async def test_contract_29_one_subscription_follows_all_changes_of_schema_and_data(
    serve: Serve, writer: ModelWriter
) -> None:
    """Container type CATALOG is what is said of the catalog, ENTITY what is said of rows."""
    writer.write(*SHOP)
    writer.write([upsert("9", "box", size=1)], [upsert("9", "box", size="L", lid=True)])
    driver = await serve()
    catalog = Criteria(container_type=(ContainerType.CATALOG,))
    for criteria in (
        catalog,
        Criteria(area=Area.SCHEMA),
        Criteria(container_type=(ContainerType.ENTITY,)),
        Criteria(container_type=(ContainerType.CATALOG, ContainerType.ENTITY)),
        Criteria(container_type=(ContainerType.CATALOG, ContainerType.ATTRIBUTE)),
        Criteria(container_type=(ContainerType.CATALOG,), entity_type=("product",)),
    ):
        expected = writer.log.expected((criteria,))
        subscription = await driver.subscribe((criteria,), start=OLDEST)
        assert coordinates(await collect(subscription, len(expected))) == expected
        await subscription.cancel()
    subscription = await driver.subscribe((catalog,), start=OLDEST, content=Content.BODY)
    first, second = await collect(subscription, 2)
    assert (first.area, first.entity_type, first.primary_key) == (Area.SCHEMA, "box", None)
    assert (first.before, second.before) == (None, first.after)
    assert second.changed == ("size", "lid")
    assert json.loads(second.change or b"")["changes"] == [
        {
            "what": "column_changed",
            "column": "size",
            "from": {"sql_type": "BIGINT"},
            "to": {"sql_type": "JSON"},
        },
        {"what": "column_added", "column": "lid"},
    ]


async def test_names_that_the_log_lacks_are_told_to_who_waits_for_them(
    serve: Serve, writer: ModelWriter
) -> None:
    """The subscription stands: what they name may come."""
    writer.write(*SHOP)
    driver = await serve()
    criteria = Criteria(entity_type=("odrer", "product"), container_name=("prise", "price"))
    subscription = await driver.subscribe((criteria,))
    assert subscription.acknowledgement.unknown_names == ("odrer", "prise")
    writer.write([upsert("9", "odrer", prise=1)])
    (capture,) = await collect(subscription, 1)
    assert (capture.entity_type, capture.container_name) == ("odrer", "prise")


async def test_updates_of_which_nobody_knows_what_changed_are_told_to_who_asks_for_columns(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    """As PostgreSQL sends them with its default replica identity; the ingest notes it with its commits."""
    writer.write(*SHOP)
    with CatalogWriter.open(log_root, "shop", writer="ingest", take_over=True) as ingest:
        ingest.commit(batch_id=0, source_positions={"before:product": "missing"})
    driver = await serve()
    columns = Criteria(entity_type=("product",), container_name=("price",))
    rows = Criteria(entity_type=("product",))
    for criteria, expected in ((columns, ("product",)), (rows, ())):
        subscription = await driver.subscribe((criteria,))
        assert subscription.acknowledgement.unknown_changes == expected


async def test_contract_49_changes_of_a_condition_add_up_to_the_rows_that_meet_it(
    serve: Serve, writer: ModelWriter
) -> None:
    """Live, in history and as state; no image from outside of the condition is sent."""
    writer.write([upsert(str(key), price=key) for key in (3, 12)])
    driver = await serve()
    cheap = (Criteria(entity_type=("product",), where="price < 10"),)
    subscription = await driver.subscribe(cheap, start=FromState(), content=Content.BODY)
    [row] = await collect(subscription, 1)
    assert (row.primary_key, row.transition) == ("3", Transition.ENTER)
    writer.write(
        [
            update("3", {"price": 3}, {"price": 4}),
            update("12", {"price": 12}, {"price": 9}),
            upsert("13", price=13),
        ],
        [update("3", {"price": 4}, {"price": 40}), update("13", {"price": 13}, {"price": 14})],
    )
    live = await collect(subscription, 3)
    moves = [(each.primary_key, each.transition) for each in live]
    assert moves == [("3", Transition.UPDATE), ("12", Transition.ENTER), ("3", Transition.LEAVE)]
    assert (live[1].before, live[2].after) == (None, None)
    page = await driver.read(cheap, content=Content.BODY)
    assert page.captures[-3:] == live
    for version, keys in ((1, ["3"]), (2, ["12", "3"]), (3, ["12"])):
        rows = await driver.state(where="price < 10", at_version=version)
        assert sorted(each.primary_key or "" for each in rows.captures) == keys


async def test_contract_50_a_view_is_followed_by_its_name_as_an_entity_type_is(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    writer.write([upsert(str(key), name=f"p{key}", price=key) for key in (3, 4, 12, 13)])
    define(log_root, "CREATE VIEW cheap AS SELECT name FROM product WHERE price < 10")
    driver = await serve()
    criteria = (Criteria(entity_type=("cheap",), primary_key=("3", "12", "5")),)
    subscription = await driver.subscribe(criteria, start=FromState(), content=Content.AFTER)
    [row] = await collect(subscription, 1)
    assert (row.entity_type, row.transition, row.after) == (
        "product",
        Transition.ENTER,
        b'{"name":"p3"}',
    )
    writer.write(
        [
            update("3", {"name": "p3", "price": 3}, {"name": "p3", "price": 30}),
            update("12", {"name": "p12", "price": 12}, {"name": "p12", "price": 9}),
            update("4", {"name": "p4", "price": 4}, {"name": "p4", "price": 40}),
        ]
    )
    moves = [
        (each.primary_key, each.transition, each.after) for each in await collect(subscription, 2)
    ]
    assert moves == [
        ("3", Transition.LEAVE, None),
        ("12", Transition.ENTER, b'{"name":"p12"}'),
    ]
    page = await driver.read(criteria, content=Content.AFTER)
    assert [each.primary_key for each in page.captures] == ["3", "3", "12"]


async def test_contract_49_a_condition_behind_a_cursor_has_the_names_of_its_version(
    serve: Serve, log_root: Path
) -> None:
    """The source has renamed its column, and given the name to another: the text alone is refused."""
    write(log_root, {"id": 1, "status": "open"}, catalog="tasks")
    driver = await serve()
    first = await driver.subscribe((OPEN,), catalog="tasks", start=OLDEST)
    [opened] = await collect(first, 1)
    rename(log_root, "tasks")
    assert [each.primary_key for each in await collect(first, 1)] == ["2"]
    with pytest.raises(ColumnsChanged) as changed:
        await driver.subscribe((OPEN,), catalog="tasks", start=After(opened.cursor))
    assert changed.value.column == "status"
    pinned = (replace(OPEN, where_version=1),)
    again = await driver.subscribe(pinned, catalog="tasks", start=After(opened.cursor))
    assert [each.primary_key for each in await collect(again, 1)] == ["2"]
