"""The code of the tasks of a large batch, and the values pickled to them; `large_batch` has the overview.

A task that writes is given rows: changes, each with its task and its version in the commit. Before the
changes of a transaction comes a row of kind ``PLANNED`` with its plan.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow as pa

from tailrace_server.pipeline.catalog.columns import ColumnInference, Sighting
from tailrace_server.pipeline.catalog.newest_positions import PositionSpan
from tailrace_server.pipeline.catalog.older_rows import OlderRows
from tailrace_server.pipeline.catalog.pending import read_pending, rows_of, write_pending
from tailrace_server.pipeline.catalog.record_table import ROWS_PER_WRITE
from tailrace_server.pipeline.input.change import CHANGE_SCHEMA, Change, to_batch
from tailrace_server.pipeline.transactions.grouping import Released
from tailrace_server.pipeline.transactions.lines import SplitDecoder, runs
from tailrace_server.pipeline.transactions.records import RecordBuilder
from tailrace_server.pipeline.transactions.tally import Tally
from tailrace_server.wal.files.documents import PendingSegment
from tailrace_server.wal.segment.writer import SegmentReceipt, SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tailrace_server.pipeline.catalog.columns import KnownColumns
    from tailrace_server.pipeline.input.source import Source
    from tailrace_server.pipeline.input.table_bindings import Bindings
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.wal.schema.mapping import SchemaMapping

_ROWS_PER_TASK: Final = 20_000
PLANNED: Final = 0
"""`kind` of the row that begins a transaction: it comes before the changes, with the plan in ``raw``."""

ROW_COLUMNS: Final = tuple(
    name for name in CHANGE_SCHEMA.names[: CHANGE_SCHEMA.names.index("number")]
)
SHUFFLED: Final = pa.schema(
    [
        *(CHANGE_SCHEMA.field(name) for name in ROW_COLUMNS),
        CHANGE_SCHEMA.field("raw"),
        pa.field("version", pa.int64()),
        pa.field("task", pa.int32()),
    ]
)
"""The input of a task that writes."""
ROWS: Final = pa.schema([CHANGE_SCHEMA.field(name) for name in ROW_COLUMNS])
"""The output of a task that reads pending files."""
PENDING_FILES: Final = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("crc32c", pa.int64()),
        pa.field("keys", pa.list_(pa.string())),
    ]
)
"""Pending files to read, each with the transactions that it is read for."""
RESULT: Final = pa.schema([pa.field("task", pa.int32()), pa.field("result", pa.binary())])
"""The output of a task that writes: its number, and a pickled TaskSegment or PendingSegment."""


_LEAD_FIELDS: Final = (
    "key",
    "transaction_id",
    "rows",
    "quarantined",
    "expected",
    "timestamp",
    "source",
    "mark",
    "spans",
)
"""Fields of a tally that its lead is written from."""
_lead_values = attrgetter(*_LEAD_FIELDS)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def encode_plan(released: Released) -> bytes:
    """Return what a task needs to know of a transaction to write its lead."""
    return _encode((released.late_of, *_lead_values(released.tally)))


def decode_plan(text: bytes) -> Released:
    """Return a transaction as far as its lead needs it."""
    late_of, *values, spans = _decode(text)
    values.append(tuple(PositionSpan(*span) for span in spans))
    return Released(Tally(**dict(zip(_LEAD_FIELDS, values, strict=True))), late_of)


class TaskSegment(NamedTuple):
    """The segment that a task wrote of released transactions."""

    receipt: SegmentReceipt
    sightings: list[Sighting]
    set_aside: list[Change]
    updates: dict[str, bool]
    """As `RecordBuilder.updates`."""
    removals: dict[str, bool]
    """As `RecordBuilder.removals`."""


@dataclass(frozen=True)
class Layout:
    """Which task writes which versions: task i those from ``starts[i]`` up to ``starts[i + 1]``."""

    starts: tuple[int, ...]
    versions: int

    @classmethod
    def of(cls, rows: Sequence[int], cores: int) -> Layout:
        """Divide transactions among tasks, in order and as evenly as whole transactions allow.

        Args:
            rows: Number of rows of each transaction, in version order.
            cores: How many tasks can run at once.
        """
        total = sum(rows) + len(rows)
        tasks = min(max(1, total // _ROWS_PER_TASK), 2 * cores)
        starts = [0]
        done = 0
        for version, count in enumerate(rows):
            if done >= total * len(starts) / tasks:
                starts.append(version)
            done += count + 1
        return cls(tuple(starts), len(rows))

    @property
    def tasks(self) -> int:
        """How many tasks write versions; tasks with higher numbers write what stays open."""
        return len(self.starts)

    def task(self, version: int) -> int:
        """Return the task of a version."""
        return bisect_right(self.starts, version) - 1


@dataclass(frozen=True)
class TaskWriter:
    """The common input of the tasks that write; pickled to each."""

    layout: Layout
    columns: KnownColumns
    source: Source
    mapping: SchemaMapping | None
    segment: Path
    pending: Path
    sets_older_aside: bool = True

    def partition(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write one task's rows; yields one row with what was written, or none."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = context.taskAttemptId()
        rows = _changes(batches)
        first = next(rows, None)
        if first is None:
            return
        # Spark may run a task again while its first attempt still runs. The number of the attempt in the
        # file's name keeps them apart; the driver commits the file whose result Spark takes.
        task = first[1]
        result: TaskSegment | PendingSegment
        if task < self.layout.tasks:
            result = self._write_segment(_suffixed(self.segment, f"{task}-{attempt}"), first, rows)
        else:
            left = [first[0], *(change for change, _ in rows)]
            result = write_pending(_suffixed(self.pending, f"{task}-{attempt}"), to_batch(left))
        yield pa.RecordBatch.from_arrays(
            [pa.array([task], pa.int32()), pa.array([pickle.dumps(result)], pa.binary())],
            schema=RESULT,
        )

    def _write_segment(
        self, path: Path, first: tuple[Change, int], rows: Iterable[tuple[Change, int]]
    ) -> TaskSegment:
        # Rows come sorted: the plan of a transaction, its changes, the next plan. A transaction is added
        # when the next one's plan shows that it is whole, and the last after the loop. The segment is
        # written piece by piece, so that a task holds one transaction and one piece.
        columns = ColumnInference(self.columns, self.source.unavailable)
        older = OlderRows() if self.sets_older_aside else None
        builder = RecordBuilder(columns, self.source, self.mapping, older=older)
        released = _plan_in(first[0])
        changes: list[Change] = []
        with SegmentWriter(path) as segment:
            for change, _ in rows:
                if change.kind != PLANNED:
                    changes.append(change)
                    continue
                builder.add(released, changes)
                released, changes = _plan_in(change), []
                if builder.rows >= ROWS_PER_WRITE:
                    segment.write(builder.take())
            builder.add(released, changes)
            segment.write(builder.take())
            return TaskSegment(
                segment.close(),
                columns.sightings,
                builder.set_aside,
                builder.updates,
                builder.removals,
            )


def decoder_of(
    settings: IngestSettings, skip: Mapping[tuple[str, int], int], bindings: Bindings
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what decodes the lines of a task; it is pickled to the task with the source."""

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = SplitDecoder(settings.line_decoder(bindings), skip)
        for batch in batches:
            for split, values in runs(batch, str(settings.input)):
                yield to_batch(list(decoder.feed(split, values)))
        yield to_batch(list(decoder.finish()))

    return decode


def pending_reader(
    catalog: Path,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what reads pending files, given by rows of `PENDING_FILES`, in a task."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                keys = row.pop("keys")
                rows = list(rows_of(read_pending(catalog, PendingSegment(**row)), keys))
                yield to_batch(rows).select(list(ROW_COLUMNS))

    return read


def _changes(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Change, int]]:
    """Yield the rows of a task as changes, each with the number of the task."""
    for batch in batches:
        tasks = batch.column("task").to_pylist()
        columns = [
            batch.column(name).to_pylist() if name in SHUFFLED.names else [None] * len(tasks)
            for name in CHANGE_SCHEMA.names
        ]
        yield from zip(map(Change._make, zip(*columns, strict=True)), tasks, strict=True)


def _plan_in(change: Change) -> Released:
    assert change.kind == PLANNED
    assert change.raw is not None
    return decode_plan(change.raw)


def _suffixed(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.stem}-{suffix}{path.suffix}")
