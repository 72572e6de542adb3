"""Figures of the engine. What delivery, resync and memory do to them is covered in test_engine.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.criteria import Since
from tailrace.errors import InternalError
from tailrace.position import Position
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tests.server.engine.test_engine import upsert
from tests.support.inprocess import receive

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter


async def test_open_subscriptions_are_those_opened_less_those_ended(
    log_root: Path, writer: ModelWriter
) -> None:
    async with Engine(log_root) as engine:
        kept, cancelled, failed = [
            await engine.subscribe(ANONYMOUS, "shop", codec=JSON) for _ in range(3)
        ]
        cancelled.cancel()
        failed.end(InternalError("broken"))
        figures = engine.statistics(ANONYMOUS)
        assert figures.subscriptions_opened == 3
        assert figures.subscriptions == figures.observers[0].subscriptions == 1
        assert figures.subscriptions_failed == 1  # to cancel is no failure
        assert kept.error is None


async def test_the_totals_are_the_sum_over_subscriptions(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)], [upsert(2)])
    async with Engine(log_root) as engine:
        start = Since(Position(0))
        both = [
            await engine.subscribe(ANONYMOUS, "shop", start=start, codec=JSON) for _ in range(2)
        ]
        for each in both:
            await receive(each, 4)
        figures, ones = engine.statistics(ANONYMOUS), [one.statistics() for one in both]
        assert figures.captures_delivered == sum(one.delivered for one in ones) == 8
        assert figures.bytes_delivered == sum(one.delivered_bytes for one in ones)
