"""The tailer: every publication becomes a view, however the folder reports it, and every end is told."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import resource
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import CatalogReplaced, InternalError, LogCorrupted, LogError
from tailrace_server.wal.catalog import create_catalog, drop_catalog
from tailrace_server.wal.files import local_files
from tailrace_server.wal.files.local_watch import Inotify
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.state import tail_pool
from tailrace_server.wal.state import tailer as tailer_module
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.state.tailer import Tailer
from tailrace_server.wal.upkeep.copying import copy_log
from tests.server.wal.logs import armed, finish, python, rows_of, transactions_in, upsert
from tests.support.swapping import swap

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.wal.files.documents import ReadEntry
    from tailrace_server.wal.state.view import LogView

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


async def test_a_copy_that_takes_the_name_of_the_log_is_watched_in_its_place(
    log_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_pool, "CHECK_S", 3_600.0)  # nothing is found without a report
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1")])
        writer.commit(publish=True)
    log = CommitLog.open(log_root / "shop")
    async with asyncio.timeout(PATIENCE_S), Tailer(log) as tailer:
        with LogWriter.open(log_root, "shop", take_over=True) as writer:
            writer.append([upsert("2")])
            writer.commit(publish=True)
            assert (await anext(tailer)).published == 2
        copy_log(log_root / "shop", tmp_path)
        swap(log_root / "shop", tmp_path / "shop")
        with LogWriter.open(log_root, "shop", take_over=True) as writer:
            for number in (3, 4):
                writer.append([upsert(str(number))])
                writer.commit(publish=True)
                assert (await anext(tailer)).published == number


async def test_contract_22_a_damaged_object_ends_the_iteration(log_root: Path) -> None:
    writer = LogWriter.open(log_root, "shop")
    log = CommitLog.open(log_root / "shop")
    async with asyncio.timeout(PATIENCE_S), Tailer(log) as tailer:
        (log_root / "shop" / "published" / f"{1:020d}.json").write_bytes(b"{}\n")
        with pytest.raises(LogCorrupted):
            await anext(tailer)
    writer.close()


_PUBLISHES_WHEN_TOLD = """
import sys
from pathlib import Path
from tests.server.wal.logs import LogWriter, upsert
with LogWriter.open(Path(sys.argv[1]), "shop") as writer:
    print("ready", flush=True)
    for line in sys.stdin:
        writer.append([upsert(line.strip())])
        writer.commit(publish=True)
"""


class _Said(logging.Handler):
    """What was logged, for who waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: queue.Queue[str] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.put(record.getMessage())


@ways
async def test_a_process_without_descriptors_is_waited_out_and_nothing_is_lost(
    log_root: Path, inotify: bool
) -> None:
    """The process is short of them, not the log damaged: no subscription is to end for it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    create_catalog(log_root, "shop")
    writer = python(_PUBLISHES_WHEN_TOLD, log_root)
    assert writer.stdin is not None
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    said = _Said()
    logging.getLogger("tailrace.wal").addHandler(said)
    try:
        log = CommitLog.open(log_root / "shop")
        async with asyncio.timeout(PATIENCE_S), Tailer(log, inotify=inotify) as tailer:
            print("1", file=writer.stdin, flush=True)
            assert (await anext(tailer)).published == 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # which all are open
            print("2", file=writer.stdin, flush=True)
            message = await asyncio.to_thread(said.messages.get, timeout=PATIENCE_S / 2)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert "Too many open files; reading is retried" in message
            view = await anext(tailer)
            assert view.published == 2
            assert transactions_in(rows_of(log_root / "shop", view)) == ["1", "2"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        logging.getLogger("tailrace.wal").removeHandler(said)
        status, _, errors = finish(writer)
    assert status == 0, errors


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


class Visible:
    """The log of a writer that was killed when its second entry could be seen and was not durable."""

    def __init__(self, log_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writer = LogWriter.open(log_root, "shop")
        self.writer.append([upsert("1")])
        self.writer.commit(publish=True)
        self.log = CommitLog.open(log_root / "shop")
        self.read = asyncio.Event()
        self.synced = 0
        self._loop, fsync = asyncio.get_running_loop(), os.fsync

        def counted(descriptor: int) -> None:
            self.synced += threading.current_thread().name.startswith("tail ")
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", counted)

    def prepare(self, view: LogView, _: ReadEntry | None) -> None:
        self._loop.call_soon_threadsafe(self.read.set)

    def kill(self) -> None:
        self.writer.append([upsert("2")])
        with armed("entry.linked=error"), pytest.raises(LogError):
            self.writer.commit(publish=True)

    def mark(self) -> None:
        """Do what its writer would have done next."""
        found = self.log.read_entry(3) or pytest.fail("no entry")
        mark = found.entry.timestamp * 1_000
        os.utime(self.log.path / found.path, ns=(mark, mark))


async def test_contract_06_what_an_entry_publishes_is_shown_once_its_writer_found_it_durable(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tailer_module, "MARK_PATIENCE_S", PATIENCE_S)
    visible = Visible(log_root, monkeypatch)
    async with (
        asyncio.timeout(PATIENCE_S),
        Tailer(visible.log, prepare=visible.prepare) as tailer,
    ):
        visible.kill()
        await visible.read.wait()
        assert visible.log.view.published == 1
        visible.mark()
        assert (await anext(tailer)).published == 2
        assert not visible.synced


@ways
async def test_contract_06_what_its_writer_left_not_durable_is_shown_once_the_reader_made_it_so(
    log_root: Path, monkeypatch: pytest.MonkeyPatch, inotify: bool
) -> None:
    visible = Visible(log_root, monkeypatch)
    async with asyncio.timeout(PATIENCE_S), Tailer(visible.log, inotify=inotify) as tailer:
        visible.kill()
        assert (await anext(tailer)).published == 2
        assert visible.synced == 1


async def test_a_writer_that_marks_nothing_is_waited_for_once(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[bool] = []

    def wait(_: str, condition: Callable[[], bool]) -> bool:
        waited.append(condition())
        return waited[-1]

    with LogWriter.open(log_root, "shop") as writer, monkeypatch.context() as patch:
        log = CommitLog.open(log_root / "shop")
        patch.setattr(local_files, "set_mark", lambda path, mark: None)
        for number in range(1, 4):
            writer.append([upsert(str(number))])
            writer.commit(publish=True)
            assert log.refresh(wait=wait) is not None
        assert waited == [False]


async def test_what_was_waited_for_is_watched_no_more(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, watched, watch_file = asyncio.get_running_loop(), asyncio.Event(), Inotify.watch_file

    def noted(self: Inotify, file: str, mask: int) -> int:
        watch = watch_file(self, file, mask)
        loop.call_soon_threadsafe(watched.set)
        return watch

    monkeypatch.setattr(Inotify, "watch_file", noted)
    monkeypatch.setattr(tailer_module, "MARK_PATIENCE_S", PATIENCE_S)
    visible = Visible(log_root, monkeypatch)
    async with asyncio.timeout(PATIENCE_S), Tailer(visible.log) as tailer:
        visible.kill()
        await watched.wait()
        entry = visible.log.path / "log" / f"{3:020d}.json"
        assert watches(entry) == 1
        entry.chmod(0o644)  # an event that is no mark
        assert visible.log.view.published == 1
        visible.mark()
        assert (await anext(tailer)).published == 2
        assert watches(entry) == 0
    assert not visible.synced


def watches(path: Path) -> int:
    """Return how many watches this process has on a file."""
    inode = f" ino:{path.stat().st_ino:x} "
    count = 0
    for name in os.listdir("/proc/self/fdinfo"):
        with suppress(OSError):
            text = Path("/proc/self/fdinfo", name).read_text()
            count += sum(
                line.startswith("inotify ") and inode in line for line in text.splitlines()
            )
    return count


async def test_a_log_whose_temporary_files_cannot_be_watched_is_followed_all_the_same(
    log_root: Path,
) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        (log_root / "shop" / "tmp").rmdir()
        log = CommitLog.open(log_root / "shop")
        async with asyncio.timeout(PATIENCE_S), Tailer(log) as tailer:
            for number in range(1, 4):
                writer.append([upsert(str(number))])
                writer.commit(publish=True)
                assert (await anext(tailer)).published == number
