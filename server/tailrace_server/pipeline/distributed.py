"""A large batch, on all cores: the same steps as in the driver, each in as many tasks as there are.

::

    lines ──mapInArrow: decode──▶ changes (kept) ──group by transaction──▶ tallies ─▶ driver: group
                                     │                                                   │
    rows pending from earlier ─────┐ │   plan: transaction → version in the commit, task │
    batches, of what is released   ▼ ▼◀──────────────────────────────────────────────────┘
                           join, shuffle by task, sort by version and place
                                     │
                                     ├─ mapInArrow: consolidate, write a segment ─▶ receipt ─┐
                                     └─ mapInArrow: rows of what stays open ─▶ pending file ─┴▶ driver

The driver decides from one tally a transaction; rows never come to it. One transaction is one task's,
and tasks take consecutive versions, so the segments in the order of the tasks are the commit. The
plan itself travels as rows, one before the rows of each transaction, so that a task learns only what
it needs, and a transaction without rows has its version all the same.

The log is equal to what the driver alone would have written, but for where segments end.
"""

from __future__ import annotations

import pickle
import time
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow as pa

from tailrace_server.pipeline.changes import (
    BEGIN,
    CHANGE,
    CHANGE_SCHEMA,
    END,
    QUARANTINED,
    SPLIT,
    UNORDERED,
    Change,
    from_table,
    to_batch,
)
from tailrace_server.pipeline.columns import ColumnInference, Sighting
from tailrace_server.pipeline.driver import ROWS_PER_WRITE, Input, Written
from tailrace_server.pipeline.grouping import Released, Tally
from tailrace_server.pipeline.lines import relative_file, runs
from tailrace_server.pipeline.pending import read_pending, rows_of, write_pending
from tailrace_server.pipeline.records import RecordBuilder, Refused
from tailrace_server.pipeline.sources.debezium import DebeziumDecoder
from tailrace_server.wal.documents import PendingSegment
from tailrace_server.wal.segment import SegmentReceipt, SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tailrace_server.pipeline.columns import KnownColumns
    from tailrace_server.pipeline.driver import Decision, Distribute, Driver
    from tailrace_server.pipeline.settings import IngestSettings
    from tailrace_server.pipeline.sources.debezium import DebeziumOptions

PLANNED: Final = 0
"""`kind` of the row that tells a task of a transaction: before its changes, with the plan in ``raw``."""

_ROWS_PER_TASK: Final = 20_000
_ALWAYS: Final = (-(2**63), 2**63 - 1)
"""Range of `total_order` that every row is in."""

_ROW_COLUMNS: Final = tuple(
    name for name in CHANGE_SCHEMA.names[: CHANGE_SCHEMA.names.index("number")]
)
_SHUFFLED: Final = pa.schema(
    [
        *(CHANGE_SCHEMA.field(name) for name in _ROW_COLUMNS),
        CHANGE_SCHEMA.field("raw"),
        pa.field("version", pa.int64()),
        pa.field("task", pa.int32()),
    ]
)
_ROWS: Final = pa.schema([CHANGE_SCHEMA.field(name) for name in _ROW_COLUMNS])
_MATCHES: Final = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("start", pa.int64()),
        pa.field("stop", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("target", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("task", pa.int32()),
    ]
)
_PENDING_FILES: Final = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("crc32c", pa.int64()),
        pa.field("keys", pa.list_(pa.string())),
    ]
)
_RESULT: Final = pa.schema([pa.field("task", pa.int32()), pa.field("result", pa.binary())])


class _Planned(msgspec.Struct, array_like=True):
    """What a task needs to know of a transaction to write its lead."""

    key: str
    transaction_id: str | None
    rows: int
    quarantined: int
    expected: int | None
    timestamp: int | None
    source: str | None
    late_of: int | None

    @classmethod
    def of(cls, released: Released) -> _Planned:
        t = released.tally
        return cls(
            t.key,
            t.transaction_id,
            t.rows,
            t.quarantined,
            t.expected,
            t.timestamp,
            t.source,
            released.late_of,
        )

    def released(self) -> Released:
        return Released(
            Tally(
                key=self.key,
                transaction_id=self.transaction_id,
                rows=self.rows,
                quarantined=self.quarantined,
                expected=self.expected,
                timestamp=self.timestamp,
                source=self.source,
            ),
            self.late_of,
        )


class _SegmentOf(NamedTuple):
    """What a task wrote of released transactions."""

    receipt: SegmentReceipt
    sightings: list[Sighting]
    set_aside: list[Change]


def commit_large_batch(
    driver: Driver, settings: IngestSettings, lines: DataFrame, batch_id: int
) -> None:
    """Commit a batch without taking its rows to the driver. Called under the driver's lock."""
    skip = _lines_to_skip(driver, settings, lines)
    decoded = lines.mapInArrow(
        _decoder(settings.source, str(settings.input), skip), _spark_schema(CHANGE_SCHEMA)
    ).persist()
    try:
        given = _take_stock(decoded, sum(skip.values()))
        decision = driver.decide(batch_id, given)
        driver.commit(
            batch_id,
            0,
            given,
            decision,
            lambda: _write_in_tasks(driver, batch_id, 0, decision, decoded),
        )
    finally:
        decoded.unpersist()


def distribution(spark: SparkSession) -> Distribute:
    """Return what lets a driver write in tasks what many earlier batches left pending."""

    def distribute(
        driver: Driver, batch_id: int, k: int, decision: Decision, changes: Sequence[Change]
    ) -> Written:
        table = pa.Table.from_batches([to_batch(changes)])
        return _write_in_tasks(driver, batch_id, k, decision, spark.createDataFrame(table))

    return distribute


def _write_in_tasks(
    driver: Driver, batch_id: int, k: int, decision: Decision, changes: DataFrame
) -> Written:
    """Write what is released and what stays open, of a frame of changes and of what is pending."""
    cores = changes.sparkSession.sparkContext.defaultParallelism
    layout = _Layout.of([released.tally.rows for released in decision.plan.released], cores)
    rows = _planned_rows(driver, changes, decision, layout, cores)
    write = _Writing(
        layout=layout,
        columns=driver.known_columns,
        refused=tuple(driver.refused),
        segment=driver.writer.segment_path(batch_id, f"{k}-task"),
        pending=driver.writer.segment_path(batch_id, f"pending-{k}-task"),
    )
    tasks = (
        rows.repartitionById(layout.tasks + cores, "task")
        .sortWithinPartitions("task", "version", "kind", "total_order", "place")
        .mapInArrow(write.partition, _spark_schema(_RESULT))
        .toArrow()
    )
    return _written(tasks, layout)


@dataclass(frozen=True)
class _Layout:
    """Which task writes which versions: task i those from ``starts[i]`` up to ``starts[i + 1]``."""

    starts: tuple[int, ...]
    versions: int

    @classmethod
    def of(cls, rows: Sequence[int], cores: int) -> _Layout:
        """Lay transactions of so many rows out, in order, as evenly as whole ones allow."""
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
        """How many tasks write versions; later ones write what stays open."""
        return len(self.starts)

    def task(self, version: int) -> int:
        """Return the task of a version."""
        return bisect_right(self.starts, version) - 1


@dataclass(frozen=True)
class _Writing:
    """What the tasks that write need; pickled to each."""

    layout: _Layout
    columns: KnownColumns
    refused: tuple[Refused, ...]
    segment: Path
    pending: Path

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
        task = first[1]
        result: _SegmentOf | PendingSegment
        if task < self.layout.tasks:
            result = self._write_segment(_suffixed(self.segment, f"{task}-{attempt}"), first, rows)
        else:
            left = [first[0], *(change for change, _ in rows)]
            result = write_pending(_suffixed(self.pending, f"{task}-{attempt}"), to_batch(left))
        yield pa.RecordBatch.from_arrays(
            [pa.array([task], pa.int32()), pa.array([pickle.dumps(result)], pa.binary())],
            schema=_RESULT,
        )

    def _write_segment(
        self, path: Path, first: tuple[Change, int], rows: Iterable[tuple[Change, int]]
    ) -> _SegmentOf:
        columns = ColumnInference(self.columns)
        builder = RecordBuilder(columns, self.refused)
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
            return _SegmentOf(segment.close(), columns.sightings, builder.set_aside)


def _decoder(
    options: DebeziumOptions, folder: str, skip: Mapping[tuple[str, int], int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what decodes the lines of a task."""

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = DebeziumDecoder(options, skip)
        for batch in batches:
            for split, values in runs(batch, folder):
                yield to_batch(list(decoder.feed(split, values)))
        yield to_batch(list(decoder.finish()))

    return decode


def _take_stock(decoded: DataFrame, skipped: int) -> Input:
    """Return what the driver needs to know of a batch: one tally a transaction."""
    import pyspark.sql.functions as f

    kind, place = f.col("kind"), f.col("place")
    arrived = f.substring(place, 25, 1_000_000)
    mark = kind.isin(BEGIN, END)
    tallies = (
        decoded.where(f.col("transaction").isNotNull())
        .groupBy(f.col("transaction").alias("key"))
        .agg(
            f.min("transaction_id").alias("transaction_id"),
            f.min(f.when(kind == CHANGE, place)).alias("place"),
            f.min(f.when(kind == CHANGE, arrived)).alias("first_arrival"),
            f.max(f.when(kind == CHANGE, arrived)).alias("last_arrival"),
            f.min(f.when(mark, arrived)).alias("mark"),
            f.count_if(kind == CHANGE).alias("rows"),
            f.count_if(kind == QUARANTINED).alias("quarantined"),
            f.max(f.when(kind == END, f.col("number"))).alias("expected"),
            f.max("timestamp").alias("timestamp"),
            f.min("source").alias("source"),
        )
        .toArrow()
        .to_pylist()
    )
    others = decoded.where(kind.isin(QUARANTINED, SPLIT)).toArrow()
    rows = list(from_table(others))
    now = time.monotonic()
    return Input(
        tallies={row["key"]: Tally(**row, seen=now) for row in tallies},
        splits=[row for row in rows if row.kind == SPLIT],
        quarantined=[row for row in rows if row.kind == QUARANTINED],
        skipped=skipped,
    )


def _planned_rows(
    driver: Driver, decoded: DataFrame, decision: Decision, layout: _Layout, cores: int
) -> DataFrame:
    """Return every row that is written, of `_SHUFFLED`, with its version in the commit and its task."""
    import pyspark.sql.functions as f

    spark = decoded.sparkSession
    places = {r.tally.key: version for version, r in enumerate(decision.plan.released)}
    match = f.broadcast(spark.createDataFrame(_matches(decision, layout, places)))
    condition = (
        (f.col("transaction") == f.col("key"))
        & (f.col("total_order") >= f.col("start"))
        & (f.col("total_order") < f.col("stop"))
    )
    left_open = f.lit(layout.tasks) + f.pmod(f.hash("transaction"), f.lit(cores))
    computed = {
        "transaction": f.coalesce("target", "transaction").alias("transaction"),
        "total_order": (f.col("total_order") + f.coalesce("offset", f.lit(0))).alias("total_order"),
        "raw": f.lit(None).cast("binary").alias("raw"),
        "task": f.coalesce("task", left_open).cast("int").alias("task"),
    }
    columns = [computed.get(name, f.col(name)) for name in _SHUFFLED.names]
    rows = decoded.where(f.col("kind") == CHANGE).select(*_ROW_COLUMNS)
    leads = spark.createDataFrame(_lead_rows(decision.plan.released, layout))
    planned = rows.join(match, condition, "left").select(*columns).unionByName(leads)
    waiting = {key: driver.open_tallies[key] for key in places if key in driver.open_tallies}
    files = _pending_files(driver, waiting)
    if files:
        read = (
            spark.createDataFrame(pa.Table.from_pylist(files, _PENDING_FILES))
            .repartition(min(cores, len(files)))
            .mapInArrow(_pending_reader(driver.writer.path), _spark_schema(_ROWS))
        )
        planned = planned.unionByName(read.join(match, condition).select(*columns))
    return planned


def _matches(decision: Decision, layout: _Layout, places: Mapping[str, int]) -> pa.Table:
    """Return which rows belong to which version: all of a transaction, or a cut of snapshot rows.

    Cuts are listed whether or not they become versions now, since their rows take the cut's key.
    """
    rows = [(c.split_key, c.start, c.stop, c.offset, c.key) for c in decision.cuts]
    cut = {key for *_, key in rows}
    rows += [(key, *_ALWAYS, 0, key) for key in places if key not in cut]
    table = [
        (*row, version, None if version is None else layout.task(version))
        for row in rows
        for version in [places.get(row[4])]
    ]
    columns = zip(*table, strict=True) if table else ((),) * len(_MATCHES)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, _MATCHES, strict=True)]
    return pa.Table.from_arrays(arrays, schema=_MATCHES)


def _lead_rows(released: Sequence[Released], layout: _Layout) -> pa.Table:
    """Return a row of `_SHUFFLED` for each transaction, which sorts before its changes."""
    count = len(released)
    values: dict[str, pa.Array] = {
        "kind": pa.array([PLANNED] * count, pa.int16()),
        "place": pa.array([b""] * count, pa.binary()),
        "total_order": pa.array([UNORDERED] * count, pa.int64()),
        "operation": pa.array([0] * count, pa.int16()),
        "raw": pa.array([_encode(_Planned.of(each)) for each in released], pa.binary()),
        "version": pa.array(range(count), pa.int64()),
        "task": pa.array([layout.task(version) for version in range(count)], pa.int32()),
    }
    arrays = [values.get(field.name, pa.nulls(count, field.type)) for field in _SHUFFLED]
    return pa.Table.from_arrays(arrays, schema=_SHUFFLED)


def _pending_files(driver: Driver, waiting: Mapping[str, Tally]) -> list[dict[str, object]]:
    """Return the pending files to read, each with the transactions that it is read for."""
    return [
        {
            **msgspec.structs.asdict(file),
            "keys": [key for key, t in waiting.items() if file.path in t.segments],
        }
        for file in driver.rows_files(waiting)
    ]


def _pending_reader(
    catalog: Path,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what reads pending files, given by rows of `_PENDING_FILES`, in a task."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                keys = row.pop("keys")
                rows = list(rows_of(read_pending(catalog, PendingSegment(**row)), keys))
                yield to_batch(rows).select(list(_ROW_COLUMNS))

    return read


def _lines_to_skip(
    driver: Driver, settings: IngestSettings, lines: DataFrame
) -> dict[tuple[str, int], int]:
    """Return (file, block) → lines at its head that the log holds; counted only if it can be any."""
    if len(driver.writer.state.writers) < 2:
        return {}
    counted = lines.groupBy("file", "block").count().toArrow().to_pylist()
    skip = {}
    before: dict[str, int] = {}
    for row in sorted(counted, key=lambda row: (row["file"], row["block"])):
        file = relative_file(row["file"], str(settings.input))
        start = before.get(file, 0)
        before[file] = start + row["count"]
        held = min(max(driver.consumed(file) - start, 0), row["count"])
        if held:
            skip[file, row["block"]] = held
    return skip


def _written(tasks: pa.Table, layout: _Layout) -> Written:
    """Put together what the tasks wrote, in the order of the tasks."""
    segments: list[SegmentReceipt] = []
    sightings: list[Sighting] = []
    pending: list[PendingSegment] = []
    set_aside: list[Change] = []
    for row in sorted(tasks.to_pylist(), key=lambda row: row["task"]):
        result = pickle.loads(row["result"])
        if isinstance(result, PendingSegment):
            pending.append(result)
            continue
        start = layout.starts[row["task"]]
        segments.append(result.receipt)
        set_aside += result.set_aside
        sightings += [s._replace(version=start + s.version) for s in result.sightings]
    written = sum(segment.transactions for segment in segments)
    assert written == layout.versions, f"{written} transactions written of {layout.versions}"
    return Written(segments, sightings, pending, set_aside)


def _changes(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Change, int]]:
    """Yield the rows of a task as changes, each with the number of the task."""
    for batch in batches:
        tasks = batch.column("task").to_pylist()
        columns = [
            batch.column(name).to_pylist() if name in _SHUFFLED.names else [None] * len(tasks)
            for name in CHANGE_SCHEMA.names
        ]
        yield from zip(map(Change._make, zip(*columns, strict=True)), tasks, strict=True)


def _plan_in(change: Change) -> Released:
    assert change.kind == PLANNED
    assert change.raw is not None
    return _decode(change.raw).released()


def _suffixed(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.stem}-{suffix}{path.suffix}")


def _spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Planned).decode
