"""The steps of a batch, each on one hash partition of the data; `batch` combines the steps.

::

    parts of files
        │ read: cut, hash, drop repeats within the part
        ├──▶ updates, to the share of hash(data, time) ─▶ distinct, with the open updates ─▶ open ──┐
        │                                                    │ how many are new at each time        │
        └──▶ counts of progress statements, and all         ▼                                      │
             intervals, to the share of hash(time) ────▶ times, with those known ─▶ times ─────────┤
                                                             │ first time that misses updates      │
                                                             ▼                                     │
                                                  driver: the frontier                             │
                                                             │                                     ▼
        state files of open updates and times ◀──────────────┴─────────────────────────────  separate
                                                                                                   │
                     index of the share ──▶ fold ◀── finished updates, to the share of hash(key) ──┘
                                             │
                                             └──▶ effects, to the range of time ─▶ segments

A *share* is one hash partition. On Spark the driver never gets an update. From each share of the times it gets
one number, and a sample that
determines the bounds of the ranges. From each part of a file it gets the refused messages, and from each task
the receipts of its files.

Steps exchange pieces (`pieces`). A step returns the same result for the same input. So a repeated task writes
equal files under other names, and no entry names the files of the lost attempt.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tailrace.errors import TailraceError
from tailrace_server.pipeline.catalog.pending import write_pending
from tailrace_server.pipeline.cdcv2.files import FilePart, StreamSchema, read_part
from tailrace_server.pipeline.cdcv2.folding import (
    EFFECTS,
    FINISHED,
    INDEX,
    Folding,
    finished_rows,
    fold,
    write_segment,
)
from tailrace_server.pipeline.cdcv2.pieces import (
    DeduplicatedShare,
    Kind,
    PartRead,
    StateOfShare,
    TimesOfShare,
    WrittenSegment,
    by_share,
    failure,
    pass_on,
    take_table,
)
from tailrace_server.pipeline.cdcv2.state import (
    INDEX_KIND,
    TIMES_KIND,
    UPDATES_KIND,
    KeyIndex,
    StateFile,
    merged,
    ordinals_in,
    read_rows,
    share_of,
)
from tailrace_server.pipeline.cdcv2.times import (
    COUNTS,
    INTERVALS,
    TIMES,
    Interval,
    counts_table,
    hashes_of_times,
    intervals_table,
    joined_coverage,
    received_table,
    update_times,
)
from tailrace_server.pipeline.cdcv2.updates import UPDATES, before, distinct, joined, since, slots
from tailrace_server.pipeline.spark.pieces import decoded, encoded, frame, pieces_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tailrace_server.pipeline.cdcv2.pieces import Pieces
    from tailrace_server.pipeline.spark.pieces import Piece

_PIECE_ROWS: Final = 32_768
_SAMPLE: Final = 256
"""Number of times that each partition samples, to cut times into ranges."""


class BatchStep:
    """A step of a batch; Spark pickles it to its tasks."""

    def rows(self, share: int, pieces: Pieces, attempt: int = 0) -> Iterator[Piece]:
        """Yield the pieces that result from the pieces of one partition.

        Args:
            share: The number of the partition.
            pieces: The pieces of the partition, by kind; a step may remove them.
            attempt: A number that differs between attempts of a task, for names of files.

        Raises:
            TailraceError: The batch cannot be used.
        """
        raise NotImplementedError

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the step as the function of ``mapInArrow``; a TailraceError becomes a piece."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        pieces: Pieces = {}
        for _, kind, piece in pieces_in(batches):
            pieces.setdefault(kind, []).append(piece)
        try:
            for row in self.rows(context.partitionId(), pieces, context.taskAttemptId()):
                yield frame([row])
        except TailraceError as error:
            yield frame([failure(error)])


@dataclass(frozen=True)
class ReadParts(BatchStep):
    """Reads parts of files; task i reads ``parts[i]``."""

    parts: tuple[tuple[FilePart, ...], ...]
    schema: StreamSchema
    frontier: int | None
    shares: int

    def rows(self, share: int, pieces: Pieces, attempt: int = 0) -> Iterator[Piece]:
        """Yield NEW_UPDATES, ANNOUNCED and COVERED to their partitions, and PART_READ."""
        for part in self.parts[share]:
            yield from self._read(part)

    def _read(self, part: FilePart) -> Iterator[Piece]:
        # 1. Updates. Drop repeats within the part, so that they are not sent. Contradicting updates are both
        #    sent: only their partition knows which one was received first.
        read = list(read_part(part, self.schema))
        came = joined([batch for each in read for batch in each.updates])
        news = since(came, self.frontier)
        once = distinct(news, both=True)
        yield from by_share(Kind.NEW_UPDATES, once.updates, self.shares)
        # 2. Progress. Send each count to the partition of its time, and all intervals to every partition: a
        #    covered time without a count has a count of zero, which a partition without the interval could not
        #    know.
        progress = [one for each in read for one in each.progress]
        if progress:
            told = counts_table(progress)
            hashed = hashes_of_times(told.column("time").to_numpy())
            yield from by_share(Kind.ANNOUNCED, told, self.shares, hashed)
            cover = encoded(intervals_table(progress))
            for share in range(self.shares):
                yield share, Kind.COVERED, cover
        # 3. Figures and refused messages. All later steps pass them on to the driver.
        stock = PartRead(
            part.ordinal,
            sum(each.messages for each in read),
            came.num_rows,
            came.num_rows - news.num_rows,
            once.duplicates,
            [one for each in read for one in each.refused],
        )
        yield 0, Kind.PART_READ, pickle.dumps(stock)


@dataclass(frozen=True)
class Deduplicate(BatchStep):
    """Removes duplicate updates from one hash partition, and counts the new updates by time."""

    catalog: Path
    files: tuple[StateFile, ...]
    """State files of the open updates: those at or after the frontier."""
    frontier: int | None
    shares: int

    def rows(self, share: int, pieces: Pieces, attempt: int = 0) -> Iterator[Piece]:
        """Yield DEDUPLICATED, RECEIVED to the partitions of the times, OPEN_UPDATES, and the unused pieces."""
        # 1. Old updates first: of two equal updates, the one of the earlier batch is kept.
        files = [each for each in self.files if each.has_slots_of(share, self.shares)]
        old = share_of(read_rows(self.catalog, files, UPDATES), share, self.shares)
        news = [decoded(piece) for piece in pieces.pop(Kind.NEW_UPDATES, [])]
        known = distinct(joined([old, *news]))
        # 2. Pieces arrive in any order. If updates contradict each other, their order matters: the error names
        #    the one that was read first, and ``--on-conflict first`` keeps it. So sort, and deduplicate again.
        conflict = None
        if known.conflict is not None:
            came = joined(news)
            order = np.argsort(came.column("message").to_numpy(), kind="stable")
            both = joined([old, came.take(pa.array(order))])
            known = distinct(both)
            assert known.conflict is not None
            first, second = (both.slice(row, 1).to_pylist()[0] for row in known.conflict)
            conflict = (first, second)
        result = DeduplicatedShare(known.duplicates - known.conflicts, known.conflicts, conflict)
        yield 0, Kind.DEDUPLICATED, pickle.dumps(result)
        # 3. `distinct` keeps the order, so the new updates come after the old ones.
        received = received_table(known.updates.slice(old.num_rows))
        hashed = hashes_of_times(received.column("time").to_numpy())
        yield from by_share(Kind.RECEIVED, received, self.shares, hashed)
        # 4. The updates stay in this partition until the driver knows the frontier.
        for start in range(0, known.updates.num_rows, _PIECE_ROWS):
            yield share, Kind.OPEN_UPDATES, encoded(known.updates.slice(start, _PIECE_ROWS))
        # 5. A seed, so that this partition runs in the next step too: it may have old times, and partition 0
        #    reports the coverage.
        yield share, Kind.SEED, b""
        yield from pass_on(share, pieces)


@dataclass(frozen=True)
class UpdateTimes(BatchStep):
    """Updates the times of one partition with new counts and intervals."""

    catalog: Path
    files: tuple[StateFile, ...]
    """State files of the open times: those at or after the frontier."""
    coverage: tuple[Interval, ...]
    frontier: int
    shares: int
    first: bool
    """True to keep the first of two counts that contradict each other."""

    def rows(self, share: int, pieces: Pieces, attempt: int = 0) -> Iterator[Piece]:
        """Yield TIMES_UPDATED, OPEN_TIMES, and the unused pieces."""
        old = read_rows(self.catalog, self.files, TIMES)
        if old.num_rows:
            mine = slots(hashes_of_times(old.column("time").to_numpy())) % self.shares == share
            old = old.filter(pa.array(mine))
        cover = take_table(pieces, Kind.COVERED, INTERVALS)
        updated = update_times(
            old,
            self.coverage,
            cover,
            take_table(pieces, Kind.ANNOUNCED, COUNTS),
            take_table(pieces, Kind.RECEIVED, COUNTS),
            self.frontier,
            first=self.first,
        )
        coverage = None if share else joined_coverage(self.coverage, cover, self.frontier)
        found = TimesOfShare(
            updated.lowest, updated.contradiction, coverage, _sample(updated.times)
        )
        yield share, Kind.TIMES_UPDATED, pickle.dumps(found)
        if updated.times.num_rows:
            yield share, Kind.OPEN_TIMES, encoded(updated.times)
        yield from pass_on(0, pieces)


@dataclass(frozen=True)
class SeparateFinished(BatchStep):
    """Separates finished updates from open updates, and writes open updates and times to state files."""

    path: Path
    folding: Folding | None
    """The rules that turn rows into records.

    None passes finished updates on unchanged, for callers without a catalog.
    """
    frontier: int | None
    shares: int

    def rows(self, share: int, pieces: Pieces, attempt: int = 0) -> Iterator[Piece]:
        """Yield FINISHED_UPDATES and STATE_FILE.

        Finished updates go to the partitions of their keys, or, without a folding, stay in this partition.
        """
        # Work piece by piece, so that the rows of a partition are never all in memory as JSON.
        stay: dict[str, list[pa.RecordBatch]] = {UPDATES_KIND: [], TIMES_KIND: []}
        for piece in pieces.get(Kind.OPEN_UPDATES, []):
            rows = decoded(piece)
            stay[UPDATES_KIND].append(since(rows, self.frontier))
            done = before(rows, self.frontier)
            if not done.num_rows:
                continue
            if self.folding is None:
                yield share, Kind.FINISHED_UPDATES, encoded(done)
            else:
                finished = finished_rows(done, self.folding)
                yield from by_share(Kind.FINISHED_UPDATES, finished, self.shares)
        stay[TIMES_KIND].extend(
            since(decoded(piece), self.frontier) for piece in pieces.get(Kind.OPEN_TIMES, [])
        )
        for (kind, tables), schema in zip(stay.items(), (UPDATES, TIMES), strict=True):
            rows = joined([each for each in tables if each.num_rows], schema)
            if rows.num_rows:
                file = write_pending(_file_of_task(self.path, f"{kind}-{share}", attempt), rows)
                # Spark may run this task on the rows of another partition. If the file were marked with this
                # task's number, the task that needs these rows would skip the file.
                if kind == UPDATES_KIND and _is_share(rows, share, self.shares):
                    state = StateFile(kind, file, 0, share, self.shares)
                else:
                    state = StateFile(kind, file)
                yield 0, Kind.STATE_FILE, pickle.dumps(StateOfShare(state, ordinals_in(rows)))


@dataclass(frozen=True)
class FoldKeys(BatchStep):
    """Folds the finished updates of one partition of the keys into effects, and updates the index."""

    path: Path
    index: KeyIndex
    files: tuple[StateFile, ...]
    """All files of the index, oldest first."""
    merge: tuple[StateFile, ...]
    """The files of the index's newest tiers, which this commit replaces."""
    tier: int
    """Number of the tier that this commit writes: the batch id."""
    keyed: bool
    """True if there are key columns."""
    shares: int
    ranges: tuple[int, ...]
    """The first time of each range of times except the first range."""

    @property
    def kept_files(self) -> list[StateFile]:
        """The files of the index that this commit does not replace."""
        return [each for each in self.files if each not in self.merge]

    def rows(self, share: int, pieces: Pieces, attempt: int = 0) -> Iterator[Piece]:
        """Yield EFFECTS_OF_RANGE to their ranges, STATE_FILE, and the unused pieces."""
        # 1. Fold. This partition has all updates of its keys that are finished now.
        rows = take_table(pieces, Kind.FINISHED_UPDATES, FINISHED)
        files = [each for each in self.files if each.has_slots_of(share, self.shares)]
        keys = rows.column("key").to_pylist()
        last = self.index.last_rows(files, rows.column("hash").to_numpy(), keys)
        folded = fold(rows, last, keyed=self.keyed)
        # 2. Merge the partition's rows of the replaced tiers, older first, with the new rows: the last row of a
        #    key wins. A partition without updates does this too, since the old files are dropped from the
        #    state.
        tables = [
            share_of(read_rows(self.index.catalog, [each], INDEX), share, self.shares)
            for each in files
            if each in self.merge
        ]
        index = merged([*tables, folded.index], oldest=len(self.merge) == len(self.files))
        if index.num_rows:
            file = write_pending(_file_of_task(self.path, f"index-{share}", attempt), index)
            state = StateFile(INDEX_KIND, file, self.tier, share, self.shares)
            yield 0, Kind.STATE_FILE, pickle.dumps(StateOfShare(state, set()))
        # 3. Send the effects to ranges of times: one task must write all records of a version, and the ranges
        #    must have the order of the times.
        times = folded.effects.column("time").to_numpy()
        ranges = np.searchsorted(np.array(self.ranges, np.int64), times, "right")
        for task in np.unique(ranges).tolist():
            effects = folded.effects.filter(pa.array(ranges == task))
            yield task, Kind.EFFECTS_OF_RANGE, encoded(effects)
        yield from pass_on(0, pieces)


@dataclass(frozen=True)
class WriteSegments(BatchStep):
    """Writes the effects of a range of times as a segment."""

    path: Path
    entity_type: str

    def rows(self, share: int, pieces: Pieces, attempt: int = 0) -> Iterator[Piece]:
        """Yield SEGMENT_WRITTEN, and the unused pieces."""
        effects = take_table(pieces, Kind.EFFECTS_OF_RANGE, EFFECTS)
        if effects.num_rows:
            path = _file_of_task(self.path, str(share), attempt)
            receipts, versions = write_segment(path, effects, self.entity_type)
            written = WrittenSegment(share, receipts, versions)
            yield 0, Kind.SEGMENT_WRITTEN, pickle.dumps(written)
        yield from pass_on(0, pieces)


def _is_share(rows: pa.RecordBatch, share: int, shares: int) -> bool:
    """Return True if all rows belong to a partition."""
    return bool((slots(rows.column("hash").to_numpy()) % np.uint16(shares) == share).all())


def _sample(times: pa.RecordBatch) -> list[tuple[int, int]]:
    """Return times at equal steps of their updates, each with the number of updates since the time before."""
    at = times.column("time").to_numpy()
    total = np.cumsum(times.column("received").to_numpy())
    if not len(at) or not total[-1]:
        return []
    steps = np.unique(np.searchsorted(total, np.linspace(1, total[-1], _SAMPLE)))
    weights = np.diff(total[steps], prepend=0)
    return list(zip(at[steps].tolist(), weights.tolist(), strict=True))


def ranges_of(samples: Iterable[tuple[int, int]], tasks: int) -> tuple[int, ...]:
    """Return the times at which to cut all times into about ``tasks`` ranges of equally many updates."""
    points = sorted(samples)
    total = sum(weight for _, weight in points)
    cuts: list[int] = []
    done = 0
    for time, weight in points:
        done += weight
        if done >= total * (len(cuts) + 1) / tasks and len(cuts) < tasks - 1:
            cuts.append(time + 1)
    return tuple(sorted(set(cuts)))


def _file_of_task(path: Path, name: str, attempt: int) -> Path:
    return path.with_name(f"{path.stem}-{name}-{attempt}{path.suffix}")
