"""The batch cache: what it lets go of where room is short."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest

from tailrace_server.log_cache import batch_cache
from tailrace_server.log_cache.batch_cache import BatchCache, CacheKind


@dataclass(frozen=True)
class Value:
    """So many bytes."""

    nbytes: int


async def test_scans_of_many_criteria_leave_the_heads_that_are_needed_next() -> None:
    with ThreadPoolExecutor(1) as threads:
        held = BatchCache(1 << 30, 1 << 20, 1_000, threads)
        held.put(CacheKind.HEAD, "head", Value(400))
        for criteria in range(100):
            held.put(CacheKind.SCAN, criteria, Value(50))
        assert held.get_nowait(CacheKind.HEAD, "head") is not None
        scans = [held.get_nowait(CacheKind.SCAN, criteria) is not None for criteria in range(100)]
        assert scans == [False] * 90 + [True] * 10
        for head in range(10):
            held.put(CacheKind.HEAD, head, Value(100))
        assert held.statistics().bytes == 1_000
        assert all(held.get_nowait(CacheKind.SCAN, criteria) for criteria in range(90, 100))


async def test_near_the_budget_it_holds_less_and_grows_again_step_by_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = 6_400
    process_bytes = 0
    with ThreadPoolExecutor(1) as threads:
        subject = BatchCache(budget, budget, budget, threads, measure=lambda: process_bytes)

        def fill() -> int:
            for _ in range(40):
                subject.put(CacheKind.HEAD, object(), Value(100))
            return subject.statistics().bytes

        monkeypatch.setattr(batch_cache, "_MEASURE_EVERY_S", float("inf"))
        assert fill() == budget // 2
        process_bytes = budget * 15 // 16
        subject.relieve()
        assert fill() == budget // 2
        process_bytes += 1
        subject.relieve()
        assert fill() == budget // 2 * 3 // 4
        for _ in range(20):
            subject.relieve()
        assert fill() == budget // 64
        process_bytes = 0
        subject.relieve()
        assert fill() == budget // 64 * 2
        for _ in range(60):
            subject.relieve()
        assert fill() == budget // 2


def frames_held(subject: BatchCache, blocks: int, nbytes: int) -> list[int]:
    """Put blocks one after the other and return those that are left."""
    for block in range(blocks):
        subject.put(CacheKind.FRAMES, block, Value(nbytes))
    return [block for block in range(blocks) if subject.peek(CacheKind.FRAMES, block) is not None]


@pytest.mark.parametrize(
    ("subscriptions", "nbytes", "left"),
    [
        (0, 1 << 19, 4),
        (1, 1 << 19, 4),
        (2, 1 << 19, 8),
        (100, 1 << 19, 32),
        (1, 6 << 20, 2),
        (2, 6 << 20, 2),
    ],
    ids=["history alone", "one", "two", "up to the bound", "large blocks", "large blocks, bound"],
)
async def test_frames_are_kept_for_the_subscriptions_that_are_open(
    subscriptions: int, nbytes: int, left: int
) -> None:
    with ThreadPoolExecutor(1) as threads:
        subject = BatchCache(1 << 30, 16 << 20, 1, threads, readers=lambda: subscriptions)
        assert frames_held(subject, 40, nbytes) == list(range(40 - left, 40))


async def test_the_block_that_is_about_to_be_sent_stays_however_large() -> None:
    with ThreadPoolExecutor(1) as threads:
        subject = BatchCache(1 << 30, 1 << 20, 1, threads)
        assert frames_held(subject, 3, 2 << 20) == [2]


@pytest.mark.parametrize(("subscriptions", "left"), [(0, 0), (1, 0), (2, 100)])
async def test_what_the_only_subscription_has_had_goes(subscriptions: int, left: int) -> None:
    with ThreadPoolExecutor(1) as threads:
        subject = BatchCache(1 << 30, 1 << 20, 1, threads, readers=lambda: subscriptions)
        subject.put(CacheKind.FRAMES, "block", Value(100))
        subject.drop_unless_shared(CacheKind.FRAMES, "another")
        subject.drop_unless_shared(CacheKind.FRAMES, "block")
        assert subject.statistics().bytes == left


async def test_no_more_values_wait_for_the_loop_than_loads_may_be_begun() -> None:
    loaded: list[int] = []

    def load(number: int) -> Value:
        loaded.append(number)
        return Value(1)

    with ThreadPoolExecutor(1) as threads:
        subject = BatchCache(1 << 30, 1 << 20, 1 << 20, threads, loads_max=3)
        for number in range(20):
            subject.prefetch(CacheKind.HEAD, number, partial(load, number))
        last = asyncio.ensure_future(subject.get(CacheKind.HEAD, 20, partial(load, 20)))
        threads.submit(int).result()  # the loop is busy until what was begun is done
        assert loaded == [0, 1, 2]
        assert await last == Value(1)
        assert loaded == list(range(21))
