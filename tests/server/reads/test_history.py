"""History reads inside the engine. Bounds, pages and retention are in tests/conformance/test_history.py."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tailrace.criteria import Area, Content, Criteria, Operation
from tailrace.errors import InvalidRequest, ServerFull, SubscriberTooSlow
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_cache import batch_cache
from tailrace_server.log_cache.memory_governor import PATIENCE_S
from tailrace_server.reads.history import HistoryBounds
from tailrace_server.resources.settings import EngineSettings
from tests.server.engine.test_engine import upsert
from tests.support.inprocess import coordinates, objects
from tests.support.model import ModelMutation
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.errors import TailraceError
    from tailrace_server.reads.history import HistoryRead
    from tests.support.inprocess import ModelWriter


async def test_messages_are_cut_at_the_bound_in_both_directions(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write(*([upsert(number)] for number in range(20)))
    async with Engine(log_root) as engine:
        found = {}
        for reverse in (False, True):
            history = await engine.history(
                ANONYMOUS, "shop", codec=JSON, reverse=reverse, max_message_bytes=1000
            )
            messages = [each async for each in history]
            assert len(messages) > 2
            assert all(len(each.data) <= 1000 for each in messages)
            found[reverse] = [coordinates(each) for one in messages for each in objects(one)]
        assert len(found[False]) == 40
        assert found[True] == found[False][::-1]


async def test_what_is_published_during_a_read_is_not_in_it(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root) as engine:
        history = await engine.history(ANONYMOUS, "shop", codec=JSON)
        writer.write([upsert(2)])
        versions = [each["version"] async for one in history for each in objects(one)]
        assert versions == [1, 1]
        assert history.anchor == 1


@pytest.mark.parametrize(
    ("anchor", "limit", "told"),
    [(2, None, "above the newest published version, 1"), (None, 0, "must be a positive number")],
)
async def test_an_anchor_that_is_not_published_and_a_limit_of_none_are_refused(
    log_root: Path, writer: ModelWriter, anchor: int | None, limit: int | None, told: str
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root) as engine:
        with pytest.raises(InvalidRequest, match=told):
            await engine.history(
                ANONYMOUS, "shop", bounds=HistoryBounds(anchor=anchor), codec=JSON, limit=limit
            )


LARGE = 100_000
ROOM_FOR_ONE = EngineSettings(memory_bytes=1 << 20, message_bytes=1 << 10)
"""The share of large messages has room for one row of ``LARGE`` bytes, which counts twice."""


def large_rows(writer: ModelWriter) -> None:
    for text in ("1", "2"):
        image: dict[str, object] = {"text": text * LARGE}
        writer.write([ModelMutation("product", "1", Operation.UPSERT, None, image)])


async def rows_of(engine: Engine) -> HistoryRead:
    criteria = [Criteria(area=Area.DATA)]
    return await engine.history(ANONYMOUS, "shop", criteria, content=Content.AFTER, codec=JSON)


async def test_contract_13_16_a_large_row_waits_until_a_reader_that_stalls_on_one_is_ended(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    large_rows(writer)
    monkeypatch.setattr(batch_cache, "anonymous_bytes", lambda: 0)
    async with Engine(log_root, ROOM_FOR_ONE) as engine:
        with await rows_of(engine) as stalled, await rows_of(engine) as other:
            told: list[TailraceError] = []
            stalled.on_end = told.append
            messages = aiter(stalled)
            first = await anext(messages)
            waiting = asyncio.ensure_future(anext(aiter(other)))
            await until(lambda: engine.statistics(ANONYMOUS).waiting_for_memory == 1)
            later = asyncio.get_running_loop().time() + PATIENCE_S
            engine._governor.relieve([stalled, other], later)
            assert (await waiting).data == first.data
            assert [type(each) for each in told] == [SubscriberTooSlow]
            assert isinstance(told[0], SubscriberTooSlow)
            assert told[0].resume_cursor == str(stalled.cursor_of(*first.last))
            with pytest.raises(SubscriberTooSlow):
                await anext(messages)


async def test_contract_16_a_large_row_that_has_no_room_within_the_send_deadline_is_refused(
    log_root: Path, writer: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    large_rows(writer)
    monkeypatch.setattr(batch_cache, "anonymous_bytes", lambda: 0)
    async with Engine(log_root, replace(ROOM_FOR_ONE, send_deadline_s=0.02)) as engine:
        with await rows_of(engine) as first, await rows_of(engine) as other:
            await anext(aiter(first))
            with pytest.raises(ServerFull, match="memory"):
                await anext(aiter(other))
        # What was left gives back its room, and its place in the line.
        with await rows_of(engine) as again:
            assert [each.count async for each in again] == [1, 1]
        assert engine.statistics(ANONYMOUS).waiting_for_memory == 0
