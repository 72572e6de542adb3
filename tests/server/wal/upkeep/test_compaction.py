"""Compaction: nobody can tell but by the number of batches."""

from __future__ import annotations

import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import LogCorrupted, LogError, LogFull
from tailrace_server.wal.base.making import make_base
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.segment.reader import BatchReader, SegmentMissing
from tailrace_server.wal.state import checkpoint
from tailrace_server.wal.state.checkpoint import write_checkpoint
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep import compaction, trigger
from tailrace_server.wal.upkeep import process as upkeep_process
from tailrace_server.wal.upkeep.retention import delete_unnamed, orphans, trim
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import (
    SteppingClock,
    armed,
    batch_rows,
    finish,
    python,
    rows_of,
    transactions_in,
    update,
    upkeep_processes,
    upsert,
    write,
    write_files,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.wal.state.state import LogState
    from tailrace_server.wal.state.view import LogView


def test_small_neighbours_become_one_and_every_reader_sees_the_same(log_root: Path) -> None:
    write(log_root, "shop", 12)
    catalog = log_root / "shop"
    follower = CommitLog.open(catalog)
    before, old = rows_of(catalog, follower.view), follower.view
    done = compaction.compact(catalog, 5)
    assert done is not None
    assert (done.segments_before, done.segments_after, done.rows) == (12, 1, 49)
    assert done.bytes_after < done.bytes_before / 3
    view = follower.refresh()
    assert view is not None
    assert (len(view), len(old)) == (1, 12)
    for each in (view, old, CommitLog.open(catalog).view):
        assert rows_of(catalog, each) == before
    assert compaction.compact(catalog, 5) is None
    assert verify(catalog).sound


def test_what_is_committed_and_not_published_is_left_alone(log_root: Path) -> None:
    writer = LogWriter.open(log_root, "shop")
    for number in range(4):
        writer.append([upsert(str(number))])
        writer.commit()
        if number == 1:
            writer.publish()
    writer.compact()
    assert transactions_in(rows_of(log_root / "shop")) == ["0", "1"]
    assert [len(CommitLog.open(log_root / "shop").state.batches), writer.compact()] == [3, None]
    writer.publish()
    assert transactions_in(rows_of(log_root / "shop")) == ["0", "1", "2", "3"]
    writer.close()
    assert verify(log_root / "shop").sound


@pytest.mark.slow
def test_writing_goes_on_over_a_compaction_and_a_follower_keeps_up(log_root: Path) -> None:
    """A reader that is ahead of the checkpoint keeps what it has read past it."""
    writer = LogWriter.open(log_root, "shop")
    follower, slow = CommitLog.open(log_root / "shop"), CommitLog.open(log_root / "shop")
    for number in range(30):
        writer.append([upsert(str(number)), update("x", number, number + 1)])
        writer.commit()
        writer.publish()
        if number % 7 == 3:
            writer.compact()
        follower.refresh()
        assert rows_of(log_root / "shop", follower.view) == rows_of(log_root / "shop")
    slow.refresh()
    assert rows_of(log_root / "shop", slow.view) == rows_of(log_root / "shop")
    assert transactions_in(rows_of(log_root / "shop")) == [*map(str, range(30))]
    writer.close()
    assert verify(log_root / "shop").sound


@pytest.mark.parametrize("rival", ["checkpoint", "compaction", "trim"])
def test_who_loses_the_number_starts_again_and_leaves_nothing(
    log_root: Path, monkeypatch: pytest.MonkeyPatch, rival: str
) -> None:
    write(log_root, "shop", 4)
    catalog = log_root / "shop"
    before = rows_of(catalog)
    beaten = False

    def write_late(log: CommitLog, state: LogState, now: int) -> bool:
        nonlocal beaten
        if not beaten:
            beaten = True
            match rival:
                case "checkpoint":
                    other = CommitLog.open(catalog)
                    assert write_checkpoint(other, other.state, now)
                case "compaction":
                    assert compaction.compact(catalog, now) is not None
                case "trim":
                    trim(catalog, 3, now)
        return write_checkpoint(log, state, now)

    monkeypatch.setattr(compaction, "write_checkpoint", write_late)
    done = compaction.compact(catalog, 5)
    state = CommitLog.open(catalog).state
    assert (done is None, state.checkpoint) == ((True, 1) if rival == "compaction" else (False, 2))
    assert len(list((catalog / "segments" / "compact").iterdir())) == 1
    assert rows_of(catalog)[-8:] == before[-8:]
    assert len(rows_of(catalog)) == (8 if rival == "trim" else 17)
    assert orphans(CommitLog.open(catalog)) == []
    assert verify(catalog).sound


def test_a_damaged_segment_stays_and_its_neighbours_are_compacted(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    write(log_root, "shop", 7)
    catalog = log_root / "shop"
    wanted = rows_of(catalog)
    file = catalog / CommitLog.open(catalog).view.batch(3).segment.path
    whole = file.read_bytes()
    file.write_bytes(bytes(len(whole)))
    with pytest.raises(LogCorrupted):
        compaction.compact(catalog, 5)
    segments = CommitLog.open(catalog).view.segments()
    assert [each.rows for each in segments] == [13, 4, 12]
    file.write_bytes(whole)
    assert rows_of(catalog) == wanted
    assert verify(catalog).sound


def test_two_segments_are_not_compacted_if_one_is_damaged(log_root: Path) -> None:
    write(log_root, "shop", 2)
    catalog = log_root / "shop"
    ref = CommitLog.open(catalog).view.batch(1)
    data = bytearray((catalog / ref.segment.path).read_bytes())
    data[ref.offset + 40] ^= 1
    (catalog / ref.segment.path).write_bytes(data)
    with pytest.raises(LogCorrupted):
        compaction.compact(catalog, 5)
    assert list((catalog / "segments" / "compact").iterdir()) == []
    assert CommitLog.open(catalog).state.checkpoint == 0


def test_contract_37_a_compaction_without_room_changes_nothing(log_root: Path) -> None:
    write(log_root, "shop", 4)
    catalog = log_root / "shop"
    before = rows_of(catalog)
    for place in ("segment.before_rename", "checkpoint.before_link"):
        with armed(f"{place}=enospc"), pytest.raises(LogFull):
            compaction.compact(catalog, 5)
        assert rows_of(catalog) == before
        assert list((catalog / "segments" / "compact").iterdir()) == []


@pytest.mark.parametrize("place", ["checkpoint.linked", "checkpoint.after_link"])
def test_a_compaction_that_fails_behind_its_checkpoint_keeps_what_that_names(
    log_root: Path, place: str
) -> None:
    write(log_root, "shop", 4)
    catalog = log_root / "shop"
    before = rows_of(catalog)
    with armed(f"{place}=error"), pytest.raises((LogError, OSError)):
        compaction.compact(catalog, 5)
    assert len(list((catalog / "segments" / "compact").iterdir())) == 1
    assert delete_unnamed(catalog, 10, grace_s=0) != []
    assert rows_of(catalog) == before


@pytest.mark.slow
def test_contract_35_a_compaction_killed_before_its_checkpoint_leaves_orphans_that_go(
    log_root: Path,
) -> None:
    write(log_root, "shop", 4)
    catalog = log_root / "shop"
    before = rows_of(catalog)
    code = (
        "import sys; from pathlib import Path; from tailrace_server.wal.upkeep.compaction import compact; "
        "compact(Path(sys.argv[1]), 5)"
    )
    finish(python(code, catalog, failing="checkpoint.before_link=kill"))
    assert len(list((catalog / "segments" / "compact").iterdir())) == 1
    assert delete_unnamed(catalog, 10, grace_s=0) == []  # checkpoint 1 may still come
    compaction.compact(catalog, 5)
    deleted = delete_unnamed(catalog, 10, grace_s=0)
    assert [name for name in deleted if "compact" in name] != []
    assert rows_of(catalog) == before


@pytest.mark.slow
@settings(max_examples=25)
@given(script=st.lists(st.sampled_from("cccppPkt"), min_size=1, max_size=25))
def test_any_order_of_commits_publications_compactions_and_trims(script: list[str]) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        writer = LogWriter.open(root, "shop")
        follower = CommitLog.open(root / "shop")
        committed, published, oldest = 0, 0, 1
        for step in script:
            match step:
                case "c":
                    committed += 1
                    writer.append([upsert(str(committed))])
                    writer.commit()
                case "P":
                    committed += 1
                    writer.append([upsert(str(committed))])
                    writer.commit(publish=True)
                    published = committed
                case "p":
                    writer.publish()
                    published = committed
                case "k":
                    writer.compact()
                case "t":
                    oldest = min(oldest + 2, published + 1)
                    assert writer.trim(before=oldest).version == oldest
            follower.refresh()
            for view in (follower.view, CommitLog.open(root / "shop").view):
                assert (view.published, view.oldest.version) == (published, oldest)
                # Two records a version, and that of the schema in the first.
                assert view.end_row == (2 * published + 1 if published else 0)
                rows = [row for row in rows_of(root / "shop", view) if row[1] >= oldest]
                assert transactions_in(rows) == [*map(str, range(oldest, published + 1))]
                first_row = 2 * oldest - 1 if oldest > 1 else 0
                assert [row[0] for row in rows] == [*range(first_row, view.end_row)]
        assert verify(root / "shop").sound
        writer.close()


def read_by_position(catalog: Path, log: CommitLog, reader: BatchReader) -> list[str]:
    """Read everything as a subscription in resync does: a missing file means a newer view."""
    view: LogView = log.view
    keys: list[str] = []
    row = 0
    while row < view.end_row:
        place = view.find_row(row)
        try:
            found = batch_rows(reader, view, place)
        except SegmentMissing:
            gone, view = view.batch(place).segment.path, log.refresh() or log.view
            assert view.batch(view.find_row(row)).segment.path != gone
            continue
        keys += transactions_in([each for each in found if each[0] >= row])
        row = found[-1][0] + 1
    return keys


@pytest.mark.slow
def test_contract_38_readers_go_on_while_everything_under_them_is_compacted_and_deleted(
    log_root: Path,
) -> None:
    catalog, clock = log_root / "shop", SteppingClock()
    write(log_root, "shop", 20)
    log = CommitLog.open(catalog)
    stop = threading.Event()

    def churn() -> None:
        with LogWriter.open(log_root, "shop", clock=clock) as writer:
            while not stop.is_set():
                writer.append([upsert(str(writer.state.last_version + 1))])
                writer.commit()
                writer.publish()
                writer.compact()
                delete_unnamed(catalog, clock.now() + 1, grace_s=0)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(40):
            log.refresh()
            with BatchReader(catalog) as reader:
                keys = read_by_position(catalog, log, reader)
            assert keys == [*map(str, range(1, len(keys) + 1))]
            assert len(keys) >= 20
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
def test_a_writer_compacts_by_itself_once_many_neighbours_are_small(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        for number in range(compaction.DUE_SEGMENTS + 100):
            writer.append([upsert(str(number))])
            writer.commit()
            writer.publish()
    view = CommitLog.open(log_root / "shop").view
    assert view.revision >= 1
    assert len(view) < compaction.DUE_SEGMENTS
    assert len(transactions_in(rows_of(log_root / "shop", view))) == compaction.DUE_SEGMENTS + 100


@pytest.mark.slow
def test_upkeep_is_a_process_that_ends_with_its_writer(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is killed while it works: the next look starts another."""
    monkeypatch.setattr(trigger, "is_due", lambda state: True)
    monkeypatch.setattr(trigger, "DUE_SEGMENTS", 8)
    with LogWriter.open(log_root, "shop") as writer:
        for number in range(4):
            writer.append([upsert(str(number))])
            writer.commit()
            writer.publish()
            (child,) = upkeep_processes()
            assert child.cmdline()[-2:] == [
                "tailrace_server.wal.upkeep.process",
                str(log_root / "shop"),
            ]
            if number % 2:
                child.kill()
                child.wait(20)
    assert upkeep_processes() == []
    assert transactions_in(rows_of(log_root / "shop")) == ["0", "1", "2", "3"]


@pytest.mark.slow
def test_upkeep_does_not_outlive_a_killed_writer(log_root: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tailrace_server.wal.upkeep import trigger;"
        "from tailrace_server.wal.log_writer import LogWriter; from tests.server.wal.logs import upsert;"
        "trigger.is_due = lambda state: True;"
        "writer = LogWriter.open(Path(sys.argv[1]), 'shop'); writer.append([upsert('1')]);"
        "writer.commit(); writer.publish(); print('published', flush=True); sys.stdin.read()"
    )
    process = python(code, log_root)
    assert process.stdout is not None
    assert process.stdout.readline() == "published\n"
    (child,) = psutil.Process(process.pid).children()
    process.kill()
    finish(process)
    child.wait(20)


def test_upkeep_takes_what_is_due_and_nothing_else(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log_root, "shop", 12)
    catalog = log_root / "shop"
    upkeep_process.run_if_due(catalog, 5)
    assert CommitLog.open(catalog).state.checkpoint == 0
    monkeypatch.setattr(checkpoint, "CHECKPOINT_ENTRIES_MIN", 8)
    upkeep_process.run_if_due(catalog, 6)
    assert (CommitLog.open(catalog).state.checkpoint, len(CommitLog.open(catalog).view)) == (1, 12)
    monkeypatch.setattr(compaction, "DUE_SEGMENTS", 8)
    upkeep_process.run_if_due(catalog, 7)
    assert (CommitLog.open(catalog).state.checkpoint, len(CommitLog.open(catalog).view)) == (2, 1)


def test_records_leave_an_old_entry_that_others_wait_for(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lone small segment between large ones is never merged, and would keep all later entries."""
    catalog = log_root / "shop"
    monkeypatch.setattr(compaction, "SMALL_ROWS", 4)
    with monkeypatch.context() as patch:
        write_files(patch)
        write(log_root, "shop", 1)
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("carried")])
    with monkeypatch.context() as patch:
        write_files(patch)
        write(log_root, "shop", 8)
    before = rows_of(catalog)
    log = CommitLog.open(catalog)
    assert write_checkpoint(log, log.state, 1)
    assert not compaction.holds_entries(log.state)
    assert compaction.compact(catalog, 1) is None
    monkeypatch.setattr(compaction, "HELD_ENTRIES", 4)
    assert compaction.holds_entries(log.state)
    done = compaction.compact(catalog, 1)
    assert done is not None
    assert (done.segments_before, done.segments_after) == (1, 1)
    assert not compaction.holds_entries(CommitLog.open(catalog).state)
    assert rows_of(catalog) == before


@pytest.mark.parametrize("work", ["compaction", "base", "trim"])
def test_upkeep_begins_anew_where_another_process_deletes_what_it_reads(
    log_root: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    catalog = log_root / "shop"
    write(log_root, "shop", 6)
    begin = BatchReader.__enter__
    others: list[Callable[[], object]] = [lambda: compaction.compact(catalog, 1)]
    if work == "compaction":
        others = [lambda: trim(catalog, 3, 1, keeps_state=False)]

    def enter(reader: BatchReader) -> BatchReader:
        if others:
            others.pop()()
            delete_unnamed(catalog, 1 << 60)
        return begin(reader)

    monkeypatch.setattr(BatchReader, "__enter__", enter)
    if work == "compaction":
        assert compaction.compact(catalog, 1) is not None
    elif work == "base":
        assert make_base(catalog, 1) is not None
    else:
        assert trim(catalog, 4, 1).version == 4
    assert not others
    result = verify(catalog)
    assert result.sound, result.faults
