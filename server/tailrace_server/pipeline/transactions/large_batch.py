"""Large batches on all cores: the same steps as in the driver, each run in many Spark tasks.

::

    lines ──LineDecoder──▶ pieces of rows (kept) ─▶ tallies, summaries ─▶ driver: group
                                  │                                          │
    rows pending from earlier ──┐ │        key → version in the commit, task │
    batches, of what is released▼ ▼◀─────────────────────────────────────────┘
                         VersionCutter: cut by version ──▶ exchange by task
                                │                          │
               quarantined lines ─▶ file                   ├─ TaskWriter: consolidate, write segment ─┐
                                                           └─ TaskWriter: what stays open ─▶ file ────┴▶ driver

Spark exchanges pieces, tables of thousands of rows each (`spark.pieces`). The driver decides from one tally for
each transaction; no row of the batch and no unusable line is sent to the driver. One task writes all rows of a
transaction, and each task writes consecutive versions. So the commit is the tasks' segments, in the order of
the tasks. A task gets the plans of its own transactions, also of those without rows.

If a version may depend on earlier ones (`driver_writer`), tasks only sort the rows. The driver then gets them
in version order, some thousands at a time.

The resulting log differs from the log of a driver alone only in the boundaries of segments.
"""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from tailrace_server.pipeline.catalog.fillings import check_fill
from tailrace_server.pipeline.input.change import to_batch
from tailrace_server.pipeline.run.set_aside import SetAside
from tailrace_server.pipeline.spark.pieces import FRAME, decoded, encoded, frame
from tailrace_server.pipeline.transactions.driver_state import tallies_from
from tailrace_server.pipeline.transactions.lines import (
    LineDecoder,
    lines_before,
    lines_to_skip,
    relative_file,
)
from tailrace_server.pipeline.transactions.pieces import Layout, PieceKind, encode_plans, rows_batch
from tailrace_server.pipeline.transactions.placed_rows import by_version
from tailrace_server.pipeline.transactions.records import WrittenPlan
from tailrace_server.pipeline.transactions.tally import BatchSummary
from tailrace_server.pipeline.transactions.tasks import (
    QuarantineTarget,
    SnapshotCuts,
    TaskSegment,
    TaskWriter,
    VersionCutter,
)
from tailrace_server.wal.files.documents import PendingSegment

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tailrace_server.pipeline.catalog.columns import Sighting
    from tailrace_server.pipeline.input.change import Change
    from tailrace_server.pipeline.input.table_bindings import Bindings
    from tailrace_server.pipeline.spark.pieces import Piece
    from tailrace_server.pipeline.transactions.driver import Distribute, Driver
    from tailrace_server.pipeline.transactions.driver_writer import Chunk
    from tailrace_server.pipeline.transactions.grouping import Decision, Released
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.wal.segment.writer import SegmentReceipt


def commit_large_batch(
    driver: Driver, settings: IngestSettings, lines: DataFrame, batch_id: int
) -> None:
    """Commit a batch without collecting its rows in the driver. The caller holds the driver's lock."""
    # 1. Decode once and persist the pieces, because they are read twice: for the tallies, and to be written.
    #    They are decoded again if the batch is the first to bind an entity type and has rows of a second table
    #    or key for it: the new bindings then quarantine those rows.
    skip = _lines_to_skip(driver, settings, lines)

    def decode(bindings: Bindings) -> DataFrame:
        decoder = LineDecoder(settings, skip, bindings)
        return lines.mapInArrow(decoder, _spark_schema(FRAME)).persist()

    pieces = decode(driver.bindings)
    try:
        batch = summarize(_collected(pieces.where(_NOT_ROWS)), skip, driver.idle.now)
        found = driver.bindings.after(batch.given.splits)
        if not found.admits(batch.given.splits):
            pieces.unpersist()
            pieces = decode(found)
            batch = summarize(_collected(pieces.where(_NOT_ROWS)), skip, driver.idle.now)
        given = batch.given.without_foreign_effects(driver.bindings)
        # 2. Decide from the tallies, exactly as for a small batch.
        decision = driver.decide(batch_id, given)
        # 3. Write in tasks, or, if a version may depend on earlier ones, in the driver. Pending rows may lack
        #    values, too.
        fills = batch.lacking > 0 or any(t.rows for t in driver.open_tallies.values())
        if settings.makes_images_whole and fills:
            check_fill(batch.image_bytes, settings)
        in_driver = driver.depends_on_earlier(decision, fills=fills)
        driver.commit(
            batch_id,
            0,
            given,
            decision,
            lambda: _write(driver, batch_id, 0, given, decision, pieces, in_driver=in_driver),
        )
    finally:
        pieces.unpersist()


def distribution(spark: SparkSession) -> Distribute:
    """Return a function by which a driver writes, in tasks, the pending rows of many earlier batches."""

    def distribute(
        driver: Driver,
        batch_id: int,
        k: int,
        given: BatchSummary,
        decision: Decision,
        changes: Sequence[Change],
    ) -> WrittenPlan:
        pieces: list[Piece] = []
        if changes:
            pieces.append((0, PieceKind.ROWS, encoded(rows_batch(changes))))
        if given.lines:
            pieces.append((0, PieceKind.QUARANTINED, encoded(to_batch(given.lines))))
        in_driver = driver.depends_on_earlier(decision, fills=True)
        source = _frame_of(spark, pieces)
        return _write(driver, batch_id, k, given, decision, source, in_driver=in_driver)

    return distribute


def _write(
    driver: Driver,
    batch_id: int,
    k: int,
    given: BatchSummary,
    decision: Decision,
    pieces: DataFrame,
    *,
    in_driver: bool,
) -> WrittenPlan:
    """Write the released transactions, and the rows that stay open, of some pieces and of the pending rows.

    The quarantined lines among the pieces are written, too. With ``in_driver`` the driver writes the released
    transactions, and has about ten thousand rows at a time; all else is written in tasks.
    """
    # 1. Assign versions to tasks. A task gets consecutive versions, so that its segment holds one range of the
    #    commit. One more task for each core writes the rows that stay open.
    spark = pieces.sparkSession
    cores = spark.sparkContext.defaultParallelism
    released = decision.plan.released
    layout = Layout.of([each.tally.rows for each in released], cores)
    # 2. Collect the common input of all tasks. It is pickled to each of them, so it must stay small.
    quarantine = QuarantineTarget(
        driver.quarantine_path(batch_id, k),
        {place: lines for place, lines in lines_before(given.splits).items() if lines},
        driver.bindings.after(given.splits),
    )
    cut = VersionCutter(
        layout,
        pa.array([each.tally.key for each in released], pa.string()),
        SnapshotCuts.of(decision.cuts) if decision.cuts else None,
        driver.writer.path,
        quarantine,
        cores,
    )
    write = TaskWriter(
        layout=layout,
        columns=driver.known_columns,
        source=driver.source,
        mapping=driver.mapping,
        segment=driver.writer.segment_path(batch_id, f"{k}-task"),
        pending=driver.writer.segment_path(batch_id, f"pending-{k}-task"),
        quarantine=quarantine,
        sets_older_aside=decision.sets_older_aside,
        is_sorter=in_driver,
    )
    # 3. Add the rows of earlier batches that are released now, and one piece of plans for each task. Exchange
    #    by the task's number itself: a hash of it could send the pieces of two tasks to one.
    waiting = _pending_files(driver, {each.tally.key for each in released})
    if waiting:
        files = _frame_of(spark, waiting).repartition(min(cores, len(waiting)))
        pieces = pieces.unionByName(files)
    rows = pieces.mapInArrow(cut, _spark_schema(FRAME))
    if released and not in_driver:
        ranges = map(layout.range_of, range(layout.tasks))
        plans = [encode_plans(released[start:stop]) for start, stop in ranges]
        rows = rows.unionByName(
            _frame_of(spark, [(task, PieceKind.PLANS, plan) for task, plan in enumerate(plans)])
        )
    shares = rows.repartitionById(layout.tasks + cores, "share")
    results = shares.mapInArrow(write, _spark_schema(FRAME))
    if not in_driver:
        return written_plan(_collected(results), layout)
    # 4. The driver gets one partition after the other, in the order of the tasks.
    others: list[tuple[int, Any]] = []
    parts = itertools.count()

    def set_aside(lines: list[Change]) -> None:
        for _, kind, piece in quarantine.write(lines, f"x{next(parts):06}"):
            others.append((kind, piece))

    chunks = _chunks(results, released, others)
    written = driver.write_versions(batch_id, k, decision, chunks, set_aside)
    of_tasks = written_plan(others, Layout((), 0))
    return written._replace(pending=of_tasks.pending, parts=of_tasks.parts)


def _chunks(
    pieces: DataFrame, released: Sequence[Released], others: list[tuple[int, Any]]
) -> Iterator[Chunk]:
    """Yield the released transactions chunk by chunk, from the pieces of a sorter.

    The pieces that are no rows are appended to ``others``; the last of them when all is consumed.
    """
    done = 0
    rows = ((row.share, row.kind, bytes(row.piece)) for row in pieces.toLocalIterator())
    for stop, some in itertools.groupby(
        rows, key=lambda row: row[0] if row[1] == PieceKind.ROWS else 0
    ):
        if not stop:
            others += [(kind, piece) for _, kind, piece in some]
            continue
        tables = [decoded(piece) for _, _, piece in some]
        yield list(zip(released[done:stop], by_version(tables, done, stop), strict=True))
        done = stop
    yield [(each, []) for each in released[done:]]


class BatchSummaries(NamedTuple):
    """The summaries of a batch that tasks decoded."""

    given: BatchSummary
    lacking: int
    """Number of changes that may lack values."""
    image_bytes: int


def summarize(
    pieces: Iterable[tuple[int, Any]], skip: Mapping[tuple[str, int], int], seen: float
) -> BatchSummaries:
    """Join the summaries of the tasks that decoded a batch.

    Args:
        pieces: PieceKind and content of the pieces; those of rows and lines are not needed.
        skip: As given to the decoders.
        seen: Current time of the idle clock, in seconds.
    """
    given = BatchSummary({}, Counter(), [], SetAside(), skipped=sum(skip.values()))
    lacking = image_bytes = 0
    for kind, piece in pieces:
        if kind == PieceKind.TALLIES:
            for key, part in tallies_from(decoded(piece), seen).items():
                before = given.tallies.get(key)
                given.tallies[key] = part if before is None else before.plus(part)
        elif kind == PieceKind.DECODED:
            part = pickle.loads(piece)
            given.rows.update(part.rows)
            given.splits.extend(part.splits)
            given.quarantined.add(part.quarantined)
            lacking += part.lacking
            image_bytes += part.image_bytes
    return BatchSummaries(given, lacking, image_bytes)


def written_plan(pieces: Iterable[tuple[int, Any]], layout: Layout) -> WrittenPlan:
    """Combine the results of the tasks, in the order of the tasks, which is the order of the versions."""
    found = [pickle.loads(piece) for _, piece in pieces]
    segments: list[SegmentReceipt] = []
    sightings: list[Sighting] = []
    set_aside = SetAside()
    updates: dict[str, bool] = {}
    removals: dict[str, bool] = {}
    tasks = (each for each in found if isinstance(each, TaskSegment))
    for result in sorted(tasks, key=lambda each: each.task):
        # Versions in a task's result are relative to its segment; the commit's are relative to its first one.
        start = layout.starts[result.task]
        segments.append(result.receipt)
        set_aside.add(result.set_aside)
        for noted, of_task in ((updates, result.updates), (removals, result.removals)):
            for entity_type, missing in of_task.items():
                noted[entity_type] = noted.get(entity_type, False) or missing
        sightings += [s._replace(version=start + s.version) for s in result.sightings]
    written = sum(segment.transactions for segment in segments)
    assert written == layout.versions, f"{written} transactions written of {layout.versions}"
    return WrittenPlan(
        segments,
        sightings,
        sorted((x for x in found if isinstance(x, PendingSegment)), key=lambda file: file.path),
        set_aside=set_aside,
        parts=sorted(each for each in found if isinstance(each, Path)),
        updates=updates,
        removals=removals,
    )


def _pending_files(driver: Driver, released: Collection[str]) -> list[Piece]:
    """Return a piece for each pending file to read, with the keys of the transactions whose rows are wanted."""
    waiting = {key: t for key, t in driver.open_tallies.items() if key in released}
    return [
        (
            0,
            PieceKind.PENDING_FILE,
            pickle.dumps((file, [key for key, t in waiting.items() if file.path in t.segments])),
        )
        for file in driver.rows_files(waiting)
    ]


def _lines_to_skip(
    driver: Driver, settings: IngestSettings, lines: DataFrame
) -> dict[tuple[str, int], int]:
    """Return (file, block) → number of lines at the start of the block that the log has already."""
    # Only another writer can have read a part of a file (`Driver.consumed`). If there was none, counting the
    # lines would read the whole input once more for nothing.
    if len(driver.writer.state.writers) < 2:
        return {}
    counted = lines.groupBy("file", "block").count().toArrow().to_pylist()
    folder = str(settings.input)
    splits = ((relative_file(row["file"], folder), row["block"], row["count"]) for row in counted)
    return lines_to_skip(splits, driver.consumed)


_NOT_ROWS: Final = f"kind NOT IN ({int(PieceKind.ROWS)}, {int(PieceKind.QUARANTINED)})"


def _collected(pieces: DataFrame) -> Iterator[tuple[int, Any]]:
    """Run a job, and yield kind and content of its pieces."""
    table: pa.Table = pieces.select("kind", "piece").toArrow()
    for batch in table.to_batches():
        contents = batch.column("piece")
        for row, kind in enumerate(batch.column("kind").to_pylist()):
            yield kind, contents[row].as_buffer()


def _frame_of(spark: SparkSession, pieces: Sequence[Piece]) -> DataFrame:
    """Return pieces as a DataFrame."""
    batches = [frame([piece]) for piece in pieces]
    return spark.createDataFrame(pa.Table.from_batches(batches, schema=FRAME))


def _spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
