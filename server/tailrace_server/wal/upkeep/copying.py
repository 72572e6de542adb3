"""A verified copy of a log that is being written to: the files that one state of the log names.

The files of a log depend on each other. Copying the folder file by file could copy a publication without its
entry, or a checkpoint without its segments. So the log is opened first, and then the files that its state names
are copied. Ten minutes after a compaction or a trim, replaced segments and files of bases may be deleted, and
the records in entries removed. If that happens during the copy, it continues with a newer state. The copy has
the newest entries, publications and checkpoints without a gap, as far back as the log has them.

Named subscriptions are copied with their newest objects. These are read before the log is opened, so each
subscription's position is at or before the end of the copy. A reader that resumes from the copy receives some
captures again, but misses none.

Key files are made anew from the copy's records, which costs as much as verifying copied ones. So the copy has
every key file that it can have, and each matches the records.

Files that the log does not name are left out: the quarantine, and Spark's checkpoint. That checkpoint would be
ahead of the copy, and Spark would skip lines that the copy lacks.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.errors import LogCorrupted
from tailrace_server.wal.base.bases import KnownBases, bases_path, newest_bases, paths_in
from tailrace_server.wal.base.key_files import key_file_path, make_key_files, numbers_of
from tailrace_server.wal.files.catalog_folder import copied_folder, read_catalog
from tailrace_server.wal.files.documents import (
    ENTRIES,
    SCHEMAS,
)
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.files.numbered import newest_number, numbered_path
from tailrace_server.wal.files.sealed import object_numbers
from tailrace_server.wal.files.sequence_documents import BASES, DEFINITIONS, SETTINGS
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.state.last_objects import last_objects
from tailrace_server.wal.upkeep.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tailrace_server.wal.files.object_store import ObjectStore
    from tailrace_server.wal.state.state import LogState
    from tailrace_server.wal.upkeep.verify_objects import Fault

_SEQUENCES: Final = (SETTINGS, DEFINITIONS)
"""Folders with the catalog's settings and definitions, which are not part of its log."""
_PIECE: Final = 4 * 1024 * 1024
"""The most bytes that are read and written at once."""


class LogCopy(NamedTuple):
    """The result of a copy."""

    path: Path
    """The copy's folder."""
    version: int
    """Newest committed version in the copy."""
    published: int
    files: int
    bytes: int
    subscriptions: int
    """Number of named subscriptions."""
    faults: Sequence[Fault]
    """The faults in the copy; always empty without ``with_damage``."""


def copy_log(source: Path, root: Path, *, with_damage: bool = False) -> LogCopy:
    """Copy a catalog's log into a folder with the catalog's name below ``root``, and verify the copy.

    Args:
        source: The catalog's folder.
        root: The log root of the copy.
        with_damage: Copy damaged parts too, if the log can be opened.

    Raises:
        LogUnreadable: The source is no catalog, or the target exists.
        LogCorrupted: The source is damaged, and ``with_damage`` is False; the error names the first fault.
        LogFull: The target's device has no room.
    """
    document = read_catalog(source)
    with copied_folder(root, document) as folder:
        store, target = LocalFiles(source), LocalFiles(folder)
        while True:
            subscriptions = SubscriptionSequences(source, document.uuid).all()
            # 1. Copy the named files. Those of an earlier round stay: a name in a log always has the same
            #    content.
            log = CommitLog.open(source)
            state, known = log.state, newest_bases(log.store, log.uuid)
            if CommitLog.open(source).state.revision != state.revision:
                continue  # a trim came in between: the list of bases may not fit the older state
            paths = [*_named(state), *_named_by(known), *_said_of(log.store)]
            found = [_copy(store, target, path) for path in paths]
            for sequence, last in last_objects(state):
                copied = _copy_newest(store, target, sequence, last)
                paths += copied
                found += [target.size(path) or 0 for path in copied]
            # 2. Verify the copy by reading all of it.
            result = verify(folder)
            if result.sound:
                break
            # 3. If the source has changed, replaced files were deleted during the copy: begin another round. If
            #    it has not, the source itself is damaged.
            newer = CommitLog.open(source)
            if (newer.state.revision, newest_bases(newer.store, newer.uuid).number) == (
                state.revision,
                known.number,
            ):
                if with_damage:
                    break
                fault = result.faults[0]
                raise LogCorrupted(fault.path, fault.offset, fault.reason)
        # 4. Add the subscriptions, which were read before the log: their positions are in the copy.
        named = SubscriptionSequences(folder, document.uuid)
        for each in subscriptions:
            named.create(each)
        # 5. Make the key files from the records of the copy.
        with suppress(LogCorrupted) if result.faults else nullcontext():
            make_key_files(folder)
        made = [target.size(key_file_path(each)) or 0 for each in numbers_of(target)]
    return LogCopy(
        root / document.name,
        state.last_version,
        state.published,
        len(paths) + len(subscriptions) + len(made),
        sum(found) + sum(made),
        len(subscriptions),
        result.faults,
    )


def _named(state: LogState) -> Iterator[str]:
    """Yield the paths of the schemas, segments and pending files that a state names, each once."""
    yield from (f"{SCHEMAS}/{id}.json" for _, id in state.schemas)
    for segment in state.batches.segments:
        if not segment.path.startswith(f"{ENTRIES}/"):
            yield segment.path
    yield from (each.path for each in state.pending)


def _copy_newest(store: ObjectStore, target: ObjectStore, folder: str, last: int) -> list[str]:
    """Copy the objects of a sequence up to a number, and return their paths.

    The newest object is copied first, because upkeep may delete the oldest ones meanwhile. If an object is
    missing, the copy begins after it. Older objects that an earlier round has copied are then deleted, since a
    sequence must have no gap.
    """
    copied: list[str] = []
    for number in range(last, 0, -1):
        path = numbered_path(folder, number)
        if not _copy(store, target, path) and target.size(path) is None:
            for old in object_numbers(target.names(folder)):
                if old < number:
                    target.delete(numbered_path(folder, old))
            break
        copied.append(path)
    return copied


def _named_by(known: KnownBases) -> Iterator[str]:
    """Yield the paths of all lists of bases, and of the files that the newest list names, each once."""
    yield from map(bases_path, range(1, known.number + 1))
    yield from dict.fromkeys(paths_in(known.bases))


def _said_of(store: ObjectStore) -> Iterator[str]:
    """Yield the paths of the catalog's settings and definitions."""
    for folder in _SEQUENCES:
        for number in range(1, newest_number(store, folder) + 1):
            yield numbered_path(folder, number)


def _copy(store: ObjectStore, target: ObjectStore, path: str) -> int:
    """Copy an object, unless the target has it; return its size, or 0 if the source no longer has it."""
    held = target.size(path)
    if held is not None:
        return held
    opened = store.open(path)
    if opened is None:
        return 0
    for folder in (BASES, *_SEQUENCES):
        if path.startswith(f"{folder}/"):
            target.make_folder(folder)
    # The object gets its name only when it is complete and synced: a copy that was interrupted has whole
    # objects.
    buffer, offset = memoryview(bytearray(_PIECE)), 0
    new = target.begin(path)
    try:
        while count := opened.read_into(buffer, offset):
            new.write([buffer[:count]])
            offset += count
        new.sync()
        new.link()
    finally:
        new.close()
    return offset
