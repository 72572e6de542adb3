"""A large batch in a Spark session: the frames around its steps, and what the driver makes of their results."""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from tailrace_server.pipeline.cdcv2.driver import BatchResult
from tailrace_server.pipeline.cdcv2.files import parts_of_file
from tailrace_server.pipeline.cdcv2.folding import KeyConflict
from tailrace_server.pipeline.cdcv2.spark_pieces import FRAME, Kind, frame
from tailrace_server.pipeline.cdcv2.spark_steps import (
    Deduplicate,
    FoldKeys,
    ReadParts,
    SeparateFinished,
    UpdateTimes,
    WriteSegments,
    ranges_of,
)
from tailrace_server.pipeline.cdcv2.state import (
    INDEX_KIND,
    TIMES_KIND,
    UPDATES_KIND,
    Control,
    count_messages,
    tiers,
    tiers_to_merge,
)
from tailrace_server.pipeline.cdcv2.times import coverage_after, frontier_after
from tailrace_server.pipeline.spark.session import SparkFailed, reason_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tailrace_server.pipeline.cdcv2.cutting import RefusedMessage
    from tailrace_server.pipeline.cdcv2.driver import Cdcv2Driver, LargeBatchRunner, SourceFile
    from tailrace_server.pipeline.cdcv2.files import FilePart, StreamSchema
    from tailrace_server.pipeline.cdcv2.spark_pieces import (
        DeduplicatedShare,
        PartRead,
        StateOfShare,
        TimesOfShare,
    )
    from tailrace_server.pipeline.cdcv2.spark_steps import SparkStep
    from tailrace_server.pipeline.cdcv2.times import Interval

PART_BYTES: Final = 16 << 20
"""A larger file is read in parts of about so many bytes, so that all cores have some."""

_ROWS_PER_RANGE: Final = 20_000
_MERGED_ROWS_MAX: Final = 1 << 62
SHARES_MAX: Final = 256
"""Most parts of the state: there are no more slots (updates.py) to share out."""


class BatchReading(NamedTuple):
    """The messages of a batch, deduplicated, with the times up to date; `BatchFrames` holds the rows."""

    frontier: int | None
    """The finished frontier after the batch; None when all time is finished."""
    coverage: list[Interval]
    """All that is covered after the batch."""
    parts: list[PartRead]
    updates: list[DeduplicatedShare]
    times: list[TimesOfShare]

    @property
    def refused(self) -> list[RefusedMessage]:
        """The messages that cannot be used."""
        return [each for some in self.parts for each in some.refused]


def large_batch_runner(spark: SparkSession) -> LargeBatchRunner:
    """Return the function that runs a large batch in a session."""

    def run(
        driver: Cdcv2Driver, batch_id: int, files: Sequence[SourceFile], control: Control
    ) -> BatchResult:
        settings = driver.settings
        cores = spark.sparkContext.defaultParallelism
        frames = BatchFrames(spark, min(settings.partitions or 2 * cores, SHARES_MAX))
        try:
            with frames:
                return _run(frames, driver, batch_id, files, control, cores)
        except (PySparkException, Py4JError) as error:
            raise SparkFailed(reason_of(error)) from error

    return run


def _run(
    frames: BatchFrames,
    driver: Cdcv2Driver,
    batch_id: int,
    files: Sequence[SourceFile],
    control: Control,
    cores: int,
) -> BatchResult:
    writer, folding = driver.writer, driver.folding
    ordinals = driver.ordinals(files, control)
    # 1. Read. The frontier must be known before anything is written, and every share has a say in it. So
    #    this job ends here, and its updates and times stay in Spark's cache for the next one.
    parts = parts_by_task(
        [
            part
            for ordinal, file in zip(ordinals, files, strict=True)
            for part in parts_of_file(file.path, ordinal, file.bytes, PART_BYTES)
        ],
        4 * cores,
    )
    reading = frames.read(
        parts, folding.schema, writer.path, control, first=driver.settings.first_stands
    )
    # 2. Contradictions stop the batch before anything is written: of updates first, as in a small batch.
    for share in reading.updates:
        if share.conflict is not None:
            driver.note_conflicts(control, share.conflicts, *share.conflict)
    contradictions = [each.contradiction for each in reading.times if each.contradiction]
    if contradictions:
        raise driver.error_of(control, min(contradictions, key=lambda each: each.time))
    _apply_reading(control, reading)
    # 3. Plan the second job from the samples: ranges of time with equally many updates, and which tiers of
    #    the index it replaces. The samples weigh updates, which are no fewer than the keys that they touch.
    sample = [point for each in reading.times for point in each.sample]
    tasks = min(max(1, sum(weight for _, weight in sample) // _ROWS_PER_RANGE), 2 * cores)
    finished = [
        (time, weight)
        for time, weight in sample
        if reading.frontier is None or time < reading.frontier
    ]
    index = control.of_kind(INDEX_KIND)
    found = tiers(index)
    count = tiers_to_merge(found, sum(weight for _, weight in finished), _MERGED_ROWS_MAX)
    merge = [each for tier in found[len(found) - count :] for each in tier.files]
    # 4. Separate, fold and write, in one job. Shares are seeded before the fold: one without updates has its
    #    part of the tiers to rewrite all the same.
    path = writer.segment_path(batch_id, "pending-cdcv2")
    separated = frames.separate(SeparateFinished(path, folding, reading.frontier, frames.shares))
    fold = FoldKeys(
        path,
        writer.path,
        tuple(index),
        tuple(merge),
        batch_id,
        bool(folding.key),
        frames.shares,
        ranges_of(finished, tasks),
    )
    effects = frames.exchange(frames.seeded(separated), frames.shares, fold)
    write = WriteSegments(writer.segment_path(batch_id, "cdcv2-task"), folding.entity_type)
    results = collected(frames.exchange(effects, len(fold.ranges) + 1, write))
    raise_first(results)
    # 5. Ranges rise with their task, so segments in the order of tasks are versions in the order of time.
    written = sorted(results.get(Kind.SEGMENT_WRITTEN, []), key=lambda each: each.task)
    state: list[StateOfShare] = results.get(Kind.STATE_FILE, [])
    named = {ordinal for each in state for ordinal in each.ordinals}
    control.names = {n: name for n, name in control.names.items() if n in named}
    control.files = [
        *sorted((each.state for each in state), key=lambda each: each.file.path),
        *(each for each in index if each not in merge),
    ]
    versions = sum(each.versions for each in written)
    messages: dict[int, int] = dict.fromkeys(ordinals, 0)
    for part in reading.parts:
        messages[part.ordinal] += part.messages
    # 6. No task counts finished updates: they are all that came and is neither dropped nor open.
    statistics = control.statistics
    held = statistics.updates - statistics.duplicates - statistics.dropped_finished
    statistics.finished_updates = held - statistics.conflicts - control.rows(UPDATES_KIND)
    return BatchResult(
        control,
        [receipt for each in written for receipt in each.receipts],
        driver.sightings(versions),
        reading.refused,
        messages,
        versions,
    )


def _apply_reading(control: Control, reading: BatchReading) -> None:
    """Note in the control file what a batch says of times and messages."""
    control.frontier = reading.frontier
    control.coverage = coverage_after(reading.coverage, reading.frontier)
    count_messages(
        control.statistics,
        messages=sum(each.messages for each in reading.parts),
        updates=sum(each.updates for each in reading.parts),
        duplicates=sum(each.duplicates for each in reading.parts)
        + sum(each.duplicates for each in reading.updates),
        dropped=sum(each.dropped for each in reading.parts),
        refused=len(reading.refused),
    )


class BatchFrames:
    """The frames of one batch in a session. Those that are used twice are cached until the block ends."""

    def __init__(self, spark: SparkSession, shares: int) -> None:
        """Take the session, and the number of shares of updates, times and keys."""
        self.shares = shares
        self._spark = spark
        self._kept = ExitStack()
        self._schema: Any = None
        self._updates: DataFrame | None = None
        self._times: DataFrame | None = None

    def __enter__(self) -> BatchFrames:
        from pyspark.sql.pandas.types import from_arrow_schema

        self._schema = from_arrow_schema(FRAME)
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()

    def read(
        self,
        parts: Sequence[Sequence[FilePart]],
        schema: StreamSchema,
        catalog: Path,
        control: Control,
        *,
        first: bool = False,
    ) -> BatchReading:
        """Read parts of files, drop repeats, and bring the times up to date.

        Args:
            parts: Parts of files, by the task that reads them.
            schema: Schema of the stream.
            catalog: Folder of the state files.
            control: The state before.
            first: Keep the message that came first.

        Raises:
            TailraceError: A task raised it.
        """
        assert control.frontier is not None
        number = len(parts)
        read = ReadParts(tuple(map(tuple, parts)), schema, control.frontier, self.shares)
        pieces = self._spark.range(0, number, 1, number).mapInArrow(read, self._schema)
        distinct = Deduplicate(
            catalog, tuple(control.of_kind(UPDATES_KIND)), control.frontier, self.shares
        )
        # Cached, as the times below are: the second job starts from both, and must not read files again.
        self._updates = self._keep(self.exchange(self.seeded(pieces), self.shares, distinct))
        update_times = UpdateTimes(
            catalog,
            tuple(control.of_kind(TIMES_KIND)),
            tuple((low, high) for low, high in control.coverage),
            control.frontier,
            self.shares,
            first,
        )
        # The updates themselves stay where they are; only what the times need is exchanged.
        said = self._updates.where(f"kind != {Kind.OPEN_UPDATES}")
        self._times = self._keep(self.exchange(said, self.shares, update_times))
        results = collected(self._times.where(f"kind != {Kind.OPEN_TIMES}"))
        raise_first(results)
        times: list[TimesOfShare] = results[Kind.TIMES_UPDATED]
        coverage = next(each.coverage for each in times if each.coverage is not None)
        frontier = frontier_after(control.frontier, coverage, [each.lowest for each in times])
        return BatchReading(
            frontier,
            coverage,
            results.get(Kind.PART_READ, []),
            results[Kind.DEDUPLICATED],
            times,
        )

    def separate(self, step: SeparateFinished) -> DataFrame:
        """Return the finished updates of what was read; the task writes the open ones meanwhile."""
        assert self._updates is not None
        assert self._times is not None
        updates = self._updates.where(f"kind = {Kind.OPEN_UPDATES}")
        times = self._times.where(f"kind = {Kind.OPEN_TIMES}")
        return updates.unionByName(times).mapInArrow(step, self._schema)

    def exchange(self, rows: DataFrame, shares: int, step: SparkStep) -> DataFrame:
        """Send pieces to the tasks of their shares, and run a step there."""
        return rows.repartitionById(shares, "share").mapInArrow(step, self._schema)

    def seeded(self, rows: DataFrame) -> DataFrame:
        """Add a seed for each share, so that a share that gets nothing else runs all the same."""
        seeds = [(share, Kind.SEED, b"") for share in range(self.shares)]
        return rows.unionByName(self._spark.createDataFrame(pa.Table.from_batches([frame(seeds)])))

    def _keep(self, rows: DataFrame) -> DataFrame:
        kept = rows.persist()
        self._kept.callback(kept.unpersist)
        return kept


def parts_by_task(found: Sequence[FilePart], tasks: int) -> list[list[FilePart]]:
    """Return parts of files by the task that reads them, evenly by their bytes."""
    parts: list[list[FilePart]] = [[] for _ in range(max(1, min(tasks, len(found))))]
    sizes = [0] * len(parts)
    for split in sorted(found, key=lambda each: each.start - each.stop):
        least = sizes.index(min(sizes))
        parts[least].append(split)
        sizes[least] += split.stop - split.start
    return parts


def collected(rows: DataFrame) -> dict[int, list[Any]]:
    """Return the results of tasks by their kind."""
    results: dict[int, list[Any]] = {}
    table: pa.Table = rows.select("kind", "piece").toArrow()
    for kind, piece in zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True):
        if kind != Kind.SEED:
            results.setdefault(kind, []).append(pickle.loads(piece))
    return results


def raise_first(results: dict[int, list[Any]]) -> None:
    """Raise the error of a task, if any; of several conflicts of keys that of the first time."""
    failures: Iterable[Exception] = results.get(Kind.FAILURE, [])
    # The same error whichever task was faster; what is no conflict of a key goes first.
    for error in sorted(
        failures, key=lambda each: (each.time if isinstance(each, KeyConflict) else -1, str(each))
    ):
        raise error
