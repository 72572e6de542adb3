"""When a checkpoint is due and who writes it. What is in it: test_commit_log.py beside this."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.wal.state import checkpoint
from tailrace_server.wal.state.checkpoint import (
    checkpoint_is_due,
    is_left,
    write_checkpoint,
)
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.wal.logs import write

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_one_is_due_after_so_many_entries_and_no_more_once_it_is_written(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log_root, "shop", 3)
    log = CommitLog.open(log_root / "shop")
    entries = log.state.last_entry
    monkeypatch.setattr(checkpoint, "CHECKPOINT_ENTRIES_MIN", entries)
    assert checkpoint_is_due(log)
    assert not checkpoint_is_due(log, times=2)
    assert write_checkpoint(log, log.state, 1)
    assert not checkpoint_is_due(log)
    assert CommitLog.open(log_root / "shop").state.checkpoint_entry == entries


def test_the_loser_of_a_number_writes_nothing_and_keeps_its_state(log_root: Path) -> None:
    write(log_root, "shop", 1)
    first, second = (CommitLog.open(log_root / "shop") for _ in range(2))
    assert write_checkpoint(first, first.state, 1)
    assert not write_checkpoint(second, second.state, 2)
    assert second.state.checkpoint == 0
    second.follow_checkpoints()
    assert write_checkpoint(second, second.state, 2)


def test_what_nothing_names_is_left_as_long_as_its_records_are(log_root: Path) -> None:
    write(log_root, "shop", 1)
    log = CommitLog.open(log_root / "shop")
    carried = log.view.batch(0).segment.path
    assert is_left(log.store, carried)
    assert not is_left(log.store, "log/00000000000000000001.json"), "it carries no records"
    assert not is_left(log.store, "segments/1/missing.arrow")
