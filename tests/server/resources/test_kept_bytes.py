"""What requests make the server keep: charged, given back, and refused where there is no room."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tailrace.criteria import Criteria
from tailrace.errors import CatalogUnknown, ServerFull
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.reads.history import HistoryBounds
from tailrace_server.resources.memory import CRITERIA_SHARE, MemoryBook, MemoryShare
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.rows.row_condition import criteria_bytes
from tests.server.engine.test_engine import upsert

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

SMALL = EngineSettings(memory_bytes=32 << 20)


def keys(first: int) -> list[Criteria]:
    """Return criteria of some 1.3 MB as they are counted; a share of ``SMALL`` is 4 MiB."""
    names = tuple(f"{first:05}-{number:05}" for number in range(4_500))
    return [Criteria(entity_type=("product",), primary_key=names)]


def test_who_is_alone_is_never_refused_and_others_pay_for_nobody() -> None:
    share = MemoryShare("pages", MemoryBook(80), 8)
    alone, other = share.charge(8), share.empty()
    with pytest.raises(ServerFull, match="memory"):
        other.add(3)
    other.add(2)
    other.release()
    alone.add(100)
    alone.release()
    alone.release()
    assert share.bytes == 0


def test_keys_without_an_entity_type_count_for_each_that_the_log_has() -> None:
    one = Criteria(primary_key=tuple(map(str, range(1000))))
    assert criteria_bytes([one], 10) > 5 * criteria_bytes([one], 1)


async def test_contract_16_criteria_of_open_subscriptions_are_bounded_and_equal_ones_count_once(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    small = replace(SMALL, memory_bytes=SMALL.memory_bytes // 8 * CRITERIA_SHARE)
    async with Engine(log_root, small) as engine, AsyncExitStack() as stack:
        opened = [
            await engine.subscribe(ANONYMOUS, "shop", keys(number), codec=JSON, demand=0)
            for number in range(3)
        ]
        with pytest.raises(ServerFull, match="memory"):
            await engine.subscribe(ANONYMOUS, "shop", keys(3), codec=JSON, demand=0)
        # Equal criteria cost nothing more. Small ones, and reads of history, have what room is left.
        again = [
            await engine.subscribe(ANONYMOUS, "shop", keys(0), codec=JSON, demand=0)
            for _ in range(20)
        ]
        await engine.subscribe(ANONYMOUS, "shop", codec=JSON, demand=0)
        with pytest.raises(ServerFull):
            await engine.history(ANONYMOUS, "shop", keys(4), codec=JSON)
        for each in (opened[0], *again):
            each.cancel()
        stack.enter_context(await engine.history(ANONYMOUS, "shop", keys(4), codec=JSON))
        with pytest.raises(ServerFull):
            await engine.subscribe(ANONYMOUS, "shop", keys(5), codec=JSON, demand=0)


async def test_what_was_refused_or_has_ended_is_not_charged_any_more(
    log_root: Path, writer: ModelWriter
) -> None:
    writer.write([upsert(1)])
    async with Engine(log_root, SMALL) as engine:
        with pytest.raises(CatalogUnknown):
            await engine.history(ANONYMOUS, "depot", keys(0), codec=JSON)
        with pytest.raises(Exception, match="anchor"):
            await engine.history(
                ANONYMOUS, "shop", keys(0), bounds=HistoryBounds(anchor=9), codec=JSON
            )
        subscription = await engine.subscribe(ANONYMOUS, "shop", keys(0), codec=JSON)
        with await engine.history(ANONYMOUS, "shop", keys(1), codec=JSON) as history:
            assert engine.criteria.bytes > 2_000_000
            assert [each async for each in history] == []
        subscription.cancel()
        assert engine.criteria.bytes == 0
