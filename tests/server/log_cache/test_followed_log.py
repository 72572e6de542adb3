"""The followed log: which view it keeps, and what it says of a segment that is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import LogCorrupted
from tailrace.position import END, Position
from tailrace_server.engine.engine import Engine
from tailrace_server.wal.segment.reader import SegmentMissing
from tests.server.engine.test_engine import upsert
from tests.support.inprocess import observer_of
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter


async def test_the_end_of_what_is_routed_is_the_end_of_what_is_published(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root) as engine:
        log = observer_of(engine, "shop").log
        log.pass_to(1, Position(1, 0))
        assert log.routed_position == Position(1, 0)
        log.pass_to(2, Position(1, 1))
        assert log.routed_position == log.newest == Position(1, END)


async def test_a_segment_that_the_newest_view_still_names_is_damage(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root) as engine:
        log = observer_of(engine, "shop").log
        (segment,) = log.view.segments()
        with pytest.raises(LogCorrupted, match="missing from the log's folder"):
            await log.recover(SegmentMissing(segment.path), 0)


async def test_recovering_takes_what_was_published_meanwhile(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root) as engine:
        log = observer_of(engine, "shop").log
        older = log.view
        writer.write([upsert(2)])
        await log.recover(SegmentMissing("segments/gone.arrow"), 0)
        assert log.view.published == 2
        log.see(older)
        assert log.view.published == 2
        await until(lambda: log.routed == 4)
