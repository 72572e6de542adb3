"""Retention: names go first, files after their grace, and nothing that somebody may still commit."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tailrace.errors import InvalidRequest, LogFull
from tailrace.position import Position
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.files.documents import PendingSegment
from tailrace_server.wal.files.sealed import crc32c
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.state import checkpoint, commit_log
from tailrace_server.wal.state.checkpoint import write_checkpoint
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.state.last_objects import read_header
from tailrace_server.wal.upkeep import inspect
from tailrace_server.wal.upkeep import process as upkeep_process
from tailrace_server.wal.upkeep.copying import copy_log
from tailrace_server.wal.upkeep.retention import (
    delete_unnamed,
    deletion_is_due,
    last_writer_left_orphans,
    orphans,
    trim,
    unnamed,
)
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal.logs import (
    SteppingClock,
    armed,
    rows_of,
    transactions_in,
    upkeep_processes,
    upsert,
    write,
    write_files,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GRACE_S = 600.0
GRACE = int(GRACE_S * 1e6)


def files(catalog: Path) -> list[str]:
    return sorted(path.name for path in (catalog / "segments").rglob("*") if path.is_file())


@contextmanager
def no_room_for_files() -> Iterator[None]:
    """Let no file of this process have a byte; to the writer that is a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_trim_moves_the_oldest_position_and_files_follow_after_their_grace(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    write(log_root, "shop", 6)
    catalog = log_root / "shop"
    log = CommitLog.open(catalog)
    old = log.view
    assert trim(catalog, 4, now=1_000) == Position(4, 0)
    view = log.refresh()
    assert view is not None
    assert (view.oldest, view.end_row, len(view)) == (Position(4, 0), 25, 3)
    assert view.find(Position(1)) == view.find_row(0) == 0
    assert view.batch(0).first == Position(4, 0)
    assert transactions_in(rows_of(catalog, view)) == ["4", "5", "6"]
    assert delete_unnamed(catalog, 1_000 + GRACE - 1) == []
    assert transactions_in(rows_of(catalog, old)) == ["1", "2", "3", "4", "5", "6"]
    assert len(delete_unnamed(catalog, 1_000 + GRACE)) == 3
    assert len(files(catalog)) == 3
    assert verify(catalog).sound


def test_a_trim_never_goes_back_nor_past_what_is_published(log_root: Path) -> None:
    writer = LogWriter.open(log_root, "shop")
    for number in range(3):
        writer.append([upsert(str(number))])
        writer.commit()
        if number == 1:
            writer.publish()
    assert writer.trim(before=2) == Position(2, 0)
    assert writer.trim(before=1) == Position(2, 0)
    assert writer.trim(before=99) == Position(3, 0)
    view = CommitLog.open(log_root / "shop").view
    assert (len(view), view.published, view.end_row) == (0, 2, 5)
    assert view.newest_timestamp == view.timestamp_of(2) > 0
    assert view.version_at(0) == 3
    writer.publish()
    assert transactions_in(rows_of(log_root / "shop")) == ["2"]
    writer.close()
    assert verify(log_root / "shop").sound


def test_who_follows_a_log_knows_when_trimmed_versions_were_committed_and_who_writes_it_forgets(
    log_root: Path,
) -> None:
    """What has been read before a trim may be delivered after it."""
    write(log_root, "shop", 6)
    catalog, versions = log_root / "shop", np.arange(1, 7)
    follower, writer = CommitLog.open(catalog, reads_only=True), CommitLog.open(catalog)
    known = follower.view.timestamps_of(versions).tolist()
    for oldest in (3, 5):
        trim(catalog, oldest, now=1_000)
        view, other = follower.refresh(), writer.refresh()
        assert view is not None
        assert other is not None
        assert view.timestamps_of(versions).tolist() == known
        assert other.timestamp_of(1) == known[oldest - 2]  # the oldest that the log has
        times = [time + step for time in known for step in (-1, 0, 1)]
        fresh = CommitLog.open(catalog).view
        for each in (view, other):
            assert [*map(each.version_at, times)] == [*map(fresh.version_at, times)]
            assert each.newest_timestamp == fresh.newest_timestamp


def test_a_follower_that_finds_a_trim_ahead_of_it_knows_the_commits_that_it_has_seen(
    log_root: Path,
) -> None:
    write(log_root, "shop", 3)
    catalog = log_root / "shop"
    follower = CommitLog.open(catalog, reads_only=True)
    known = follower.view.timestamps_of(np.arange(1, 4)).tolist()
    write(log_root, "shop", 3)
    trim(catalog, 6, now=1_000)
    view = follower.refresh()
    assert view is not None
    assert view.oldest == Position(6, 0)
    assert view.timestamps_of(np.arange(1, 4)).tolist() == known


def test_a_follower_keeps_no_more_trimmed_commits_than_it_may(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "_PAST_COMMITS_MAX", 2)
    write(log_root, "shop", 9)
    catalog = log_root / "shop"
    follower = CommitLog.open(catalog, reads_only=True)
    known = follower.view.timestamps_of(np.arange(1, 10)).tolist()
    for oldest in (6, 7, 8):
        trim(catalog, oldest, now=1_000)
        view = follower.refresh()
        assert view is not None
        kept = [known[oldest - 4]] * (oldest - 4) + known[oldest - 4 :]
        assert view.timestamps_of(np.arange(1, 10)).tolist() == kept


def test_a_spent_pending_file_goes_after_its_grace_and_one_still_pending_never(
    log_root: Path,
) -> None:
    with open_writer(log_root, "shop", writer="w") as writer:
        pending = []
        for name in ("pending-0", "pending-1"):
            (writer.path / "segments" / "1" / name).write_bytes(b"rows")
            pending.append(PendingSegment(f"segments/1/{name}", 1, 4, crc32c(b"rows")))
        writer.commit(batch_id=0, pending=pending)
        receipt = writer.commit(batch_id=1, pending=pending[1:])
    catalog = log_root / "shop"
    assert verify(catalog).sound
    assert delete_unnamed(catalog, receipt.timestamp + GRACE - 1) == []
    log = CommitLog.open(catalog)
    write_checkpoint(log, log.state, 0)
    assert delete_unnamed(catalog, receipt.timestamp + GRACE) == ["segments/1/pending-0"]
    assert trim(catalog, 99, 0) == Position(1, 0)
    assert files(catalog) == ["pending-1"]
    (catalog / "segments" / "1" / "pending-1").write_bytes(b"rowS")
    assert [fault.reason for fault in verify(catalog).faults] == ["checksum of the pending file"]


def test_orphans_go_once_nothing_can_name_them_any_more(log_root: Path) -> None:
    catalog = log_root / "shop"
    with open_writer(log_root, "shop", writer="w") as writer:
        for batch_id in (0, 1, 2):
            writer.segment_path(batch_id, "lost").write_bytes(b"x")
        (catalog / "segments" / "1" / "pending-lost").write_bytes(b"x")
        writer.commit(batch_id=1)
        # Batch 1 may still be flushed, and batch 2 may still come.
        assert orphans(CommitLog.open(catalog)) == ["segments/1/w-0-lost.arrow"]
    open_writer(log_root, "shop", writer="w").close()
    assert len(orphans(CommitLog.open(catalog))) == 4
    assert len(delete_unnamed(catalog, 0)) == 4
    assert files(catalog) == []


def test_upkeep_deletes_what_was_trimmed_once_it_has_had_its_grace_and_readers_go_on(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no compaction is ever due, as commits are large."""
    write_files(monkeypatch)
    write(log_root, "shop", 6)
    catalog = log_root / "shop"
    follower = CommitLog.open(catalog)
    old = follower.view
    trim(catalog, 4, now=1_000)
    upkeep_process.run_if_due(catalog, 1_000 + GRACE - 1)
    assert len(files(catalog)) == 6
    assert transactions_in(rows_of(catalog, old)) == ["1", "2", "3", "4", "5", "6"]
    upkeep_process.run_if_due(catalog, 1_000 + GRACE)
    assert len(files(catalog)) == 3
    view = follower.refresh()
    assert view is not None
    for each in (view, CommitLog.open(catalog).view):
        assert transactions_in(rows_of(catalog, each)) == ["4", "5", "6"]
    assert verify(catalog).sound


def test_a_large_deletion_is_spread_over_looks_that_begin_with_the_oldest(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    write(log_root, "shop", 6)
    catalog = log_root / "shop"
    write(log_root, "shop", 1)
    (catalog / "segments" / "1" / "pending-lost").write_bytes(b"x")
    for number in (2, 4, 6):
        trim(catalog, number, now=number)
    monkeypatch.setattr(upkeep_process, "DELETE_FILES", 2)
    paths = unnamed(CommitLog.open(catalog))
    assert len(paths) == 5
    for left in (3, 1, 0):
        assert len(orphans(CommitLog.open(catalog))) == 1
        assert deletion_is_due(CommitLog.open(catalog), 6 + GRACE)
        upkeep_process.run_if_due(catalog, 6 + GRACE)
        assert unnamed(CommitLog.open(catalog)) == paths[5 - left :]
    assert not deletion_is_due(CommitLog.open(catalog), 6 + GRACE)
    assert orphans(CommitLog.open(catalog)) == []  # room was left for it in the last look


def test_a_log_forgets_the_files_that_have_gone_and_asks_after_those_that_are_due(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    write(log_root, "shop", 6)
    catalog = log_root / "shop"
    trim(catalog, 3, now=1_000)
    trim(catalog, 4, now=2_000)
    log = CommitLog.open(catalog)
    assert not deletion_is_due(log, 1_000 + GRACE - 1)
    assert deletion_is_due(log, 1_000 + GRACE)
    assert len(log.state.removed) == 3
    gone = delete_unnamed(catalog, 1_000 + GRACE)
    assert len([path for path in gone if path.startswith("segments/")]) == 2
    assert not deletion_is_due(log, 1_000 + GRACE)
    assert [*log.state.removed.values()] == [2_000]
    assert deletion_is_due(log, 2_000 + GRACE)


def test_a_writer_finds_what_the_one_before_it_has_left_and_no_file_that_is_named(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    write(log_root, "shop", 2)
    catalog = log_root / "shop"
    assert not last_writer_left_orphans(CommitLog.open(catalog))
    open_writer(log_root, "shop", writer="writer", take_over=True).close()
    assert not last_writer_left_orphans(CommitLog.open(catalog))
    (catalog / "segments" / "1" / "pending-lost").write_bytes(b"x")
    assert last_writer_left_orphans(CommitLog.open(catalog))
    upkeep_process.run_if_due(catalog, 0)
    assert not last_writer_left_orphans(CommitLog.open(catalog))
    assert len(files(catalog)) == 2


@pytest.mark.slow
def test_a_writer_deletes_by_itself_what_has_had_its_grace_and_not_before(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(monkeypatch)
    catalog, clock = log_root / "shop", SteppingClock()
    write(log_root, "shop", 3)
    (catalog / "segments" / "1" / "pending-lost").write_bytes(b"x")

    def commit(writer: LogWriter) -> None:
        writer.append([upsert(str(writer.state.last_version + 1))])
        writer.commit(publish=True)

    with LogWriter.open(log_root, "shop", clock=clock) as writer:
        commit(writer)
        assert len(upkeep_processes()) == 1  # for what the last writer left
    assert "pending-lost" not in files(catalog)
    with LogWriter.open(log_root, "shop", clock=clock) as writer:
        writer.trim(before=3)
        commit(writer)
        clock.time += GRACE - 1
        commit(writer)
        assert upkeep_processes() == []
    assert len(files(catalog)) == 6
    with LogWriter.open(log_root, "shop", clock=clock) as writer:
        commit(writer)
        clock.time += 1
        commit(writer)  # a look a minute is enough
        assert upkeep_processes() == []
        clock.time += 60_000_000
        commit(writer)
        assert len(upkeep_processes()) == 1
    assert len(files(catalog)) == 7
    assert transactions_in(rows_of(catalog)) == ["3", "4", "5", "6", "7", "8", "9"]
    assert verify(catalog).sound


def test_a_folder_that_cannot_be_listed_does_not_fail_the_publication(log_root: Path) -> None:
    write(log_root, "shop", 1)
    folder = log_root / "shop" / "segments" / "1"
    folder.rmdir()
    folder.symlink_to(folder)
    write(log_root, "shop", 1)
    assert transactions_in(rows_of(log_root / "shop")) == ["1", "2"]


def test_a_trim_on_a_full_disk_makes_room_by_what_has_had_its_grace(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an operator who trims because the disk is full is told that the disk is full."""
    write_files(monkeypatch)
    write(log_root, "shop", 6)
    catalog = log_root / "shop"
    trim(catalog, 3, now=1_000)
    with armed("checkpoint.before_link=enospc@1"):
        assert trim(catalog, 5, now=1_000 + GRACE) == Position(5, 0)
    assert len(files(catalog)) == 4
    assert CommitLog.open(catalog).view.oldest == Position(5, 0)
    assert verify(catalog).sound


def test_a_trim_that_finds_no_room_says_how_much_it_needs_and_changes_nothing(
    log_root: Path,
) -> None:
    write(log_root, "shop", 6)
    catalog = log_root / "shop"
    with (
        armed("checkpoint.before_link=enospc"),
        pytest.raises(
            LogFull, match=r"cannot trim .*: a trim first writes a checkpoint of \d[\d,]* b"
        ),
    ):
        trim(catalog, 4, now=1_000)
    assert CommitLog.open(catalog).view.oldest == Position(1, 0)
    assert verify(catalog).sound


def test_a_full_disk_holds_up_no_file_behind_an_entry_that_is_written_anew(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log_root, "shop", 2)  # small commits: entries carry the records
    catalog = log_root / "shop"
    with monkeypatch.context() as patch:
        write_files(patch)
        write(log_root, "shop", 2)
    trim(catalog, 5, now=1_000)
    with no_room_for_files(), pytest.raises(LogFull):
        delete_unnamed(catalog, 1_000 + GRACE)
    assert files(catalog) == []
    assert len(delete_unnamed(catalog, 1_000 + GRACE)) == 2
    assert verify(catalog).sound


def test_what_a_checkpoint_covers_goes_after_its_grace_and_everybody_goes_on(
    log_root: Path,
) -> None:
    catalog = log_root / "shop"
    with open_writer(log_root, "shop", writer="w") as writer:
        for number in range(10):
            writer.commit(batch_id=number, publish=False)
    with LogWriter.open(log_root, "shop", take_over=True) as log_writer:
        for number in range(1, 31):
            log_writer.append([upsert(str(number))], transaction_id=str(number))
            log_writer.commit(publish=number % 2 == 0)
            log_writer.publish()
            if number % 10 == 0:
                log_writer.compact()
    follower, before = CommitLog.open(catalog, reads_only=True), rows_of(catalog)
    checkpoint = read_header(follower.store, 2)
    assert checkpoint is not None
    # 1. A checkpoint within its grace lets nothing go.
    assert not any(path.startswith("log/") for path in delete_unnamed(catalog, 10))
    # 2. Afterwards the newest two checkpoints, and what follows the older one, are left.
    deleted = delete_unnamed(catalog, 10 * GRACE + checkpoint.timestamp)
    for folder, first in (
        ("log", checkpoint.last_entry),
        ("published", checkpoint.last_publication),
        ("checkpoints", 2),
    ):
        left = sorted(int(path.stem) for path in (catalog / folder).iterdir())
        assert left == list(range(first, left[-1] + 1))
        assert f"{folder}/{1:020}.json" in deleted
    # 3. Nobody misses it: who opens, follows, verifies, copies, lists entries, or repeats a batch.
    assert rows_of(catalog) == before == rows_of(catalog, follower.view)
    follower.refresh()
    result = verify(catalog)
    assert result.sound, result.faults
    assert result.entries == follower.state.last_entry - checkpoint.last_entry + 1
    copy_log(catalog, log_root / "copies")
    assert rows_of(log_root / "copies" / "shop") == before
    assert next(inspect.entries(catalog)).number == checkpoint.last_entry
    with open_writer(log_root, "shop", writer="w") as writer:
        assert writer.commit(batch_id=9).already_committed
        with pytest.raises(
            InvalidRequest, match="may have been in an entry that is already deleted"
        ):
            writer.commit(batch_id=8)
    write(log_root, "shop", 3)
    follower.refresh()
    assert rows_of(catalog, follower.view) == rows_of(catalog)
    assert len(rows_of(catalog)) > len(before)


def test_a_checkpoint_that_finds_no_room_does_not_fail_the_publication(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_ENTRIES_MIN", 8)
    with LogWriter.open(log_root, "shop") as writer, armed("checkpoint.before_link=enospc"):
        for number in range(10):
            writer.append([upsert(str(number))])
            writer.commit()
        writer.publish()
    assert len(transactions_in(rows_of(log_root / "shop"))) == 10
    assert list((log_root / "shop" / "checkpoints").iterdir()) == []
