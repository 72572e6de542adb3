"""What one run of the upkeep process does. That writers start and end it: test_compaction.py beside this."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import LogCorrupted
from tailrace_server.wal.state import checkpoint
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep import compaction, process
from tailrace_server.wal.upkeep.process import run_if_due
from tests.server.wal.logs import rows_of, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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


@pytest.mark.parametrize("failing", ["trim_by_settings", "expire", "make_base", "compact"])
def test_a_step_that_fails_keeps_no_other_from_its_work(
    log_root: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """One damaged byte would otherwise stop deletion for good, until the disk is full."""
    write(log_root, "shop", 8)
    catalog = log_root / "shop"
    monkeypatch.setattr(compaction, "DUE_SEGMENTS", 4)
    done: list[str] = []
    for name in ("trim_by_settings", "expire", "make_base", "compact", "delete_unnamed"):
        monkeypatch.setattr(process, name, noted(done, name, fails=name == failing))
    monkeypatch.setattr(process, "base_is_due", lambda log: True)
    monkeypatch.setattr(process, "deletion_is_due", lambda log, now: True)
    with pytest.raises(LogCorrupted, match="a flipped bit"):
        run_if_due(catalog, 1)
    assert done[0] == "delete_unnamed"
    assert set(done) >= {"trim_by_settings", "expire", "make_base", "compact"}


def test_a_damaged_segment_stops_compaction_and_not_deletion(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log_root, "shop", 4)
    catalog = log_root / "shop"
    monkeypatch.setattr(compaction, "DUE_SEGMENTS", 4)
    run_if_due(catalog, 1)
    (damaged,) = catalog.glob("segments/compact/*.arrow")
    damaged.write_bytes(bytes(damaged.stat().st_size))
    write(log_root, "shop", 4)
    (orphan := catalog / "segments" / "1" / "killed.arrow").parent.mkdir(exist_ok=True)
    orphan.touch()
    with pytest.raises(LogCorrupted):
        run_if_due(catalog, 2)
    assert not orphan.exists()


def noted(done: list[str], name: str, *, fails: bool) -> Callable[..., object]:
    """Return the step of a name, which first notes that it runs, and may fail then."""
    work = getattr(process, name)

    def step(*arguments: object, **options: object) -> object:
        done.append(name)
        if fails:
            raise LogCorrupted("segments/x.arrow", 7, "a flipped bit")
        return work(*arguments, **options)

    return step
