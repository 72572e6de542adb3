"""Checkpoints: when one is due, and how it is made.

A checkpoint is due when the entries since the last one number at least 256 and at least an eighth of the
rows of its tables (batches and commits). So opening reads a bounded share of a log one entry at a time, and
all checkpoints together write a bounded multiple of the newest one.

Checkpoints are a sequence of their own, dense and created exclusively: k + 1 is computed from k, and the loser
of k + 1 reads it and starts again. A reader begins with the newest. Old ones are deleted with the entries that
they cover (upkeep/retention.py).
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
"""Entries since the last checkpoint before another is due, …"""

CHECKPOINT_SHARE: Final = 8
"""… and at least one of this many rows of its tables."""

DELETE_GRACE_S: Final = 600.0
"""Seconds for which a file stays that nothing names any more."""


def checkpoint_is_due(log: CommitLog, *, times: int = 1) -> bool:
    """Return True if a checkpoint is due by the rule above, with its limits multiplied by ``times``."""
    state = log.state
    entries = state.last_entry - state.checkpoint_entry
    rows = len(state.batches) + len(state.commits)
    return entries >= times * max(CHECKPOINT_ENTRIES_MIN, rows // CHECKPOINT_SHARE)


def write_checkpoint_if_due(log: CommitLog, now: int, *, times: int = 1) -> bool:
    """Write a checkpoint if one is due, so many times over; return whether it was written."""
    return checkpoint_is_due(log, times=times) and write_checkpoint(log, log.state, now)


def write_checkpoint(log: CommitLog, state: LogState, now: int) -> bool:
    """Write checkpoint k + 1 of a state as it is; False when another took the number.

    Args:
        log: Where the checkpoint goes.
        state: ``log.state``, or a changed copy of it (compaction, trim).
        now: µs since the epoch.

    Raises:
        LogFull: No room.
    """
    if state is log.state:
        log.read_newest_checkpoint()
    # 1. Forget the files that are deleted. One within its grace still exists: only the others, which are few,
    #    are asked for.
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
    # 3. Only the winner of the number may change its own state: the loser has to read the winner's checkpoint.
    if not log.store.create(path, data, failpoint="checkpoint") or log.withdraws(path, crc):
        return False
    state.note_checkpoint(header, crc)
    return True


def _remember_last_commits(log: CommitLog, state: LogState) -> None:
    """Note the last commit of each writer, if the state comes from an older checkpoint without these notes."""
    for writer, key in state.writers.items():
        found = log.read_entry(key.entry) if writer not in state.known_commits else None
        if found is not None and isinstance(found.entry, CommitEntry):
            note_commit(state.known_commits, found.entry)


def is_left(store: ObjectStore, path: str) -> bool:
    """Return True if a segment that nothing names still exists."""
    if path.startswith(f"{ENTRIES}/"):
        return documents.carries_records(store, path)
    return store.exists(path)
