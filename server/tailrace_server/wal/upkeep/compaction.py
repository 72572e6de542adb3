"""Compaction: neighbouring small segments become large ones; readers notice only the speed.

Small commits make small record batches, and a batch costs the same to read whatever it holds. So published
neighbours of fewer than 16,384 rows (and 16 MiB) are rewritten into segments of up to 65,536 rows (and 64 MiB),
whose batches are full. Positions, running numbers and bytes of the records stay; commit timestamps are kept in
the table of commits anyway. A compaction is due when 512 neighbours are small; a result that is still small is
taken along by the next one, so a row is rewritten a few times at most.

The new files are named by checkpoint k + 1 only, and k + 1 is created exclusively: if another process takes the
number and has changed the tables, what was written is deleted and the work begins again. The old files stay for
``delete_grace``, for readers that still hold an older view.
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
"""A segment of fewer rows and fewer than SMALL_BYTES is small: they are not even two full batches."""

SMALL_BYTES: Final = 16 << 20
"""A segment of fewer bytes and fewer than SMALL_ROWS is small: few large rows are read well as they are."""

LARGE_ROWS: Final = 65_536
"""A new segment closes before what would take it past this: it is not small any more."""

LARGE_BYTES: Final = 64 << 20
"""A new segment closes before what would take it past this, too: it is made in memory."""

DUE_SEGMENTS: Final = 512
"""Small neighbours that make a compaction due: a row is rewritten three times or so, and few stay small."""

HELD_ENTRIES: Final = 4_096
"""Entries that may wait for the records of an older one before a compaction moves these out of it."""

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
    """Neighbouring batches that become one segment: places in the table, and of their segments."""

    batches: range
    segments: range


def is_due(state: LogState) -> bool:
    """Return whether some published neighbours are many and small enough to be compacted."""
    return any(len(run) >= DUE_SEGMENTS for run in _small_runs(state))


def holds_entries(state: LogState) -> bool:
    """Return True if entries cannot be deleted because an old entry carries records that the log names."""
    segments = state.batches.segments
    return any(_is_old_entry(state, path) for path in segments.paths(0, published_segments(state)))


def _is_old_entry(state: LogState, path: str) -> bool:
    """Return True if a path is that of an entry which many later ones wait for."""
    folder, _, name = path.partition("/")
    number = object_number(name) if folder == ENTRIES else None
    return number is not None and number < state.checkpoint_entry - HELD_ENTRIES


def compact(path: Path, now: int) -> Compaction | None:
    """Compact all small neighbours of a catalog; None if there are none. Any process may call it, at any time.

    Args:
        path: The catalog's folder.
        now: µs since the epoch; the replaced files count as unnamed from then on.

    Raises:
        LogCorrupted: A batch to be rewritten is damaged. Its segment stays, and the others are compacted.
        LogFull: No room; nothing was changed.
    """
    damaged: dict[str, LogCorrupted] = {}
    while True:
        try:
            done = _compact(path, now, damaged)
        except LogCorrupted as error:
            if error.path in damaged:
                raise
            damaged[error.path] = error
            continue
        if damaged:
            raise next(iter(damaged.values()))
        return done


def _compact(path: Path, now: int, damaged: Collection[str]) -> Compaction | None:
    """Compact all small neighbours, without some damaged segments."""
    for _ in range(_ATTEMPTS):
        # 1. Choose by a state that is read anew in each attempt: another process may have compacted or trimmed.
        log = CommitLog.open(path)
        stretches = [
            stretch
            for run in _small_runs(log.state, damaged)
            for stretch in stretches_of(log.state, run, least=1)
            if len(stretch.segments) > 1 or _is_old_entry(log.state, _path_of(log.state, stretch))
        ]
        if not stretches:
            return None
        # 2. Put new segments in their place.
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
    """Replace old segments by new ones; return None, with the log unchanged, if another process came first.

    Args:
        log: The log as it is now.
        stretches: The published segments to rewrite, in the order of the log.
        now: µs since the epoch.
        bodies_from: First versions with bodies from now on: earlier bodies are left out. None: the same as
            before.
        may_name: Called with the log just before its next checkpoint names the new segments; False: give up.

    Raises:
        LogCorrupted, LogFull: As ``compact``.
    """
    segments = log.state.batches.segments
    old = [segments[place] for stretch in stretches for place in stretch.segments]
    gone = log.state.bodies_from if bodies_from is None else bodies_from
    expired = ExpiredBodies(gone, log.schemas)
    # 1. Write the new files. Nothing names them yet, so a failure or a kill changes nothing that readers see.
    # 2. Name them all by one checkpoint. Until then the old files are the log, from then on the new ones.
    # 3. If that failed, delete them. After a kill they are orphans, which retention finds by their number.
    written: list[SegmentReceipt] = []
    named = False
    try:
        for stretch in stretches:
            written.append(_rewrite(log, stretch, expired))  # noqa: PERF401 - kept if one fails
        named = _name(log, stretches, written, now, gone, may_name)
    except SegmentMissing:
        # Another process has replaced or trimmed the old files, and their grace period is over.
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
    """Delete files that no checkpoint names; keep all if that is not certain."""
    # The device may fail, or the process be interrupted, after the checkpoint was created: then it names them,
    # and without them the log would be damaged.
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

    If a checkpoint that only sums up entries takes the number, the places in the tables are unchanged. Then the
    files are renamed for the next number, and that checkpoint names them.
    """
    revision = log.state.revision
    for _ in range(_ATTEMPTS):
        if not may_name(log):
            return False
        # 1. The checkpoint also lists the files to delete, which a log that follows does not keep in memory.
        log.read_newest_checkpoint()
        changed = _with_replaced(log.state, stretches, written, now)
        changed.bodies_from = bodies_from
        if write_checkpoint(log, changed, now):
            return True
        # 2. The number is taken. With another revision the places in ``stretches`` mean other segments now.
        log.advance()
        if log.state.revision != revision:
            return False
        # 3. Files that were written for a number that exists without them count as orphans and may be deleted
        #    by anybody. So they are renamed for the next number before it is tried.
        for place, receipt in enumerate(written):
            path = f"{COMPACT_FOLDER}/{_file_name(log.state, receipt.path.split('-', 1)[1])}"
            if not log.store.move(receipt.path, path):
                return False  # deleted as an orphan, since its number was taken
            written[place] = replace(receipt, path=path)
        log.store.make_durable(COMPACT_FOLDER)
    return False


def _file_name(state: LogState, rest: str) -> str:
    """Return the name of a file that the next checkpoint is to name."""
    return f"{state.checkpoint + 1:020d}-{rest}"


def _path_of(state: LogState, stretch: Stretch) -> str:
    """Return the path of a stretch's first segment."""
    return state.batches.segments.paths(stretch.segments.start, stretch.segments.start + 1)[0]


def _small_runs(state: LogState, besides: Collection[str] = ()) -> list[range]:
    """Return the runs of neighbouring small published segments, as places in the table of segments.

    ``besides`` are paths of segments to leave out.
    """
    # Versions that are not published are left alone: a gate may still be at work on their segments. A large or
    # damaged segment ends a run, since only neighbours may be joined: records stay in the order of the log.
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
    """Cut a run of neighbouring segments where a new segment is full; stretches of few segments are left alone.

    Args:
        state: The log.
        run: Places of the segments.
        least: Segments that a stretch has at least.
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
                # Batches lie in the order of their segments, so those of a stretch are one range.
                first, last = np.searchsorted(owners, [start, place])
                stretches.append(Stretch(range(int(first), int(last)), range(start, place)))
            start, rows, size = place, 0, 0
        if place < run.stop:
            rows += lengths[place]
            size += sizes[place]
    return stretches


def _rewrite(log: CommitLog, stretch: Stretch, expired: ExpiredBodies) -> SegmentReceipt:
    """Write the records of a stretch into one new segment, without the bodies that are gone."""
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
            # A segment that was large before is written piece by piece: it may be larger than memory.
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
    """Return the records of a batch as a segment writer takes them."""
    # 1. Bodies that have expired are not copied: from this compaction on they are gone.
    head, body = reader.head(ref), reader.body(ref, BODY_COLUMNS)
    gone = expired.rows_in(head)
    if gone is not None and gone.any():
        kept = pa.array(~gone)
        body = {
            name: pc.if_else(kept, texts, pa.scalar(None, pa.binary()))
            for name, texts in body.items()
        }
    # 2. A segment has one dictionary for all of its batches, and the old ones have one each. So names are
    #    decoded here and encoded anew by the writer.
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
    """Return a copy of a state in which new segments stand for the stretches."""
    old, table, place = state.batches, BatchTable(), 0
    changed = copy.copy(state)
    changed.removed = dict(state.removed)
    for stretch, receipt in zip(stretches, written, strict=True):
        # 1. What lies before the stretch stays as it is.
        table.extend(old.slice(place, stretch.batches.start))
        base_version = int(old.columns[FIRST_VERSION, stretch.batches.start])
        # 2. A receipt counts versions from 0 and has no running numbers. Both come from the first batch
        #    replaced, so every record keeps its position and its running number.
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
        # 3. Readers with an older view still read the old files: those stay until they have had their grace.
        replaced = old.segments.paths(stretch.segments.start, stretch.segments.stop)
        changed.removed |= dict.fromkeys(replaced, now)
        place = stretch.batches.stop
    table.extend(old.slice(place))
    changed.batches = table
    changed.revision += 1
    return changed
