"""Ends and errors: contract 20 to 28."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tailrace import (
    END,
    After,
    CatalogReplaced,
    CatalogUnknown,
    Content,
    Criteria,
    Cursor,
    CursorAhead,
    EndedByOperator,
    HistoryReplaced,
    InvalidRequest,
    LogCorrupted,
    LogError,
    Position,
    PositionCompacted,
    ServerStopping,
    Since,
    SubscriptionBroken,
)
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.wal.catalog import drop_catalog
from tailrace_server.wal.upkeep.retention import trim
from tests.conformance.reading import collect, coordinates, error_ending, published
from tests.conformance.shop import OLDEST, SHOP, upsert
from tests.server.wal.logs import write_files
from tests.support.inprocess import ModelWriter, observer_of
from tests.support.model import ModelLog
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.capture import Capture
    from tailrace.criteria import Start
    from tests.conformance.conftest import Serve
    from tests.conformance.ways import Driver


async def subscribed(driver: Driver, count: int) -> None:
    """Wait until the server counts so many subscriptions."""
    await until(lambda: driver.engine.statistics(ANONYMOUS).subscriptions == count)


async def test_contract_20_23_a_cancelled_subscription_leaves_nothing_behind(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    driver = await serve()
    subscriptions = [await driver.subscribe(start=OLDEST) for _ in range(3)]
    await collect(subscriptions[0], len(writer.log.expected(())))
    assert len(observer_of(driver.engine, "shop").publishers()) == 1
    for count, subscription in zip((2, 1, 0), subscriptions, strict=True):
        await subscription.cancel()
        await subscribed(driver, count)
    assert observer_of(driver.engine, "shop").publishers() == ()


async def test_contract_03_21_a_start_below_the_oldest_retained_ends_at_once(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    """With both ends of what is kept; 0 means the oldest and never raises."""
    for number in range(6):
        writer.write([upsert(str(number))])
    old = Cursor(writer.writer.uuid, 2, 1, 0)
    trim(log_root / "shop", 4, 0)
    driver = await serve()
    for start in (Since(Position(1)), Since(Position(3, 9)), After(old)):
        with pytest.raises(PositionCompacted) as raised:
            await driver.subscribe(start=start)
        assert raised.value.oldest == Position(4, 0)
        assert raised.value.newest.version == 6
        assert raised.value.wanted < raised.value.oldest
    assert driver.engine.statistics(ANONYMOUS).subscriptions == 0
    expected = writer.log.expected((), 4)
    edge = Cursor(writer.writer.uuid, 3, END)
    for start in (OLDEST, Since(Position(4)), After(edge)):
        subscription = await driver.subscribe(start=start)
        assert coordinates(await collect(subscription, len(expected))) == expected
    with pytest.raises(PositionCompacted):
        await driver.read(since_version=2)
    assert coordinates((await driver.read(since_version=0)).captures) == expected
    assert coordinates((await driver.read()).captures) == expected


async def test_contract_22_23_a_damaged_batch_ends_only_those_who_need_it(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    writer.write([upsert("1", text="first")])
    writer.write([upsert("2", text="second")])
    path = writer.writer.state.batches.segments[0].path
    segment = log_root / "shop" / path
    data = bytearray(segment.read_bytes())
    place = data.index(b"first")
    data[place] ^= 1
    segment.write_bytes(data)
    driver = await serve()
    headers = await driver.subscribe(start=Since(Position(2)))
    bodies = await driver.subscribe(start=OLDEST, content=Content.AFTER)
    _, error = await error_ending(bodies)
    assert isinstance(error, LogCorrupted)
    assert error.path == path
    assert error.offset > 0
    await collect(headers, 2)
    await subscribed(driver, 1)
    assert driver.engine.statistics(ANONYMOUS).subscriptions_failed == 1


async def test_contract_24_a_subscribe_while_the_last_one_leaves_is_live(
    serve: Serve, writer: ModelWriter
) -> None:
    driver = await serve()
    leaving = await driver.subscribe()
    for number in range(20):
        async with asyncio.TaskGroup() as group:
            group.create_task(leaving.cancel())
            coming = group.create_task(driver.subscribe())
        leaving = coming.result()
        writer.write([upsert(str(number))])
        await collect(leaving, 2)


async def test_contract_25_a_replaced_catalog_ends_subscriptions_and_refuses_old_cursors(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    writer.write(*SHOP)
    driver = await serve()
    subscription = await driver.subscribe(start=OLDEST)
    captures = await collect(subscription, len(writer.log.expected(())))
    old = captures[-1].cursor
    writer.writer.close()
    drop_catalog(log_root, "shop")
    _, error = await error_ending(subscription)
    assert isinstance(error, CatalogReplaced)
    assert error.expected == old.catalog_uuid
    replacement = ModelWriter(log_root, "shop", ModelLog())
    replacement.write([upsert("1")])
    try:
        found = replacement.writer.uuid
        with pytest.raises(CatalogReplaced) as raised:
            await driver.subscribe(start=After(old))
        assert (raised.value.expected, raised.value.found) == (old.catalog_uuid, found)
        with pytest.raises(CatalogReplaced):
            await driver.read(after=old)
    finally:
        replacement.writer.close()


async def test_contract_25_a_cursor_of_what_a_restored_log_lacks_is_refused_by_name(
    serve: Serve, writer: ModelWriter, log_root: Path, tmp_path: Path
) -> None:
    """Also once the older copy was written on beyond it. What both have in common is gone on from."""
    # 1. A copy, and a cursor of what came after it.
    writer.write([upsert("1")], [upsert("2")])
    shutil.copytree(log_root / "shop", tmp_path / "copy")
    writer.write([upsert("lost")])
    driver = await serve()
    captures = (await driver.read()).captures
    common, lost = captures[3].cursor, captures[-1].cursor
    assert (common.version, lost.version) == (2, 3)
    writer.writer.close()
    shutil.rmtree(log_root / "shop")
    shutil.copytree(tmp_path / "copy", log_root / "shop")
    # 2. The log ends before the cursor.
    restored = await serve()
    refused: tuple[dict[str, Any], ...] = ({"after": lost}, {"before": lost})
    for bound in refused:
        with pytest.raises(CursorAhead) as ahead:
            await restored.read(**bound)
        assert ahead.value.newest.version == 2
    with pytest.raises(CursorAhead):
        await restored.subscribe(start=After(lost))
    # 3. It is written on, and the same numbers mean other versions.
    subscription = await restored.subscribe(start=After(common))
    del writer.log.transactions[2:]
    anew = ModelWriter(log_root, "shop", writer.log)
    anew.write([upsert("3")], [upsert("4")])
    anew.writer.close()
    expected = anew.log.expected((), 3)
    assert coordinates(await collect(subscription, len(expected))) == expected
    for bound in refused:
        with pytest.raises(HistoryReplaced) as replaced:
            await restored.read(**bound)
        assert replaced.value.found > (lost.commit_timestamp or 0)
    with pytest.raises(HistoryReplaced):
        await restored.subscribe(start=After(lost))


async def test_contract_26_a_stop_hands_out_cursors_that_miss_nothing(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    everything = writer.log.expected(())
    driver = await serve()
    subscriptions = [await driver.subscribe(start=OLDEST, demand=n) for n in (1, 4, 7, 100)]
    heads = [
        await collect(subscription, n)
        for subscription, n in zip(subscriptions, (1, 4, 7, len(everything)), strict=True)
    ]
    await driver.stop()
    ends = [await error_ending(subscription) for subscription in subscriptions]
    again = await serve()
    for head, (tail, error) in zip(heads, ends, strict=True):
        assert isinstance(error, ServerStopping)
        assert error.resume_cursor is not None
        received = head + tail
        resumed = await again.subscribe(start=After(Cursor.parse(error.resume_cursor)))
        received += await collect(resumed, len(everything) - len(received))
        assert coordinates(received) == everything


async def test_contract_26_a_stop_tells_who_takes_everything_where_to_resume(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP[:3])
    driver = await serve()
    subscription = await driver.subscribe(start=OLDEST)
    received = await collect(subscription, len(writer.log.expected(())))
    await driver.stop()
    tail, error = await error_ending(subscription)
    assert isinstance(error, ServerStopping)
    assert error.retriable
    assert error.resume_cursor is not None
    writer.write(*SHOP[3:])
    again = await serve()
    resumed = await again.subscribe(start=After(Cursor.parse(error.resume_cursor)))
    everything = writer.log.expected(())
    received += tail
    received += await collect(resumed, len(everything) - len(received))
    assert coordinates(received) == everything


async def test_contract_26_connections_that_reach_their_age_end_with_cursors_that_miss_nothing(
    serve: Serve, writer: ModelWriter
) -> None:
    """Over several ages, while it is written: in the middle of a demand, caught up, and behind."""
    driver = await serve(max_connection_age_s=0.5, max_connection_age_grace_s=60)
    received: list[Capture] = []
    start: Start = OLDEST
    for transaction in SHOP[:4]:
        writer.write(transaction)
        subscription = await driver.subscribe(start=start)
        tail, error = await error_ending(subscription)
        assert isinstance(error, SubscriptionBroken), error
        assert "max_connection_age" in str(error)
        assert error.retriable
        assert error.resume_cursor is not None
        received += tail
        start = After(Cursor.parse(error.resume_cursor))
    assert coordinates(received) == writer.log.expected(())


async def test_contract_27_what_is_written_after_the_acknowledgement_is_seen(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP[:2])
    driver = await serve()
    ids = set()
    for version in range(3, 13):
        subscription = await driver.subscribe()
        acknowledgement = subscription.acknowledgement
        ids.add(acknowledgement.subscription_id)
        assert acknowledgement.catalog_uuid == writer.writer.uuid
        assert acknowledgement.published == version - 1
        assert acknowledgement.start == Position(version, 0)
        assert acknowledgement.resume_cursor.version == version - 1
        assert acknowledgement.heartbeat_interval_s == pytest.approx(0.05)
        writer.write([upsert("1")])
        assert coordinates(await collect(subscription, 2)) == [(version, 0, 0), (version, 1, 0)]
        await subscription.cancel()
    assert len(ids) == 10


async def test_contract_28_39_a_finite_read_completes(serve: Serve, writer: ModelWriter) -> None:
    driver = await serve()
    assert (await driver.read()).captures == []
    writer.write(*SHOP)
    await published(driver, 5)
    page = await driver.read()
    assert coordinates(page.captures) == writer.log.expected(())
    assert page.next_cursor is None


async def test_an_unknown_catalog_is_refused_with_the_known_ones(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    writer.write(*SHOP)
    other = ModelWriter(log_root, "crm", ModelLog())
    driver = await serve()
    try:
        with pytest.raises(CatalogUnknown) as raised:
            await driver.subscribe(catalog="ship")
    finally:
        other.writer.close()
    assert raised.value.name == "ship"
    assert raised.value.known == ("crm", "shop")


async def test_a_catalog_that_cannot_be_read_is_an_error_by_name_and_nobody_elses(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    unreadable = {"empty": b"", "without-sum": b"{}\n", "garbage": b"garbage\n"}
    for catalog, text in unreadable.items():
        (log_root / catalog / "log").mkdir(parents=True)
        (log_root / catalog / "catalog.json").write_bytes(text)
    writer.write(*SHOP)
    driver = await serve()
    for catalog in unreadable:
        with pytest.raises(LogError, match=r"catalog\.json"):
            await driver.subscribe(catalog=catalog)
    subscription = await driver.subscribe(start=OLDEST)
    await collect(subscription, len(writer.log.expected(())))


async def test_a_catalog_that_was_made_a_moment_ago_is_there(
    serve: Serve, writer: ModelWriter, log_root: Path
) -> None:
    driver = await serve()
    new = ModelWriter(log_root, "new", ModelLog())
    new.write([upsert("1")])
    try:
        subscription = await driver.subscribe(catalog="new", start=OLDEST)
        assert coordinates(await collect(subscription, 2)) == [(1, 0, 0), (1, 1, 0)]
    finally:
        new.writer.close()


async def test_a_segment_that_vanished_ends_those_who_need_it(
    serve: Serve, writer: ModelWriter, log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    writer.write([upsert("1")])
    writer.write([upsert("2")])
    (first, _) = sorted((log_root / "shop" / "segments").rglob("*.arrow"))
    os.unlink(first)
    driver = await serve()
    old = await driver.subscribe(start=OLDEST)
    new = await driver.subscribe(start=Since(Position(2)))
    _, error = await error_ending(old)
    assert isinstance(error, LogCorrupted)
    assert first.name in error.path
    assert coordinates(await collect(new, 2)) == [(2, 0, 0), (2, 1, 0)]
    keyed = await driver.subscribe((Criteria(primary_key=("2",)),), start=Since(Position(2)))
    await collect(keyed, 1)


async def test_one_that_an_operator_ends_is_told_why_and_where_to_go_on(
    serve: Serve, writer: ModelWriter
) -> None:
    """The neighbour goes on, and who was ended misses nothing at its cursor."""
    writer.write(*SHOP)
    driver = await serve()
    history = len(writer.log.expected(()))
    neighbour = await driver.subscribe(start=OLDEST)
    ended = await driver.subscribe(start=OLDEST)
    received = await collect(ended, history)
    id = ended.acknowledgement.subscription_id
    cursor = driver.engine.end_subscription(ANONYMOUS, id, "it reads the same again and again")
    rest, error = await error_ending(ended)
    assert not rest
    assert isinstance(error, EndedByOperator)
    assert "it reads the same again and again" in str(error)
    assert not error.retriable
    assert error.resume_cursor == cursor
    with pytest.raises(InvalidRequest, match="it may have ended"):
        driver.engine.end_subscription(ANONYMOUS, id, "twice")
    writer.write(*SHOP)
    resumed = await driver.subscribe(start=After(Cursor.parse(cursor)))
    total = len(writer.log.expected(()))
    received += await collect(resumed, total - history)
    assert coordinates(received) == coordinates(await collect(neighbour, total))
