"""Large batches on all cores: the same steps as in the driver, each run in many Spark tasks.

::

    lines ──mapInArrow: decode──▶ changes (kept) ──group by transaction──▶ tallies ─▶ driver: group
                                     │                                                   │
    rows pending from earlier ─────┐ │   plan: transaction → version in the commit, task │
    batches, of what is released   ▼ ▼◀──────────────────────────────────────────────────┘
                           join, shuffle by task, sort by version and place
                                     │
                                     ├─ mapInArrow: consolidate, write a segment ─▶ receipt ─┐
                                     └─ mapInArrow: rows of what stays open ─▶ pending file ─┴▶ driver

The driver decides from one tally for each transaction; no row of the batch is sent to the driver. One task
writes all rows of a transaction, and each task writes consecutive versions. So the commit is the tasks'
segments, in the order of the tasks. The plan is sent to the tasks as rows, one before the rows of each
transaction. So a task gets only its part of the plan, and a transaction without rows gets its version, too.

The resulting log differs from the log of a driver alone only in the boundaries of segments.
"""

from __future__ import annotations

import pickle
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from tailrace_server.pipeline.catalog.fillings import lacks_images
from tailrace_server.pipeline.catalog.newest_positions import PositionSpan
from tailrace_server.pipeline.input.change import (
    BEGIN,
    CHANGE,
    CHANGE_SCHEMA,
    DELETE,
    END,
    LINE_LENGTH,
    QUARANTINED,
    READ,
    SPLIT,
    TRUNCATE,
    UNORDERED,
    UNPLACED,
    Change,
    batch_of,
    from_table,
    to_batch,
)
from tailrace_server.pipeline.transactions.lines import lines_to_skip, relative_file
from tailrace_server.pipeline.transactions.records import WrittenPlan
from tailrace_server.pipeline.transactions.tally import BatchSummary, Tally
from tailrace_server.pipeline.transactions.tasks import (
    PENDING_FILES,
    PLANNED,
    RESULT,
    ROW_COLUMNS,
    ROWS,
    SHUFFLED,
    Layout,
    TaskWriter,
    decoder_of,
    encode_plan,
    pending_reader,
)
from tailrace_server.wal.files.documents import PendingSegment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tailrace_server.pipeline.catalog.columns import Sighting
    from tailrace_server.pipeline.input.table_bindings import Bindings
    from tailrace_server.pipeline.transactions.driver import Distribute, Driver
    from tailrace_server.pipeline.transactions.grouping import Decision, Released
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.wal.segment.writer import SegmentReceipt

_ALWAYS: Final = (-(2**63), 2**63 - 1)
"""The lowest and the highest possible `total_order` of a row."""

_MATCHES: Final = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("start", pa.int64()),
        pa.field("last", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("target", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("task", pa.int32()),
    ]
)


def commit_large_batch(
    driver: Driver, settings: IngestSettings, lines: DataFrame, batch_id: int
) -> None:
    """Commit a batch without collecting its rows in the driver. The caller holds the driver's lock."""
    # 1. Decode once and persist the changes, because they are read twice: for the tallies, and to be written.
    #    They are decoded again if the batch is the first to bind an entity type and has rows of a second table
    #    or key for it: the new bindings then quarantine those rows.
    skip = _lines_to_skip(driver, settings, lines)

    def decode(bindings: Bindings) -> DataFrame:
        decoder = decoder_of(settings, skip, bindings)
        return lines.mapInArrow(decoder, _spark_schema(CHANGE_SCHEMA)).persist()

    decoded = decode(driver.bindings)
    try:
        given = _summarize(decoded, sum(skip.values()), driver.idle.now)
        found = driver.bindings.after(given.splits)
        if not found.admits(given.splits):
            decoded.unpersist()
            decoded = decode(found)
            given = _summarize(decoded, sum(skip.values()), driver.idle.now)
        # 2. If images must be filled, commit in the driver: a fill needs all versions before it.
        if settings.makes_images_whole and lacks_images(driver.open_tallies, settings, decoded):
            driver.batch(batch_id, list(from_table(decoded.toArrow())), sum(skip.values()))
            return
        given = given.without_foreign_effects(driver.bindings)
        # 3. Decide from the tallies, exactly as for a small batch.
        decision = driver.decide(batch_id, given)
        # 4. If a row may be older than the log's, commit in the driver: the check needs the rows of all
        #    transactions, one by one in the order of the versions.
        if decision.may_be_older:
            driver.batch(batch_id, list(from_table(decoded.toArrow())), sum(skip.values()))
            return
        # 5. Write in tasks and commit.
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
    """Return a function by which a driver writes, in tasks, the pending rows of many earlier batches."""

    def distribute(
        driver: Driver, batch_id: int, k: int, decision: Decision, changes: Sequence[Change]
    ) -> WrittenPlan:
        table = pa.Table.from_batches([to_batch(changes)])
        return _write_in_tasks(driver, batch_id, k, decision, spark.createDataFrame(table))

    return distribute


def _write_in_tasks(
    driver: Driver, batch_id: int, k: int, decision: Decision, changes: DataFrame
) -> WrittenPlan:
    """Write the released transactions, and the rows that stay open, of some changes and of the pending rows."""
    # 1. Assign versions to tasks. A task gets consecutive versions, so that its segment holds one range of the
    #    commit. One more task for each core writes the rows that stay open.
    cores = changes.sparkSession.sparkContext.defaultParallelism
    layout = Layout.of([released.tally.rows for released in decision.plan.released], cores)
    rows = _planned_rows(driver, changes, decision, layout, cores)
    # 2. Collect the common input of all tasks. It is pickled to each of them, so it must stay small.
    write = TaskWriter(
        layout=layout,
        columns=driver.known_columns,
        source=driver.source,
        mapping=driver.mapping,
        segment=driver.writer.segment_path(batch_id, f"{k}-task"),
        pending=driver.writer.segment_path(batch_id, f"pending-{k}-task"),
        sets_older_aside=decision.sets_older_aside,
    )
    # 3. Partition the rows by the task's number itself: a hash of it could send the rows of two tasks to one.
    #    The sort by kind puts the row with a transaction's plan before the changes of the transaction.
    tasks = (
        rows.repartitionById(layout.tasks + cores, "task")
        .sortWithinPartitions("task", "version", "kind", "total_order", "place")
        .mapInArrow(write.partition, _spark_schema(RESULT))
        .toArrow()
    )
    return written_plan(tasks, layout)


def _summarize(decoded: DataFrame, skipped: int, seen: float) -> BatchSummary:
    """Return the summary of a batch: Spark computes one tally for each transaction."""
    import pyspark.sql.functions as f

    # The same fields as `tally` computes in the driver; a place is cut apart as in `change`.
    kind, place = f.col("kind"), f.col("place")
    row, mark = kind == CHANGE, kind.isin(BEGIN, END)
    arrived = f.substring(place, len(UNPLACED) + 1, 1_000_000)
    position = f.substring(place, 1, len(UNPLACED))
    placed = position != f.lit(UNPLACED)
    changed = row & (f.col("operation") != READ)
    parts = (
        decoded.where(f.col("transaction").isNotNull())
        .groupBy(
            f.col("transaction").alias("key"),
            "entity_type",
            f.substring(arrived, f.lit(1), f.octet_length(arrived) - LINE_LENGTH).alias("file"),
            "log",
        )
        .agg(
            f.min("transaction_id").alias("transaction_id"),
            f.coalesce(f.min(f.when(row & placed, place)), f.min(f.when(row, place))).alias(
                "place"
            ),
            f.min(f.when(row, arrived)).alias("first_arrival"),
            f.max(f.when(row, arrived)).alias("last_arrival"),
            f.min(f.when(mark, arrived)).alias("mark"),
            f.count_if(row).alias("rows"),
            f.count_if(row & ~f.col("operation").isin(DELETE, TRUNCATE)).alias("kept"),
            f.count_if(kind == QUARANTINED).alias("quarantined"),
            f.max(f.when(kind == END, f.col("number"))).alias("expected"),
            f.max(f.when(row, f.col("timestamp"))).alias("timestamp"),
            f.min("source").alias("source"),
            f.min(f.when(row, position)).alias("lowest"),
            f.max(f.when(row, position)).alias("highest"),
            f.min(f.when(changed, f.col("timestamp"))).alias("earliest"),
            f.max(f.when(row, f.col("timestamp"))).alias("latest"),
            f.coalesce(f.bit_or(f.when(row, f.col("number"))), f.lit(0)).alias("marks"),
        )
        .drop("file")
        .toArrow()
        .to_pylist()
    )
    # Spark's groups are finer than transactions, as `Tally.first_rows` and `spans` need them. Join them here.
    tallies: dict[str, Tally] = {}
    kept: Counter[str] = Counter()
    for part in parts:
        entity_type, first = part.pop("entity_type"), part["first_arrival"]
        kept[entity_type or ""] += part.pop("kept")
        part["first_rows"] = ((entity_type or "", first),) if first else ()
        span = PositionSpan(
            entity_type or "", *(part.pop(name) for name in PositionSpan._fields[1:])
        )
        part["spans"] = (span,) if span.log else ()
        t = Tally(**part, seen=seen)
        tallies[t.key] = tallies[t.key].plus(t) if t.key in tallies else t
    # Collect the rows without a tally: they are few, and the driver writes them to quarantine and to the entry.
    others = decoded.where(kind.isin(QUARANTINED, SPLIT)).toArrow()
    rows = list(from_table(others))
    return BatchSummary(
        tallies=tallies,
        rows=+kept,
        splits=[row for row in rows if row.kind == SPLIT],
        quarantined=[row for row in rows if row.kind == QUARANTINED],
        skipped=skipped,
    )


def _planned_rows(
    driver: Driver, decoded: DataFrame, decision: Decision, layout: Layout, cores: int
) -> DataFrame:
    """Return all rows to write as a frame of `SHUFFLED`, each with its version in the commit and its task."""
    import pyspark.sql.functions as f

    # 1. Match each row with its version by the transaction key. Snapshot rows are also matched by the row's
    #    number in the run, because the rows of one run may go to several versions.
    spark = decoded.sparkSession
    places = {r.tally.key: version for version, r in enumerate(decision.plan.released)}
    match = f.broadcast(spark.createDataFrame(matches(decision, layout, places)))
    condition = (
        (f.col("transaction") == f.col("key"))
        & (f.col("total_order") >= f.col("start"))
        & (f.col("total_order") <= f.col("last"))
    )
    # 2. A row without a version stays open. All rows of its transaction go to one of the additional tasks.
    left_open = f.lit(layout.tasks) + f.pmod(f.hash("transaction"), f.lit(cores))
    computed = {
        "transaction": f.coalesce("target", "transaction").alias("transaction"),
        "total_order": (f.col("total_order") + f.coalesce("offset", f.lit(0))).alias("total_order"),
        "raw": f.lit(None).cast("binary").alias("raw"),
        "task": f.coalesce("task", left_open).cast("int").alias("task"),
    }
    columns = [computed.get(name, f.col(name)) for name in SHUFFLED.names]
    # 3. Left join of the batch's own rows: a row without a match stays open. Add one plan row for each
    #    transaction, so that a transaction without rows gets its version, too.
    rows = decoded.where(f.col("kind") == CHANGE).select(*ROW_COLUMNS)
    leads = spark.createDataFrame(lead_rows(decision.plan.released, layout))
    planned = rows.join(match, condition, "left").select(*columns).unionByName(leads)
    # 4. Inner join of the rows of earlier batches: a pending row that is not released stays in its file.
    waiting = {key: driver.open_tallies[key] for key in places if key in driver.open_tallies}
    files = _pending_files(driver, waiting)
    if files:
        read = (
            spark.createDataFrame(pa.Table.from_pylist(files, PENDING_FILES))
            .repartition(min(cores, len(files)))
            .mapInArrow(pending_reader(driver.writer.path), _spark_schema(ROWS))
        )
        planned = planned.unionByName(read.join(match, condition).select(*columns))
    return planned


def matches(decision: Decision, layout: Layout, places: Mapping[str, int]) -> pa.Table:
    """Return a table that maps rows to versions: all rows of a transaction, or one cut of snapshot rows.

    The table also has the cuts that stay open, with a null version, because their rows get the cut's key.
    """
    rows = [(c.run_key, c.start, c.stop - 1, c.offset, c.key) for c in decision.cuts]
    cut = {key for *_, key in rows}
    rows += [(key, *_ALWAYS, 0, key) for key in places if key not in cut]
    table = [
        (*row, version, None if version is None else layout.task(version))
        for row in rows
        for version in [places.get(row[4])]
    ]
    return pa.Table.from_batches([batch_of(table, _MATCHES)])


def lead_rows(released: Sequence[Released], layout: Layout) -> pa.Table:
    """Return a table of `SHUFFLED` with one plan row for each transaction; it sorts before the changes."""
    count = len(released)
    values: dict[str, pa.Array] = {
        "kind": pa.array([PLANNED] * count, pa.int16()),
        "place": pa.array([b""] * count, pa.binary()),
        "total_order": pa.array([UNORDERED] * count, pa.int64()),
        "operation": pa.array([0] * count, pa.int16()),
        "raw": pa.array([encode_plan(each) for each in released], pa.binary()),
        "version": pa.array(range(count), pa.int64()),
        "task": pa.array([layout.task(version) for version in range(count)], pa.int32()),
    }
    arrays = [values.get(field.name, pa.nulls(count, field.type)) for field in SHUFFLED]
    return pa.Table.from_arrays(arrays, schema=SHUFFLED)


def _pending_files(driver: Driver, waiting: Mapping[str, Tally]) -> list[dict[str, object]]:
    """Return the pending files to read, each with the keys of the transactions whose rows are wanted."""
    return [
        {
            **msgspec.structs.asdict(file),
            "keys": [key for key, t in waiting.items() if file.path in t.segments],
        }
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


def written_plan(tasks: pa.Table, layout: Layout) -> WrittenPlan:
    """Combine the results of the tasks, in the order of the tasks, which is the order of the versions."""
    segments: list[SegmentReceipt] = []
    sightings: list[Sighting] = []
    pending: list[PendingSegment] = []
    set_aside: list[Change] = []
    updates: dict[str, bool] = {}
    removals: dict[str, bool] = {}
    for row in sorted(tasks.to_pylist(), key=lambda row: row["task"]):
        result = pickle.loads(row["result"])
        if isinstance(result, PendingSegment):
            pending.append(result)
            continue
        # Versions in a task's result are relative to its segment; the commit's are relative to its first one.
        start = layout.starts[row["task"]]
        segments.append(result.receipt)
        set_aside += result.set_aside
        for noted, of_task in ((updates, result.updates), (removals, result.removals)):
            for entity_type, missing in of_task.items():
                noted[entity_type] = noted.get(entity_type, False) or missing
        sightings += [s._replace(version=start + s.version) for s in result.sightings]
    written = sum(segment.transactions for segment in segments)
    assert written == layout.versions, f"{written} transactions written of {layout.versions}"
    return WrittenPlan(
        segments, sightings, pending, set_aside=set_aside, updates=updates, removals=removals
    )


def _spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
