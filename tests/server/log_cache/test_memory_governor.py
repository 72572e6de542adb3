"""The governor on a real engine. Crowds that stall are covered in tests/robustness/test_memory_budget.py."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.criteria import Content, Since
from tailrace.errors import SubscriberTooSlow
from tailrace.position import Position
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_cache import batch_cache
from tailrace_server.log_cache.memory_governor import PATIENCE_S, MemoryGovernor
from tailrace_server.resources.memory import LargeMessages
from tailrace_server.resources.settings import EngineSettings
from tests.conformance.shop import upsert
from tests.support.inprocess import receive

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tailrace_server.live.subscription import Subscription
    from tests.support.inprocess import ModelWriter

BUDGET = 1 << 30
ITS_OWN_IS_IDLE = EngineSettings(memory_bytes=BUDGET << 10)
"""The engine's own governor finds nothing to do."""


LARGE = 3_000
"""Bytes of a row's text, so that two rows are worth something."""


async def readers(engine: Engine, *demands: int) -> list[Subscription]:
    """Return a subscription from the beginning on for each demand."""
    return [
        await engine.subscribe(
            *(ANONYMOUS, "shop"),
            start=Since(Position(0)),
            content=Content.AFTER,
            codec=JSON,
            demand=demand,
        )
        for demand in demands
    ]


async def test_the_largest_that_stalls_pays_and_no_more_than_is_needed(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write(*([upsert(str(number), text="x" * LARGE)] for number in range(9)))
    held = 0
    monkeypatch.setattr(batch_cache, "anonymous_bytes", lambda: held)
    async with Engine(log_root, ITS_OWN_IS_IDLE) as engine:
        small, large, idle = await readers(engine, 4, 10, 0)
        await receive(small, 4)
        await receive(large, 10)
        governor = MemoryGovernor(BUDGET, engine._cache, LargeMessages(BUDGET, 1 << 16))
        held = BUDGET + 1
        now = asyncio.get_running_loop().time()
        governor.measure(now)
        # The event loop was late, not they.
        governor.relieve([small, large, idle], now + 10 * PATIENCE_S)
        assert governor.disconnected == 0
        now += 10 * PATIENCE_S
        for quarter in range(3):
            governor.measure(now + quarter * PATIENCE_S / 4)
            governor.relieve([small, large, idle], now + quarter * PATIENCE_S / 4)
            assert governor.disconnected == 0  # slow is not stalled
        governor.relieve([small, large, idle], now + 3 * PATIENCE_S / 4)
        assert governor.disconnected == 1
        assert (small.error, idle.error) == (None, None)
        assert isinstance(large.error, SubscriberTooSlow)
        assert str(large.resume_cursor()) in str(large.error)


class Waiting:
    """A reader whose large message waits for room, or has it."""

    def wake(self) -> None:
        pass


async def test_nobody_is_ended_for_what_that_would_not_free(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is nearly nothing, where the process is above its budget; room that one does not have."""
    writer.write([upsert("0")], *([upsert(str(number), text="x" * LARGE)] for number in range(9)))
    held = 2 * BUDGET
    monkeypatch.setattr(batch_cache, "anonymous_bytes", lambda: held)
    async with Engine(log_root, ITS_OWN_IS_IDLE) as engine:
        tiny, small = await readers(engine, 2, 8)
        await receive(tiny, 2)
        await receive(small, 8)
        large = LargeMessages(BUDGET, 1 << 16)
        governor = MemoryGovernor(BUDGET, engine._cache, large)
        now = asyncio.get_running_loop().time()
        for quarter in range(8):
            governor.measure(now + quarter * PATIENCE_S / 4)
        now += 2 * PATIENCE_S
        governor.relieve([tiny], now)
        assert (tiny.last.nbytes > 0, tiny.error) == (True, None)
        held = 0
        assert large.admit(Waiting(), BUDGET // 8, reads=False)
        assert not large.admit(Waiting(), BUDGET // 8, reads=False)
        governor.relieve([tiny, small], now)
        assert (small.last.nbytes > LARGE, small.error) == (True, None)
        held = 2 * BUDGET
        governor.relieve([tiny, small], now)
        assert tiny.error is None
        assert isinstance(small.error, SubscriberTooSlow)


async def test_below_the_budget_nobody_pays(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write([upsert("1")])
    held = 0
    monkeypatch.setattr(batch_cache, "anonymous_bytes", lambda: held)
    async with Engine(log_root, ITS_OWN_IS_IDLE) as engine:
        reader = await engine.subscribe(
            ANONYMOUS, "shop", start=Since(Position(0)), codec=JSON, demand=1
        )
        await receive(reader, 1)
        governor = MemoryGovernor(BUDGET, engine._cache, LargeMessages(BUDGET, 1 << 16))
        held = BUDGET // 2
        governor.relieve([reader], asyncio.get_running_loop().time() + 10 * PATIENCE_S)
        assert reader.error is None
        for look in range(1_000):  # a day has 864,000
            governor.measure(float(look))
        assert len(governor._looks) < 100
