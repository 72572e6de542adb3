"""The options of a subscription and its acknowledgement: what is asked for, else what the engine is set to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.criteria import After
from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest
from tailrace.position import Position
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.live.options import DEMAND_MAX
from tailrace_server.resources.settings import SubscriptionLimits
from tests.server.engine.test_engine import upsert

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter


async def test_limits_that_are_not_asked_for_are_the_engines(
    log_root: Path, writer: ModelWriter
) -> None:
    async with Engine(log_root) as engine:
        limits = SubscriptionLimits(queue_captures=7)
        subscription = await engine.subscribe(ANONYMOUS, "shop", codec=JSON, limits=limits)
        told, settings = subscription.acknowledgement, engine.settings
        assert told.queue_captures == subscription.options.queue_captures == 7
        assert told.max_message_bytes == settings.max_message_bytes
        assert told.heartbeat_interval_s == settings.heartbeat_interval_s
        assert told.message_bytes == settings.message_bytes


async def test_messages_of_several_captures_are_no_larger_than_one_capture_may_be(
    log_root: Path, writer: ModelWriter
) -> None:
    async with Engine(log_root) as engine:
        limits = SubscriptionLimits(max_message_bytes=1000)
        subscription = await engine.subscribe(ANONYMOUS, "shop", codec=JSON, limits=limits)
        assert subscription.acknowledgement.message_bytes == 1000


async def test_demand_saturates_and_cannot_be_negative(log_root: Path, writer: ModelWriter) -> None:
    async with Engine(log_root) as engine:
        most = await engine.subscribe(ANONYMOUS, "shop", codec=JSON, demand=DEMAND_MAX + 5)
        most.request(1)
        assert most.statistics().demand == DEMAND_MAX
        with pytest.raises(InvalidRequest, match="demand -1: must not be negative"):
            await engine.subscribe(ANONYMOUS, "shop", codec=JSON, demand=-1)


async def test_the_acknowledgement_tells_the_start_and_the_cursor_before_it(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)], [upsert(2)])
    async with Engine(log_root) as engine:
        uuid = writer.writer.uuid
        subscription = await engine.subscribe(
            ANONYMOUS, "shop", start=After(Cursor(uuid, 1, 1)), codec=JSON
        )
        told = subscription.acknowledgement
        assert (told.catalog, told.catalog_uuid, told.published) == ("shop", uuid, 2)
        assert told.start == Position(1, 2)
        assert told.resume_cursor == Cursor(uuid, 1, 1)
