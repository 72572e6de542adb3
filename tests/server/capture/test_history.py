"""History reads inside the engine. Bounds, pages and retention are in tests/conformance/test_history.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.capture.codecs import JSON
from tailrace_server.capture.engine import Engine
from tailrace_server.capture.history import HistoryBounds
from tailrace_server.capture.principal import ANONYMOUS
from tests.server.capture.test_engine import upsert
from tests.support.inprocess import coordinates, objects

if TYPE_CHECKING:
    from pathlib import Path

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
    ("anchor", "limit", "told"), [(2, None, "above the published 1"), (None, 0, "must be positive")]
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
