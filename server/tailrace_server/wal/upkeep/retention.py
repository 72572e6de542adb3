"""Retention: removal of old versions from the log, and later of their files from the disk.

A trim first makes a base of the version before the new ``oldest`` (base/making.py), so that the state of every
table stays readable from there on. Then it moves ``oldest`` in a new checkpoint; files that hold nothing at or
above it are no longer named. Files that nothing names any more (trimmed, compacted, or pending and spent) are
deleted ``delete_grace`` after the checkpoint or entry that stopped naming them: readers with an older view have
that long, and one that still misses a file takes the newest checkpoint and continues by position. A writer at
work has them deleted (trigger.py). Where no writer is at work, ``tailrace log trim`` and ``tailrace log
compact`` delete them. ``trim_by_settings`` trims by the catalog's settings (keeping.py).

Orphans are files below ``segments`` that no checkpoint or entry has ever named: files of failed tasks. The log,
and no clock, decides if one may still be committed:

* its epoch is below the newest: that writer is fenced;
* or its epoch is the newest and a later batch of its writer has been committed;
* or it was written for checkpoint k + 1, and k + 1 exists without it.

Finding them takes a listing of all segments, so they are deleted together with other files. Besides, a writer
at its start lists the folder of the epoch before it, for the files of the last writer.

Entries, publications and checkpoints are deleted once a later checkpoint covers them: a checkpoint is the state
of the log after its last entry, and a process that opens the log reads nothing before it. Readers and writers
that opened it earlier have ``delete_grace`` to read further; then they continue from the newest checkpoint
(state/last_objects.py). The objects go in the order of their numbers, and the last one that the checkpoint
covers stays: by these two rules a paused writer notices that its number was used before. An entry stays, with
all that follow it, while the log names the records that it carries. So that one such entry does not keep all
later ones, a compaction moves its records into a segment of their own.
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
"""Most objects that one run of a writer's upkeep deletes of a sequence; it takes about a second."""
DELETE_FILES: Final = 4_096
"""Most files that one run of a writer's upkeep deletes, oldest first. They take some seconds, so neither a
compaction nor the end of the writer waits long for the files of a large trim; the next run continues."""

_ATTEMPTS: Final = 8
DUE_OBJECTS: Final = 256
"""Objects of a sequence that make a deletion due."""
_CHECKPOINTS_KEPT: Final = 2
"""Number of newest checkpoints that are retained at any age."""


class FirstNumbers(NamedTuple):
    """The lowest retained number of each sequence; objects below may be deleted."""

    entries: int
    publications: int
    checkpoints: int

    def by_folder(self) -> Iterable[tuple[str, int]]:
        """Yield each sequence's folder and number, in the order in which they are deleted."""
        return zip((ENTRIES, PUBLICATIONS, CHECKPOINTS), self, strict=True)


def first_numbers(log: CommitLog, before: int) -> FirstNumbers | None:
    """Return the lowest retained number of each sequence; None if no checkpoint is old enough.

    Args:
        log: The log; it has read which files wait for their deletion.
        before: Time, µs; the grace period of checkpoints made up to then is over.

    Raises:
        LogCorrupted: A checkpoint's header is damaged.
    """
    state, number = log.state, log.state.checkpoint - _CHECKPOINTS_KEPT + 1
    # Find the newest checkpoint whose grace period is over: older readers had that long to read past it.
    header = read_header(log.store, number) if number > 0 else None
    while header is not None and header.timestamp > before:
        number -= 1
        header = read_header(log.store, number) if number > 0 else None
    if header is None:
        return None
    # 1. Records in entries: those that the log names, and those that it stopped to name a moment ago.
    waiting = [path for path, since in state.removed.items() if since > before]
    needed = _entries_in([*state.batches.segments.paths(), *waiting])
    # 2. A writer's last commit, where the checkpoints do not say yet what it came to.
    needed += [
        key.entry
        for writer, key in state.writers.items()
        if key.entry and writer not in state.known_commits
    ]
    entries = min([header.last_entry, *needed])
    return FirstNumbers(entries, header.last_publication, number)


def deletion_of_objects_is_due(log: CommitLog, before: int) -> bool:
    """Return True if DUE_OBJECTS of a sequence may be deleted; looks at one name of each."""
    numbers = first_numbers(log, before)
    return numbers is not None and any(
        first > DUE_OBJECTS and log.store.exists(numbered_path(folder, first - DUE_OBJECTS))
        for folder, first in numbers.by_folder()
    )


def delete_old_objects(log: CommitLog, before: int, objects_max: int | None = None) -> list[str]:
    """Delete the objects below ``first_numbers``; return their paths.

    Args:
        log: As of ``first_numbers``.
        before: As of ``first_numbers``.
        objects_max: The most objects to delete of each sequence, the lowest numbers first; None: all.

    Raises:
        LogError: The device failed; what is left goes the next time.
    """
    numbers = first_numbers(log, before)
    deleted: list[str] = []
    for folder, first in numbers.by_folder() if numbers is not None else ():
        # The order matters: a process that was killed here must have left no hole.
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
    """Return the numbers of the entries among some paths."""
    beginning = f"{ENTRIES}/"
    found = (object_number(path[len(beginning) :]) for path in paths if path.startswith(beginning))
    return [number for number in found if number is not None]


def trim(path: Path, before: int, now: int, *, keeps_state: bool = True) -> Position:
    """Give up all versions below ``before``; return the oldest position that is retained now.

    ``before`` above the newest published version gives up everything published. Files are deleted later, by
    ``delete_unnamed``. A part that a named subscription holds within its cap stays; a hold beyond it is broken.

    Args:
        path: The catalog's folder.
        before: First version to keep.
        now: µs since the epoch.
        keeps_state: Make a base first, if the state of the given up part can be read. Without a base, rows last
            written below ``before`` are lost, and no state can be read any more.

    On a full disk, files whose grace period is over are deleted first, to make room for the trim's files.

    Raises:
        InvalidRequest: A version to trim is younger than the catalog's ``max_lookback``; the log is unchanged.
        LogFull: Still no room for the base or the checkpoint; the log is unchanged. The error says how much is
            needed.
        LogCorrupted: The log or a base to make the base from is damaged; the log is unchanged.
        LogError: Other processes kept changing bases or checkpoints; the log is unchanged.
    """
    has_made_room = False
    before = min(before, CommitLog.open(path).state.published + 1)
    for _ in range(_ATTEMPTS):
        # 1. Decide by the log as it is now. Others may have trimmed it since, set a longer max_lookback, or
        #    begun to hold something by name. ``before`` never rises, so a busy writer does not keep this going.
        log = CommitLog.open(path)
        state = log.state
        _refuse_younger(log, Position(before, 0), now)
        before = release(path, log.view, before, now).before
        oldest = Position(before, 0)
        if oldest <= state.oldest:
            return state.oldest
        # 2. The base may take long to make, so the decision is made again after it.
        if keeps_state and not making.keeps_state(log, before):
            has_made_room |= _make_base(path, before - 1, now)
            reach("trim.has_base")
            continue
        log.read_newest_checkpoint()
        trimmed = _trimmed(state, oldest, now)
        # 3. The base is reserved for exactly the number that is created here.
        try:
            if write_checkpoint(log, trimmed, now):
                with suppress(LogFull):  # they go with the next base
                    drop_unneeded(path, now)
                return oldest
        except LogFull as full:
            if has_made_room:
                raise _no_room(path, trimmed, now) from full
            has_made_room = True
            with suppress(LogFull):  # what it could delete has made room all the same
                delete_unnamed(path, now)
    raise LogError(
        f"{path} was not trimmed to {before}: others change its checkpoints or bases at the same time; "
        "try again"
    )


def trim_by_settings(path: Path, now: int, *, at_once: bool = False) -> Keeping:
    """Trim the log by the settings of its catalog, if that is due; return the comparison. See keeping.py.

    Args:
        path: The catalog's folder.
        now: µs since the epoch.
        at_once: Trim even if a trim is not due yet.

    Raises:
        LogError: As ``trim``; or the settings are damaged.
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
    """Make and reserve the base that a trim needs; return whether room had to be made."""
    try:
        make_base(path, now, version, reserve=True)
    except LogFull:
        with suppress(LogFull):
            delete_unnamed(path, now)
        try:
            make_base(path, now, version, reserve=True)
        except LogFull as full:
            raise LogFull(
                f"cannot trim {path}: a trim first writes the newest image of every row, so that state stays "
                f"readable, and its device has no room for that ({full}); move or delete something else there, "
                "or give up the state too: tailrace log trim --without-state. The log is as it was"
            ) from full
        return True
    return False


def _refuse_younger(log: CommitLog, oldest: Position, now: int) -> None:
    """Refuse a trim of what the settings promise to keep, as they are at this moment.

    Raises:
        InvalidRequest: It is so.
    """
    lookback = newest_settings(log.store, log.uuid).settings.get(MAX_LOOKBACK)
    if lookback is None:
        return
    kept = first_after(log.view, now - lookback)
    if min(oldest.version, log.state.published + 1) > kept:
        raise InvalidRequest(
            f"catalog {log.view.name!r} keeps version {kept} and what follows: it is younger than max_lookback "
            f"({setting(MAX_LOOKBACK, of_type=False).shown(lookback)}); trim up to there, or set less: "
            "tailrace catalog set"
        )


def _no_room(path: Path, trimmed: LogState, now: int) -> LogFull:
    size = len(documents.sealed(*trimmed.to_checkpoint(timestamp=now))[0])
    return LogFull(
        f"cannot trim {path}: a trim writes a checkpoint first, of {size:,} bytes, and its device has no room "
        "for that; move or delete something else there, then trim again. The log is as it was"
    )


def _trimmed(state: LogState, oldest: Position, now: int) -> LogState:
    """Return a copy of a state that begins at ``oldest``."""
    # 1. The tables begin with the batch that holds ``oldest``; its records below stay in the file and are not
    #    shown.
    trimmed = copy.copy(state)
    versions = state.batches.columns[LAST_VERSION, : len(state.batches)]
    start = int(np.searchsorted(versions, oldest.version, "left"))
    all_gone = start == len(state.batches)
    kept = len(state.batches.segments) if all_gone else int(state.batches.columns[SEGMENT, start])
    # 2. Segments that lie below as a whole are named no longer, and may be deleted after their grace.
    gone = state.batches.segments.paths(0, kept)
    trimmed.removed = state.removed | dict.fromkeys(gone, now)
    trimmed.batches = state.batches.slice(start)
    # 3. The commit of the version before ``oldest`` stays: its timestamp bounds what can still appear.
    commits = state.commits.columns[:, : len(state.commits)]
    first = max(0, int(np.searchsorted(commits[0], oldest.version - 1, "right")) - 1)
    trimmed.commits = CommitTable()
    trimmed.commits.append(commits[:, first:])
    trimmed.oldest = oldest
    trimmed.bodies_from = tuple(each for each in state.bodies_from if each[1] > oldest.version)
    trimmed.revision += 1
    return trimmed


def deletion_is_due(log: CommitLog, now: int, *, grace_s: float = DELETE_GRACE_S) -> bool:
    """Return True if unnamed files whose grace period is over still exist.

    Files are deleted in a fixed order. So only the last of the due files is looked up: if it is gone, all of
    them are, and the log's state forgets them.

    Raises:
        LogError: The device failed.
    """
    state, before = log.state, _before(now, grace_s)
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
        files_max: The most files to delete, the longest unnamed first; None: all. Old objects of the log do not
            count.

    Raises:
        LogError: The device failed; what is left goes the next time.
    """
    # 1. The newest checkpoint knows all files that are to be deleted; entries add those that became unnamed
    #    since.
    log = CommitLog.open(path)
    log.read_newest_checkpoint()
    before = _before(now, grace_s)
    # Entries that go as a whole need not lose their records first.
    deleted = delete_old_objects(log, before, None if files_max is None else DELETE_OBJECTS)
    others_max = None if files_max is None else len(deleted) + files_max
    gone = [file for _, file in sorted(_due(log.state, before))]
    # 2. In the order of ``_due``, because ``deletion_is_due`` asks for the last one only. Orphans come last.
    #    An entry that loses its records is written anew, for which a full disk has no room before the rest
    #    is gone.
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
    # 3. Nothing depends on leftovers.
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
    """Return the time, µs, since which a file must have been unnamed to be deleted now."""
    return now - int(grace_s * 1e6)


def _due(state: LogState, before: int) -> list[tuple[int, str]]:
    """Return since when files have been unnamed, up to a time inclusive, and what they are.

    Every process deletes the files in the order of these pairs, so once the last is gone, all are gone.
    """
    return [(since, file) for file, since in state.removed.items() if since <= before]


def _delete(store: ObjectStore, file: str) -> bool:
    """Delete a segment; return whether it was there. An entry loses its records and keeps its lines."""
    if file.startswith(f"{ENTRIES}/"):
        # The entry's lines are part of the chain and must never be lost, so they are checked before they
        # replace it.
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
    """Return True if there are orphans of the epoch before the newest; lists only that epoch's folder.

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
    # A file may be named after the state was read. ``_is_spent`` spares it: it belongs to a later epoch,
    # batch or checkpoint than those of the state.
    state = log.state
    named = set(state.batches.segments.paths())
    named |= {pending.path for pending in state.pending} | state.removed.keys()
    return [file for file in files if file not in named and _is_spent(state, file)]


def _is_spent(state: LogState, file: str) -> bool:
    """Return True if no entry or checkpoint can name an unnamed file any more."""
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
