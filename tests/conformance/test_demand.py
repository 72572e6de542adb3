"""Demand, slowness, memory: contract 10 to 19, as far as they show from outside."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tailrace import Capture, Content, Criteria, Heartbeat, InvalidRequest
from tailrace_server.grants.principal import ANONYMOUS
from tests.conformance.reading import (
    PATIENCE_S,
    collect,
    coordinates,
    error_ending,
    heartbeat_past,
    published,
)
from tests.conformance.shop import OLDEST, upsert
from tests.support.inprocess import observer_of

if TYPE_CHECKING:
    from tests.conformance.conftest import Serve
    from tests.conformance.ways import DrivenSubscription, Driver
    from tests.support.inprocess import ModelWriter


async def nothing_but_heartbeats(subscription: DrivenSubscription, count: int = 2) -> None:
    """Fail if a capture comes before ``count`` heartbeats do."""
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(count):
            message = await subscription.receive()
            assert isinstance(message, Heartbeat), message


def delivered(driver: Driver) -> int:
    return driver.engine.statistics(ANONYMOUS).captures_delivered


async def test_contract_10_demand_adds_up_and_is_never_exceeded(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert(str(number)) for number in range(50)])
    driver = await serve()
    subscription = await driver.subscribe(start=OLDEST, demand=0)
    await nothing_but_heartbeats(subscription)
    assert delivered(driver) == 0
    await subscription.request(3)
    await subscription.request(4)
    received = await collect(subscription, 7)
    await nothing_but_heartbeats(subscription)
    assert delivered(driver) == 7
    await subscription.request(2**63 - 1)
    await subscription.request(2**63 - 1)
    received += await collect(subscription, 44)
    assert coordinates(received) == writer.log.expected(())


async def test_contract_10_a_request_that_is_not_positive_ends_the_subscription_with_the_rule(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write([upsert("1")])
    driver = await serve()
    neighbour = await driver.subscribe(start=OLDEST)
    for n in (0, -1, -(2**63)):
        subscription = await driver.subscribe(start=OLDEST, demand=1)
        await collect(subscription, 1)
        await subscription.request(n)
        captures, error = await error_ending(subscription)
        assert captures == []
        assert isinstance(error, InvalidRequest)
        assert "3.9" in str(error)
        assert f"request({n})" in str(error)
    await collect(neighbour, 2)


async def test_contract_11_one_at_a_time_gets_everything(serve: Serve, writer: ModelWriter) -> None:
    writer.write([upsert(str(number)) for number in range(100)])
    driver = await serve()
    subscription = await driver.subscribe(start=OLDEST, demand=1)
    received = []
    for _ in range(101):
        received += await collect(subscription, 1)
        await subscription.request(1)
    assert coordinates(received) == writer.log.expected(())


async def test_contract_12_no_request_is_overlooked_while_versions_are_published(
    serve: Serve, writer: ModelWriter
) -> None:
    driver = await serve()
    subscription = await driver.subscribe(demand=0)
    received = []
    for number in range(20):
        writer.write([upsert(str(number))])
        await asyncio.sleep(0)
        await subscription.request(1)
        received += await collect(subscription, 1)
        writer.write([])
        await subscription.request(2)
        received += await collect(subscription, 2)
    assert coordinates(received) == writer.log.expected(())[: len(received)]


async def test_contract_14_16_a_paused_subscriber_gets_everything_and_is_live_again(
    serve: Serve, writer: ModelWriter
) -> None:
    """Ring of 4, 20 captures while paused: at the switch to the log and back no gap and no repeat."""
    driver = await serve(ring_captures=4)
    subscription = await driver.subscribe(demand=1)
    other = await driver.subscribe(demand=1_000)
    await heartbeat_past(subscription, 0)  # it has caught up, so it is live
    for number in range(10):
        writer.write([upsert(str(number))])
    received = await collect(subscription, 1)
    await published(driver, 10)
    await collect(other, 20)
    await nothing_but_heartbeats(subscription)
    await subscription.request(10_000)
    received += await collect(subscription, 19)
    await heartbeat_past(subscription, 10)
    writer.write([upsert("live")])
    received += await collect(subscription, 2)
    assert coordinates(received) == writer.log.expected(())
    figures = driver.engine.statistics(ANONYMOUS)
    assert figures.resyncs >= 1
    assert figures.returns == figures.resyncs


async def test_contract_14_nobody_is_overrun_by_what_nobody_takes(
    serve: Serve, writer: ModelWriter
) -> None:
    """The same, and nobody else is there: routing waits for the first to take more."""
    driver = await serve(ring_captures=4)
    subscription = await driver.subscribe(demand=1)
    await heartbeat_past(subscription, 0)
    for number in range(10):
        writer.write([upsert(str(number))])
    received = await collect(subscription, 1)
    await published(driver, 10)
    await nothing_but_heartbeats(subscription)
    await subscription.request(10_000)
    received += await collect(subscription, 19)
    assert coordinates(received) == writer.log.expected(())
    assert driver.engine.statistics(ANONYMOUS).resyncs == 0


@pytest.mark.slow
async def test_contract_14_ten_laggards_are_live_again_while_the_load_goes_on(
    serve: Serve, writer: ModelWriter
) -> None:
    """They take four captures while two are written: they are there after as many turns as they are behind."""
    lag, ring = 12, 8
    driver = await serve(ring_captures=ring, scan_batches=4)
    fastest = await driver.subscribe()
    laggards = [(await driver.subscribe(demand=2), list[Capture]()) for _ in range(10)]

    async def write() -> None:
        writer.write([upsert("1")])
        await collect(fastest, 2)

    async def read(laggard: DrivenSubscription, taken: list[Capture], published: int) -> None:
        if count := min(4, published - len(taken)):
            await laggard.request(count)
            taken += await collect(laggard, count)

    async def turn() -> None:
        """Write, and let everybody read meanwhile."""
        published = 2 * len(writer.log.transactions)
        await asyncio.gather(write(), *(read(*each, published) for each in laggards))

    await write()
    for laggard, taken in laggards:
        taken += await collect(laggard, 2)
        await heartbeat_past(laggard, 1)  # it has caught up, so it is live
    for _ in range(lag):
        await write()
    for _ in range(lag):
        await turn()
        if (figures := driver.engine.statistics(ANONYMOUS)).returns == len(laggards):
            break
    assert (figures.resyncs, figures.returns) == (len(laggards), len(laggards))
    for _ in range(lag):
        await turn()
    assert driver.engine.statistics(ANONYMOUS).resyncs == len(laggards)
    expected = writer.log.expected(())
    for _, taken in laggards:
        assert len(taken) >= 4 * lag
        assert coordinates(taken) == expected[: len(taken)]


async def test_contract_15_a_filter_that_matches_nothing_reads_no_log(
    serve: Serve, writer: ModelWriter
) -> None:
    driver = await serve(ring_captures=4)
    quiet = await driver.subscribe((Criteria(entity_type=("nothing",)),))
    for number in range(20):
        writer.write([upsert(str(number))])
    await heartbeat_past(quiet, 20)
    assert driver.engine.statistics(ANONYMOUS).resyncs == 0


async def test_contract_16_a_transaction_larger_than_the_ring_reaches_everyone(
    serve: Serve, writer: ModelWriter
) -> None:
    driver = await serve(ring_captures=16, queue_captures=8)
    subscriptions = [await driver.subscribe() for _ in range(3)]
    writer.write([upsert(str(number)) for number in range(500)])
    for subscription in subscriptions:
        received = await collect(subscription, 501)
        assert coordinates(received) == writer.log.expected(())


async def test_contract_17_a_ring_forgets_what_everyone_has_taken(
    serve: Serve, writer: ModelWriter
) -> None:
    driver = await serve()
    subscriptions = [await driver.subscribe() for _ in range(3)]
    writer.write([upsert(str(number)) for number in range(20)])
    for subscription in subscriptions:
        await collect(subscription, 21)
        await heartbeat_past(subscription, 1)
    (publisher,) = observer_of(driver.engine, "shop").publishers()
    assert publisher.statistics().ring_captures == 0


async def test_a_capture_above_the_message_limit_comes_as_its_header(
    serve: Serve, writer: ModelWriter
) -> None:
    """What was left out is counted, and what is around it stays whole."""
    writer.write([upsert("1"), upsert("2", text="x" * 5000), upsert("3")])
    driver = await serve(max_message_bytes=2048, message_bytes=1024)
    if type(driver).__name__ == "OurClient":
        # Our client states 32 MiB of its own.
        subscription = await driver.subscribe(start=OLDEST, content=Content.AFTER)
        assert all(each.after for each in await collect(subscription, 4))
        return
    subscription = await driver.subscribe(start=OLDEST, content=Content.AFTER)
    _, first, large, last = await collect(subscription, 4)
    assert (first.after, last.after) == (b'{"id": "1"}', b'{"id": "3"}')
    assert large.after is None
    assert large.omitted_bytes >= 5000
    assert large.primary_key == "2"
