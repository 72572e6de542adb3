"""Messages that are cut out of a queue: borders that are shared, joins, and captures that are too large."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tailrace.criteria import Content, Criteria, Since
from tailrace.position import Position
from tailrace_server.codecs import JSON
from tailrace_server.codecs.columns import join_into_messages
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.live.intake import Slice
from tailrace_server.live.messages import whole_messages
from tailrace_server.log_cache.frames import FrameBlock, Frames
from tailrace_server.resources.settings import SubscriptionLimits
from tests.server.engine.test_engine import upsert
from tests.support.inprocess import objects
from tests.support.runs import entity_run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

OLDEST = Since(Position(0))


def block(frames: int) -> FrameBlock:
    """Return a block of messages of three frames each."""
    messages = join_into_messages([b"123"] * frames, 10)
    return FrameBlock(messages, np.ones(frames, np.int64), np.arange(frames, dtype=np.int32), None)


@pytest.mark.parametrize(
    ("start", "stop", "demand", "borders"),
    [
        (0, 10, None, [0, 3, 6, 9]),  # without the last: the slice ends with it
        (3, 9, None, [3, 6]),
        (0, 10, 7, [0, 3, 6]),
        (0, 10, 5, [0, 3]),
        (0, 10, 2, []),
        (1, 10, None, []),  # begins inside a message
        (6, 9, None, []),
    ],
)
def test_whole_messages_are_those_inside_slice_and_demand_but_the_last(
    start: int, stop: int, demand: int | None, borders: list[int]
) -> None:
    slice = Slice(entity_run(0, [*range(10)]), start, stop)
    assert whole_messages(slice, block(10), demand) == borders


async def test_what_is_ready_behind_a_slice_comes_in_the_same_message(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write(*([upsert(number)] for number in range(3)))
    async with Engine(log_root) as engine:
        products = [Criteria(entity_type=("product",))]
        subscription = await engine.subscribe(
            ANONYMOUS, "shop", products, start=OLDEST, codec=JSON, demand=2
        )
        message = await subscription.receive()
        assert isinstance(message, Frames)
        assert [each["version"] for each in objects(message)] == [1, 2]  # demand bounds the join


async def test_a_capture_above_the_limit_comes_alone_as_its_header(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root) as engine:
        subscription = await engine.subscribe(
            ANONYMOUS,
            "shop",
            [Criteria(entity_type=("product",))],
            start=OLDEST,
            content=Content.AFTER,
            codec=JSON,
            limits=SubscriptionLimits(max_message_bytes=8),
        )
        message = await subscription.receive()
        assert isinstance(message, Frames)
        (capture,) = objects(message)
        assert "after" not in capture
        assert int(capture["omittedBytes"]) > 0
