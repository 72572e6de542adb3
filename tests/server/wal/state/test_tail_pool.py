"""The pool: few threads for many logs, a turn for each change, and no wait for another log's storage."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import AsyncExitStack, closing, suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.state import tail_pool as pool_module
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.state.tail_pool import THREADS, TailPool
from tailrace_server.wal.state.tailer import Tailer
from tests.server.wal.logs import upsert

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.wal.files.local_watch import FileWait

PATIENCE_S = 20.0
QUIET_S = 3_600.0
"""No turn by time within a test."""


class Log:
    """Counts its turns, and leaves the pool when it is told to."""

    def __init__(self) -> None:
        self.turns = threading.Semaphore(0)
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.left = threading.Event()
        self.leaves = False
        self.wait_s = QUIET_S

    def turn(self, waits: FileWait) -> float | None:
        self.turns.release()
        assert self.may_go_on.wait(PATIENCE_S)
        if self.leaves:
            self.left.set()
            return None
        return self.wait_s

    def has_turn(self) -> bool:
        return self.turns.acquire(timeout=PATIENCE_S)

    def leave(self, pool: TailPool) -> None:
        self.leaves = True
        self.may_go_on.set()
        pool.call(self)
        assert self.left.wait(PATIENCE_S)


def tail_threads() -> int:
    return sum(each.name.startswith("tail ") for each in threading.enumerate())


def inotify_instances() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{name}") == "anon_inode:inotify"
    return count


@pytest.mark.slow
async def test_many_logs_have_one_inotify_for_their_folders_and_a_few_threads(
    log_root: Path,
) -> None:
    names = [f"shop{number}" for number in range(12)]
    async with AsyncExitStack() as stack:
        writers = [stack.enter_context(LogWriter.open(log_root, name)) for name in names]
        pool = stack.enter_context(closing(TailPool()))
        before = inotify_instances()
        tailers = [
            await stack.enter_async_context(Tailer(CommitLog.open(log_root / name), pool))
            for name in names
        ]
        async with asyncio.timeout(PATIENCE_S):
            for writer, tailer in zip(writers, tailers, strict=True):
                writer.append([upsert("1")])
                writer.commit(publish=True)
                assert (await anext(tailer)).published == 1
        assert pool.polled == {}
        assert tail_threads() <= THREADS
        assert inotify_instances() - before <= 1 + THREADS, (
            "one for all folders, one a thread for marks"
        )


@pytest.mark.slow
def test_logs_whose_storage_hangs_keep_no_turn_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "_HANGS_S", 0.01)
    hanging, well = [Log() for _ in range(4 * THREADS)], Log()
    with closing(TailPool()) as pool:
        for each in hanging:
            each.may_go_on.clear()
            pool.add(each)
        assert all(each.has_turn() for each in hanging)
        pool.add(well)
        assert well.has_turn()
        pool.call(well)
        assert well.has_turn()
        for each in (*hanging, well):
            each.leave(pool)
        others = Log()
        pool.add(others)
        assert others.has_turn()
        others.leave(pool)
        assert tail_threads() <= THREADS + 1, "threads that nobody needs any more end"
    assert tail_threads() == 0


def test_a_call_during_a_turn_gives_another_turn() -> None:
    log = Log()
    log.may_go_on.clear()
    with closing(TailPool()) as pool:
        pool.add(log)
        assert log.has_turn()
        pool.call(log)
        pool.call(log)
        log.may_go_on.set()
        assert log.has_turn()
        log.leave(pool)
        assert log.has_turn()
        assert not log.turns.acquire(blocking=False), "two calls during a turn are one more turn"


def test_a_turn_that_is_due_comes_by_itself_however_often_it_was_called_before() -> None:
    log = Log()
    with closing(TailPool()) as pool:
        pool.add(log)
        for _ in range(50):
            assert log.has_turn()
            pool.call(log)
        log.wait_s = 0.001
        pool.call(log)
        assert all(log.has_turn() for _ in range(10))
        log.leave(pool)


@given(logs=st.integers(0, 100_000), polled=st.integers(0, 100_000))
@settings(max_examples=50)
def test_quiet_logs_cost_the_same_however_many_they_are(logs: int, polled: int) -> None:
    with closing(TailPool()) as pool:
        pool._places = dict.fromkeys(range(logs), None)  # type: ignore[arg-type, assignment]
        pool.polled = dict.fromkeys(range(polled), "")  # type: ignore[arg-type]
        assert pool.check_s >= pool_module.CHECK_S
        assert pool.look_s >= pool_module.CHECK_S
        assert pool.longest_poll_s(0.05) >= 0.05
        if logs > 1_000:
            assert logs / pool.check_s <= pool_module.CHECKS_PER_S + 0.001
            assert logs / pool.look_s <= pool_module.LOOKS_PER_S + 0.001
        if polled > 1_000:
            assert polled / pool.longest_poll_s(0.05) <= pool_module.POLLS_PER_S + 0.001
