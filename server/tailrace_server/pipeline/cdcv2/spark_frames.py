"""The frames of Spark around the steps of `stage`, and what the driver makes of their results."""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from tailrace_server.pipeline.cdcv2 import spark_steps as steps
from tailrace_server.pipeline.cdcv2.driver import Stage
from tailrace_server.pipeline.cdcv2.files import splits
from tailrace_server.pipeline.cdcv2.folding import KeyConflict
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
from tailrace_server.pipeline.spark.errors import SparkFailed, reason_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tailrace_server.pipeline.cdcv2.cutting import Refused
    from tailrace_server.pipeline.cdcv2.driver import Cdcv2Driver, LargeStage, SourceFile
    from tailrace_server.pipeline.cdcv2.files import Split, StreamSchema

SPLIT_BYTES: Final = 16 << 20
"""A larger file is read in parts of about so many bytes, so that all cores have some."""

_ROWS_PER_RANGE: Final = 20_000
_MERGED_ROWS_MAX: Final = 1 << 62
SHARES_MAX: Final = 256
"""Parts of the state, at most: there are no more slots (updates.py) to be shared among them."""


class Reading(NamedTuple):
    """What a batch says, deduplicated and settled; `Frames` holds the rows."""

    frontier: int | None
    read: list[steps.Read]
    repeated: list[steps.Repeated]
    settled: list[steps.SettledShare]

    @property
    def refused(self) -> list[Refused]:
        """The messages that cannot be used."""
        return [each for some in self.read for each in some.refused]


def spark_stage(spark: SparkSession) -> LargeStage:
    """Return what runs a large batch in a session."""

    def run(
        driver: Cdcv2Driver, batch_id: int, files: Sequence[SourceFile], control: Control
    ) -> Stage:
        settings = driver.settings
        cores = spark.sparkContext.defaultParallelism
        frames = Frames(spark, min(settings.partitions or 2 * cores, SHARES_MAX))
        try:
            with frames:
                return _run(frames, driver, batch_id, files, control, cores)
        except (PySparkException, Py4JError) as error:
            raise SparkFailed(reason_of(error)) from error

    return run


def _run(
    frames: Frames,
    driver: Cdcv2Driver,
    batch_id: int,
    files: Sequence[SourceFile],
    control: Control,
    cores: int,
) -> Stage:
    writer, folding = driver.writer, driver.folding
    ordinals = driver.ordinals(files, control)
    parts = parts_of(
        [
            split
            for ordinal, file in zip(ordinals, files, strict=True)
            for split in splits(file.path, ordinal, file.bytes, SPLIT_BYTES)
        ],
        4 * cores,
    )
    reading = frames.read(
        parts, folding.schema, writer.path, control, first=driver.settings.first_stands
    )
    for repeated in reading.repeated:
        if repeated.conflict is not None:
            driver.note_conflicts(control, repeated.conflicts, *repeated.conflict)
    contradictions = [each.contradiction for each in reading.settled if each.contradiction]
    if contradictions:
        raise driver.error_of(control, min(contradictions, key=lambda each: each.time))
    _note(control, reading)
    tasks = min(
        max(1, sum(n for each in reading.settled for _, n in each.sample) // _ROWS_PER_RANGE),
        2 * cores,
    )
    done = [
        (time, weight)
        for each in reading.settled
        for time, weight in each.sample
        if reading.frontier is None or time < reading.frontier
    ]
    index = control.of_kind(INDEX_KIND)
    found = tiers(index)
    new = sum(weight for _, weight in done)
    count = tiers_to_merge(found, new, _MERGED_ROWS_MAX)
    merge = [each for tier in found[len(found) - count :] for each in tier.files]
    path = writer.segment_path(batch_id, "pending-cdcv2")
    left = frames.part(steps.Part(path, folding, reading.frontier, frames.shares))
    fold = steps.Fold(
        path,
        writer.path,
        tuple(index),
        tuple(merge),
        batch_id,
        bool(folding.key),
        frames.shares,
        steps.ranges_of(done, tasks),
    )
    effects = frames.exchange(frames.seeded(left), frames.shares, fold)
    write = steps.Write(writer.segment_path(batch_id, "cdcv2-task"), folding.entity_type)
    results = collected(frames.exchange(effects, len(fold.ranges) + 1, write))
    raise_first(results)
    written = sorted(results.get(steps.WRITTEN, []), key=lambda each: each.task)
    state: list[steps.StateOfShare] = results.get(steps.FILE, [])
    wanted = {ordinal for each in state for ordinal in each.ordinals}
    control.names = {n: name for n, name in control.names.items() if n in wanted}
    control.files = [
        *sorted((each.state for each in state), key=lambda each: each.file.path),
        *(each for each in index if each not in merge),
    ]
    versions = sum(each.versions for each in written)
    messages: dict[int, int] = dict.fromkeys(ordinals, 0)
    for each in reading.read:
        messages[each.ordinal] += each.messages
    rows = sum(each.file.rows for each in control.of_kind(UPDATES_KIND))
    statistics = control.statistics
    held = statistics.updates - statistics.duplicates - statistics.dropped_finished
    statistics.finished_updates = held - statistics.conflicts - rows
    return Stage(
        control,
        [receipt for each in written for receipt in each.receipts],
        driver.sightings(versions),
        reading.refused,
        messages,
        versions,
    )


def _note(control: Control, reading: Reading) -> None:
    """Take over what a batch said of times and messages."""
    coverage = next(each.coverage for each in reading.settled if each.coverage is not None)
    control.frontier = reading.frontier
    control.coverage = coverage_after(coverage, reading.frontier)
    count_messages(
        control.statistics,
        messages=sum(each.messages for each in reading.read),
        updates=sum(each.updates for each in reading.read),
        duplicates=sum(each.duplicates for each in reading.read)
        + sum(each.duplicates for each in reading.repeated),
        dropped=sum(each.dropped for each in reading.read),
        refused=len(reading.refused),
    )


class Frames:
    """The frames of one batch in a session. Those that are used twice are kept until it is left."""

    def __init__(self, spark: SparkSession, shares: int) -> None:
        """Take the session, and into how many shares things are cut."""
        self.shares = shares
        self._spark = spark
        self._kept = ExitStack()
        self._schema: Any = None
        self._updates: DataFrame | None = None
        self._times: DataFrame | None = None

    def __enter__(self) -> Frames:
        from pyspark.sql.pandas.types import from_arrow_schema

        self._schema = from_arrow_schema(steps.FRAME)
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()

    def read(
        self,
        parts: Sequence[Sequence[Split]],
        schema: StreamSchema,
        catalog: Path,
        control: Control,
        *,
        first: bool = False,
    ) -> Reading:
        """Read parts of files, deduplicate and settle.

        Args:
            parts: Those of each task.
            schema: Of the stream.
            catalog: Where state files are.
            control: The state before.
            first: Let what was heard first stand.

        Raises:
            TailraceError: What a task raised.
        """
        assert control.frontier is not None
        number = len(parts)
        read = steps.ReadParts(tuple(map(tuple, parts)), schema, control.frontier, self.shares)
        pieces = self._spark.range(0, number, 1, number).mapInArrow(read, self._schema)
        distinct = steps.Deduplicate(
            catalog, tuple(control.of_kind(UPDATES_KIND)), control.frontier, self.shares
        )
        self._updates = self._keep(self.exchange(self.seeded(pieces), self.shares, distinct))
        settle = steps.Settle(
            catalog,
            tuple(control.of_kind(TIMES_KIND)),
            tuple((low, high) for low, high in control.coverage),
            control.frontier,
            self.shares,
            first,
        )
        said = self._updates.where(f"kind != {steps.KEPT}")
        self._times = self._keep(self.exchange(said, self.shares, settle))
        results = collected(self._times.where(f"kind != {steps.KNOWN}"))
        raise_first(results)
        settled: list[steps.SettledShare] = results[steps.SETTLED]
        coverage = next(each.coverage for each in settled if each.coverage is not None)
        frontier = frontier_after(control.frontier, coverage, [each.lowest for each in settled])
        return Reading(frontier, results.get(steps.READ, []), results[steps.DISTINCT], settled)

    def part(self, part: steps.Part) -> DataFrame:
        """Return what is finished of what was read; what stays is written on the way."""
        assert self._updates is not None
        assert self._times is not None
        kept = self._updates.where(f"kind = {steps.KEPT}")
        known = self._times.where(f"kind = {steps.KNOWN}")
        return kept.unionByName(known).mapInArrow(part, self._schema)

    def exchange(self, frame: DataFrame, shares: int, step: steps.Step) -> DataFrame:
        """Send pieces to the tasks of their shares, and run a step there."""
        return frame.repartitionById(shares, "share").mapInArrow(step, self._schema)

    def seeded(self, frame: DataFrame) -> DataFrame:
        """Add a piece for each share, so that a share that gets nothing runs all the same."""
        seeds = [(share, steps.SEED, b"") for share in range(self.shares)]
        return frame.unionByName(
            self._spark.createDataFrame(pa.Table.from_batches([steps.frame(seeds)]))
        )

    def _keep(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist()
        self._kept.callback(kept.unpersist)
        return kept


def parts_of(found: Sequence[Split], tasks: int) -> list[list[Split]]:
    """Return splits by the task that reads them, evenly by their bytes."""
    parts: list[list[Split]] = [[] for _ in range(max(1, min(tasks, len(found))))]
    sizes = [0] * len(parts)
    for split in sorted(found, key=lambda each: each.start - each.stop):
        least = sizes.index(min(sizes))
        parts[least].append(split)
        sizes[least] += split.stop - split.start
    return parts


def collected(frame: DataFrame) -> dict[int, list[Any]]:
    """Return the results of tasks by their kind."""
    results: dict[int, list[Any]] = {}
    table: pa.Table = frame.select("kind", "piece").toArrow()
    for kind, piece in zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True):
        if kind != steps.SEED:
            results.setdefault(kind, []).append(pickle.loads(piece))
    return results


def raise_first(results: dict[int, list[Any]]) -> None:
    """Raise what a task raised; of conflicts of keys the one of the first time."""
    problems: Iterable[Exception] = results.get(steps.PROBLEM, [])
    for problem in sorted(
        problems, key=lambda each: (each.time if isinstance(each, KeyConflict) else -1, str(each))
    ):
        raise problem
