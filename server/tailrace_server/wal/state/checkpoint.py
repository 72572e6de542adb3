"""Checkpoints: when one is due, how it is made, and what becomes of the old ones.

A checkpoint is due when the entries since the last one number at least 256 and at least an eighth of the
rows of its tables (batches and commits). So opening reads a bounded share of a log one entry at a time, and
all checkpoints together write a bounded multiple of the newest one.

Checkpoints are a sequence of their own, dense and created exclusively: k + 1 is computed from k, and who
loses k + 1 reads it and starts again. Their names therefore stay taken for ever; but the body of one that
two later ones have followed is dropped after ``delete_grace``, and its header says so. Nobody loses by that:
a reader begins with the newest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tailrace_server.wal.files import documents
from tailrace_server.wal.files.documents import CHECKPOINTS, ENTRIES
from tailrace_server.wal.files.sealed import object_name, object_numbers

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

_HEADER_BYTES_MAX: Final = 4_096
_KEPT: Final = 2
"""Newest checkpoints that keep their bodies whatever their age."""


def checkpoint_is_due(log: CommitLog, *, times: int = 1) -> bool:
    """Return whether the rule at the head of this file asks for a checkpoint, so many times over."""
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
    # 2. A durable checkpoint must not name an entry that a power cut could take back.
    log.make_durable()
    header, body = state.to_checkpoint(timestamp=now)
    data, crc = documents.sealed(header, body)
    path = f"{CHECKPOINTS}/{object_name(header.number)}"
    # 3. Only the winner of the number may change its own state: the loser has to read the winner's checkpoint.
    if not log.store.create(path, data, failpoint="checkpoint"):
        return False
    state.note_checkpoint(header, crc)
    return True


def is_left(store: ObjectStore, path: str) -> bool:
    """Return whether a segment that nothing names still exists."""
    if path.startswith(f"{ENTRIES}/"):
        return documents.carries_records(store, path)
    return store.exists(path)


def drop_old_bodies(log: CommitLog, *, before: int) -> None:
    """Replace old checkpoints by their headers, those that were made before a time, µs."""
    newest = log.state.checkpoint
    for number in object_numbers(log.store.names(CHECKPOINTS)):
        path = f"{CHECKPOINTS}/{object_name(number)}"
        if number > newest - _KEPT:
            return
        if (log.store.size(path) or 0) <= _HEADER_BYTES_MAX:
            continue
        header = log.checkpoint_header(number)
        if header is not None and header.timestamp < before:
            superseded = msgspec.structs.replace(header, superseded=True)
            log.store.replace(path, documents.sealed(superseded)[0])
