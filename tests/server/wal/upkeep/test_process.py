"""What one run of the upkeep process does. That writers start and end it: test_compaction.py beside this."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.wal.state import checkpoint
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep import compaction
from tailrace_server.wal.upkeep.process import run_if_due
from tests.server.wal.logs import rows_of, write

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_nothing_is_written_where_nothing_is_due(log_root: Path) -> None:
    write(log_root, "shop", 3)
    run_if_due(log_root / "shop", 1)
    assert CommitLog.open(log_root / "shop").state.checkpoint == 0


def test_a_compaction_takes_the_place_of_a_checkpoint(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log_root, "shop", 4)
    rows = rows_of(log_root / "shop")
    monkeypatch.setattr(checkpoint, "CHECKPOINT_ENTRIES_MIN", 1)
    run_if_due(log_root / "shop", 1)
    state = CommitLog.open(log_root / "shop").state
    assert (state.checkpoint, state.revision) == (1, 0)
    monkeypatch.setattr(compaction, "DUE_SEGMENTS", 4)
    run_if_due(log_root / "shop", 2)
    state = CommitLog.open(log_root / "shop").state
    assert (state.checkpoint, state.revision, len(state.batches)) == (2, 1, 1)
    assert rows_of(log_root / "shop") == rows
