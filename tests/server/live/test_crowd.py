"""Crowds: frames made in one go for many publishers are those that each would have made for itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.criteria import Content, Criteria, Operation
from tailrace.errors import LogCorrupted
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.live import crowd
from tailrace_server.log_cache.frames import Frames
from tailrace_server.resources.settings import EngineSettings, SubscriptionLimits
from tests.support.inprocess import PATIENCE_S, coordinates, objects, observer_of, receive
from tests.support.model import ModelMutation
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.live.subscription import Subscription
    from tests.support.inprocess import ModelWriter

KEYS = 20
"""Keys that somebody asks for, one in ten: where many more match, the whole batch is encoded."""
ALL_KEYS = 10 * KEYS
ROWS = 3 * ALL_KEYS
"""More than a small commit has, so that reader threads read it: three records of each key."""
SETTINGS = EngineSettings(heartbeat_interval_s=3_600.0)


def upsert(number: int) -> ModelMutation:
    key = str(number % ALL_KEYS)
    return ModelMutation("product", key, Operation.UPSERT, None, {"id": number})


def key(*numbers: int) -> Criteria:
    return Criteria(entity_type=("product",), primary_key=tuple(map(str, numbers)))


async def subscribe(engine: Engine, *numbers: int, **options: Any) -> Subscription:
    options.setdefault("content", Content.AFTER)
    return await engine.subscribe(ANONYMOUS, "shop", [key(*numbers)], codec=JSON, **options)


async def receive_waiting(
    subscriptions: list[Subscription], counts: list[int], write: Any
) -> list[list[dict[str, Any]]]:
    """Return what each receives of what is written once all of them wait."""
    tasks = [
        asyncio.ensure_future(receive(each, count))
        for each, count in zip(subscriptions, counts, strict=True)
    ]
    await until(lambda: all(each._waiting._waiter is not None for each in subscriptions))
    write()
    return await asyncio.gather(*tasks)


@pytest.mark.parametrize("rows", [ROWS, KEYS], ids=["read by threads", "read by the tailer"])
async def test_a_crowd_gets_what_each_asked_for_out_of_one_reading(
    log_root: Path, writer: ModelWriter, rows: int
) -> None:
    async with Engine(log_root, SETTINGS) as engine:
        alone = [await subscribe(engine, number) for number in range(KEYS)]
        several = [await subscribe(engine, 3, 7, 11), await subscribe(engine, *range(12))]
        short = [await subscribe(engine, number, content=Content.HEADER) for number in range(3)]
        misses = engine.statistics(ANONYMOUS).cache.misses
        all_of_them = [*alone, *several, *short]
        each_key = max(1, rows // ALL_KEYS)
        counts = [each_key] * KEYS + [3 * each_key, 12 * each_key] + [each_key] * 3
        received = await receive_waiting(
            all_of_them, counts, lambda: writer.write([upsert(number) for number in range(rows)])
        )
        # The head, frames with bodies and without, and those of the one that matches too much for a crowd.
        assert engine.statistics(ANONYMOUS).cache.misses - misses < KEYS / 2
    wanted: list[tuple[int, ...]] = [(number,) for number in range(KEYS)]
    wanted += [(3, 7, 11), tuple(range(12)), *((number,) for number in range(3))]
    for keys, captures in zip(wanted, received, strict=True):
        expected = [number for number in range(rows) if number % ALL_KEYS in keys]
        assert [coordinates(each) for each in captures] == [(1, each + 1, 0) for each in expected]
    assert [each["after"] for each in received[5]] == [
        {"id": number} for number in range(5, rows, ALL_KEYS)
    ]
    assert all("after" not in each for captures in received[-3:] for each in captures)


async def test_what_a_crowd_has_not_taken_comes_in_one_message_and_within_demand(
    log_root: Path, writer: ModelWriter
) -> None:
    async with Engine(log_root, SETTINGS) as engine:
        waiting = [await subscribe(engine, number) for number in range(3)]
        slow = await subscribe(engine, 5)
        counted = await subscribe(engine, 6, demand=4)
        writer.write([upsert(number) for number in range(ROWS)])
        await asyncio.gather(*(receive(each, 3) for each in waiting))
        writer.write([upsert(number) for number in range(ROWS)])
        await asyncio.gather(*(receive(each, 3) for each in waiting))
        message = await slow.receive()
        assert isinstance(message, Frames)
        assert [coordinates(each) for each in objects(message)] == [
            (version, index, 0) for version in (1, 2) for index in (6, 206, 406)
        ]
        received = await receive(counted, 4)
        counted.request(2)
        received += await receive(counted, 2)
        assert [coordinates(each) for each in received] == [
            (version, index, 0) for version in (1, 2) for index in (7, 207, 407)
        ]


async def test_a_capture_too_large_for_one_of_a_crowd_comes_as_its_header(
    log_root: Path, writer: ModelWriter
) -> None:
    large = ModelMutation("product", "1", Operation.UPSERT, None, {"text": "x" * 5_000})
    rows = [large, *(upsert(number) for number in range(ROWS) if number % ALL_KEYS != 1)]
    async with Engine(log_root, SETTINGS) as engine:
        limits = SubscriptionLimits(max_message_bytes=4_096)
        bounded = await subscribe(engine, 1, limits=limits)
        others = [await subscribe(engine, number) for number in (1, 2, 3)]
        first, whole, *_ = await receive_waiting(
            [bounded, *others], [1, 1, 3, 3], lambda: writer.write(rows)
        )
    assert int(first[0]["omittedBytes"]) > 5_000
    assert whole[0]["after"] == {"text": "x" * 5_000}


async def test_of_a_batch_with_large_bodies_each_reads_for_itself(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowd, "_BODIES_BYTES_MAX", 100)
    async with Engine(log_root, SETTINGS) as engine:
        alone = [await subscribe(engine, number) for number in range(KEYS)]
        rows = [upsert(number) for number in range(ROWS)]
        received = await receive_waiting(alone, [3] * KEYS, lambda: writer.write(rows))
        assert engine.statistics(ANONYMOUS).cache.misses > KEYS
    assert [[each["after"]["id"] for each in captures] for captures in received] == [
        [number, number + ALL_KEYS, number + 2 * ALL_KEYS] for number in range(KEYS)
    ]


async def test_each_of_a_crowd_ends_with_the_error_of_what_cannot_be_read(
    log_root: Path, writer: ModelWriter
) -> None:
    async with Engine(log_root, SETTINGS) as engine:
        all_five = [await subscribe(engine, number) for number in range(5)]
        tasks = [asyncio.ensure_future(each.receive()) for each in all_five]
        await until(lambda: all(each._waiting._waiter is not None for each in all_five))
        writer.commit([upsert(number) for number in range(ROWS)])
        (segment,) = (log_root / "shop").rglob("*.arrow")
        data = bytearray(segment.read_bytes())
        place = data.index(b'{"id": 4}')
        data[place] ^= 1
        segment.write_bytes(data)
        writer.publish()
        async with asyncio.timeout(PATIENCE_S):
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in ended] == [LogCorrupted] * 5
        assert observer_of(engine, "shop").log.routed == ROWS + 1  # routing goes on
