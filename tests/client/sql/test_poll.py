"""Polls: against writes that do not stop, publications that pause, and a clock that steps back."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

import tailrace
from tailrace.clock import SystemClock
from tailrace.errors import (
    CatalogReplaced,
    CursorAhead,
    HistoryReplaced,
    InvalidRequest,
    PositionCompacted,
)
from tailrace_server.api.grpc import GrpcServer
from tailrace_server.engine.engine import Engine
from tailrace_server.wal.catalog import drop_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.upkeep.retention import delete_unnamed
from tests.support.inprocess import PATIENCE_S, observer_of
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tailrace import Client
    from tailrace_server.catalogs.observer import Observer

KEYS = "SELECT _commit_version AS v, _primary_key AS k FROM CHANGES('product', $from, $to)"
VERSIONS = 60


class SwayingClock(SystemClock):
    """Steps an hour back, and forth again, with each look at it."""

    def __init__(self) -> None:
        self._looks = 0

    def now(self) -> int:
        self._looks += 1
        return super().now() - 3_600_000_000 * (self._looks % 2)


class SetClock(SystemClock):
    seconds = 0

    def now(self) -> int:
        return self.seconds * 1_000_000


def append(writer: LogWriter, version: int) -> None:
    mutations = [Mutation("product", f"{version}-{place}", after=b"{}") for place in range(3)]
    writer.append(mutations)


@asynccontextmanager
async def served(root: Path) -> AsyncIterator[tuple[Engine, Client]]:
    async with Engine(root) as engine:
        server = GrpcServer(engine)
        port = await server.start("127.0.0.1:0")
        try:
            async with tailrace.connect(f"127.0.0.1:{port}") as client:
                yield engine, client
        finally:
            await server.stop(0.5)


async def test_contract_42_a_poll_gives_what_a_subscription_gives(log_root: Path) -> None:
    """Each change once, in order, whatever the clock says and however long publications wait."""
    with LogWriter.open(log_root, "shop", clock=SwayingClock()) as writer:
        append(writer, 1)
        writer.commit(publish=True)
        async with served(log_root) as (_, client):

            async def write() -> None:
                for version in range(2, VERSIONS + 1):
                    append(writer, version)
                    # The gate opens for some commits at once, and the last one is published.
                    writer.commit(publish=version % 7 == 0 or version == VERSIONS)
                    await asyncio.sleep(0)

            async def subscribed() -> list[tuple[int, str | None]]:
                criteria = tailrace.Criteria(area=tailrace.Area.DATA)
                found: list[tuple[int, str | None]] = []
                async with client.subscribe("shop", criteria, since=1) as captures:
                    async for capture in captures:
                        found.append((capture.position.version, capture.primary_key))
                        if len(found) == 3 * VERSIONS:
                            break
                return found

            async def polled() -> list[tuple[int, str | None]]:
                found: list[tuple[int, str | None]] = []
                async with client.poll("shop", KEYS, every_s=0.0) as poll:
                    async for answer in poll:
                        found += [(row["v"], row["k"]) async for row in answer]
                        assert poll.since == answer.header.version + 1
                        if answer.header.version == VERSIONS:
                            break
                return found

            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
                both = [tasks.create_task(subscribed()), tasks.create_task(polled())]
                tasks.create_task(write())
        by_subscription, by_poll = (each.result() for each in both)
        assert by_poll == by_subscription
        assert [version for version, _ in by_poll] == [
            v for v in range(1, VERSIONS + 1) for _ in "123"
        ]


async def test_contract_42_an_answer_that_is_left_comes_again_and_a_range_stays_what_it_was(
    log_root: Path,
) -> None:
    """Also once its segments are compacted; what is trimmed is refused, and another log is told."""
    with LogWriter.open(log_root, "shop") as writer:
        for version in (1, 2, 3):
            append(writer, version)
            writer.commit(publish=True)
        async with (
            served(log_root) as (engine, client),
            client.poll("shop", KEYS, since=2, every_s=0.0) as poll,
        ):
            left = await anext(poll)
            await anext(left)
            assert poll.since == 2
            again = await anext(poll)
            first = [row async for row in again]
            assert [row["v"] for row in first] == [2, 2, 2, 3, 3, 3]
            assert poll.since == 4
            assert poll.cursor == again.header.cursor
            # 1. The same range by its times, before and behind a compaction.
            header = again.header
            times = (
                "SELECT _primary_key AS k FROM CHANGES('product', $a::TIMESTAMPTZ, $b::TIMESTAMPTZ)"
            )
            span = {"a": "1970-01-01T00:00:00Z", "b": commit_time(header.closed_until - 1)}
            async with client.sql("shop", times, parameters=span) as answer:
                before = [row async for row in answer]
            assert writer.compact() is not None
            assert delete_unnamed(log_root / "shop", 2**62)
            append(writer, 4)
            writer.commit(publish=True)
            async with client.sql("shop", times, parameters=span, wait_for=4) as answer:
                assert [row async for row in answer] == before
            # 2. A trim takes what the next poll would ask for.
            append(writer, 5)
            writer.commit(publish=True)
            writer.trim(before=5)
            observer = observer_of(engine, "shop")
            await until(lambda: observer.log.view.oldest.version == 5)
            with pytest.raises(PositionCompacted):
                await anext(poll)


async def test_a_poll_goes_on_behind_a_cursor_and_only_in_the_log_that_was_read(
    log_root: Path,
) -> None:
    write_one(log_root)
    async with served(log_root) as (_, client):
        async with client.poll("shop", KEYS, every_s=0.0) as poll:
            assert len([row async for row in await anext(poll)]) == 3
            cursor = poll.cursor
        assert cursor is not None
        with LogWriter.open(log_root, "shop") as writer:
            append(writer, 2)
            writer.commit(publish=True)
        async with client.poll("shop", KEYS, after=str(cursor)) as poll:
            assert poll.since == 2
            assert [row["v"] async for row in await anext(poll)] == [2, 2, 2]
        # By its number a version may be another's: of a log that was restored and written anew.
        for after, error in (
            (replace(cursor, commit_timestamp=1), HistoryReplaced),
            (replace(cursor, version=9), CursorAhead),
        ):
            async with client.poll("shop", KEYS, after=after) as poll:
                with pytest.raises(error):
                    await anext(poll)
        async with client.poll("shop", KEYS, since=9) as poll:
            assert poll.cursor is None
            with pytest.raises(CursorAhead, match="restored from an older copy"):
                await anext(poll)
        with pytest.raises(InvalidRequest, match="at most one"):
            client.poll("shop", KEYS, since=1, after=cursor)


async def test_a_poll_from_a_time_to_come_passes_over_what_comes_before_it(log_root: Path) -> None:
    clock = SetClock()
    with LogWriter.open(log_root, "shop", clock=clock) as writer:
        append(writer, 1)
        writer.commit(publish=True)
        async with (
            served(log_root) as (engine, client),
            client.poll("shop", KEYS, since=datetime.fromtimestamp(3, UTC), every_s=0.0) as poll,
        ):
            coming = asyncio.create_task(anext(poll))

            def asked() -> int:
                found = engine.reads.statements.statistics()
                return found.answered + found.left

            for version in (2, 3):
                seen = asked()
                await until(lambda seen=seen: asked() > seen)  # type: ignore[misc]
                clock.seconds = version
                append(writer, version)
                writer.commit(publish=True)
            assert [row["v"] async for row in await coming] == [3, 3, 3]
            # Those that were empty were read to their end, or each would have cost the server a process.
            assert engine.reads.statements.statistics().left == 0


async def test_a_catalog_that_was_made_anew_is_told(log_root: Path) -> None:
    """Its versions count other changes: going on by their numbers would lose some."""
    write_one(log_root)
    async with (
        served(log_root) as (engine, client),
        client.poll("shop", KEYS, every_s=0.0) as poll,
    ):
        assert len([row async for row in await anext(poll)]) == 3
        observer = observer_of(engine, "shop")
        drop_catalog(log_root, "shop")
        write_one(log_root)
        await until(lambda: replaced(engine, observer))
        with pytest.raises(CatalogReplaced):
            await anext(poll)


def write_one(root: Path) -> None:
    with LogWriter.open(root, "shop") as writer:
        append(writer, 1)
        writer.commit(publish=True)


def replaced(engine: Engine, observer: Observer) -> bool:
    catalog = engine._catalogs.by_name.get("shop")
    return catalog is not None and catalog.observer not in (None, observer)


def commit_time(micros: int) -> str:
    seconds, rest = divmod(micros, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest).isoformat()
