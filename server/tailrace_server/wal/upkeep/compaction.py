"""Compaction: small neighbouring segments are rewritten into large ones; for readers only the speed changes.

Small commits make small record batches, and reading a small batch costs about as much as reading a large one.
So published neighbours of fewer than 16,384 rows (and 16 MiB) are rewritten into segments of up to 65,536 rows
(and 64 MiB), whose batches are full. Positions, running numbers and bytes of the records do not change. A
compaction is due when 512 neighbours are small. If a new segment is still small, the next compaction includes
it, so a row is rewritten only a few times.

Checkpoint k + 1, which is created exclusively, is the first object that names the new files. If another process
creates k + 1 first and has changed the tables, the new files are deleted and the work begins again. The old
files are retained for ``delete_grace``, for readers with an older view.
"""

from __future__ import annotations

import copy
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import LogCorrupted, LogError
from tailrace_server.wal.files.documents import ENTRIES
from tailrace_server.wal.files.sealed import object_number
from tailrace_server.wal.record.columns import BODY_COLUMNS
from tailrace_server.wal.segment.reader import BatchReader, SegmentMissing
from tailrace_server.wal.segment.refs import BatchRef, SegmentRef
from tailrace_server.wal.segment.writer import SegmentReceipt, SegmentWriter
from tailrace_server.wal.state.batch_table import (
    FIRST_ROW,
    FIRST_VERSION,
    LAST_VERSION,
    ROWS,
    SEGMENT,
    BatchTable,
    batch_ref,
)
from tailrace_server.wal.state.checkpoint import write_checkpoint
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.state.expired_bodies import ExpiredBodies

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from tailrace_server.wal.state.expired_bodies import BodiesFrom
    from tailrace_server.wal.state.state import LogState

SMALL_ROWS: Final = 16_384
"""A segment is small if it has fewer rows than this, less than two full batches, and fewer than SMALL_BYTES."""

SMALL_BYTES: Final = 16 << 20
"""A segment with at least this many bytes is not small, even with few rows: it is read fast enough."""

LARGE_ROWS: Final = 65_536
"""The most rows of a new segment."""

LARGE_BYTES: Final = 64 << 20
"""The most bytes of a new segment, which is made in memory."""

DUE_SEGMENTS: Final = 512
"""Number of small neighbours that makes a compaction due. With this number, a row is rewritten about three
times, and few segments stay small."""

HELD_ENTRIES: Final = 4_096
"""The most entries whose deletion may wait for an older entry, because the log names records in that entry.
Beyond this, a compaction moves these records into a segment."""

COMPACT_FOLDER: Final = "segments/compact"

_ATTEMPTS: Final = 8


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of a compaction."""

    segments_before: int
    segments_after: int
    rows: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring segments that become one segment: the places of their batches and their own places."""

    batches: range
    segments: range


def is_due(state: LogState) -> bool:
    """Return True if a run of small published segments is long enough to be compacted."""
    return any(len(run) >= DUE_SEGMENTS for run in _small_runs(state))


def holds_entries(state: LogState) -> bool:
    """Return True if later entries cannot be deleted, since an old entry carries records that the log names."""
    segments = state.batches.segments
    return any(_is_old_entry(state, path) for path in segments.paths(0, published_segments(state)))


def _is_old_entry(state: LogState, path: str) -> bool:
    """Return True if a path belongs to an entry for whose deletion more than HELD_ENTRIES entries wait."""
    folder, _, name = path.partition("/")
    number = object_number(name) if folder == ENTRIES else None
    return number is not None and number < state.checkpoint_entry - HELD_ENTRIES


def compact(path: Path, now: int) -> Compaction | None:
    """Compact all small neighbouring segments of a catalog; return None if there are none.

    Any process may call this at any time.

    Args:
        path: The catalog's folder.
        now: Current time, µs since the epoch. The grace period of the replaced files begins.

    Raises:
        LogCorrupted: A batch to rewrite is damaged. Its segment is retained; the other segments are compacted.
        LogFull: The device has no room; nothing was changed.
    """
    damaged: dict[str, LogCorrupted] = {}
    while True:
        try:
            done = _compact(path, now, damaged)
        except LogCorrupted as error:
            # Leave this segment out and begin again. The error is raised once all others are compacted.
            if error.path in damaged:
                raise
            damaged[error.path] = error
            continue
        if damaged:
            raise next(iter(damaged.values()))
        return done


def _compact(path: Path, now: int, damaged: Collection[str]) -> Compaction | None:
    """Compact all small neighbouring segments, except damaged ones; return None if there is nothing to do."""
    for _ in range(_ATTEMPTS):
        # 1. Choose segments. Each attempt reads the log anew: another process may have compacted or trimmed it.
        log = CommitLog.open(path)
        stretches = [
            stretch
            for run in _small_runs(log.state, damaged)
            for stretch in stretches_of(log.state, run, least=1)
            if len(stretch.segments) > 1 or _is_old_entry(log.state, _path_of(log.state, stretch))
        ]
        if not stretches:
            return None
        # 2. Replace them by new segments.
        if (done := rewrite(log, stretches, now)) is not None:
            return done
    return None


def rewrite(
    log: CommitLog,
    stretches: Sequence[Stretch],
    now: int,
    bodies_from: BodiesFrom | None = None,
    may_name: Callable[[CommitLog], bool] = lambda log: True,
) -> Compaction | None:
    """Replace old segments by new ones.

    Return None, with the log unchanged, if another process has changed the tables first.

    Args:
        log: The log, read to its end.
        stretches: The published segments to rewrite, in log order.
        now: Current time, µs since the epoch.
        bodies_from: For each entity type, the first version that has bodies from now on; earlier bodies are
            left out. None: no change.
        may_name: Called with the log just before the checkpoint that names the new segments; False: give up.

    Raises:
        LogCorrupted: A batch to rewrite is damaged; the log is unchanged.
        LogFull: The device has no room; the log is unchanged.
    """
    segments = log.state.batches.segments
    old = [segments[place] for stretch in stretches for place in stretch.segments]
    gone = log.state.bodies_from if bodies_from is None else bodies_from
    expired = ExpiredBodies(gone, log.schemas)
    # 1. Write the new files. No object names them yet, so a failure or a kill changes nothing for readers.
    # 2. Name all of them by one checkpoint: before it the old files are the log, after it the new ones.
    # 3. If that fails, delete them. After a kill they are orphans, which retention finds by the number in their
    #    names.
    written: list[SegmentReceipt] = []
    named = False
    try:
        for stretch in stretches:
            written.append(_rewrite(log, stretch, expired))  # noqa: PERF401 - kept if one fails
        named = _name(log, stretches, written, now, gone, may_name)
    except SegmentMissing:
        # If another process has compacted or trimmed the log, the old files were deleted after their grace
        # period, and the caller begins again. Otherwise they are lost.
        if CommitLog.open(log.path).state.revision == log.state.revision:
            raise
    finally:
        if not named:
            _delete_unnamed_of(log, written)
    if not named:
        return None
    return Compaction(
        segments_before=len(old),
        segments_after=len(written),
        rows=sum(receipt.rows for receipt in written),
        bytes_before=sum(segment.bytes for segment in old),
        bytes_after=sum(receipt.bytes for receipt in written),
    )


def _delete_unnamed_of(log: CommitLog, written: Sequence[SegmentReceipt]) -> None:
    """Delete the new files that no checkpoint names; if the log cannot be read, delete nothing."""
    # The device may fail, or the process be interrupted, after the checkpoint was created. Then the checkpoint
    # names the files, and deleting them would damage the log.
    with suppress(LogError):
        named = set(CommitLog.open(log.path).state.batches.segments.paths())
        for receipt in written:
            if receipt.path not in named:
                log.store.delete(receipt.path)


def _name(
    log: CommitLog,
    stretches: Sequence[Stretch],
    written: list[SegmentReceipt],
    now: int,
    bodies_from: BodiesFrom,
    may_name: Callable[[CommitLog], bool],
) -> bool:
    """Create a checkpoint that names the new segments; return False if another compaction or a trim came first.

    Another process may use the number for a checkpoint without a compaction or a trim. Then the places in the
    tables are unchanged. So the files are renamed for the next number, and the checkpoint with it names them.
    """
    revision = log.state.revision
    for _ in range(_ATTEMPTS):
        if not may_name(log):
            return False
        # 1. The new checkpoint has to contain the list of files to delete, which is not always in memory.
        log.read_newest_checkpoint()
        changed = _with_replaced(log.state, stretches, written, now)
        changed.bodies_from = bodies_from
        if write_checkpoint(log, changed, now):
            return True
        # 2. The number is taken. With another revision the places in ``stretches`` mean other segments now.
        log.advance()
        if log.state.revision != revision:
            return False
        # 3. The names contain the number that was used now. Any process may delete them as orphans. So rename
        #    them for the next number before that is tried.
        for place, receipt in enumerate(written):
            path = f"{COMPACT_FOLDER}/{_file_name(log.state, receipt.path.split('-', 1)[1])}"
            if not log.store.move(receipt.path, path):
                return False  # another process has deleted the file as an orphan
            written[place] = replace(receipt, path=path)
        log.store.make_durable(COMPACT_FOLDER)
    return False


def _file_name(state: LogState, rest: str) -> str:
    """Return a file name that begins with the number of the next checkpoint, which will name the file."""
    return f"{state.checkpoint + 1:020d}-{rest}"


def _path_of(state: LogState, stretch: Stretch) -> str:
    """Return the path of a stretch's first segment."""
    return state.batches.segments.paths(stretch.segments.start, stretch.segments.start + 1)[0]


def _small_runs(state: LogState, besides: Collection[str] = ()) -> list[range]:
    """Return the runs of neighbouring small published segments, as places in the table of segments.

    Args:
        state: The log.
        besides: Paths of segments to leave out.
    """
    # Segments with unpublished versions are left alone: the tables of a gate may still be written from them. A
    # large or damaged segment ends a run: only neighbours may be joined, or the order of records would change.
    runs, start = [], 0
    segments = state.batches.segments
    stop = published_segments(state)
    are_small = (segments.rows < SMALL_ROWS) & (segments.sizes < SMALL_BYTES)
    if besides:
        are_small &= [each not in besides for each in segments.paths()]
    for place, small in enumerate([*are_small[:stop].tolist(), False]):
        if not small:
            if place > start:
                runs.append(range(start, place))
            start = place + 1
    return runs


def published_segments(state: LogState) -> int:
    """Return the number of segments whose records are all published."""
    count = state.published_batches()
    if count == len(state.batches):
        return len(state.batches.segments)
    return int(state.batches.columns[SEGMENT, count])


def stretches_of(state: LogState, run: range, *, least: int) -> list[Stretch]:
    """Divide a run of neighbouring segments into stretches that each fit into one new segment.

    Args:
        state: The log.
        run: Places of the segments.
        least: The least segments of a stretch; shorter ones are left out.
    """
    lengths, sizes = state.batches.segments.rows.tolist(), state.batches.segments.sizes.tolist()
    owners = state.batches.columns[SEGMENT, : len(state.batches)]
    stretches, start, rows, size = [], run.start, 0, 0
    # Neighbours are joined until the next one would make the new segment too large. The place after the run
    # closes the last stretch.
    for place in (*run, run.stop):
        full = place == run.stop or (
            rows + lengths[place] > LARGE_ROWS or size + sizes[place] > LARGE_BYTES
        )
        if full and place > start:
            if place - start >= least:
                # Batches are in the order of their segments, so the batches of a stretch are one range.
                first, last = np.searchsorted(owners, [start, place])
                stretches.append(Stretch(range(int(first), int(last)), range(start, place)))
            start, rows, size = place, 0, 0
        if place < run.stop:
            rows += lengths[place]
            size += sizes[place]
    return stretches


def _rewrite(log: CommitLog, stretch: Stretch, expired: ExpiredBodies) -> SegmentReceipt:
    """Write the records of a stretch into one new segment, without expired bodies."""
    table = log.state.batches
    base_version = int(table.columns[FIRST_VERSION, stretch.batches.start])
    name = _file_name(log.state, f"{base_version}-{secrets.token_hex(4)}.arrow")
    with (
        BatchReader(log.path) as reader,
        SegmentWriter(log.path / COMPACT_FOLDER / name) as writer,
    ):
        parts: list[pa.RecordBatch] = []
        size = 0
        for place in stretch.batches:
            ref = batch_ref(table.segments, table.columns, place)
            # An old segment may be larger than memory (an expiry of bodies rewrites large ones): write it in
            # pieces.
            if parts and size + ref.length > LARGE_BYTES:
                writer.write(pa.Table.from_batches(parts).combine_chunks())
                parts, size = [], 0
            parts.append(_records(reader, ref, base_version, expired))
            size += ref.length
        writer.write(pa.Table.from_batches(parts).combine_chunks())
        return writer.close()


def _records(
    reader: BatchReader, ref: BatchRef, base_version: int, expired: ExpiredBodies
) -> pa.RecordBatch:
    """Return the records of a batch, with the columns that a segment writer expects."""
    # 1. Leave out bodies that have expired: the new segment does not have them any more.
    head, body = reader.head(ref), reader.body(ref, BODY_COLUMNS)
    gone = expired.rows_in(head)
    if gone is not None and gone.any():
        kept = pa.array(~gone)
        body = {
            name: pc.if_else(kept, texts, pa.scalar(None, pa.binary()))
            for name, texts in body.items()
        }
    # 2. Each old segment has its own dictionary of names, and the new segment has one for all its batches. So
    #    names are decoded here, and the writer encodes them again.
    codes = pa.array(head.type_codes, mask=head.type_codes < 0)
    names = head.changed.values.dictionary_decode()
    changed = pa.Array.from_buffers(
        pa.list_(pa.utf8()), ref.rows, head.changed.buffers()[:2], children=[names]
    )
    return pa.RecordBatch.from_pydict(
        {
            "version": head.versions - base_version,
            "index": head.indexes,
            "area": head.areas,
            "operation": head.operations,
            "entity_type": pa.array(head.entity_types, pa.utf8()).take(codes),
            "key_hash": head.key_hashes,
            "primary_key": head.primary_keys,
            "changed": changed,
            **body,
        }
    )


def _with_replaced(
    state: LogState, stretches: Sequence[Stretch], written: Sequence[SegmentReceipt], now: int
) -> LogState:
    """Return a copy of a state in which new segments replace the stretches, one for each."""
    old, table, place = state.batches, BatchTable(), 0
    changed = copy.copy(state)
    changed.removed = dict(state.removed)
    for stretch, receipt in zip(stretches, written, strict=True):
        # 1. Batches before the stretch stay as they are.
        table.extend(old.slice(place, stretch.batches.start))
        base_version = int(old.columns[FIRST_VERSION, stretch.batches.start])
        # 2. A receipt counts versions from 0 and has no running numbers. Take both from the first replaced
        #    batch, so that every record retains its position and its running number.
        columns = np.array(receipt.batches, np.int64).T
        columns[FIRST_VERSION] += base_version
        columns[LAST_VERSION] += base_version
        first_row = int(old.columns[FIRST_ROW, stretch.batches.start])
        first_rows = first_row + np.cumsum(columns[ROWS]) - columns[ROWS]
        ref = SegmentRef(
            path=receipt.path,
            base_version=base_version,
            prefix=receipt.prefix,
            rows=receipt.rows,
            bytes=receipt.bytes,
            counts=receipt.counts,
        )
        table.append_segment(ref, np.concatenate([columns, first_rows[None, :]]))
        # 3. Readers with an older view still need the old files: retain these for the grace period.
        replaced = old.segments.paths(stretch.segments.start, stretch.segments.stop)
        changed.removed |= dict.fromkeys(replaced, now)
        place = stretch.batches.stop
    table.extend(old.slice(place))
    changed.batches = table
    changed.revision += 1
    return changed
