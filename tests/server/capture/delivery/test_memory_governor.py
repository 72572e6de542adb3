"""The governor on a real engine. Crowds that stall are covered in tests/robustness/test_memory_budget.py."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.criteria import Since
from tailrace.errors import SubscriberTooSlow
from tailrace.position import Position
from tailrace_server.capture.codecs import JSON
from tailrace_server.capture.delivery.memory_budget import LargeMessages
from tailrace_server.capture.delivery.memory_governor import PATIENCE_S, MemoryGovernor
from tailrace_server.capture.engine import Engine
from tailrace_server.capture.principal import ANONYMOUS
from tailrace_server.capture.reading import batch_cache
from tailrace_server.capture.settings import EngineSettings
from tests.server.capture.test_engine import upsert
from tests.support.inprocess import receive

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.support.inprocess import ModelWriter

BUDGET = 1 << 30
ITS_OWN_IS_IDLE = EngineSettings(memory_bytes=BUDGET << 10)
"""The engine's own governor finds nothing to do."""


async def test_the_largest_that_stalls_pays_and_no_more_than_is_needed(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write(*([upsert(number)] for number in range(9)))
    held = 0
    monkeypatch.setattr(batch_cache, "anonymous_bytes", lambda: held)
    async with Engine(log_root, ITS_OWN_IS_IDLE) as engine:
        small, large, idle = [
            await engine.subscribe(
                ANONYMOUS, "shop", start=Since(Position(0)), codec=JSON, demand=demand
            )
            for demand in (2, 10, 0)
        ]
        await receive(small, 2)
        await receive(large, 10)
        governor = MemoryGovernor(BUDGET, engine._cache, LargeMessages(BUDGET, 1 << 16))
        held = BUDGET + 1
        now = asyncio.get_running_loop().time()
        governor.relieve([small, large, idle], now)  # slow is not stalled
        assert governor.disconnected == 0
        governor.relieve([small, large, idle], now + PATIENCE_S)
        assert governor.disconnected == 1
        assert (small.error, idle.error) == (None, None)
        assert isinstance(large.error, SubscriberTooSlow)
        assert str(large.resume_cursor()) in str(large.error)


async def test_below_the_budget_nobody_pays(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write([upsert(1)])
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
