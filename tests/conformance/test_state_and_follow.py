"""A state and then the changes, in one subscription: together what history leaves, wherever it breaks."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from tailrace import (
    After,
    Area,
    CaptureKind,
    ContainerType,
    Content,
    Criteria,
    FromState,
    InvalidRequest,
    Operation,
    Position,
)
from tailrace.capture import Heartbeat
from tests.conformance.reading import PATIENCE_S, collect, error_ending, published
from tests.conformance.shop import remove, upsert
from tests.conformance.test_state import TRANSACTIONS, folded, history, row_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace import Capture, Cursor
    from tests.conformance.conftest import Serve
    from tests.conformance.ways import DrivenSubscription, Driver
    from tests.support.inprocess import ModelWriter

ROWS = 60
LONG = "k" * 700
TABLES = ("order", "product")
PRODUCTS = (Criteria(area=Area.DATA, entity_type=("product",)),)


async def state_of(subscription: DrivenSubscription, at_most: int = 10**9) -> list[Capture]:
    """Return rows until the state is complete, or so many; heartbeats may come, and nothing else."""
    rows: list[Capture] = []
    async with asyncio.timeout(PATIENCE_S):
        while not subscription.marks and len(rows) < at_most:
            message = await subscription.receive()
            if isinstance(message, Heartbeat):
                assert not rows or message.cursor == rows[-1].cursor or subscription.marks
            else:
                assert {each.kind for each in message} <= {CaptureKind.STATE}
                rows.extend(message)
    return rows


def shop(writer: ModelWriter) -> None:
    writer.write(
        *TRANSACTIONS[:7],
        [upsert(str(key), name="x" * 900, price=key) for key in range(ROWS)],
        [upsert(str(key), "order", total=key) for key in range(9)],
        [remove("7"), upsert("8", name="late"), upsert(LONG, name="a long key")],
    )


async def test_contract_48_a_subscription_begins_with_the_state_and_follows_it_across_breaks(
    serve: Serve, writer: ModelWriter
) -> None:
    shop(writer)
    driver = await serve()
    first = len(writer.log.transactions)
    chosen = random.Random(48)
    subscription = await driver.subscribe(start=FromState(), content=Content.AFTER)
    acknowledged = subscription.acknowledgement
    assert acknowledged.state_version == first
    assert acknowledged.start == Position(first + 1, 0)
    # 1. The state, broken anywhere, while the log grows.
    rows: list[Capture] = []
    cursor: Cursor = acknowledged.resume_cursor
    while True:
        came = await state_of(subscription, chosen.randint(1, 30))
        rows += came
        if subscription.marks:
            break
        await subscription.cancel()
        # What came in one message is had, and may be all that is wanted: a cursor is of any of its rows.
        cursor = (came or [rows[-1]])[-1].cursor
        if chosen.random() < 0.5 and came:
            keep = chosen.randrange(len(came))
            cursor, rows = came[keep].cursor, rows[: len(rows) - len(came) + keep + 1]
        writer.write([upsert(str(chosen.randrange(ROWS)), name="meanwhile")])
        start = After(cursor) if chosen.random() < 0.5 else FromState(cursor)
        subscription = await driver.subscribe(start=start, content=Content.AFTER)
        assert subscription.acknowledgement.state_version == first
        assert subscription.acknowledgement.resume_cursor == cursor
    whole = await history(driver, first)
    for name in TABLES:
        found = [each for each in rows if each.entity_type == name]
        assert {each.primary_key: row_of(each) for each in found} == folded(whole, name)
    assert len(rows) == len({(each.entity_type, each.primary_key) for each in rows})
    assert [each.entity_type for each in rows] == sorted(each.entity_type or "" for each in rows)
    [mark] = subscription.marks
    assert mark.version == first
    # 2. The changes, all of them, also behind the mark alone.
    writer.write([remove("1")], [upsert("new", name="n")])
    last = len(writer.log.transactions)
    await published(driver, last)
    expected = writer.log.expected((Criteria(),), first=first + 1)
    changes = await _changes(subscription, len(expected))
    assert [(each.version, each.index, each.ordinal) for each in changes] == expected
    await subscription.cancel()
    resumed = await driver.subscribe(start=FromState(mark.cursor), content=Content.AFTER)
    assert resumed.acknowledgement.state_version is None
    assert await collect(resumed, len(expected)) == changes
    await resumed.cancel()
    whole = await history(driver, last)
    for name in TABLES:
        assert folded([*rows, *changes], name) == folded(whole, name)


async def _changes(subscription: DrivenSubscription, count: int) -> list[Capture]:
    captures = await collect(subscription, count)
    assert {each.kind for each in captures} == {CaptureKind.CHANGE}
    return captures


async def test_contract_48_criteria_filter_the_state_as_they_filter_its_changes(
    serve: Serve, writer: ModelWriter
) -> None:
    shop(writer)
    driver = await serve()
    by_key = (
        Criteria(entity_type=("product",), primary_key=("8", "7", "never", "ключ", LONG)),
        Criteria(entity_type=("order",), primary_key=("8", "late")),
    )
    columns = (
        Criteria(
            entity_type=("product",),
            primary_key=("8", "9"),
            container_type=(ContainerType.ENTITY, ContainerType.ATTRIBUTE),
            container_name=("name",),
        ),
    )
    asked: list[tuple[Sequence[Criteria], list[tuple[str, str, int]]]] = [
        (
            by_key,
            [("order", "8", 0), ("order", "late", 0), ("product", "8", 0), ("product", LONG, 0)],
        ),
        ((Criteria(operation=(Operation.REMOVE,)),), []),
        ((Criteria(area=Area.INFRASTRUCTURE),), []),
        ((Criteria(entity_type=("of no such type",)),), []),
        (columns, [(*("product", key), ordinal) for key in ("8", "9") for ordinal in (0, 2)]),
    ]
    for criteria, expected in asked:
        subscription = await driver.subscribe(criteria, start=FromState(), content=Content.AFTER)
        rows = await state_of(subscription)
        found = [(each.entity_type, each.primary_key, each.ordinal) for each in rows]
        assert sorted(found) == sorted(expected)
        await subscription.cancel()
        # In the midst of a row, too: its other captures follow.
        for place, row in enumerate(rows[:-1]):
            rest = await driver.subscribe(
                criteria, start=FromState(row.cursor), content=Content.AFTER
            )
            assert await state_of(rest) == rows[place + 1 :]
            await rest.cancel()
    assert [each.after for each in rows if each.ordinal == 2 and each.primary_key == "8"] == [
        b'{"name":"late"}'
    ]


async def test_contract_48_the_state_of_an_empty_log_is_complete_at_once(
    serve: Serve, writer: ModelWriter
) -> None:
    driver = await serve()
    subscription = await driver.subscribe(start=FromState())
    assert subscription.acknowledgement.state_version == 0
    assert await state_of(subscription) == []
    writer.write([upsert("1")])
    assert [each.version for each in await collect(subscription, 2)] == [1, 1]
    await subscription.cancel()


async def test_contract_48_demand_counts_rows_and_changes_alike(
    serve: Serve, writer: ModelWriter
) -> None:
    shop(writer)
    driver = await serve()
    subscription = await driver.subscribe(PRODUCTS, start=FromState(), demand=3)
    rows = await state_of(subscription, 3)
    assert len(rows) == 3
    beat = await subscription.receive()
    assert isinstance(beat, Heartbeat)
    assert beat.cursor == rows[-1].cursor
    left = len(folded(await history(driver, len(writer.log.transactions)), "product")) - 3
    await subscription.request(left)
    rows += await state_of(subscription)  # the mark comes at demand 0
    assert len(rows) == left + 3
    writer.write([upsert("1"), upsert("2")])
    await subscription.request(1)
    assert [each.primary_key for each in await collect(subscription, 1)] == ["1"]
    await subscription.cancel()


async def test_what_a_state_cannot_begin_with_is_refused(serve: Serve, writer: ModelWriter) -> None:
    shop(writer)
    driver = await serve()
    subscription = await driver.subscribe(PRODUCTS, start=FromState())
    [row, *_] = await state_of(subscription, 1)
    await subscription.cancel()

    async def error_of(driver: Driver, start: FromState | After, *criteria: Criteria) -> str:
        with pytest.raises(InvalidRequest) as refused:
            await error_ending(await driver.subscribe(criteria, start=start))
        return str(refused.value)

    told = await error_of(driver, FromState(row.cursor), Criteria(entity_type=("order",)))
    assert "the state of other tables" in told
    told = await error_of(driver, After(row.cursor))
    assert "the state of other tables" in told
    with pytest.raises(InvalidRequest, match="which history does not have"):
        await driver.read(PRODUCTS, after=row.cursor)
