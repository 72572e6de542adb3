"""Retention: removal of old versions from the log, and later of their files from the disk.

A trim first makes a base of the version before the new ``oldest`` (base/making.py), so that the state of every
table stays readable from there on. Then it creates a checkpoint with the new ``oldest``. That checkpoint no
longer names the files without any records at or above it. ``trim_by_settings`` trims by the catalog's settings
(keeping.py).

A file becomes unnamed when a checkpoint or an entry stops naming it: because it was trimmed or compacted, or
because its pending rows were committed. It is deleted after a grace period, ``delete_grace``. Readers with an
older view have that much time. A reader that still misses a file reads the newest checkpoint, and continues
from its position. The upkeep of a writer deletes the files (trigger.py). If no writer runs, ``tailrace log
trim`` and ``tailrace log compact`` delete them.

Orphans are files below ``segments`` that no checkpoint or entry has ever named, because the task that wrote
them failed. A file is an orphan if the log shows that it can never be named; no clock is used:

* its epoch is below the newest one, so its writer is fenced;
* or its epoch is the newest one, and a later batch of its writer has been committed;
* or it was written for checkpoint k + 1, and k + 1 exists and does not name it.

Finding orphans takes a listing of all segments, so it is done only together with other deletions. In addition,
a writer lists the folder of the epoch before its own when it starts, for the orphans of the last writer.

Entries, publications and checkpoints are deleted once a later checkpoint covers them. A checkpoint has the
whole state of the log after its last entry, so a process that opens the log reads nothing before it. Readers
and writers that opened the log earlier have ``delete_grace`` to read further; after that they continue from the
newest checkpoint (state/last_objects.py). Objects are deleted in the order of their numbers, and the last one
that the checkpoint covers is retained. By these two rules a paused writer notices that its number was used
before. An entry, and all entries after it, are retained while the log names the records that the entry carries.
Therefore a compaction moves such records into a segment, before too many entries wait.
"""

from __future__ import annotations

import copy
import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.errors import InvalidRequest, LogError, LogFull
from tailrace.position import Position
from tailrace_server.failpoints import reach
from tailrace_server.wal.base import making
from tailrace_server.wal.base.key_files import delete_needless_key_files
from tailrace_server.wal.base.making import (
    delete_unnamed_rows,
    deletion_of_rows_is_due,
    drop_unneeded,
    make_base,
)
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.documents import CHECKPOINTS, ENTRIES, PUBLICATIONS, SEGMENTS
from tailrace_server.wal.files.numbered import numbered_path
from tailrace_server.wal.files.sealed import object_number, object_numbers, unseal, without_records
from tailrace_server.wal.sequences.holds import held_from, release
from tailrace_server.wal.sequences.settings import MAX_LOOKBACK, newest_settings, setting
from tailrace_server.wal.state.batch_table import LAST_VERSION, SEGMENT, CommitTable
from tailrace_server.wal.state.checkpoint import DELETE_GRACE_S, is_left, write_checkpoint
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.state.last_objects import read_header
from tailrace_server.wal.upkeep.keeping import Keeping, first_after, is_worth, judge

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tailrace_server.wal.files.object_store import ObjectStore
    from tailrace_server.wal.state.state import LogState

DELETE_OBJECTS: Final = 65_536
"""The most objects of each sequence that one run of a writer's upkeep deletes; that takes about a second."""
DELETE_FILES: Final = 4_096
"""The most files that one run of a writer's upkeep deletes, the longest unnamed first. That takes a few
seconds, so a large trim delays neither a compaction nor the end of the writer for long; the next run
continues."""

_ATTEMPTS: Final = 8
DUE_OBJECTS: Final = 256
"""Number of superseded objects in one sequence that makes a deletion due."""
_CHECKPOINTS_KEPT: Final = 2
"""Number of newest checkpoints that are always retained, whatever their age."""


class FirstNumbers(NamedTuple):
    """The lowest number to retain in each sequence; objects with lower numbers may be deleted."""

    entries: int
    publications: int
    checkpoints: int

    def by_folder(self) -> Iterable[tuple[str, int]]:
        """Yield the folder and the lowest retained number of each sequence, in the order of their deletion."""
        return zip((ENTRIES, PUBLICATIONS, CHECKPOINTS), self, strict=True)


def first_numbers(log: CommitLog, before: int) -> FirstNumbers | None:
    """Return the lowest number to retain in each sequence; None if no checkpoint is old enough.

    Args:
        log: The log, after ``read_newest_checkpoint``.
        before: Time, µs since the epoch, up to which checkpoints were made whose grace period is over.

    Raises:
        LogCorrupted: A checkpoint's header is damaged.
    """
    state, number = log.state, log.state.checkpoint - _CHECKPOINTS_KEPT + 1
    # 1. Find the newest checkpoint whose grace period is over: readers had that much time to read past it.
    header = read_header(log.store, number) if number > 0 else None
    while header is not None and header.timestamp > before:
        number -= 1
        header = read_header(log.store, number) if number > 0 else None
    if header is None:
        return None
    # 2. Retain entries with records that the log names, or stopped naming within the grace period.
    waiting = [path for path, since in state.removed.items() if since > before]
    needed = _entries_in([*state.batches.segments.paths(), *waiting])
    # 3. Retain the entry of a writer's last commit, if no checkpoint has that commit's versions yet (one made
    #    by an older tailrace has not).
    needed += [
        key.entry
        for writer, key in state.writers.items()
        if key.entry and writer not in state.known_commits
    ]
    entries = min([header.last_entry, *needed])
    return FirstNumbers(entries, header.last_publication, number)


def deletion_of_objects_is_due(log: CommitLog, before: int) -> bool:
    """Return True if at least DUE_OBJECTS objects of a sequence can be deleted; looks up one name in each."""
    numbers = first_numbers(log, before)
    return numbers is not None and any(
        first > DUE_OBJECTS and log.store.exists(numbered_path(folder, first - DUE_OBJECTS))
        for folder, first in numbers.by_folder()
    )


def delete_old_objects(log: CommitLog, before: int, objects_max: int | None = None) -> list[str]:
    """Delete the objects below ``first_numbers``; return their paths.

    Args:
        log: The log, after ``read_newest_checkpoint``.
        before: Time, µs since the epoch, up to which checkpoints were made whose grace period is over.
        objects_max: The most objects to delete in each sequence, the lowest numbers first; None: all.

    Raises:
        LogError: The device failed; the next call deletes the rest.
    """
    numbers = first_numbers(log, before)
    deleted: list[str] = []
    for folder, first in numbers.by_folder() if numbers is not None else ():
        # In the order of the numbers: if the process is killed here, the sequence must have no gap.
        old = [each for each in object_numbers(log.store.names(folder)) if each < first]
        for number in old[:objects_max]:
            path = numbered_path(folder, number)
            if log.store.delete(path):
                deleted.append(path)
            reach("objects.deleted")
    return deleted


def first_in(log: CommitLog, folder: str, last: int) -> int:
    """Return the lowest existing number of a sequence; ``last`` + 1 if the sequence is empty."""
    return min(object_numbers(log.store.names(folder)), default=last + 1)


def _entries_in(paths: Iterable[str]) -> list[int]:
    """Return the numbers of those paths that are paths of entries."""
    beginning = f"{ENTRIES}/"
    found = (object_number(path[len(beginning) :]) for path in paths if path.startswith(beginning))
    return [number for number in found if number is not None]


def trim(path: Path, before: int, now: int, *, keeps_state: bool = True) -> Position:
    """Remove all versions below ``before`` from the log; return the oldest position that is retained now.

    The files are deleted later, by ``delete_unnamed``. Versions that a named subscription holds within its cap
    are retained; a hold beyond its cap is broken. On a full disk, files whose grace period is over are deleted
    first, to make room for the files of the trim.

    Args:
        path: The catalog's folder.
        before: The first version to retain. Above the newest published version, all published versions are
            removed.
        now: Current time, µs since the epoch.
        keeps_state: Make a base first, if the state of the removed versions can be read. Without a base, rows
            that were last written below ``before`` are lost, and no state can be read any more.

    Raises:
        InvalidRequest: A version to remove is younger than the catalog's ``max_lookback``; the log is
            unchanged.
        LogFull: There is no room for the base or the checkpoint; the log is unchanged. The error says how much
            is needed.
        LogCorrupted: The log, or the base from which to make a base, is damaged; the log is unchanged.
        LogError: Other processes kept changing bases or checkpoints; the log is unchanged.
    """
    has_made_room = False
    before = min(before, CommitLog.open(path).state.published + 1)
    for _ in range(_ATTEMPTS):
        # 1. Decide by the current log. Since the last round, another process may have trimmed it, set a longer
        #    max_lookback, or created a named subscription with a hold. ``before`` never rises, so a busy writer
        #    cannot keep this loop going.
        log = CommitLog.open(path)
        state = log.state
        _refuse_younger(log, Position(before, 0), now)
        before = release(path, log.view, before, now).before
        oldest = Position(before, 0)
        if oldest <= state.oldest:
            return state.oldest
        # 2. Making the base may take long, so decide again after it.
        if keeps_state and not making.keeps_state(log, before):
            has_made_room |= _make_base(path, before - 1, now)
            reach("trim.has_base")
            continue
        log.read_newest_checkpoint()
        trimmed = _trimmed(state, oldest, now)
        # 3. Create the checkpoint with the number for which the base is reserved. If another process has used
        #    that number, begin again.
        try:
            if write_checkpoint(log, trimmed, now):
                with suppress(LogFull):  # the next base that is made drops them
                    drop_unneeded(path, now)
                return oldest
        except LogFull as full:
            if has_made_room:
                raise _no_room(path, trimmed, now) from full
            has_made_room = True
            with suppress(LogFull):  # the files that it could delete have made some room
                delete_unnamed(path, now)
    raise LogError(
        f"{path} was not trimmed to {before}: other processes change its checkpoints or bases at "
        "the same time; try again"
    )


def trim_by_settings(path: Path, now: int, *, at_once: bool = False) -> Keeping:
    """Trim the log by the settings of its catalog, if that is due; return the decision (keeping.py).

    Args:
        path: The catalog's folder.
        now: Current time, µs since the epoch.
        at_once: Trim even if a trim is not due yet.

    Raises:
        LogError: The settings are damaged, or an error of ``trim``.
    """
    log = CommitLog.open(path)
    verdict = judge(log.view, newest_settings(log.store, log.uuid).settings, now)
    kept = held_from(path, log.view, verdict.before, now) if verdict.due else verdict.before
    if (verdict.due and is_worth(log.view, verdict, kept)) or (
        at_once and verdict.before > log.state.oldest.version
    ):
        trim(path, verdict.before, now)
    return verdict


def _make_base(path: Path, version: int, now: int) -> bool:
    """Make and reserve the base that a trim needs; return True if files had to be deleted to make room."""
    try:
        make_base(path, now, version, reserve=True)
    except LogFull:
        with suppress(LogFull):
            delete_unnamed(path, now)
        try:
            make_base(path, now, version, reserve=True)
        except LogFull as full:
            raise LogFull(
                f"cannot trim {path}: a trim first writes the newest image of every row, so that "
                f"state remains readable, and its device has no space for that ({full}); free "
                "some space, or give up the state too: tailrace log trim --without-state. The "
                "log is unchanged"
            ) from full
        return True
    return False


def _refuse_younger(log: CommitLog, oldest: Position, now: int) -> None:
    """Check that a trim to ``oldest`` removes no version that the current settings promise to retain.

    Raises:
        InvalidRequest: A version to remove is younger than ``max_lookback``.
    """
    lookback = newest_settings(log.store, log.uuid).settings.get(MAX_LOOKBACK)
    if lookback is None:
        return
    kept = first_after(log.view, now - lookback)
    if min(oldest.version, log.state.published + 1) > kept:
        raise InvalidRequest(
            f"catalog {log.view.name!r} retains version {kept} and all later ones: they are "
            f"younger than max_lookback ({setting(MAX_LOOKBACK, of_type=False).shown(lookback)}); "
            "trim to that version, or lower max_lookback: tailrace catalog set"
        )


def _no_room(path: Path, trimmed: LogState, now: int) -> LogFull:
    """Return the error for a trim whose checkpoint has no room; it contains the checkpoint's size."""
    size = len(documents.sealed(*trimmed.to_checkpoint(timestamp=now))[0])
    return LogFull(
        f"cannot trim {path}: a trim first writes a checkpoint of {size:,} bytes, and its device "
        "has no space for that; free some space, then trim again. The log is unchanged"
    )


def _trimmed(state: LogState, oldest: Position, now: int) -> LogState:
    """Return a copy of a state that is trimmed to begin at ``oldest``."""
    # 1. The tables begin with the batch that has ``oldest``. Older records in that batch stay in the file, but
    #    cannot be read.
    trimmed = copy.copy(state)
    versions = state.batches.columns[LAST_VERSION, : len(state.batches)]
    start = int(np.searchsorted(versions, oldest.version, "left"))
    all_gone = start == len(state.batches)
    kept = len(state.batches.segments) if all_gone else int(state.batches.columns[SEGMENT, start])
    # 2. Segments with older records only become unnamed, and are deleted after the grace period.
    gone = state.batches.segments.paths(0, kept)
    trimmed.removed = state.removed | dict.fromkeys(gone, now)
    trimmed.batches = state.batches.slice(start)
    # 3. Retain the commit of the version before ``oldest``. Its timestamp is the end of the trimmed time: a
    #    start at or before it is refused.
    commits = state.commits.columns[:, : len(state.commits)]
    first = max(0, int(np.searchsorted(commits[0], oldest.version - 1, "right")) - 1)
    trimmed.commits = CommitTable()
    trimmed.commits.append(commits[:, first:])
    trimmed.oldest = oldest
    trimmed.bodies_from = tuple(each for each in state.bodies_from if each[1] > oldest.version)
    trimmed.revision += 1
    return trimmed


def deletion_is_due(log: CommitLog, now: int) -> bool:
    """Return True if files exist that can be deleted: unnamed ones after their grace period, or old objects.

    Unnamed files are deleted in a fixed order. So only the last one that is due is looked up. If it is gone,
    all are gone, and this call removes their names from the log's state.

    Raises:
        LogError: The device failed.
    """
    state, before = log.state, _before(now, DELETE_GRACE_S)
    due = _due(state, before)
    if (due and is_left(log.store, max(due)[1])) or deletion_of_objects_is_due(log, before):
        return True
    if due:
        state.removed = {file: since for file, since in state.removed.items() if since > before}
    return deletion_of_rows_is_due(log, before)


def delete_unnamed(
    path: Path, now: int, *, grace_s: float = DELETE_GRACE_S, files_max: int | None = None
) -> list[str]:
    """Delete unnamed files whose grace period is over, and orphans; return their paths.

    Any process may call this at any time.

    Args:
        path: The catalog's folder.
        now: µs since the epoch.
        grace_s: Seconds for which an unnamed file is retained.
        files_max: The most files to delete, the longest unnamed first; None: all. Old entries, publications and
            checkpoints are not counted.

    Raises:
        LogError: The device failed; the next call deletes the rest.
    """
    # 1. The newest checkpoint lists all files to delete; the entries after it add files that became unnamed
    #    since.
    log = CommitLog.open(path)
    log.read_newest_checkpoint()
    before = _before(now, grace_s)
    # Old objects first: an entry that is deleted here need not be rewritten without its records below.
    deleted = delete_old_objects(log, before, None if files_max is None else DELETE_OBJECTS)
    others_max = None if files_max is None else len(deleted) + files_max
    gone = [file for _, file in sorted(_due(log.state, before))]
    # 2. Delete in the order of ``_due``, because ``deletion_is_due`` looks up the last file only; orphans come
    #    last. To remove its records, an entry is written anew. A full disk has no room for that until other
    #    files are deleted, so such entries are tried again at the end.
    waiting: list[str] = []
    for file in itertools.chain(gone, orphans(log)):
        if len(deleted) == others_max:
            break
        try:
            if _delete(log.store, file):
                deleted.append(file)
        except LogFull:
            waiting.append(file)
    deleted += [file for file in waiting if _delete(log.store, file)]
    deleted += delete_unnamed_rows(path, now, grace_s=grace_s)
    deleted += delete_needless_key_files(log)
    # 3. Delete the temporary files of killed processes. No other file depends on them.
    if log.store.arrivals is not None:
        log.store.arrivals.delete_leftovers()
    return deleted


def unnamed(log: CommitLog) -> list[str]:
    """Return the unnamed files that still exist, in the order of their deletion.

    Raises:
        LogError: The device failed.
    """
    log.read_newest_checkpoint()
    removed = sorted((since, file) for file, since in log.state.removed.items())
    return [file for _, file in removed if is_left(log.store, file)]


def _before(now: int, grace_s: float) -> int:
    """Return the time, µs, at which a file must have been unnamed already to be deleted now."""
    return now - int(grace_s * 1e6)


def _due(state: LogState, before: int) -> list[tuple[int, str]]:
    """Return the files that were unnamed at a time, µs, as pairs of when each became unnamed and its path.

    Every process deletes the files in the sorted order of these pairs, so once the last is gone, all are gone.
    """
    return [(since, file) for file, since in state.removed.items() if since <= before]


def _delete(store: ObjectStore, file: str) -> bool:
    """Delete a segment, or remove the records from an entry; return False if they are gone already."""
    if file.startswith(f"{ENTRIES}/"):
        # The entry's lines are a part of the chain and must never be lost. So check them before they replace
        # the file.
        found = store.read(file)
        if found is None or (text := without_records(found.data)) == found.data:
            return False
        unseal(file, text)
        store.replace(file, text)
        return True
    return store.delete(file)


def orphans(log: CommitLog) -> list[str]:
    """Return the unnamed files below ``segments`` that no entry or checkpoint can name any more."""
    return _orphans_in(log, log.store.names(SEGMENTS))


def last_writer_left_orphans(log: CommitLog) -> bool:
    """Return True if the epoch before the newest one has orphans; this lists only the folder of that epoch.

    Raises:
        LogError: The device failed.
    """
    return bool(_orphans_in(log, [str(log.state.epoch - 1)]))


def _orphans_in(log: CommitLog, folders: list[str]) -> list[str]:
    files = [
        f"{SEGMENTS}/{folder}/{name}"
        for folder in folders
        for name in log.store.names(f"{SEGMENTS}/{folder}")
    ]
    if not files:
        return []
    # A file may become named after the state was read. ``_is_spent`` returns False for it, because it belongs
    # to a later epoch, batch or checkpoint than those of the state.
    state = log.state
    named = set(state.batches.segments.paths())
    named |= {pending.path for pending in state.pending} | state.removed.keys()
    return [file for file in files if file not in named and _is_spent(state, file)]


def _is_spent(state: LogState, file: str) -> bool:
    """Return True if no future entry or checkpoint can name an unnamed file.

    The rules are those for orphans at the head of this module.
    """
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
