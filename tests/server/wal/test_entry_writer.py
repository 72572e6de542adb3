"""Creating entries: one holder a number. Fences between writers: test_fences.py; kills: test_crash.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tailrace.clock import SystemClock
from tailrace.errors import LogError, UnknownWriter, WriterFenced
from tailrace_server.wal.catalog import create_catalog
from tailrace_server.wal.entry_writer import EntryWriter
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.wal.logs import armed

if TYPE_CHECKING:
    from pathlib import Path


def entry_writer(log_root: Path, name: str = "w") -> tuple[EntryWriter, CommitLog]:
    create_catalog(log_root, "shop")
    log = CommitLog.open(log_root / "shop")
    return EntryWriter(log, epoch=0, writer=name, clock=SystemClock()), log


def open_epoch(writer: EntryWriter, *, take_over: bool = False, may_be_fenced: bool = False) -> int:
    writer.open_epoch("run", take_over=take_over, may_be_fenced=may_be_fenced)
    return writer.epoch


def test_each_opening_has_the_next_epoch_and_fences_the_one_before(log_root: Path) -> None:
    (older, log), (newer, _) = entry_writer(log_root), entry_writer(log_root)
    assert [open_epoch(older), open_epoch(newer)] == [1, 2]
    older.check_fence()  # it has not read on
    log.advance()
    with pytest.raises(WriterFenced):
        older.check_fence()


def test_a_number_that_another_has_is_read_and_the_next_one_taken(log_root: Path) -> None:
    (first, log), (second, _) = entry_writer(log_root), entry_writer(log_root)
    open_epoch(first)
    open_epoch(second)
    taken = log.read_entry(2) or pytest.fail("no entry")
    assert not first.create(msgspec.structs.replace(taken.entry, epoch=1))
    assert log.state.last_entry == 1
    assert open_epoch(first) == 3


def test_an_entry_that_became_visible_before_its_attempt_failed_is_its_own(log_root: Path) -> None:
    writer, log = entry_writer(log_root)
    with armed("entry.linked=error"), pytest.raises(LogError):
        open_epoch(writer)
    found = log.read_entry(1) or pytest.fail("no entry")
    assert writer.create(found.entry)
    assert log.state.last_entry == 1


def test_another_name_needs_leave_and_may_come_back_only_with_it(log_root: Path) -> None:
    open_epoch(entry_writer(log_root, "a")[0])
    with pytest.raises(UnknownWriter):
        open_epoch(entry_writer(log_root, "b")[0])
    assert open_epoch(entry_writer(log_root, "b")[0], take_over=True) == 2
    with pytest.raises(WriterFenced):
        open_epoch(entry_writer(log_root, "a")[0], may_be_fenced=True)
    assert open_epoch(entry_writer(log_root, "a")[0]) == 3


def test_timestamps_rise_though_the_clock_stands_still(log_root: Path) -> None:
    writer, log = entry_writer(log_root)
    open_epoch(writer)
    log.state.last_timestamp += 3_600_000_000
    assert writer.next_timestamp() == log.state.last_timestamp + 1
