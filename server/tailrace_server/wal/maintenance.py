"""Checkpoints: when one is due, and how it is made.

A checkpoint is due when the entries since the last one number at least 256 and at least an eighth of the rows of its
tables (batches and commits). So opening reads a bounded share of a log one entry at a time, and all checkpoints
together write a bounded multiple of the newest one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace_server.wal import documents
from tailrace_server.wal.documents import CHECKPOINTS
from tailrace_server.wal.objects import create, object_name

if TYPE_CHECKING:
    from tailrace_server.wal.commit_log import CommitLog

CHECKPOINT_ENTRIES_MIN: Final = 256
"""Entries since the last checkpoint before another is due."""

CHECKPOINT_SHARE: Final = 8
"""… and at least one of this many rows of its tables."""


def checkpoint_is_due(log: CommitLog) -> bool:
    """Return whether the rule at the head of this file asks for a checkpoint."""
    state = log.state
    entries = state.last_entry - state.checkpoint_entry
    rows = len(state.batches) + len(state.commits)
    return entries >= max(CHECKPOINT_ENTRIES_MIN, rows // CHECKPOINT_SHARE)


def write_checkpoint_if_due(log: CommitLog, now: int) -> bool:
    """Write a checkpoint if one is due; return whether it was written."""
    return checkpoint_is_due(log) and write_checkpoint(log, now)


def write_checkpoint(log: CommitLog, now: int) -> bool:
    """Write checkpoint k + 1 of a log's state as it is; False when another took the number.

    Raises:
        LogFull: No room.
    """
    log.read_newest_checkpoint()
    state = log.state
    header, body = state.to_checkpoint(timestamp=now)
    data, crc = documents.sealed(header, body)
    path = f"{CHECKPOINTS}/{object_name(header.number)}"
    if not create(log.path, path, data, failpoint="checkpoint"):
        return False
    state.checkpoint, state.checkpoint_crc = header.number, crc
    state.checkpoint_entry = header.last_entry
    return True
