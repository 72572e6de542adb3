"""Copies of a log: whole at one state, whatever happens to the log meanwhile."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from tailrace.errors import LogCorrupted, LogUnreadable
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.sequences.subscription_changes import HoldCap, new_subscription
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep import copying
from tailrace_server.wal.upkeep.compaction import compact
from tailrace_server.wal.upkeep.copying import copy_log
from tailrace_server.wal.upkeep.retention import delete_unnamed
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import VERSION, rows_of, upsert, write, write_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace_server.wal.state.state import LogState

LONG_AFTER = 1 << 60
"""A time, µs, at which every file that was replaced may be deleted."""


def test_a_copy_of_a_log_that_is_written_to_is_sound_and_a_beginning_of_it(
    log_root: Path, tmp_path: Path
) -> None:
    stop = threading.Event()

    def write_on() -> None:
        with LogWriter.open(log_root, "shop") as writer:
            while not stop.wait(0.005):  # its pace
                writer.append([upsert("1"), upsert("2")])
                writer.commit(publish=True)

    write(log_root, "shop", 3)
    thread = threading.Thread(target=write_on)
    thread.start()
    try:
        copies = [copy_log(log_root / "shop", tmp_path / str(number)) for number in range(5)]
    finally:
        stop.set()
        thread.join()
    whole = rows_of(log_root / "shop")
    for copied in copies:
        assert verify(copied.path).sound
        assert CommitLog.open(copied.path).view.published == copied.published
        assert rows_of(copied.path) == [row for row in whole if row[VERSION] <= copied.version]
    # A copy is a log like any other.
    write(tmp_path / "0", "shop", 1)
    assert verify(copies[0].path).sound


def test_a_copy_that_a_compaction_overtakes_goes_on_with_what_replaced_its_files(
    log_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    for _ in range(12):
        write(log_root, "shop", 1)
    named, turns = copying._named, 0

    def overtaken(state: LogState) -> Iterator[str]:
        nonlocal turns
        turns += 1
        paths = list(named(state))
        if turns == 1:
            assert compact(log_root / "shop", 1) is not None
            assert delete_unnamed(log_root / "shop", LONG_AFTER)
        yield from paths

    monkeypatch.setattr(copying, "_named", overtaken)
    copied = copy_log(log_root / "shop", tmp_path / "copy")
    assert turns == 2
    assert verify(copied.path).sound
    assert rows_of(copied.path) == rows_of(log_root / "shop")


def test_a_damaged_log_is_not_copied_and_its_fault_is_named(
    log_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    write(log_root, "shop", 1)
    (segment,) = (log_root / "shop" / "segments").glob("*/*.arrow")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(LogCorrupted) as raised:
        copy_log(log_root / "shop", tmp_path / "copy")
    assert raised.value.path == str(segment.relative_to(log_root / "shop"))
    assert list((tmp_path / "copy").iterdir()) == []
    done = copy_log(log_root / "shop", tmp_path / "copy", with_damage=True)
    assert [fault.path for fault in done.faults] == [raised.value.path]
    assert (done.path / raised.value.path).read_bytes() == data
    assert verify(done.path).faults == done.faults


def test_nothing_is_copied_over_what_is_there(log_root: Path, tmp_path: Path) -> None:
    write(log_root, "shop", 1)
    copy_log(log_root / "shop", tmp_path / "copy")
    with pytest.raises(LogUnreadable, match="already exists"):
        copy_log(log_root / "shop", tmp_path / "copy")


def test_named_subscriptions_go_along_and_verify_looks_at_them(
    log_root: Path, tmp_path: Path
) -> None:
    write(log_root, "shop", 3)
    source = log_root / "shop"
    view = CommitLog.open(source).view
    wanted = new_subscription(
        view,
        "billing",
        (),
        "2",
        hold_us=None,
        hold_bytes=None,
        cap=HoldCap(),
        owner="",
        now=LONG_AFTER,
    )
    names = SubscriptionSequences(source, view.uuid)
    names.create(wanted)
    names.change("billing", lambda found: replace(found, paused=True))

    done = copy_log(source, tmp_path / "backup")

    assert done.subscriptions == 1
    copied = SubscriptionSequences(done.path, view.uuid).get("billing")
    assert (copied.id, copied.cursor, copied.paused) == (wanted.id, wanted.cursor, True)
    assert verify(done.path).sound
    names.change("billing", lambda found: replace(found, cursor="nothing"))
    assert ["is not a cursor" in fault.reason for fault in verify(source).faults] == [True]
    damaged = next((done.path / "subscriptions" / "billing").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-9] + b"x" * 9)
    assert [fault.path for fault in verify(done.path).faults] == [
        str(damaged.relative_to(done.path))
    ]
