"""Criteria: contract 29 to 32."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace import Area, Content, Criteria, Operation, Position, Since
from tests.conformance.reading import collect, coordinates
from tests.conformance.shop import OLDEST, SHOP, remove, upsert

if TYPE_CHECKING:
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


async def test_contract_29_10_000_keys_in_one_criteria_are_allowed(
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
    """Whatever their start, content, demand and spelling."""
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
            group.create_task(driver.subscribe(criteria, start=Since(Position(9)), demand=3))
    (publisher,) = driver.engine.observer("shop").publishers()
    assert publisher.statistics().subscriptions == 6
