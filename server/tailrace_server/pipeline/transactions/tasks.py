"""The code of the Spark tasks of a large batch, and the values pickled to them; `large_batch` has the overview.

A writing task receives rows: changes, each with its task and its version in the commit. A row of kind
``PLANNED`` comes before the changes of each transaction, and has the transaction's plan.
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
"""`kind` of the row before the changes of a transaction; the row has the transaction's plan in ``raw``."""

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
"""The schema of the input of a writing task."""
ROWS: Final = pa.schema([CHANGE_SCHEMA.field(name) for name in ROW_COLUMNS])
"""The schema of the output of a task that reads pending files."""
PENDING_FILES: Final = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("crc32c", pa.int64()),
        pa.field("keys", pa.list_(pa.string())),
    ]
)
"""The schema of a list of pending files to read, each with the keys of the wanted transactions."""
RESULT: Final = pa.schema([pa.field("task", pa.int32()), pa.field("result", pa.binary())])
"""The schema of the output of a writing task: its number, and a pickled TaskSegment or PendingSegment."""


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
"""The fields of a tally that go into the transaction's lead record."""
_lead_values = attrgetter(*_LEAD_FIELDS)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def encode_plan(released: Released) -> bytes:
    """Return the plan of one transaction as bytes: what a task needs to write the lead record."""
    return _encode((released.late_of, *_lead_values(released.tally)))


def decode_plan(text: bytes) -> Released:
    """Return the transaction of `encode_plan`; its tally has only the fields of the lead record."""
    late_of, *values, spans = _decode(text)
    values.append(tuple(PositionSpan(*span) for span in spans))
    return Released(Tally(**dict(zip(_LEAD_FIELDS, values, strict=True))), late_of)


class TaskSegment(NamedTuple):
    """The segment of released transactions that a task wrote, and what it found in their rows."""

    receipt: SegmentReceipt
    sightings: list[Sighting]
    set_aside: list[Change]
    updates: dict[str, bool]
    """The segment's `RecordBuilder.updates`."""
    removals: dict[str, bool]
    """The segment's `RecordBuilder.removals`."""


@dataclass(frozen=True)
class Layout:
    """The assignment of versions to tasks.

    Task i writes the versions from ``starts[i]``, inclusive, to ``starts[i + 1]``, exclusive. Versions are
    relative to the commit.
    """

    starts: tuple[int, ...]
    versions: int

    @classmethod
    def of(cls, rows: Sequence[int], cores: int) -> Layout:
        """Divide transactions among tasks, in order; each task gets about the same number of rows.

        Args:
            rows: Number of rows of each transaction, in version order.
            cores: Number of tasks that can run at once.
        """
        # Each transaction also has one lead record.
        total = sum(rows) + len(rows)
        tasks = min(max(1, total // _ROWS_PER_TASK), 2 * cores)
        starts = [0]
        done = 0
        for version, count in enumerate(rows):
            # The next task begins at the first version beyond its fair part of the rows. So a huge transaction
            # may leave later tasks without versions, but no transaction is divided.
            if done >= total * len(starts) / tasks:
                starts.append(version)
            done += count + 1
        return cls(tuple(starts), len(rows))

    @property
    def tasks(self) -> int:
        """The number of tasks that write versions; tasks with higher numbers write the rows that stay open."""
        return len(self.starts)

    def task(self, version: int) -> int:
        """Return the number of the task that writes a version."""
        return bisect_right(self.starts, version) - 1


@dataclass(frozen=True)
class TaskWriter:
    """The common input of all writing tasks; pickled to each of them."""

    layout: Layout
    columns: KnownColumns
    source: Source
    mapping: SchemaMapping | None
    segment: Path
    pending: Path
    sets_older_aside: bool = True

    def partition(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of one task; yield one row of `RESULT`, or no row if the task has no rows."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = context.taskAttemptId()
        rows = _changes(batches)
        first = next(rows, None)
        if first is None:
            return
        # Spark may start a second attempt of a task while the first still runs. The attempt's number is in the
        # file's name, so each writes its own file. The driver commits the one whose result Spark returns.
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
        # The rows are sorted: the plan of a transaction, its changes, the next plan. A transaction is complete
        # when the next plan arrives; the last one is complete after the loop. The segment is written in pieces,
        # so that a task holds one transaction and one piece in memory.
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
    """Return a function that decodes the lines of a task; Spark pickles it to the task with the source."""

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
    """Return a function for tasks that reads the pending files named in rows of `PENDING_FILES`."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                keys = row.pop("keys")
                rows = list(rows_of(read_pending(catalog, PendingSegment(**row)), keys))
                yield to_batch(rows).select(list(ROW_COLUMNS))

    return read


def _changes(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Change, int]]:
    """Yield the rows of a task as pairs of change and task number."""
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
