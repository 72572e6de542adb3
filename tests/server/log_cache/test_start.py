"""Starts, resolved against a real log. Retention and compaction are in test_recovery.py."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from tailrace.criteria import After, FromTime, Since
from tailrace.cursor import Cursor
from tailrace.errors import CatalogReplaced
from tailrace.position import Position, TimestampMicros
from tailrace_server.engine.engine import Engine
from tailrace_server.log_cache.start import compacted_start, renewed, resolve
from tailrace_server.rows.run import Mark
from tests.server.engine.test_engine import upsert
from tests.support.inprocess import observer_of
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter


async def test_every_kind_of_start_comes_to_a_mark_and_a_safe_point_before_it(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1), upsert(2)])  # rows 0 1 2, the lead first
    writer.write([upsert(3)])  # rows 3 4
    uuid = writer.writer.uuid
    async with Engine(log_root) as engine:
        log = observer_of(engine, "shop").log
        for start, row, ordinal, position in (
            (None, 5, 0, Position(3)),
            (Since(Position(0)), 0, 0, Position(1)),
            (Since(Position(1, 2)), 2, 0, Position(1, 2)),
            (Since(Position(1, 9)), 3, 0, Position(1, 9)),
            (After(Cursor(uuid, 1, 1)), 2, 0, Position(1, 2)),
            (After(Cursor(uuid, 1, 1, 0)), 1, 1, Position(1, 1)),
            (FromTime(TimestampMicros(log.view.timestamp_of(2))), 3, 0, Position(2)),
        ):
            found = await resolve(log, start)
            assert found.published, start
            assert found.mark == Mark(row, ordinal), start
            assert found.position == position, start
            assert found.before.rows == row, start
            assert (found.before.version, found.before.index) < (position[0], position[1] + 1)


async def test_a_cursor_of_another_log_is_refused(log_root: Path, writer: ModelWriter) -> None:
    async with Engine(log_root) as engine:
        with pytest.raises(CatalogReplaced):
            await resolve(observer_of(engine, "shop").log, After(Cursor(UUID(int=1), 1, 1)))


async def test_a_start_by_time_that_is_to_come_moves_past_what_is_published_too_early(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root) as engine:
        log = observer_of(engine, "shop").log
        late = TimestampMicros(log.view.timestamp_of(1) + 10**12)
        waiting = await resolve(log, FromTime(late))
        assert (waiting.published, waiting.timestamp) == (False, late)
        assert waiting.position == Position(2)
        writer.write([upsert(2)])
        await until(lambda: log.view.published == 2)
        moved = renewed(log, waiting)
        assert moved.position == Position(3)
        assert moved.before.rows == log.view.end_row
        assert compacted_start(log, moved) is None
        assert not log.view.is_trimmed_at(0)


async def test_a_start_by_position_that_is_to_come_stays_where_it_is(
    log_root: Path, writer: ModelWriter
) -> None:
    async with Engine(log_root) as engine:
        log = observer_of(engine, "shop").log
        waiting = await resolve(log, Since(Position(4, 1)))
        assert not waiting.published
        assert renewed(log, waiting) is waiting
