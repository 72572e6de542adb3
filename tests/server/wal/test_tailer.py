"""The tailer: every publication becomes a view, however the folder reports it, and every end is told."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import CatalogReplaced, InternalError, LogCorrupted
from tailrace_server.wal.catalog import drop_catalog
from tailrace_server.wal.commit_log import CommitLog
from tailrace_server.wal.inotify import CREATED, Inotify, InotifyUnavailable
from tailrace_server.wal.tailer import Tailer
from tailrace_server.wal.writer import LogWriter
from tests.server.wal.logs import rows_of, transactions_in, upsert

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATIENCE_S = 20.0

ways = pytest.mark.parametrize("inotify", [True, False], ids=["inotify", "poll"])


@ways
async def test_each_publication_is_seen_and_nothing_before_it(
    log_root: Path, inotify: bool
) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        log = CommitLog.open(log_root / "shop")
        async with asyncio.timeout(PATIENCE_S), Tailer(log, inotify=inotify) as tailer:
            for number in range(1, 6):
                writer.append([upsert(str(number))])
                writer.commit()
                writer.publish()
                view = await anext(tailer)
                assert view.published == number
                assert len(transactions_in(rows_of(log_root / "shop", view))) == number


@ways
async def test_each_commit_that_publishes_itself_is_seen(log_root: Path, inotify: bool) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        log = CommitLog.open(log_root / "shop")
        async with asyncio.timeout(PATIENCE_S), Tailer(log, inotify=inotify) as tailer:
            for number in range(2, 10, 2):
                writer.append([upsert(str(number - 1))])
                writer.commit()
                writer.append([upsert(str(number))])
                writer.commit(publish=True)
                assert (await anext(tailer)).published == number


@ways
async def test_views_that_are_not_taken_are_passed_over(log_root: Path, inotify: bool) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        log = CommitLog.open(log_root / "shop")
        async with asyncio.timeout(PATIENCE_S), Tailer(log, inotify=inotify) as tailer:
            for number in range(20):
                writer.append([upsert(str(number))])
                writer.commit()
                writer.publish()
            seen = [0]
            async for view in tailer:
                seen.append(view.published)
                if view.published == 20:
                    break
            assert seen == sorted(set(seen))


@ways
async def test_a_compaction_and_a_trim_are_seen_too(log_root: Path, inotify: bool) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        for number in range(4):
            writer.append([upsert(str(number))])
            writer.commit()
        writer.publish()
        log = CommitLog.open(log_root / "shop")
        async with asyncio.timeout(PATIENCE_S), Tailer(log, inotify=inotify) as tailer:
            writer.compact()
            assert len(await anext(tailer)) == 1
            writer.trim(before=5)
            view = await anext(tailer)
            assert (len(view), view.oldest.version) == (0, 5)


@ways
async def test_contract_25_a_dropped_catalog_ends_the_iteration(
    log_root: Path, inotify: bool
) -> None:
    LogWriter.open(log_root, "shop").close()
    log = CommitLog.open(log_root / "shop")
    async with asyncio.timeout(PATIENCE_S), Tailer(log, inotify=inotify) as tailer:
        drop_catalog(log_root, "shop")
        with pytest.raises(CatalogReplaced):
            await anext(tailer)
        with pytest.raises(CatalogReplaced):
            await anext(tailer)


async def test_contract_22_a_damaged_object_ends_the_iteration(log_root: Path) -> None:
    writer = LogWriter.open(log_root, "shop")
    log = CommitLog.open(log_root / "shop")
    async with asyncio.timeout(PATIENCE_S), Tailer(log) as tailer:
        (log_root / "shop" / "published" / f"{1:020d}.json").write_bytes(b"{}\n")
        with pytest.raises(LogCorrupted):
            await anext(tailer)
    writer.close()


async def test_a_cancelled_wait_loses_nothing(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        log = CommitLog.open(log_root / "shop")
        async with asyncio.timeout(PATIENCE_S), Tailer(log) as tailer:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await anext(tailer)
            writer.append([upsert("1")])
            writer.commit()
            writer.publish()
            assert (await anext(tailer)).published == 1


async def test_a_bug_in_the_thread_is_told_and_not_silent(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LogWriter.open(log_root, "shop").close()
    log = CommitLog.open(log_root / "shop")
    monkeypatch.setattr(log, "check_folder", lambda: 1 / 0)
    async with asyncio.timeout(PATIENCE_S), Tailer(log) as tailer:
        with pytest.raises(InternalError, match="ZeroDivisionError"):
            await anext(tailer)


class HeldBack(Executor):
    """Does nothing until the test says that it is done."""

    def __init__(self) -> None:
        self.begun: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.begun.append(Future())
        return self.begun[-1]


def test_contract_06_what_an_entry_publishes_is_shown_once_its_name_is_durable(
    log_root: Path,
) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        for key in "12":
            writer.append([upsert(key)])
            writer.commit(publish=True)
        log = CommitLog.open(log_root / "shop")
        writer.append([upsert("3")])
        writer.commit(publish=True)
        disk, prepared = HeldBack(), threading.Event()
        reading = threading.Thread(
            target=log.refresh, args=(lambda view: prepared.set(),), kwargs={"beside": disk}
        )
        reading.start()
        assert prepared.wait(PATIENCE_S)
        assert log.view.published == 2
        (sync,) = disk.begun
        sync.set_result(None)
        reading.join(PATIENCE_S)
        assert log.view.published == 3


def test_inotify_refuses_what_it_cannot_watch(tmp_path: Path) -> None:
    watch = Inotify()
    with pytest.raises(InotifyUnavailable):
        watch.watch(tmp_path / "not-there", CREATED)
    watch.close()
