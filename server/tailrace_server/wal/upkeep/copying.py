"""A verified copy of a log that is being written to: the files that one state of the log names.

The files of a log change together: copying its folder file by file could give a publication without its entry,
or a checkpoint without its segments. So the log is opened first, and then exactly the files that its state
names are copied. Ten minutes after a compaction or trim, replaced segments and files of bases may be deleted,
and entries cut down. If that happens during the copy, it continues with a newer state. The copy has the newest
entries, publications and checkpoints without a gap, as far back as the log has them.

Named subscriptions are copied with their newest objects. They are read before the log is opened, so each of
them is at or before the end of the copy: a reader that resumes gets again what was acknowledged since, and
misses nothing.

Key files are made from the copy's records, which costs as much as verifying copied ones. So the copy has every
key file that it can have, and each fits its records.

Files that the log does not name are left out: the quarantine, and Spark's checkpoint, which would be ahead of
the copy and would make Spark skip lines that the copy lacks.
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
"""Folders of what is said of the catalog beside its log."""
_PIECE: Final = 4 * 1024 * 1024
"""Bytes that are read and written at once."""


class LogCopy(NamedTuple):
    """The result of a copy."""

    path: Path
    """The copy's folder."""
    version: int
    """Newest committed version in it."""
    published: int
    files: int
    bytes: int
    subscriptions: int
    """Named ones."""
    faults: Sequence[Fault]
    """The damage that was copied; empty unless that was allowed."""


def copy_log(source: Path, root: Path, *, with_damage: bool = False) -> LogCopy:
    """Copy a catalog's log into a folder of its name below ``root``, and verify the copy.

    Args:
        source: The catalog's folder.
        root: The log root of the copy.
        with_damage: Copy damaged parts too, as they are, if the log can be opened.

    Raises:
        LogUnreadable: The source is no catalog, or the target exists.
        LogCorrupted: The source is damaged, and ``with_damage`` is False; the error names the first fault.
        LogFull: No room.
    """
    document = read_catalog(source)
    with copied_folder(root, document) as folder:
        store, target = LocalFiles(source), LocalFiles(folder)
        while True:
            subscriptions = SubscriptionSequences(source, document.uuid).all()
            # 1. Files of an earlier turn stay: whatever has a name in a log has one content.
            log = CommitLog.open(source)
            state, known = log.state, newest_bases(log.store, log.uuid)
            if CommitLog.open(source).state.revision != state.revision:
                continue  # a trim came first: the bases may be those that a later log begins with
            paths = [*_named(state), *_named_by(known), *_said_of(log.store)]
            found = [_copy(store, target, path) for path in paths]
            for sequence, last in last_objects(state):
                copied = _copy_newest(store, target, sequence, last)
                paths += copied
                found += [target.size(path) or 0 for path in copied]
            # 2. A copy that nobody has read is none.
            result = verify(folder)
            if result.sound:
                break
            # 3. Replaced files were deleted meanwhile, or the source itself is damaged.
            newer = CommitLog.open(source)
            if (newer.state.revision, newest_bases(newer.store, newer.uuid).number) == (
                state.revision,
                known.number,
            ):
                if with_damage:
                    break
                fault = result.faults[0]
                raise LogCorrupted(fault.path, fault.offset, fault.reason)
        # 4. What was read before the log lags behind what was copied of it.
        named = SubscriptionSequences(folder, document.uuid)
        for each in subscriptions:
            named.create(each)
        # 5. What follows from the records follows from the copy's.
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
    """Yield the paths of the files that a state names, each once."""
    yield from (f"{SCHEMAS}/{id}.json" for _, id in state.schemas)
    for segment in state.batches.segments:
        if not segment.path.startswith(f"{ENTRIES}/"):
            yield segment.path
    yield from (each.path for each in state.pending)


def _copy_newest(store: ObjectStore, target: ObjectStore, folder: str, last: int) -> list[str]:
    """Copy the objects of a sequence up to a number, and return their paths.

    The newest one comes first, because the old ones may be deleted meanwhile. Where one is missing the copy
    begins after it, and what an earlier turn copied of the objects before goes too.
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
    """Yield the paths of the objects that name bases, and of what the newest one names, each once."""
    yield from map(bases_path, range(1, known.number + 1))
    yield from dict.fromkeys(paths_in(known.bases))


def _said_of(store: ObjectStore) -> Iterator[str]:
    """Yield the paths of the catalog's settings and definitions."""
    for folder in _SEQUENCES:
        for number in range(1, newest_number(store, folder) + 1):
            yield numbered_path(folder, number)


def _copy(store: ObjectStore, target: ObjectStore, path: str) -> int:
    """Copy an object unless the target has it; return its size, 0 if the source does not have it any more."""
    held = target.size(path)
    if held is not None:
        return held
    opened = store.open(path)
    if opened is None:
        return 0
    for folder in (BASES, *_SEQUENCES):
        if path.startswith(f"{folder}/"):
            target.make_folder(folder)
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
