"""The code of the Spark tasks that write a large batch; `large_batch` has the overview, `lines` the decoder.

A writing task receives the pieces of its share: rows, each with its version in the commit, and the plans of the
share's transactions, also of those without rows.
"""

from __future__ import annotations

import itertools
import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.pipeline.catalog.columns import ColumnInference, Sighting
from tailrace_server.pipeline.catalog.older_rows import OlderRows
from tailrace_server.pipeline.catalog.pending import read_pending, write_pending
from tailrace_server.pipeline.catalog.quarantine import write_quarantine
from tailrace_server.pipeline.input.change import CHANGE_SCHEMA, ROWS, Change, from_table, is_effect
from tailrace_server.pipeline.run.set_aside import SetAside
from tailrace_server.pipeline.spark.pieces import (
    decoded,
    encoded,
    frame,
    pieces_in,
    without_garbage_collection,
)
from tailrace_server.pipeline.transactions.pieces import (
    PLACED,
    Layout,
    PieceKind,
    decode_plans,
)
from tailrace_server.pipeline.transactions.record_columns import ColumnarBuilder
from tailrace_server.pipeline.transactions.records import RecordBuilder
from tailrace_server.wal.segment.writer import SegmentReceipt, SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from tailrace_server.pipeline.catalog.columns import KnownColumns
    from tailrace_server.pipeline.input.source import Source
    from tailrace_server.pipeline.input.table_bindings import Bindings
    from tailrace_server.pipeline.spark.pieces import Piece
    from tailrace_server.pipeline.transactions.grouping import Released
    from tailrace_server.pipeline.transactions.tally import Cut
    from tailrace_server.wal.files.documents import PendingSegment
    from tailrace_server.wal.schema.mapping import SchemaMapping

    Longs = npt.NDArray[np.int64]

_ROWS_AT_ONCE: Final = 10_000
"""Number of rows that a task has as objects at a time, unless one transaction has more."""


@dataclass(frozen=True)
class SnapshotCuts:
    """The cuts of a batch's snapshot rows, as columns.

    The numbers that `Cut.offset` gives the rows are unique in the batch, so a number alone determines the cut.
    """

    runs: pa.Array
    """The transaction keys of the runs."""
    offsets: Longs
    """For each run, the number that is added to the numbers of its rows."""
    starts: Longs
    """The first number of each cut; rises."""
    keys: pa.Array
    """The transaction key of each cut."""

    @classmethod
    def of(cls, cuts: Sequence[Cut]) -> SnapshotCuts:
        """Return the cuts of a decision as columns."""
        runs = {cut.run_key: cut.offset for cut in cuts}
        return cls(
            pa.array(runs, pa.string()),
            np.array(list(runs.values()), np.int64),
            np.array([cut.offset + cut.start for cut in cuts], np.int64),
            pa.array([cut.key for cut in cuts], pa.string()),
        )

    def recut(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows; snapshot rows get the key of their cut and their new number, as by `lines.recut`."""
        runs = pc.index_in(rows.column("transaction"), value_set=self.runs)
        if runs.null_count == len(runs):
            return rows
        is_of_run = runs.is_valid()
        of_run = is_of_run.to_numpy(zero_copy_only=False)
        orders = rows.column("total_order").to_numpy().copy()
        numbers = orders[of_run] + self.offsets[runs.drop_null().to_numpy()]
        orders[of_run] = numbers
        cuts = pa.array(np.searchsorted(self.starts, numbers, "right") - 1)
        keys = pc.replace_with_mask(rows.column("transaction"), is_of_run, self.keys.take(cuts))
        place = rows.schema.get_field_index("total_order")
        rows = rows.set_column(place, rows.schema.field(place), pa.array(orders))
        place = rows.schema.get_field_index("transaction")
        return rows.set_column(place, rows.schema.field(place), keys)


@dataclass(frozen=True)
class QuarantineTarget:
    """The file of quarantined lines, and the selection of lines that tasks write to it."""

    path: Path
    """The batch's file; tasks add to its name."""
    blocks: Mapping[tuple[str, int], int]
    """As in `write_quarantine`; blocks at the start of a file may be missing."""
    bindings: Bindings
    """The bindings after the batch: effects on other tables are dropped."""

    def write(self, lines: Iterable[Change], task: str) -> Iterator[Piece]:
        """Write lines to a file of one attempt of a task; yield its path as a piece, if there are lines."""
        kept = filter(self._keeps, lines)
        for first in kept:
            part = self.path.with_name(f"{self.path.stem}-task-{task}.part")
            write_quarantine(part, itertools.chain((first,), kept), self.blocks)
            yield 0, PieceKind.WRITTEN, pickle.dumps(part)

    def _keeps(self, line: Change) -> bool:
        return not is_effect(line) or self.bindings.has_rows_of(line.table or "", line.source)


@dataclass(frozen=True)
class VersionCutter:
    """Sends decoded and pending rows to the tasks of their versions, and writes quarantined lines."""

    layout: Layout
    released: pa.Array
    """The keys of the released transactions, in version order."""
    cuts: SnapshotCuts | None
    """The cuts of the batch's snapshot rows; None if there are none."""
    catalog: Path
    quarantine: QuarantineTarget
    open_shares: int
    """Number of tasks that write the rows that stay open."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Cut the pieces of a partition; yield ROWS of `PLACED` and WRITTEN."""
        number, attempt = _attempt()
        open_share = self.layout.tasks + number % self.open_shares
        aside: list[bytes] = []
        for _, kind, piece in pieces_in(batches):
            if kind == PieceKind.ROWS:
                yield from self.cut(decoded(piece), open_share)
            elif kind == PieceKind.QUARANTINED:
                aside.append(piece.to_pybytes())
            elif kind == PieceKind.PENDING_FILE:
                file, keys = pickle.loads(piece)
                yield from self._pending(file, keys)
        if aside:
            # One piece at a time becomes lines, while the file is written.
            lines = (line for piece in aside for line in from_table(decoded(piece)))
            for _, kind, piece in self.quarantine.write(lines, f"d{number:06}-{attempt}"):
                yield frame([(open_share, kind, piece)])

    def cut(self, rows: pa.RecordBatch, open_share: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the pieces of rows, one for each share; a share's rows are sorted by version.

        Args:
            rows: Rows of `ROWS`.
            open_share: The share of rows that stay open; None drops these rows.
        """
        if self.cuts is not None:
            rows = self.cuts.recut(rows)
        found = pc.index_in(rows.column("transaction"), value_set=self.released)
        versions = found.fill_null(-1).to_numpy().astype(np.int64)
        # Rows that stay open have version -1, so they come first.
        order = np.argsort(versions, kind="stable")
        versions = versions[order]
        rows = rows.take(pa.array(order)).append_column(PLACED.field("version"), pa.array(versions))
        edges = np.searchsorted(versions, (0, *self.layout.starts[1:], self.layout.versions))
        if open_share is not None and edges[0]:
            piece = encoded(rows.slice(0, edges[0]), compressed=True)
            yield frame([(open_share, PieceKind.ROWS, piece)])
        for task, (start, stop) in enumerate(itertools.pairwise(edges)):
            if start < stop:
                piece = encoded(rows.slice(start, stop - start), compressed=True)
                yield frame([(task, PieceKind.ROWS, piece)])

    def _pending(self, file: PendingSegment, keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the pieces of a pending file's rows that are released now; the others stay in their file."""
        table = read_pending(self.catalog, file)
        wanted = pc.is_in(table.column("transaction"), value_set=pa.array(keys, pa.string()))
        table = table.filter(wanted)
        for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
            # Files of earlier releases may lack columns.
            arrays = [
                batch.column(f.name)
                if f.name in batch.schema.names
                else pa.nulls(len(batch), f.type)
                for f in ROWS
            ]
            yield from self.cut(pa.RecordBatch.from_arrays(arrays, schema=ROWS), None)


class TaskSegment(NamedTuple):
    """The segment of released transactions that a task wrote, and what it found in their rows."""

    task: int
    receipt: SegmentReceipt
    sightings: list[Sighting]
    set_aside: SetAside
    updates: dict[str, bool]
    """The segment's `RecordBuilder.updates`."""
    removals: dict[str, bool]
    """The segment's `RecordBuilder.removals`."""


@dataclass
class Share:
    """The pieces of one share, as the task that gets them collects them."""

    number: int = -1
    """The number of the share; -1 without any piece."""
    plans: list[Released] = field(default_factory=list)
    rows: list[pa.RecordBatch] = field(default_factory=list)
    """Tables of `PLACED`, each sorted by version."""
    written: list[bytes] = field(default_factory=list)
    """The WRITTEN pieces, which are passed on."""

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch]) -> Share:
        """Collect the pieces of a partition, which has one share at most."""
        share = cls()
        for number, kind, piece in pieces_in(batches):
            share.number = number
            if kind == PieceKind.ROWS:
                share.rows.append(decoded(piece))
            elif kind == PieceKind.PLANS:
                share.plans = decode_plans(piece)
            else:
                share.written.append(piece.to_pybytes())
        return share

    def chunks(self, first: int, end: int) -> Iterator[tuple[int, int, list[pa.RecordBatch]]]:
        """Yield ranges of versions with their rows, in order; a range has about `_ROWS_AT_ONCE` rows.

        Args:
            first: The first version of the share.
            end: The first version after the share.

        Yields:
            The range, its end exclusive and both relative to ``first``, and tables of the rows.
        """
        # Tables are never joined: the images of a share may have more bytes than one Arrow array can hold.
        places = [rows.column("version").to_numpy() - first for rows in self.rows]
        counts = np.zeros(end - first, np.int64)
        for each in places:
            counts += np.bincount(each, minlength=len(counts))
        reached = np.cumsum(counts) // _ROWS_AT_ONCE
        bounds = [0, *(np.flatnonzero(np.diff(reached)) + 1).tolist(), len(counts)]
        for start, stop in itertools.pairwise(bounds):
            edges = [np.searchsorted(each, (start, stop)).tolist() for each in places]
            yield (
                start,
                stop,
                [
                    rows.slice(a, b - a)
                    for rows, (a, b) in zip(self.rows, edges, strict=True)
                    if a < b
                ],
            )


@dataclass(frozen=True)
class TaskWriter:
    """The common input of all writing tasks; pickled to each of them."""

    layout: Layout
    columns: KnownColumns
    source: Source
    mapping: SchemaMapping | None
    segment: Path
    pending: Path
    quarantine: QuarantineTarget
    sets_older_aside: bool = True
    is_sorter: bool = False
    """True to only sort the rows of versions, for the driver, which writes them; see `DriverWriter`."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of one task; yield the WRITTEN pieces of its files, and those that it was given.

        A sorter yields ROWS of released transactions in version order, in chunks of whole transactions. The
        share of a chunk's pieces is the number of transactions up to its end.
        """
        with without_garbage_collection():
            yield from self._results(batches)

    def _results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        share = Share.of(batches)
        results: list[Piece] = [(0, PieceKind.WRITTEN, piece) for piece in share.written]
        # Spark may start a second attempt of a task while the first still runs. The attempt's number is in the
        # file's name, so each writes its own file. The driver commits the one whose result Spark returns.
        suffix = f"{share.number}-{_attempt()[1]}"
        if 0 <= share.number < self.layout.tasks and self.is_sorter:
            first, end = self.layout.range_of(share.number)
            for _, stop, tables in share.chunks(first, end):
                for table in tables:
                    yield frame([(first + stop, PieceKind.ROWS, encoded(table, compressed=True))])
        elif 0 <= share.number < self.layout.tasks:
            segment, aside = self._write_segment(_suffixed(self.segment, suffix), share)
            results.append((0, PieceKind.WRITTEN, pickle.dumps(segment)))
            results += self.quarantine.write(aside, f"w{suffix}")
        elif share.rows:
            table = pa.Table.from_batches(share.rows).drop_columns("version")
            for absent in [f for f in CHANGE_SCHEMA if f.name not in ROWS.names]:
                table = table.append_column(absent, pa.nulls(len(table), absent.type))
            file = write_pending(_suffixed(self.pending, suffix), table.cast(CHANGE_SCHEMA))
            results.append((0, PieceKind.WRITTEN, pickle.dumps(file)))
        if results:
            yield frame(results)

    def _write_segment(self, path: Path, share: Share) -> tuple[TaskSegment, list[Change]]:
        """Write the segment of a task; return it, and the rows that go to quarantine.

        The segment is written in pieces, so that the task holds few of its rows as objects.
        """
        first, _ = self.layout.range_of(share.number)
        unavailable = self.source.unavailable
        columns = ColumnInference(self.columns, unavailable)
        older = OlderRows() if self.sets_older_aside else None
        builder = RecordBuilder(columns, self.source, self.mapping, older=older)
        records = ColumnarBuilder(builder, columns, unavailable, checks_order=self.sets_older_aside)
        with SegmentWriter(path) as segment:
            for start, stop, rows in share.chunks(first, first + len(share.plans)):
                for table in records.tables(share.plans[start:stop], rows, first + start):
                    segment.write(table)
            written = TaskSegment(
                share.number,
                segment.close(),
                columns.sightings,
                SetAside.of(builder.set_aside, self.source.tells_shape),
                builder.updates,
                builder.removals,
            )
        return written, builder.set_aside


def _attempt() -> tuple[int, int]:
    """Return the number of this task's partition, and that of its attempt, unique in the application."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.partitionId(), context.taskAttemptId()


def _suffixed(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.stem}-{suffix}{path.suffix}")
