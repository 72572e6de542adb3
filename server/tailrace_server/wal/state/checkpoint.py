"""Checkpoints: when one is due, and how it is made.

A checkpoint is due if the number of entries since the last checkpoint is at least 256, and at least 1/8 of the
number of rows in the checkpoint's tables (batches and commits). So opening a log reads a bounded part of it
entry by entry, and all checkpoints together write a bounded multiple of the size of the newest one.

Checkpoints have numbers of their own, without gaps. Each object is created exclusively: checkpoint k + 1 is
computed from checkpoint k, and a process that loses the race for k + 1 reads it and starts again. Readers begin
with the newest checkpoint. Old checkpoints are deleted with the entries that they cover (upkeep/retention.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace_server.wal.files import documents
from tailrace_server.wal.files.documents import CHECKPOINTS, ENTRIES, CommitEntry
from tailrace_server.wal.files.sealed import object_name
from tailrace_server.wal.state.commit_notes import note_commit

if TYPE_CHECKING:
    from tailrace_server.wal.files.object_store import ObjectStore
    from tailrace_server.wal.state.commit_log import CommitLog
    from tailrace_server.wal.state.state import LogState

CHECKPOINT_ENTRIES_MIN: Final = 256
"""The least number of entries between two checkpoints."""

CHECKPOINT_SHARE: Final = 8
"""A checkpoint is due only after one entry for each 8 rows of the tables (batches and commits)."""

DELETE_GRACE_S: Final = 600.0
"""Grace period: seconds for which a file is retained after the last object that names it is gone."""


def checkpoint_is_due(log: CommitLog, *, times: int = 1) -> bool:
    """Return True if a checkpoint is due by the rule above, with its limits multiplied by ``times``."""
    state = log.state
    entries = state.last_entry - state.checkpoint_entry
    rows = len(state.batches) + len(state.commits)
    return entries >= times * max(CHECKPOINT_ENTRIES_MIN, rows // CHECKPOINT_SHARE)


def write_checkpoint_if_due(log: CommitLog, now: int, *, times: int = 1) -> bool:
    """Write a checkpoint if one is due, by limits multiplied by ``times``; return True if it was written."""
    return checkpoint_is_due(log, times=times) and write_checkpoint(log, log.state, now)


def write_checkpoint(log: CommitLog, state: LogState, now: int) -> bool:
    """Write a state as checkpoint k + 1; return False if another process has created that checkpoint first.

    Args:
        log: The log to which the checkpoint is added.
        state: ``log.state``, or a changed copy of it (compaction, trim).
        now: Current time in microseconds since the epoch.

    Raises:
        LogFull: The device has no room.
    """
    if state is log.state:
        log.read_newest_checkpoint()
    # 1. Drop the names of files that have been deleted. A file within its grace period certainly exists, so
    #    only the few files past it are looked up in the store.
    before = now - int(DELETE_GRACE_S * 1e6)
    state.removed = {
        path: since
        for path, since in state.removed.items()
        if since > before or is_left(log.store, path)
    }
    _remember_last_commits(log, state)
    # 2. A durable checkpoint must not name an entry that a power cut could take back.
    log.make_durable()
    header, body = state.to_checkpoint(timestamp=now)
    data, crc = documents.sealed(header, body)
    path = f"{CHECKPOINTS}/{object_name(header.number)}"
    # 3. Only the winner of the number may note the checkpoint as its own. The loser has to read the winner's
    #    checkpoint, which may contain a compaction or a trim.
    if not log.store.create(path, data, failpoint="checkpoint") or log.withdraws(path, crc):
        return False
    state.note_checkpoint(header, crc)
    return True


def _remember_last_commits(log: CommitLog, state: LogState) -> None:
    """Add the last commit of each writer to the state, if an older checkpoint without these notes was read."""
    for writer, key in state.writers.items():
        found = log.read_entry(key.entry) if writer not in state.known_commits else None
        if found is not None and isinstance(found.entry, CommitEntry):
            note_commit(state.known_commits, found.entry)


def is_left(store: ObjectStore, path: str) -> bool:
    """Return True if the records at a path still exist: a segment file, or records that an entry carries."""
    if path.startswith(f"{ENTRIES}/"):
        return documents.carries_records(store, path)
    return store.exists(path)
