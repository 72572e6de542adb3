"""Latest per key: what a reader that is behind is left with is what everything would have left it with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tailrace import (
    After,
    Area,
    Capture,
    CaptureKind,
    CatchUp,
    Content,
    Criteria,
    Heartbeat,
    Operation,
    OverrunPolicy,
)
from tests.conformance.reading import PATIENCE_S, collect, coordinates, published
from tests.conformance.shop import OLDEST, remove, upsert
from tests.support.inprocess import has_passed
from tests.support.model import ModelMutation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.conformance.conftest import Serve
    from tests.conformance.ways import DrivenSubscription
    from tests.support.inprocess import ModelWriter

TRUNCATE = ModelMutation("order", None, Operation.REMOVE, None, None)
HOT: tuple[list[ModelMutation], ...] = (
    [upsert("1", price=1), upsert("2", price=2), upsert("o1", "order", total=1)],
    [upsert("hot", price=1), remove("2"), TRUNCATE, upsert("o2", "order", total=2)],
    *([upsert("hot", price=price)] for price in range(2, 12)),
    [upsert("3", price=3), upsert("o2", "order", total=3), upsert("hot", price=99)],
)
LAST = len(HOT)
ROWS = (Criteria(area=Area.DATA),)
COLUMNS = (Criteria(area=Area.DATA, container_name=("price", "name")),)
EVERYTHING = (Criteria(),)
LATEST: dict[str, Any] = {"catch_up": CatchUp.LATEST}

Left = dict[tuple[str | None, str | None, int], bytes | None]


def left_by(captures: Iterable[Capture]) -> Left:
    """Return what captures, applied in order, leave of rows and of columns."""
    left: Left = {}
    for each in captures:
        if each.area is not Area.DATA:
            continue
        if each.primary_key is None:
            left = {unit: image for unit, image in left.items() if unit[0] != each.entity_type}
        elif each.operation is Operation.UPSERT:
            left[each.entity_type, each.primary_key, each.ordinal] = each.after
        else:
            left.pop((each.entity_type, each.primary_key, each.ordinal), None)
    return left


async def latest_of(subscription: DrivenSubscription, version: int) -> list[Capture]:
    """Return the captures that come up to a heartbeat which says that there are no more of a version."""
    captures: list[Capture] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            message = await subscription.receive()
            if not isinstance(message, Heartbeat):
                assert isinstance(message, tuple)
                captures += message
            elif has_passed(message.cursor, version):
                return captures


@pytest.mark.parametrize("criteria", [ROWS, COLUMNS, EVERYTHING], ids=["rows", "columns", "all"])
async def test_contract_14_the_latest_of_each_key_leaves_what_everything_leaves(
    serve: Serve, writer: ModelWriter, criteria: tuple[Criteria, ...]
) -> None:
    writer.write(*HOT)
    driver = await serve()
    whole = await driver.read(criteria, content=Content.AFTER)
    subscription = await driver.subscribe(criteria, start=OLDEST, content=Content.AFTER, **LATEST)
    assert subscription.acknowledgement.catch_up is CatchUp.LATEST
    assert subscription.acknowledgement.overrun_policy is OverrunPolicy.LATEST
    latest = await latest_of(subscription, LAST)
    # 1. Fewer captures, in the order of the log, none twice, and each as history has it, but for its mark.
    places = coordinates(latest)
    assert places == sorted(set(places))
    assert len(latest) < len(whole.captures)
    assert {each.kind for each in latest} == {CaptureKind.LATEST}
    unmarked = [each._replace(kind=CaptureKind.CHANGE) for each in latest]
    assert set(unmarked) <= set(whole.captures)
    # 2. They leave what all of them leave.
    assert left_by(latest) == left_by(whole.captures)
    # 3. Then it is live: every capture, unmarked.
    writer.write([upsert("hot", price=100)], [upsert("hot", price=101)])
    expected = writer.log.expected(criteria, first=LAST + 1)
    live = await collect(subscription, len(expected))
    assert coordinates(live) == expected
    assert {each.kind for each in live} == {CaptureKind.CHANGE}
    await subscription.cancel()


async def test_contract_14_a_reader_that_comes_back_in_the_middle_loses_no_key(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*HOT)
    driver = await serve()
    first = await driver.subscribe(ROWS, start=OLDEST, content=Content.AFTER, **LATEST)
    latest = await latest_of(first, LAST)
    await first.cancel()
    # Meanwhile one of those that were to come is not the newest of its key any more.
    writer.write([upsert("3", price=33), upsert("o2", "order", total=4)], [upsert("4")])
    await published(driver, LAST + 2)
    whole = await driver.read(ROWS, content=Content.AFTER)
    for taken in (1, len(latest) - 1):
        had = latest[:taken]
        start = After(had[-1].cursor) if had else OLDEST
        again = await driver.subscribe(ROWS, start=start, content=Content.AFTER, **LATEST)
        rest = await latest_of(again, LAST + 2)
        await again.cancel()
        places = coordinates([*had, *rest])
        assert places == sorted(set(places))
        assert left_by([*had, *rest]) == left_by(whole.captures)


async def test_contract_14_who_is_overtaken_gets_the_latest_and_is_live_again(
    serve: Serve, writer: ModelWriter
) -> None:
    driver = await serve(ring_captures=4)
    subscription = await driver.subscribe(
        ROWS, content=Content.AFTER, overrun_policy=OverrunPolicy.LATEST
    )
    assert subscription.acknowledgement.catch_up is CatchUp.ALL
    # What comes from the ring shows that it is live. A heartbeat may come before, while it has no demand.
    writer.write([upsert("hot")])
    await collect(subscription, 1)
    # A commit that the ring has no room for.
    writer.write([upsert("hot", price=price) for price in range(9)])
    (only,) = await collect(subscription, 1)
    assert (only.kind, only.index) == (CaptureKind.LATEST, 9)
    writer.write([upsert("hot", price=10)])
    (live,) = await collect(subscription, 1)
    assert (live.kind, live.version) == (CaptureKind.CHANGE, 3)
    await subscription.cancel()


async def test_who_is_not_behind_gets_everything(serve: Serve, writer: ModelWriter) -> None:
    writer.write(*HOT)
    driver = await serve()
    subscription = await driver.subscribe(ROWS, **LATEST)
    writer.write([upsert("hot"), upsert("hot", name="again")])
    captures = await collect(subscription, 2)
    assert {each.kind for each in captures} == {CaptureKind.CHANGE}
    await subscription.cancel()
