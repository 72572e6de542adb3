"""A subscription's end and its demand. Delivery and resync are in test_engine.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.criteria import Since
from tailrace.errors import InvalidRequest, SubscriptionClosed, TailraceError
from tailrace.position import Position
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tests.server.engine.test_engine import upsert
from tests.support.inprocess import receive

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

OLDEST = Since(Position(0))


async def test_the_first_end_is_the_one_that_counts(log_root: Path, writer: ModelWriter) -> None:
    async with Engine(log_root) as engine:
        subscription = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
        told: list[TailraceError] = []
        subscription.on_end = told.append
        with pytest.raises(InvalidRequest, match=r"request\(0\)"):
            subscription.request(0)
        subscription.cancel()
        subscription.request(0)  # has no effect any more
        assert [each.code for each in told] == [InvalidRequest.code]
        for _ in range(2):
            with pytest.raises(InvalidRequest) as raised:
                await subscription.receive()
            assert raised.value is not subscription.error


async def test_requests_add_up_and_each_capture_takes_from_them(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write(*([upsert(number)] for number in range(5)))
    async with Engine(log_root) as engine:
        subscription = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON, demand=1)
        subscription.request(2)
        await receive(subscription, 3)
        figures = subscription.statistics()
        assert (figures.demand, figures.delivered) == (0, 3)
        assert figures.lag_records == 7


async def test_the_resume_cursor_of_one_that_is_cancelled_stays(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)], [upsert(2)])
    async with Engine(log_root) as engine:
        subscription = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON, demand=2)
        await receive(subscription, 2)
        before = subscription.resume_cursor()
        subscription.cancel()
        with pytest.raises(SubscriptionClosed):
            await subscription.receive()
        assert subscription.resume_cursor() == before


async def test_all_is_complete_below_the_version_behind_the_end_once_all_is_delivered(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)], [upsert(2)])
    async with Engine(log_root) as engine:
        subscription = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON, demand=3)
        await receive(subscription, 3)
        assert subscription.complete_below() == 2
        subscription.request(1)
        await receive(subscription, 1)
        assert subscription.complete_below() == 3


async def test_one_that_has_ended_has_nothing_queued(log_root: Path, writer: ModelWriter) -> None:
    writer.write([upsert(1)], [upsert(2)])
    async with Engine(log_root) as engine:
        subscription = await engine.subscribe(ANONYMOUS, "shop", start=OLDEST, codec=JSON, demand=1)
        await receive(subscription, 1)
        assert subscription.statistics().queued > 0
        subscription.cancel()
        assert subscription.statistics().queued == 0
