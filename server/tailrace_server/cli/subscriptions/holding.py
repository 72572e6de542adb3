"""The report of a trim on the named subscriptions that hold it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.cli.output import note
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.subscriptions.holds import holding

if TYPE_CHECKING:
    from pathlib import Path


def note_holding(path: Path, before: int, now: int) -> None:
    """Say which subscriptions keep a catalog from being trimmed to a version, at a time in µs."""
    if held := holding(path, CommitLog.open(path).view, before, now):
        note(
            f"held by named subscriptions: {held}; move or delete one with `tailrace subscription`, or wait "
            "for its cap"
        )
