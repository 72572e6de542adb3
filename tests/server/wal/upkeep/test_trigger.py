"""What a writer does itself, and how it starts the process for the rest.

What that process does: test_process.py, test_compaction.py, test_retention.py.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tailrace.errors import LogUnreadable
from tailrace_server.wal.catalog_writer import CatalogWriter
from tailrace_server.wal.state import checkpoint
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.trigger import DELETION_CHECK_S, UpkeepTrigger
from tests.server.wal.logs import SteppingClock, upkeep_processes, write
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_checkpoint_that_is_due_is_made_here_once_and_starts_no_process(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log_root, "shop", 2)
    log = CommitLog.open(log_root / "shop")
    trigger = UpkeepTrigger(log.path, SteppingClock())
    trigger.run_if_due(log)
    assert log.state.checkpoint == 0
    monkeypatch.setattr(checkpoint, "CHECKPOINT_ENTRIES_MIN", log.state.last_entry)
    for _ in range(2):
        trigger.run_if_due(log)
        assert log.state.checkpoint == 1
    assert upkeep_processes() == []
    trigger.close()
    trigger.close()  # nothing was started, so nothing is waited for


def test_files_that_are_due_are_asked_for_no_sooner_than_the_next_check(log_root: Path) -> None:
    """They are forgotten when they are asked for and found to be gone, which shows the moment."""
    write(log_root, "shop", 1)
    log, clock = CommitLog.open(log_root / "shop"), SteppingClock(10**12)
    trigger = UpkeepTrigger(log.path, clock)
    trigger.run_if_due(log)
    log.state.removed = {"segments/1/gone.arrow": 0}
    clock.time += int(DELETION_CHECK_S * 1e6) - 1_000
    trigger.run_if_due(log)
    assert log.state.removed
    clock.time += 1_000
    trigger.run_if_due(log)
    assert not log.state.removed
    assert upkeep_processes() == []


def test_a_process_that_is_not_done_in_time_is_killed_and_the_next_writer_has_its_own(
    log_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is stopped, as one that waits for its storage; the orphan that it was started for is still there."""
    write(log_root, "shop", 1)
    orphan = log_root / "shop" / "segments" / "1" / "log-writer-left.arrow"
    orphan.write_bytes(b"left")
    with CatalogWriter.open(log_root, "shop", writer="log-writer") as writer:
        trigger = UpkeepTrigger(log_root / "shop", SteppingClock())
        process = trigger._start()
        process.send_signal(signal.SIGSTOP)
        trigger._process = process
        trigger.close(hurried=True)
        assert process.returncode == -signal.SIGKILL
        assert "was ended, as it was not complete 2 s after its writer" in caplog.text
        assert orphan.exists()
        trigger.run_if_due(writer.log)
        trigger.close()
    assert not orphan.exists()


def test_what_keeps_the_process_from_its_work_is_heard_until_it_is_mended(log_root: Path) -> None:
    write(log_root, "shop", 1)
    catalog = log_root / "shop"
    log = CommitLog.open(catalog)
    trigger = UpkeepTrigger(catalog, SteppingClock())
    document = (catalog / "catalog.json").rename(log_root / "aside")
    trigger._ask()

    def heard() -> str:
        trigger.run_if_due(log)
        return trigger.failure

    wait_until(lambda: heard() == LogUnreadable.code)
    document.rename(catalog / "catalog.json")
    trigger._ask()
    wait_until(lambda: heard() == "")
    trigger.close()


def test_the_process_imports_nothing_from_the_current_folder(
    log_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a file of somebody else's, or of the user's own, runs there, or ends the upkeep in silence."""
    write(log_root, "shop", 1)
    trigger = UpkeepTrigger(log_root / "shop", SteppingClock())
    here = tmp_path / "here"
    (here / "tailrace_server").mkdir(parents=True)
    for name in ("logging.py", "msgspec.py", "tailrace_server/__init__.py"):
        (here / name).write_text(f"open({str(here / 'imported')!r}, 'w').close()")
    monkeypatch.chdir(here)
    process = trigger._process = trigger._start()
    trigger.close()
    assert process.returncode == 0
    assert not (here / "imported").exists()
