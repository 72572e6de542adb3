"""Order, positions, visibility: contract 1 to 9."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from tailrace import (
    END,
    After,
    Content,
    Criteria,
    Cursor,
    FromTime,
    Heartbeat,
    Operation,
    Position,
    Since,
    TimestampMicros,
)
from tailrace_server.wal.state.commit_log import CommitLog
from tests.conformance.reading import PATIENCE_S, collect, coordinates, heartbeat_past
from tests.conformance.shop import COLUMNS, OLDEST, SHOP, upsert

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.conftest import Serve
    from tests.support.inprocess import ModelWriter

CRITERIA = {
    "everything": (),
    "one type": (Criteria(entity_type=("product",)),),
    "either": (Criteria(entity_type=("order",)), Criteria(operation=(Operation.TRANSACTION,))),
    "key": (Criteria(entity_type=("order", "product"), primary_key=("1", "7")),),
    "columns": (COLUMNS,),
    "one column": (Criteria(entity_type=("product",), container_name=("price",)),),
}


async def test_contract_01_02_29_every_match_comes_once_in_order_with_its_own_numbers(
    serve: Serve, writer: ModelWriter
) -> None:
    """What is delivered is the filter of the log, from history and live alike."""
    writer.write(*SHOP[:3])
    driver = await serve()
    subscriptions = {}
    for name, criteria in CRITERIA.items():
        subscriptions[name] = await driver.subscribe(criteria, start=OLDEST)
        await collect(subscriptions[name], len(writer.log.expected(criteria)))
    for transaction in SHOP[3:]:
        writer.write(transaction)
    for name, criteria in CRITERIA.items():
        again = await driver.subscribe(criteria, start=OLDEST)
        expected = writer.log.expected(criteria)
        assert coordinates(await collect(again, len(expected))) == expected, name
        live = [each for each in expected if each[0] > 3]
        assert coordinates(await collect(subscriptions[name], len(live))) == live, name


async def test_contract_02_39_backwards_the_numbers_are_the_same(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    driver = await serve()
    forward = await driver.read((COLUMNS,))
    backward = await driver.read((COLUMNS,), reverse=True)
    assert coordinates(forward.captures) == writer.log.expected((COLUMNS,))
    assert coordinates(backward.captures) == coordinates(forward.captures)[::-1]


async def test_contract_03_a_start_is_inclusive_and_counts_from_version_1(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    driver = await serve()
    everything = writer.log.expected(())
    for start, first in (
        (Since(Position(0)), (1, 0, 0)),
        (Since(Position(1)), (1, 0, 0)),
        (Since(Position(4)), (4, 0, 0)),
        (Since(Position(4, 2)), (4, 2, 0)),
        (Since(Position(3, 9)), (4, 0, 0)),
    ):
        subscription = await driver.subscribe(start=start)
        expected = [each for each in everything if each >= first]
        assert coordinates(await collect(subscription, len(expected))) == expected
        await subscription.cancel()


async def test_contract_03_a_start_above_the_newest_waits_and_none_is_after_the_published(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP[:2])
    driver = await serve()
    above = await driver.subscribe(start=Since(Position(4)))
    unset = await driver.subscribe()
    assert unset.acknowledgement.start == Position(3, 0)
    writer.write(*SHOP[2:4])
    assert coordinates(await collect(unset, 5)) == writer.log.expected((), 3)
    assert coordinates(await collect(above, 4)) == writer.log.expected((), 4)


async def test_contract_03_a_start_by_time_is_the_first_version_at_or_after_it(
    serve: Serve, writer: ModelWriter
) -> None:
    for transaction in SHOP:
        writer.write(transaction)
    driver = await serve()
    history = await driver.read()
    at = {each.version: each.commit_timestamp for each in history.captures}
    assert list(at.values()) == sorted(set(at.values()))
    for timestamp in (at[4], at[3] + 1):
        subscription = await driver.subscribe(start=FromTime(TimestampMicros(timestamp)))
        assert coordinates(await collect(subscription, 6)) == writer.log.expected((), 4)
        await subscription.cancel()


async def test_contract_03_a_start_by_time_holds_beside_a_cursor(
    serve: Serve, writer: ModelWriter
) -> None:
    for transaction in SHOP:
        writer.write(transaction)
    driver = await serve()
    captures = (await driver.read()).captures
    at = {each.version: TimestampMicros(each.commit_timestamp) for each in captures}
    cursors = {each.version: each.cursor for each in captures}
    for after, from_time, first in ((1, at[4], 4), (3, at[2], 4), (3, at[4] + 1, 5)):
        start = After(cursors[after], TimestampMicros(from_time))
        subscription = await driver.subscribe(start=start)
        expected = writer.log.expected((), first)
        assert coordinates(await collect(subscription, len(expected))) == expected
        await subscription.cancel()


async def test_contract_03_26_a_start_by_time_to_come_holds_over_a_resume(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    writer.write(*SHOP[:1])
    writer.commit(*SHOP[1:2])
    early = CommitLog.open(log_root / "shop").state.last_timestamp
    from_time = TimestampMicros(early + 1)
    driver = await serve()
    broken = await driver.subscribe(start=FromTime(from_time))
    heartbeat = await heartbeat_past(broken, 1)
    await broken.cancel()
    writer.publish()
    resumed = await driver.subscribe(start=After(heartbeat.cursor, from_time))
    await heartbeat_past(resumed, 2)
    writer.write(*SHOP[2:3])
    expected = writer.log.expected((), 3)
    assert coordinates(await collect(resumed, len(expected))) == expected
    await resumed.cancel()


async def test_contract_04_a_cursor_is_exclusive_and_exact_in_the_middle_of_a_record(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    driver = await serve()
    whole = await driver.subscribe((COLUMNS,), start=OLDEST)
    captures = await collect(whole, len(writer.log.expected((COLUMNS,))))
    for place, capture in enumerate(captures[:-1]):
        subscription = await driver.subscribe((COLUMNS,), start=After(capture.cursor))
        rest = captures[place + 1 :]
        assert await collect(subscription, len(rest)) == rest
        await subscription.cancel()


async def test_contract_05_a_record_of_10_captures_passes_a_demand_of_4_at_a_time(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1", entity_type="box", **{f"column{n}": n for n in range(8)})])
    driver = await serve(ring_captures=4, queue_captures=4)
    subscription = await driver.subscribe((COLUMNS,), start=OLDEST, demand=4)
    first = await collect(subscription, 4)
    await subscription.request(4)
    second = await collect(subscription, 4)
    await subscription.request(4)
    third = await collect(subscription, 2)
    assert coordinates([*first, *second, *third]) == [(1, 2, ordinal) for ordinal in range(10)]


async def test_contract_06_nothing_above_the_published_version_is_visible(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(SHOP[0])
    driver = await serve()
    live = await driver.subscribe()
    for transaction in SHOP[1:4]:
        writer.commit(transaction)
    late = await driver.subscribe(start=OLDEST)
    assert coordinates(await collect(late, 3)) == [(1, 0, 0), (1, 1, 0), (1, 2, 0)]
    assert (await heartbeat_past(late, 1)).published == 1
    page = await driver.read()
    assert page.anchor == 1
    assert {each.version for each in page.captures} == {1}
    writer.publish()
    expected = writer.log.expected((), 2)
    for subscription in (live, late):
        assert coordinates(await collect(subscription, len(expected))) == expected


async def test_contract_08_leads_and_heartbeats_let_a_reader_count(
    serve: Serve, writer: ModelWriter
) -> None:
    driver = await serve()
    products = await driver.subscribe((Criteria(entity_type=("product",)),))
    leads = await driver.subscribe(
        (Criteria(operation=(Operation.TRANSACTION,)),), content=Content.AFTER
    )
    writer.write(*SHOP)
    counts = []
    for lead in await collect(leads, 5):
        assert lead.after is not None
        assert lead.entity_type is None
        counts.append(json.loads(lead.after)["counts"])
    assert counts == [{"product": 1, "order": 1}, {"product": 1}, {}, {"product": 3}, {"order": 1}]
    await collect(products, 5)
    beat = await heartbeat_past(products, 5)
    assert (beat.records_scanned, beat.records_matched) == (12, 5)


async def test_contract_09_a_heartbeat_comes_behind_every_match_up_to_its_cursor(
    serve: Serve, writer: ModelWriter
) -> None:
    driver = await serve()
    subscription = await driver.subscribe((Criteria(entity_type=("order",)),), start=OLDEST)
    for _ in range(20):
        writer.write(*SHOP)
    passed = Cursor(subscription.acknowledgement.catalog_uuid, 0, END)
    received = 0
    async with asyncio.timeout(PATIENCE_S):
        while received < 40 or passed.version < 100:
            message = await subscription.receive()
            if isinstance(message, Heartbeat):
                assert message.cursor >= passed
                passed = message.cursor
            else:
                assert message[0].cursor > passed
                received += len(message)
                passed = message[-1].cursor
    assert received == 40


async def test_contract_09_a_filter_that_matches_nothing_sees_its_cursor_advance(
    serve: Serve, writer: ModelWriter
) -> None:
    driver = await serve()
    quiet = await driver.subscribe((Criteria(entity_type=("nothing",)),), demand=0)
    writer.write(*SHOP)
    beat = await heartbeat_past(quiet, 5)
    assert beat.cursor == Cursor(quiet.acknowledgement.catalog_uuid, 5, END)
    assert beat.records_matched == 0


async def test_contract_09_a_quiet_subscription_that_takes_everything_sees_its_cursor_advance(
    serve: Serve, writer: ModelWriter
) -> None:
    driver = await serve()
    quiet = await driver.subscribe((Criteria(entity_type=("nothing",)),))
    writer.write(*SHOP)
    beat = await heartbeat_past(quiet, 5)
    assert beat.cursor == Cursor(quiet.acknowledgement.catalog_uuid, 5, END)
    assert (beat.records_scanned, beat.records_matched) == (12, 0)


async def test_contract_46_bodies_arrive_byte_for_byte(serve: Serve, writer: ModelWriter) -> None:
    """Positions, timestamps, keys and images as the log has them, 64-bit numbers included."""
    writer.write([upsert("ключ", big=2**63 - 1, text="é\n\u2028")])
    driver = await serve()
    subscription = await driver.subscribe(start=OLDEST, content=Content.BODY)
    lead, capture = await collect(subscription, 2)
    assert capture.primary_key == "ключ"
    assert capture.after == writer.log.transactions[0][0].image("after")
    assert capture.before is None
    assert capture.commit_timestamp == lead.commit_timestamp > 1_600_000_000_000_000
