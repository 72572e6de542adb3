"""Retention: what leaves the log, first by name and then from the disk.

A trim moves ``oldest`` in a new checkpoint; files that hold nothing at or above it are no longer named.
Files that nothing names any more (trimmed, compacted, or pending and spent) are deleted ``delete_grace``
after the checkpoint or entry that stopped naming them: readers with an older view have that long, and one
that still misses a file takes the newest checkpoint and goes on by position.

Orphans are files below ``segments`` that no checkpoint or entry has ever named: what tasks left that
failed. Whether one may still be committed is decided by what the log says, not by a clock:

* its epoch is below the newest: that writer is fenced;
* or its epoch is the newest and a later batch of its writer has been committed;
* or it was written for checkpoint k + 1, and k + 1 exists without it.
"""

from __future__ import annotations

import copy
import os
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.position import Position
from tailrace_server.wal.checkpoint import DELETE_GRACE_S, drop_old_bodies, write_checkpoint
from tailrace_server.wal.commit_log import CommitLog
from tailrace_server.wal.documents import ENTRIES, SEGMENTS
from tailrace_server.wal.objects import (
    TEMPORARY_FOLDER,
    os_errors,
    read_bytes,
    replace,
    unseal,
    without_records,
)
from tailrace_server.wal.table import LAST_VERSION, SEGMENT, CommitTable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace_server.wal.state import LogState

_TEMPORARY_MAX_AGE_S: Final = 3_600.0
"""Objects on their way take milliseconds; deleting one too early would cost its writer a retry."""

_ATTEMPTS: Final = 8


def trim(path: Path, before: int, now: int) -> Position:
    """Let go of all versions below ``before``; return the oldest position that is kept now.

    ``before`` above the newest published version lets go of everything published. Nothing is deleted yet; see
    ``delete_unnamed``.

    Args:
        path: The catalog's folder.
        before: First version to keep.
        now: µs since the epoch.

    Raises:
        LogFull: No room for the checkpoint; nothing was changed.
    """
    for _ in range(_ATTEMPTS):
        log = CommitLog.open(path)
        state = log.state
        oldest = Position(min(before, state.published + 1), 0)
        if oldest <= state.oldest:
            return state.oldest
        log.read_newest_checkpoint()
        if write_checkpoint(log, _trimmed(state, oldest, now), now):
            return oldest
    return CommitLog.open(path).view.oldest


def _trimmed(state: LogState, oldest: Position, now: int) -> LogState:
    """Return a copy of a state that begins at ``oldest``."""
    trimmed = copy.copy(state)
    versions = state.batches.columns[LAST_VERSION, : len(state.batches)]
    start = int(np.searchsorted(versions, oldest.version, "left"))
    all_gone = start == len(state.batches)
    kept = len(state.batches.segments) if all_gone else int(state.batches.columns[SEGMENT, start])
    gone = state.batches.segments.paths(0, kept)
    trimmed.removed = state.removed | dict.fromkeys(gone, now)
    trimmed.batches = state.batches.slice(start)
    commits = state.commits.columns[:, : len(state.commits)]
    # The commit of the version before `oldest` stays: its timestamp bounds what can still appear.
    first = max(0, int(np.searchsorted(commits[0], oldest.version - 1, "right")) - 1)
    trimmed.commits = CommitTable()
    trimmed.commits.append(commits[:, first:])
    trimmed.oldest = oldest
    trimmed.revision += 1
    return trimmed


def delete_unnamed(path: Path, now: int, *, grace_s: float = DELETE_GRACE_S) -> list[str]:
    """Delete what nothing names any more and has had its grace, and the orphans; return their paths.

    Any process may, at any time.

    Raises:
        LogError: The device failed; what is left goes the next time.
    """
    log = CommitLog.open(path)
    log.read_newest_checkpoint()
    before = now - int(grace_s * 1e6)
    gone = [file for file, since in log.state.removed.items() if since <= before]
    deleted = []
    with os_errors(f"cannot delete from {path}"):
        for file in (*gone, *orphans(log)):
            if _delete(path, file):
                deleted.append(file)  # noqa: PERF401 - some are deleted also if one fails
        _delete_stale_temporaries(path)
    drop_old_bodies(log, before=before)
    return deleted


def _delete(catalog: Path, file: str) -> bool:
    """Delete a segment; return whether it was there. An entry loses its records and keeps its lines."""
    if file.startswith(f"{ENTRIES}/"):
        data = read_bytes(catalog / file)
        if data is None or (text := without_records(data)) == data:
            return False
        unseal(file, text)
        replace(catalog, file, text)
        return True
    try:
        os.unlink(catalog / file)
    except FileNotFoundError:
        return False
    return True


def orphans(log: CommitLog) -> list[str]:
    """Return the files below ``segments`` that nothing names and nothing can name any more."""
    state = log.state
    named = set(state.batches.segments.paths())
    named |= {pending.path for pending in state.pending} | state.removed.keys()
    return [
        file for file in _segment_files(log.path) if file not in named and _is_spent(state, file)
    ]


def _is_spent(state: LogState, file: str) -> bool:
    """Return whether nothing can name a file any more that nothing names now."""
    _, folder, name = file.split("/", 2)
    if folder == "compact":
        number = name.partition("-")[0]
        return number.isdecimal() and int(number) <= state.checkpoint
    if not folder.isdecimal() or int(folder) > state.epoch:
        return False
    if int(folder) < state.epoch:
        return True
    writer = state.holder.writer
    batch = name.removeprefix(f"{writer}-").partition("-")[0]
    if not name.startswith(f"{writer}-") or not batch.isdecimal():
        return False
    return int(batch) < state.writers[writer].batch_id


def _segment_files(path: Path) -> Iterator[str]:
    with os_errors(f"cannot read {path / SEGMENTS}"):
        for folder in sorted(os.listdir(path / SEGMENTS)):
            for name in sorted(os.listdir(path / SEGMENTS / folder)):
                yield f"{SEGMENTS}/{folder}/{name}"


def _delete_stale_temporaries(path: Path) -> None:
    limit = time.time() - _TEMPORARY_MAX_AGE_S
    for name in os.listdir(path / TEMPORARY_FOLDER):
        file = path / TEMPORARY_FOLDER / name
        try:
            if file.stat().st_mtime < limit:
                file.unlink()
        except FileNotFoundError:
            continue
