"""What is wrong is told, and told to be well again: in the log, in the metrics, in /health."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
import structlog.testing

from tailrace.clock import SystemClock
from tailrace.errors import LogCorrupted
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS, Peer
from tailrace_server.named import loss_watch
from tailrace_server.reads.state_request import StateRequest
from tailrace_server.resources import faults
from tailrace_server.resources.faults import (
    UNPUBLISHED_S,
    CatalogVersions,
    Room,
    TooLargeLogs,
    UnpublishedVersions,
    room_faults,
)
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.resources.version_waits import VersionWait
from tailrace_server.wal.base.making import make_base
from tailrace_server.wal.files.local_watch import Inotify, InotifyUnavailable
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.sequences.settings import change_settings
from tailrace_server.wal.state import tailer
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.keeping import Excess
from tests.server.wal.logs import upsert
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    from structlog.typing import EventDict


def faults_of(engine: Engine) -> list[tuple[str, str]]:
    """Return what is wrong now, without the reasons."""
    return [(each.kind, each.subject) for each in engine.statistics(ANONYMOUS).faults]


def told(lines: list[EventDict], event: str) -> list[tuple[str, str]]:
    """Return what the log has of an event."""
    return [(each["kind"], each["subject"]) for each in lines if each["event"] == event]


@pytest.mark.slow
async def test_contract_33_a_reader_that_stands_still_is_told_and_so_is_its_return(
    log_root: Path,
) -> None:
    """Its storage does not answer: who opens a pipe waits until somebody writes to it."""
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1")])
        writer.commit(publish=True)
    pipe = log_root / "shop" / "checkpoints" / f"{1:020}.json"
    settings = EngineSettings(standstill_s=2.0, reopen_interval_s=0.01)
    with structlog.testing.capture_logs() as lines:
        async with Engine(log_root, settings) as engine:
            assert faults_of(engine) == []
            os.mkfifo(pipe)
            await until(lambda: told(lines, "fault") == [("log_not_read", "shop")])
            [fault] = engine.statistics(ANONYMOUS).faults
            assert "its storage does not answer" in fault.reason
            descriptor = os.open(pipe, os.O_WRONLY)
            pipe.unlink()
            os.close(descriptor)
            await until(lambda: told(lines, "fault fixed") == [("log_not_read", "shop")])
            await until(lambda: faults_of(engine) == [])


async def test_contract_33_logs_that_inotify_cannot_watch_are_one_fault_until_it_can(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read at intervals meanwhile, and nothing of them is missed."""
    monkeypatch.setattr(tailer, "_WATCH_AGAIN_S", 0.01)
    watch = Inotify.watch

    def refused(self: Inotify, folder: str, mask: int) -> int:
        raise InotifyUnavailable(errno.ENOSPC, "inotify_add_watch")

    with (
        LogWriter.open(log_root, "shop") as writer,
        LogWriter.open(log_root, "depot"),
        monkeypatch.context() as patch,
    ):
        patch.setattr(Inotify, "watch", refused)
        async with Engine(log_root) as engine:
            await until(lambda: "each of 3 logs is polled" in str(engine.faults(ANONYMOUS)))
            [fault] = engine.faults(ANONYMOUS)
            assert (fault.kind, fault.subject) == ("log_polled", str(log_root))
            assert "raise fs.inotify.max_user_watches" in fault.reason
            writer.append([upsert("1")])
            writer.commit(publish=True)
            await engine.view(ANONYMOUS, "shop", VersionWait(1, 20.0))
            patch.setattr(Inotify, "watch", watch)
            await until(lambda: faults_of(engine) == [])


@pytest.mark.parametrize("ahead_s", [-86_400, -30, 0, 30, 86_400])
async def test_contract_33_the_age_of_a_log_does_not_depend_on_the_clock_of_its_writer(
    log_root: Path, ahead_s: int
) -> None:
    """The age of the newest commit was 0 for a day after one commit of a clock that was a day ahead."""

    class Clock(SystemClock):
        def now(self) -> int:
            return super().now() + ahead_s * 1_000_000

    begun = time.monotonic()

    def age(engine: Engine) -> float:
        [observer, _] = engine.statistics(ANONYMOUS).observers
        assert observer.newest_age_s is not None
        return observer.newest_age_s

    with LogWriter.open(log_root, "shop", clock=Clock()) as writer:
        writer.append([upsert("1")])
        writer.commit(publish=True)
        faults = [("clock_ahead", "shop")] if ahead_s > 60 else []
        async with Engine(log_root) as engine:
            known = age(engine)
            assert known >= max(0, -ahead_s), "it was committed before the server began"
            await until(lambda: age(engine) > known)
            writer.append([upsert("2")])
            writer.commit(publish=True)
            await engine.view(ANONYMOUS, "shop", VersionWait(2, 20.0))
            seen = age(engine)
            assert 0 <= seen <= time.monotonic() - begun
            await until(lambda: age(engine) > seen)
            assert [each for each in faults_of(engine) if each[1] == "shop"] == faults
            if faults:
                assert "set both (NTP)" in engine.faults(ANONYMOUS)[-1].reason


async def test_contract_33_a_damaged_base_costs_no_reader_its_rows_and_is_told_until_it_is_made_again(
    log_root: Path,
) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert(str(key), entity_type="product") for key in range(9)])
        writer.commit(publish=True)
    make_base(log_root / "shop", 5)
    for path in (log_root / "shop" / "bases" / "rows").iterdir():
        path.unlink()
    with structlog.testing.capture_logs() as lines:
        async with Engine(log_root) as engine:
            asked = StateRequest(entity_type="product")
            peer = Peer("grpc", "10.0.0.1:5000", "grpc-python")
            with await engine.state(ANONYMOUS, "shop", asked, codec=JSON, peer=peer) as read:
                assert sum([frames.count async for frames in read]) == 9
            await until(lambda: told(lines, "fault") == [("base_damaged", "shop")])
            [fault] = engine.statistics(ANONYMOUS).faults
            assert "bases/rows/" in fault.reason
            assert "tailrace log rebase --anew" in fault.reason
            make_base(log_root / "shop", 6, anew=True)
            await until(lambda: told(lines, "fault fixed") == [("base_damaged", "shop")])


@pytest.mark.slow
async def test_contract_33_an_entry_that_is_lost_before_it_was_read_is_told(log_root: Path) -> None:
    """Subscribers get an error; else they would wait for it for ever, and miss what stands behind it."""
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1")])
        writer.commit(publish=True)
        settings = EngineSettings(reopen_interval_s=0.01)
        async with Engine(log_root, settings) as engine:
            subscription = await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
            entries = log_root / "shop" / "log"
            number = len(list(entries.iterdir()))
            hidden = entries / f"{number + 1:020}.json"
            later = entries / f"{number + 2:020}.json"
            later.write_bytes(b"{}")
            with pytest.raises(LogCorrupted, match=f"{hidden.name}.*the entry is missing"):
                await subscription.receive()
            await until(lambda: faults_of(engine) == [("log_unreadable", "shop")])
            later.unlink()
            await until(lambda: faults_of(engine) == [])


async def test_contract_38_a_log_that_keeps_more_than_max_bytes_is_a_fault_until_more_is_allowed(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_watch, "_EVERY_S", 0.02)
    monkeypatch.setattr(faults, "_EVERY_S", 0.02)
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1")])
        writer.commit(publish=True)
    log = CommitLog.open(log_root / "shop")
    change_settings(log.store, log.view, {"max_lookback": 1 << 40, "max_bytes": 1}, 1)
    with structlog.testing.capture_logs() as lines:
        async with Engine(log_root) as engine:
            await until(lambda: told(lines, "fault") == [("too_large", "shop")])
            [fault] = engine.statistics(ANONYMOUS).faults
            assert (
                "more than its max_bytes: the versions younger than its max_lookback"
                in fault.reason
            )
            observers = {each.catalog: each for each in engine.statistics(ANONYMOUS).observers}
            assert observers["shop"].bytes_over > 0
            change_settings(log.store, log.view, {"max_bytes": None}, 2)
            await until(lambda: told(lines, "fault fixed") == [("too_large", "shop")])
            assert faults_of(engine) == []


def test_a_trim_that_is_due_is_waited_for_before_a_log_that_is_too_large_is_a_fault() -> None:
    due, logs = Excess(20, 5, True, "a trim is due"), TooLargeLogs()
    assert logs.see({"shop": due, "other": None}, 100.0) == []
    assert logs.see({"shop": due}, 999.0) == []
    [fault] = logs.see({"shop": due}, 1_000.0)
    assert (fault.kind, fault.subject) == ("too_large", "shop")
    # One that was small meanwhile is waited for anew.
    assert logs.see({"shop": None}, 1_001.0) == []
    assert logs.see({"shop": due}, 1_002.0) == []


_FULL = """
import asyncio, json, os, subprocess, sys
from pathlib import Path
root = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", root], check=True)
from tailrace_server.grants.principal import Peer
from tailrace_server.resources import faults
from tailrace_server.engine.engine import Engine
from tailrace_server.named import loss_watch
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.resources.settings import EngineSettings
from tailrace_server import logging_setup
from tests.support.polling import until

logging_setup.configure(format="json")

async def main():
    async with Engine(root, EngineSettings(room_bytes=64 << 10)) as engine:
        async def seen(kinds):
            def faults():
                return engine.statistics(ANONYMOUS).faults
            await until(lambda: [each.kind for each in faults()] == kinds)
            print(json.dumps([each.reason for each in faults()]))
        await seen([])
        (root / "large").write_bytes(bytes(1_000_000))
        await seen(["disk_full"])
        (root / "large").unlink()
        await seen([])
        # The engine holds nothing open here that is written to.
        subprocess.run(["mount", "-o", "remount,ro", root], check=True)
        await seen(["read_only"])
        subprocess.run(["mount", "-o", "remount,rw", root], check=True)
        await seen([])

asyncio.run(main())
"""


@pytest.mark.slow
def test_contract_37_a_full_disk_and_one_that_becomes_read_only_are_told(log_root: Path) -> None:
    """A file system of its own, in a name space of its own."""
    run = subprocess.run(
        ["unshare", "--map-root-user", "--mount", sys.executable, "-c", _FULL, log_root],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    nothing, full, mended, read_only, writable = map(json.loads, run.stdout.splitlines())
    assert nothing == mended == writable == []
    assert "LOG_FULL" in full[0]
    assert "has become read-only" in read_only[0]
    lines = [json.loads(line) for line in run.stderr.splitlines()]
    assert told(lines, "fault") == [("disk_full", str(log_root)), ("read_only", str(log_root))]
    assert told(lines, "fault fixed")[0] == ("disk_full", str(log_root))


def test_a_file_system_that_was_read_only_from_the_beginning_is_no_fault() -> None:
    """A copy that is only to be served is mounted so."""
    copy = {"/copy": Room(0, read_only=True)}
    assert room_faults(copy, copy, 1 << 20) == []


def test_versions_that_nobody_publishes_are_told_until_somebody_does() -> None:
    """Not those of a writer that goes on: what waits is not the same then."""
    watch = UnpublishedVersions()
    assert watch.see({"shop": CatalogVersions(1, 2)}, 0.0) == []
    assert watch.see({"shop": CatalogVersions(2, 3)}, UNPUBLISHED_S - 1) == []
    assert watch.see({"shop": CatalogVersions(2, 3)}, UNPUBLISHED_S) == []
    [fault] = watch.see({"shop": CatalogVersions(2, 4)}, 2 * UNPUBLISHED_S)
    assert (fault.kind, fault.subject) == ("unpublished", "shop")
    assert "versions 3 to 4 are durable" in fault.reason
    assert "their writer has ended" in fault.reason
    gated = CatalogVersions(2, 4, "delta at /lake")
    [fault] = watch.see({"shop": gated}, 2 * UNPUBLISHED_S)
    assert "wait for the gate delta at /lake" in fault.reason
    assert watch.see({"shop": CatalogVersions(4, 4)}, 2 * UNPUBLISHED_S + 1) == []


def test_a_file_system_without_room_for_files_is_a_fault_however_many_bytes_are_free() -> None:
    found = {"/log": Room(1 << 40, read_only=False, free_files=7)}
    (fault,) = room_faults(found, found, 1 << 20)
    assert (fault.kind, fault.subject) == ("disk_full", "/log")
    assert "only 7 more files (inodes)" in fault.reason
    unbounded = {"/log": Room(1 << 40, read_only=False)}
    assert room_faults(unbounded, unbounded, 1 << 20) == []
