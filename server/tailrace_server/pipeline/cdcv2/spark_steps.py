"""A large batch on all cores: the steps of the driver, each on a share of what it works on.

::

    parts of files
        │ read: cut, hash, drop what repeats within the part
        ├──▶ updates, to the share of hash(data, time) ─▶ distinct, with those still open ─▶ kept ──┐
        │                                                    │ how many are new at each time        │
        └──▶ counts of progress statements, and all         ▼                                      │
             intervals, to the share of hash(time) ────▶ settle, with what was known ─▶ times ─────┤
                                                             │ first time that misses updates      │
                                                             ▼                                     │
                                                  driver: the frontier                             │
                                                             │                                     ▼
        files of updates and times that stay ◀───────────────┴─────────────────────────────────  part
                                                                                                   │
                     index of the share ──▶ fold ◀── finished updates, to the share of hash(key) ──┘
                                             │
                                             └──▶ effects, to the range of time ─▶ segments

The driver gets from each share of the times one number and a sample of times that tells where to cut the
ranges, from each part of a file what it refused, and receipts. It never sees an update.

Rows do not travel as rows of Spark: a row of a frame (`FRAME`) is a piece of an Arrow table, tens of
thousands of updates in one binary value, so that Spark's exchange, its cache and its retries are used
without its paying for each update. Tables of a share are put together from their pieces where they land.

Every step gives the same for the same input, so a task that is run again changes nothing but the names of
files, which nothing names until the entry is made.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace.errors import TailraceError
from tailrace_server.pipeline.cdcv2.files import Split, StreamSchema, read_split
from tailrace_server.pipeline.cdcv2.folding import EFFECTS, INDEX, LEAVING, Folding, fold, leaving
from tailrace_server.pipeline.cdcv2.state import (
    INDEX_KIND,
    TIMES_KIND,
    UPDATES_KIND,
    Index,
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
    Contradiction,
    Interval,
    counts_table,
    hashes_of_times,
    intervals_table,
    joined_coverage,
    received_table,
    settle,
)
from tailrace_server.pipeline.cdcv2.updates import (
    UPDATES,
    before,
    distinct,
    joined,
    share_out,
    since,
    slots,
)
from tailrace_server.pipeline.cdcv2.writing import write_segment
from tailrace_server.pipeline.pending import write_pending

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from tailrace_server.pipeline.cdcv2.cutting import Refused
    from tailrace_server.wal.segment.writer import SegmentReceipt

FRAME: Final = pa.schema(
    [
        pa.field("share", pa.int32(), nullable=False),
        pa.field("kind", pa.int32(), nullable=False),
        pa.field("piece", pa.binary(), nullable=False),
    ]
)
"""``share`` says which task gets the row next, ``kind`` what the piece is: of the kinds below."""

(
    SEED,
    NEWS,
    TOLD,
    COVER,
    READ,
    KEPT,
    RECEIVED,
    DISTINCT,
    PROBLEM,
    KNOWN,
    SETTLED,
    LEFT,
    FILE,
    DONE,
    WRITTEN,
) = range(15)
"""SEED makes a task run that gets nothing else. Tables: NEWS and KEPT of `UPDATES`, TOLD and RECEIVED of
`COUNTS`, COVER of `INTERVALS`, KNOWN of `TIMES`, LEFT of `LEAVING`, DONE of `EFFECTS`. Pickled: READ of
`Read`, DISTINCT of `Repeated`, SETTLED of `SettledShare`, FILE of `StateOfShare`, WRITTEN of `Written`,
PROBLEM of an error."""

_PIECE_ROWS: Final = 32_768
_SAMPLE: Final = 256

Piece = tuple[int, int, bytes]
"""A row of `FRAME`."""


class Read(NamedTuple):
    """What reading a part of a file came to."""

    ordinal: int
    messages: int
    updates: int
    dropped: int
    """Updates of finished times."""
    duplicates: int
    refused: list[Refused]


class Repeated(NamedTuple):
    """What deduplicating a share came to."""

    duplicates: int
    conflicts: int
    conflict: tuple[dict[str, Any], dict[str, Any]] | None
    """The first two updates that contradict each other, as rows of `UPDATES`."""


class SettledShare(NamedTuple):
    """What settling a share of the times came to."""

    lowest: int | None
    contradiction: Contradiction | None
    coverage: list[Interval] | None
    """All that is covered now; from the first share only, since all find the same."""
    sample: list[tuple[int, int]]
    """Times, rising, each with the updates of the share from the one before it on."""


class StateOfShare(NamedTuple):
    """A state file that a task wrote."""

    state: StateFile
    ordinals: set[int]
    """Of the files that its rows point to."""


class Written(NamedTuple):
    """A segment."""

    task: int
    receipts: list[SegmentReceipt]
    versions: int


class Step:
    """A step's task: a class that is pickled to it, whose `rows` turns pieces into pieces."""

    def rows(self, share: int, pieces: dict[int, list[bytes]]) -> Iterator[Piece]:
        """Return what a share's pieces, by kind, come to."""
        raise NotImplementedError

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run as the function of ``mapInArrow``; an error of ours becomes a piece."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        pieces: dict[int, list[bytes]] = {}
        for batch in batches:
            kinds, values = batch.column("kind").to_pylist(), batch.column("piece")
            for row, kind in enumerate(kinds):
                pieces.setdefault(kind, []).append(values[row].as_buffer())
        try:
            for piece in self.rows(context.partitionId(), pieces):
                yield frame([piece])
        except TailraceError as error:
            yield frame([(0, PROBLEM, pickle.dumps(error))])


@dataclass(frozen=True)
class ReadParts(Step):
    """Reads parts of files: part i in task i."""

    parts: tuple[tuple[Split, ...], ...]
    schema: StreamSchema
    frontier: int | None
    shares: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run with a frame of one number a task."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for split in self.parts[number]:
                    try:
                        for piece in self._read(split):
                            yield frame([piece])
                    except TailraceError as error:
                        yield frame([(0, PROBLEM, pickle.dumps(error))])

    def _read(self, split: Split) -> Iterator[Piece]:
        read = list(read_split(split, self.schema))
        came = joined([batch for each in read for batch in each.updates])
        news = since(came, self.frontier)
        # Contradictions are for the share to find, which knows what else was heard.
        once = distinct(news, both=True)
        yield from _shared(NEWS, once.updates, self.shares)
        progress = [one for each in read for one in each.progress]
        if progress:
            told = counts_table(progress)
            hashed = hashes_of_times(told.column("time").to_numpy())
            yield from _shared(TOLD, told, self.shares, hashed)
            cover = encoded(intervals_table(progress))
            for share in range(self.shares):
                yield share, COVER, cover
        stock = Read(
            split.ordinal,
            sum(each.messages for each in read),
            came.num_rows,
            came.num_rows - news.num_rows,
            once.duplicates,
            [one for each in read for one in each.refused],
        )
        yield 0, READ, pickle.dumps(stock)


@dataclass(frozen=True)
class Deduplicate(Step):
    """Keeps each update of a share once; what is for the times goes on."""

    catalog: Path
    files: tuple[StateFile, ...]
    frontier: int | None
    shares: int

    def rows(self, share: int, pieces: dict[int, list[bytes]]) -> Iterator[Piece]:
        """Yield DISTINCT, RECEIVED for the shares of times, KEPT, and what else came."""
        files = [each for each in self.files if each.has_slots_of(share, self.shares)]
        old = share_of(read_rows(self.catalog, files, UPDATES), share, self.shares)
        news = [decoded(piece) for piece in pieces.pop(NEWS, [])]
        known = distinct(joined([old, *news]))
        conflict = None
        if known.conflict is not None:
            came = joined(news)
            order = np.argsort(came.column("message").to_numpy(), kind="stable")
            both = joined([old, came.take(pa.array(order))])
            known = distinct(both)
            assert known.conflict is not None
            first, second = (both.slice(row, 1).to_pylist()[0] for row in known.conflict)
            conflict = (first, second)
        repeated = known.duplicates - known.conflicts
        yield 0, DISTINCT, pickle.dumps(Repeated(repeated, known.conflicts, conflict))
        received = received_table(known.updates.slice(old.num_rows))
        hashed = hashes_of_times(received.column("time").to_numpy())
        yield from _shared(RECEIVED, received, self.shares, hashed)
        for start in range(0, known.updates.num_rows, _PIECE_ROWS):
            yield share, KEPT, encoded(known.updates.slice(start, _PIECE_ROWS))
        pieces.pop(SEED, None)
        yield share, SEED, b""
        yield from _passed_on(share, pieces)


@dataclass(frozen=True)
class Settle(Step):
    """Brings a share of the times up to date."""

    catalog: Path
    files: tuple[StateFile, ...]
    coverage: tuple[Interval, ...]
    frontier: int
    shares: int
    first: bool

    def rows(self, share: int, pieces: dict[int, list[bytes]]) -> Iterator[Piece]:
        """Yield SETTLED, KNOWN, and what else came."""
        old = read_rows(self.catalog, self.files, TIMES)
        if old.num_rows:
            mine = slots(hashes_of_times(old.column("time").to_numpy())) % self.shares == share
            old = old.filter(pa.array(mine))
        tables = {
            kind: joined([decoded(piece) for piece in pieces.pop(kind, [])], schema)
            for kind, schema in ((TOLD, COUNTS), (COVER, INTERVALS), (RECEIVED, COUNTS))
        }
        cover = tables[COVER]
        settled = settle(
            old,
            self.coverage,
            cover,
            tables[TOLD],
            tables[RECEIVED],
            self.frontier,
            first=self.first,
        )
        coverage = None if share else joined_coverage(self.coverage, cover, self.frontier)
        sample = _sample(settled.times)
        found = SettledShare(settled.lowest, settled.contradiction, coverage, sample)
        yield share, SETTLED, pickle.dumps(found)
        if settled.times.num_rows:
            yield share, KNOWN, encoded(settled.times)
        pieces.pop(SEED, None)
        yield from _passed_on(0, pieces)


@dataclass(frozen=True)
class Part(Step):
    """Parts what is finished from what stays; writes the latter."""

    path: Path
    folding: Folding | None
    """None leaves finished updates as they are, for those who want them and no records."""
    frontier: int | None
    shares: int

    def rows(self, share: int, pieces: dict[int, list[bytes]]) -> Iterator[Piece]:
        """Yield LEFT for the shares of keys, or KEPT without a folding, and FILE."""
        stay: dict[str, list[pa.RecordBatch]] = {UPDATES_KIND: [], TIMES_KIND: []}
        for piece in pieces.get(KEPT, []):
            rows = decoded(piece)
            stay[UPDATES_KIND].append(since(rows, self.frontier))
            done = before(rows, self.frontier)
            if not done.num_rows:
                continue
            if self.folding is None:
                yield share, KEPT, encoded(done)
            else:
                yield from _shared(LEFT, leaving(done, self.folding), self.shares)
        stay[TIMES_KIND].extend(
            since(decoded(piece), self.frontier) for piece in pieces.get(KNOWN, [])
        )
        for (kind, tables), schema in zip(stay.items(), (UPDATES, TIMES), strict=True):
            rows = joined([each for each in tables if each.num_rows], schema)
            if rows.num_rows:
                file = write_pending(_of_task(self.path, f"{kind}-{share}"), rows)
                if kind == UPDATES_KIND and _is_share(rows, share, self.shares):
                    state = StateFile(kind, file, 0, share, self.shares)
                else:
                    state = StateFile(kind, file)
                yield 0, FILE, pickle.dumps(StateOfShare(state, ordinals_in(rows)))


@dataclass(frozen=True)
class Fold(Step):
    """Turns a share of the keys' finished updates into effects, and keeps what is said of keys."""

    path: Path
    catalog: Path
    files: tuple[StateFile, ...]
    """The index, oldest first."""
    merge: tuple[StateFile, ...]
    """Those of its files that this commit's replaces."""
    tier: int
    keyed: bool
    shares: int
    ranges: tuple[int, ...]
    """The first time of each range but the first."""

    def rows(self, share: int, pieces: dict[int, list[bytes]]) -> Iterator[Piece]:
        """Yield DONE for the ranges of time, FILE, and what else came."""
        rows = joined([decoded(piece) for piece in pieces.pop(LEFT, [])], LEAVING)
        files = [each for each in self.files if each.has_slots_of(share, self.shares)]
        keys = rows.column("key").to_pylist()
        lasts = Index(self.catalog).lasts(files, rows.column("hash").to_numpy(), keys)
        folded = fold(rows, lasts, keyed=self.keyed)
        tables = [
            share_of(read_rows(self.catalog, [each], INDEX), share, self.shares)
            for each in files
            if each in self.merge
        ]
        index = merged([*tables, folded.index], oldest=len(self.merge) == len(self.files))
        if index.num_rows:
            file = write_pending(_of_task(self.path, f"index-{share}"), index)
            state = StateFile(INDEX_KIND, file, self.tier, share, self.shares)
            yield 0, FILE, pickle.dumps(StateOfShare(state, set()))
        times = folded.effects.column("time").to_numpy()
        ranges = np.searchsorted(np.array(self.ranges, np.int64), times, "right")
        for task in np.unique(ranges).tolist():
            effects = folded.effects.filter(pa.array(ranges == task))
            yield task, DONE, encoded(effects)
        pieces.pop(SEED, None)
        yield from _passed_on(0, pieces)


@dataclass(frozen=True)
class Write(Step):
    """Writes the effects of a range of times as a segment."""

    path: Path
    entity_type: str

    def rows(self, share: int, pieces: dict[int, list[bytes]]) -> Iterator[Piece]:
        """Yield WRITTEN, and what else came."""
        effects = [decoded(piece) for piece in pieces.pop(DONE, [])]
        if effects:
            path = _of_task(self.path, str(share))
            receipts, versions = write_segment(path, joined(effects, EFFECTS), self.entity_type)
            yield 0, WRITTEN, pickle.dumps(Written(share, receipts, versions))
        pieces.pop(SEED, None)
        yield from _passed_on(0, pieces)


def encoded(rows: pa.RecordBatch) -> bytes:
    """Return a table as a piece."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return sink.getvalue()  # type: ignore[no-any-return]


def decoded(piece: bytes) -> pa.RecordBatch:
    """Return the table of a piece, which it goes on to share memory with."""
    with pa.ipc.open_stream(piece) as stream:
        return stream.read_next_batch()


def _shared(
    kind: int,
    rows: pa.RecordBatch,
    shares: int,
    hashed: npt.NDArray[np.uint64] | None = None,
) -> Iterator[Piece]:
    if hashed is None:
        hashed = rows.column("hash").to_numpy()
    for share, some in share_out(rows, hashed, shares):
        yield share, kind, encoded(some)


def _is_share(rows: pa.RecordBatch, share: int, shares: int) -> bool:
    """Whether all rows are of one share: the task's own, as long as Spark keeps the places of partitions."""
    return bool((slots(rows.column("hash").to_numpy()) % np.uint16(shares) == share).all())


def _passed_on(share: int, pieces: dict[int, list[bytes]]) -> Iterator[Piece]:
    for kind, held in pieces.items():
        for piece in held:
            yield share, kind, piece


def frame(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """Return pieces as a table of `FRAME`."""
    shares, kinds, values = zip(*pieces, strict=True)
    binary = pa.array([pa.py_buffer(value).to_pybytes() for value in values], pa.binary())
    return pa.RecordBatch.from_arrays(
        [pa.array(shares, pa.int32()), pa.array(kinds, pa.int32()), binary], schema=FRAME
    )


def _sample(times: pa.RecordBatch) -> list[tuple[int, int]]:
    """Return times at equal steps of their updates, each with the updates since the one before."""
    at = times.column("time").to_numpy()
    total = np.cumsum(times.column("received").to_numpy())
    if not len(at) or not total[-1]:
        return []
    steps = np.unique(np.searchsorted(total, np.linspace(1, total[-1], _SAMPLE)))
    weights = np.diff(total[steps], prepend=0)
    return list(zip(at[steps].tolist(), weights.tolist(), strict=True))


def ranges_of(samples: Iterable[tuple[int, int]], tasks: int) -> tuple[int, ...]:
    """Return where to cut times into about so many ranges of equally many updates."""
    points = sorted(samples)
    total = sum(weight for _, weight in points)
    cuts: list[int] = []
    done = 0
    for time, weight in points:
        done += weight
        if done >= total * (len(cuts) + 1) / tasks and len(cuts) < tasks - 1:
            cuts.append(time + 1)
    return tuple(sorted(set(cuts)))


def _of_task(path: Path, name: str) -> Path:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return path.with_name(f"{path.stem}-{name}-{context.taskAttemptId()}{path.suffix}")
