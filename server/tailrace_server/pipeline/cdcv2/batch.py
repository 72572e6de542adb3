"""A batch as a series of steps on its updates, times and keys; the same steps in the driver and on Spark.

::

    files ─▶ read ─▶ drop repeats ─▶ bring times up to date ─┐
                                                             ▼
                                                    the new frontier
                                                             │
    segments, state files ◀─ write ◀─ fold keys ◀─ separate finished updates

Updates, times and keys are each partitioned by hash, with one partition for each task. `steps` has the steps,
and a `Runner` runs them: `LocalRunner` in this process with one partition, `spark_runner.SparkRunner` on all
cores with many. Both leave the same state and the same log.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from tailrace.cdcv2 import CountExceeded, CountsDisagree, DiffsDisagree
from tailrace_server.pipeline.catalog.columns import Sighting
from tailrace_server.pipeline.cdcv2.files import AVRO, LINES, parts_of_file
from tailrace_server.pipeline.cdcv2.folding import KeyConflict
from tailrace_server.pipeline.cdcv2.pieces import Kind, Pieces
from tailrace_server.pipeline.cdcv2.state import (
    INDEX_KIND,
    TIMES_KIND,
    UPDATES_KIND,
    tiers,
    tiers_to_merge,
)
from tailrace_server.pipeline.cdcv2.steps import (
    Deduplicate,
    FoldKeys,
    ReadParts,
    SeparateFinished,
    UpdateTimes,
    WriteSegments,
    ranges_of,
)
from tailrace_server.pipeline.cdcv2.times import coverage_after, frontier_after
from tailrace_server.pipeline.cdcv2.updates import place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tailrace.errors import TailraceError
    from tailrace_server.pipeline.cdcv2.cutting import RefusedMessage
    from tailrace_server.pipeline.cdcv2.files import FilePart, Messages, StreamSchema
    from tailrace_server.pipeline.cdcv2.folding import Folding
    from tailrace_server.pipeline.cdcv2.pieces import (
        DeduplicatedShare,
        PartRead,
        StateOfShare,
        TimesOfShare,
    )
    from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
    from tailrace_server.pipeline.cdcv2.state import Control, KeyIndex
    from tailrace_server.pipeline.cdcv2.steps import BatchStep
    from tailrace_server.pipeline.cdcv2.times import Contradiction, Interval
    from tailrace_server.pipeline.spark.pieces import Piece
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.segment.writer import SegmentReceipt

Rows = TypeVar("Rows")
"""The pieces of all partitions between two steps, in the form that a runner uses."""

_ROWS_PER_RANGE: Final = 20_000


class Runner(Protocol[Rows]):
    """Runs steps on the pieces of all hash partitions."""

    shares: int
    """Number of hash partitions of the updates, of the times and of the keys."""
    part_bytes: int
    """A file that is larger is read in parts of about this many bytes."""
    readers: int
    """The most tasks that read files."""
    segments_max: int
    """The most segments that a batch writes."""
    merged_rows_max: int
    """The most rows in a merge of index tiers; larger tiers are not merged."""

    def read(self, step: ReadParts) -> Rows:
        """Run the first step, with one task for each list of file parts in the step."""

    def run(self, rows: Rows, step: BatchStep) -> Rows:
        """Run a step on the pieces of each task, without moving the pieces."""

    def exchange(self, rows: Rows, shares: int, step: BatchStep) -> Rows:
        """Send each piece to the task of its partition, and run a step there."""

    def seeded(self, rows: Rows) -> Rows:
        """Add an empty piece for each partition, so that a partition without other pieces is run too."""

    def kept(self, rows: Rows) -> Rows:
        """Cache rows from which two later steps start, so that the earlier steps run only once."""

    def only(self, rows: Rows, kind: Kind) -> Rows:
        """Return the pieces of a kind."""

    def without(self, rows: Rows, kind: Kind) -> Rows:
        """Return the pieces of all other kinds."""

    def both(self, rows: Rows, others: Rows) -> Rows:
        """Return the pieces of both inputs, without moving the pieces."""

    def results(self, rows: Rows) -> dict[int, list[Any]]:
        """Return the unpickled results of tasks, by kind."""


class LocalRunner:
    """Runs steps in this process, with one partition. An error in a step is raised at once."""

    shares = readers = segments_max = 1
    part_bytes = 1 << 62
    merged_rows_max = 1_000_000
    """Larger tiers wait for a batch on Spark: to merge them here would delay small batches."""

    def read(self, step: ReadParts) -> list[Piece]:
        """Read all parts."""
        return list(step.rows(0, {}))

    def run(self, rows: list[Piece], step: BatchStep) -> list[Piece]:
        """Run a step on all pieces."""
        pieces: Pieces = {}
        for _, kind, piece in rows:
            pieces.setdefault(kind, []).append(piece)
        return list(step.rows(0, pieces))

    def exchange(self, rows: list[Piece], shares: int, step: BatchStep) -> list[Piece]:
        """Run a step on all pieces: there is only one partition."""
        return self.run(rows, step)

    def seeded(self, rows: list[Piece]) -> list[Piece]:
        """Return the pieces: the one partition always runs."""
        return rows

    def kept(self, rows: list[Piece]) -> list[Piece]:
        """Return the pieces: they are in memory already."""
        return rows

    def only(self, rows: list[Piece], kind: Kind) -> list[Piece]:
        """Return the pieces of a kind."""
        return [piece for piece in rows if piece[1] == kind]

    def without(self, rows: list[Piece], kind: Kind) -> list[Piece]:
        """Return the pieces of all other kinds."""
        return [piece for piece in rows if piece[1] != kind]

    def both(self, rows: list[Piece], others: list[Piece]) -> list[Piece]:
        """Return the pieces of both."""
        return rows + others

    def results(self, rows: list[Piece]) -> dict[int, list[Any]]:
        """Return the unpickled results, by kind."""
        return results_of((kind, piece) for _, kind, piece in rows)


class SourceFile(NamedTuple):
    """A file of the input folder."""

    name: str
    """The file's path relative to the folder."""
    path: str
    bytes: int
    modified_ns: int
    messages: Messages | None = None
    """As `FilePart.messages`; the name is then TOPIC+PARTITION."""

    def place(self, offset: int) -> tuple[str, int]:
        """Return the name and the line by which the quarantine names a message."""
        return (self.name, offset) if self.messages is None else (f"{self.name}+{offset:010}", 1)


class BatchResult(NamedTuple):
    """The result of a batch, before it is committed."""

    control: Control
    """The control document after the batch, with the names of its state files."""
    segments: list[SegmentReceipt]
    sightings: list[Sighting]
    refused: list[RefusedMessage]
    messages: Mapping[int, int]
    """Ordinal of a file → number of messages in it."""
    versions: int


@dataclass(frozen=True)
class BatchReading(Generic[Rows]):
    """The messages of a batch after deduplication, with the updated times."""

    frontier: int | None
    """The finished frontier after the batch; None if all time is finished."""
    coverage: list[Interval]
    """All covered intervals after the batch."""
    parts: list[PartRead]
    shares: list[DeduplicatedShare]
    times: list[TimesOfShare]
    open: Rows
    """The updates and times at or after the old frontier."""

    @property
    def refused(self) -> list[RefusedMessage]:
        """The messages that cannot be used."""
        return [each for some in self.parts for each in some.refused]


def read_batch(
    runner: Runner[Rows],
    parts: Sequence[Sequence[FilePart]],
    schema: StreamSchema,
    catalog: Path,
    control: Control,
    *,
    first: bool = False,
) -> BatchReading[Rows]:
    """Read parts of files, drop repeated updates, and update the times.

    Args:
        runner: Runs the steps.
        parts: Parts of files, grouped by the task that reads them.
        schema: The schema of the stream.
        catalog: The folder of the state files.
        control: The control document before the batch; its stream is not complete.
        first: True to let the first of two contradicting messages win, instead of reporting the contradiction.

    Raises:
        TailraceError: A task raised it.
    """
    assert control.frontier is not None
    read = ReadParts(tuple(map(tuple, parts)), schema, control.frontier, runner.shares)
    distinct = Deduplicate(
        catalog, tuple(control.of_kind(UPDATES_KIND)), control.frontier, runner.shares
    )
    # Cache the updates, and the times below: the second job starts from both, and must not read files again.
    updates = runner.kept(
        runner.exchange(runner.seeded(runner.read(read)), runner.shares, distinct)
    )
    update_times = UpdateTimes(
        catalog,
        tuple(control.of_kind(TIMES_KIND)),
        tuple((low, high) for low, high in control.coverage),
        control.frontier,
        runner.shares,
        first,
    )
    # The updates stay in their tasks. Only the counts are sent on, to the tasks of their times.
    counts = runner.without(updates, Kind.OPEN_UPDATES)
    all_times = runner.kept(runner.exchange(counts, runner.shares, update_times))
    results = runner.results(runner.without(all_times, Kind.OPEN_TIMES))
    raise_first(results)
    times: list[TimesOfShare] = results[Kind.TIMES_UPDATED]
    # All partitions compute the same coverage, so only partition 0 reports it.
    coverage = next(each.coverage for each in times if each.coverage is not None)
    return BatchReading(
        frontier_after(control.frontier, coverage, [each.lowest for each in times]),
        coverage,
        results.get(Kind.PART_READ, []),
        results[Kind.DEDUPLICATED],
        times,
        runner.both(
            runner.only(updates, Kind.OPEN_UPDATES), runner.only(all_times, Kind.OPEN_TIMES)
        ),
    )


@dataclass(frozen=True)
class Batch:
    """Files that are committed together."""

    writer: CatalogWriter
    settings: Cdcv2Settings
    index: KeyIndex
    number: int
    """The batch id."""
    files: Sequence[SourceFile]
    control: Control
    """The control document before the batch, with the ordinals of its files. `run` changes it to the one
    after.
    """

    @property
    def folding(self) -> Folding:
        """The rules that turn rows into records."""
        return self.settings.folding

    @property
    def ordinals(self) -> range:
        """The ordinals of the batch's files."""
        after = self.control.next_ordinal
        return range(after - len(self.files), after)

    def run(self, runner: Runner[Rows]) -> BatchResult:
        """Read the files, fold the updates that are finished now, and write segments and state files."""
        control, path = self.control, self.writer.segment_path(self.number, "pending-cdcv2")
        # 1. Read. The frontier must be known before anything is written, and it depends on all partitions. So
        #    the first job ends here, and its updates and times are cached for the second one.
        parts = [
            part
            for ordinal, file in zip(self.ordinals, self.files, strict=True)
            for part in parts_of_file(
                file.path, ordinal, file.bytes, runner.part_bytes, file.messages
            )
        ]
        reading = read_batch(
            runner,
            parts_by_task(parts, runner.readers),
            self.folding.schema,
            self.writer.path,
            control,
            first=self.settings.first_stands,
        )
        # 2. Contradictions stop the batch before anything is written; first those between updates.
        for share in reading.shares:
            if share.conflict is not None:
                self._note_conflicts(share.conflicts, *share.conflict)
        contradictions = [each.contradiction for each in reading.times if each.contradiction]
        if contradictions:
            raise self._error_of(min(contradictions, key=lambda each: each.time))
        self._note_reading(reading)
        # 3. Plan the second job from the samples: ranges of time with equally many updates, and which tiers of
        #    the index it replaces. The samples weigh updates, which are no fewer than the keys that they touch.
        finished = [
            (time, weight)
            for each in reading.times
            for time, weight in each.sample
            if reading.frontier is None or time < reading.frontier
        ]
        fold = self.fold_step(finished, runner)
        # 4. Separate, fold and write, in one job. Each partition gets a seed before the fold: a partition
        #    without updates must rewrite its part of the tiers too. No entry names the files yet, so a crash
        #    leaves only orphans.
        separate = SeparateFinished(path, self.folding, reading.frontier, runner.shares)
        separated = runner.seeded(runner.run(reading.open, separate))
        effects = runner.exchange(separated, runner.shares, fold)
        write = WriteSegments(
            self.writer.segment_path(self.number, "cdcv2"), self.folding.entity_type
        )
        results = runner.results(runner.exchange(effects, len(fold.ranges) + 1, write))
        raise_first(results)
        # 5. Ranges rise with their task, so segments in the order of tasks are versions in the order of time.
        written = sorted(results.get(Kind.SEGMENT_WRITTEN, []), key=lambda each: each.task)
        state: list[StateOfShare] = results.get(Kind.STATE_FILE, [])
        named = {ordinal for each in state for ordinal in each.ordinals}
        control.names = {n: name for n, name in control.names.items() if n in named}
        control.files = [
            *sorted((each.state for each in state), key=lambda each: each.file.path),
            *fold.kept_files,
        ]
        messages: dict[int, int] = dict.fromkeys(self.ordinals, 0)
        for part in reading.parts:
            messages[part.ordinal] += part.messages
        # 6. No task counts finished updates. They are the received updates without repeats, dropped ones,
        #    conflicts and open ones.
        statistics = control.statistics
        held = statistics.updates - statistics.duplicates - statistics.dropped_finished
        statistics.finished_updates = held - statistics.conflicts - control.rows(UPDATES_KIND)
        versions = sum(each.versions for each in written)
        segments = [receipt for each in written for receipt in each.receipts]
        return BatchResult(
            control, segments, self.sightings(versions), reading.refused, messages, versions
        )

    def fold_step(self, finished: Sequence[tuple[int, int]], runner: Runner[Any]) -> FoldKeys:
        """Return the step that folds finished updates.

        Args:
            finished: Times, each with its number of updates.
            runner: Limits the number of segments and the size of merges.
        """
        weight = sum(updates for _, updates in finished)
        files = self.control.of_kind(INDEX_KIND)
        found = tiers(files)
        count = tiers_to_merge(found, weight, runner.merged_rows_max)
        return FoldKeys(
            self.writer.segment_path(self.number, "pending-cdcv2"),
            self.index,
            tuple(files),
            # The newest tiers, which the step merges with its own keys into one tier.
            tuple(each for tier in found[len(found) - count :] for each in tier.files),
            self.number,
            bool(self.folding.key),
            runner.shares,
            ranges_of(finished, min(max(1, weight // _ROWS_PER_RANGE), runner.segments_max)),
        )

    def sightings(self, versions: int) -> list[Sighting]:
        """Return the columns to announce with a commit: all columns of the stream's schema.

        None without versions.
        """
        if not versions:
            return []
        listing = self.folding.schema.listing(self.folding.key)
        return [Sighting(0, self.folding.entity_type, None, None, listing)]

    def origin(self, message: int) -> str | None:
        """Return the place of a message as errors name it; None if there is no message."""
        if message < 0:
            return None
        where = place(message)
        name = self.control.names.get(where.ordinal, "?")
        return f"{name} {'byte' if name.endswith((AVRO, *LINES)) else 'offset'} {where.offset}"

    def _note_conflicts(
        self, conflicts: int, first: Mapping[str, Any], second: Mapping[str, Any]
    ) -> None:
        """Count contradictions between updates, or raise an error with the first two.

        `--on-conflict` decides which. The two updates are rows of `UPDATES`.
        """
        if self.settings.first_stands:
            self.control.statistics.conflicts += conflicts
            return
        image = self.folding.schema.image(first["data"])[0].decode()
        sides = ((row["diff"], self.origin(row["message"])) for row in (first, second))
        raise DiffsDisagree(image, first["time"], *sides)

    def _error_of(self, found: Contradiction) -> TailraceError:
        """Return the error for counts that contradict each other or the received updates."""
        first, second = (
            (count, self.origin(message)) for count, message in (found.first, found.second)
        )
        if found.exceeded:
            return CountExceeded(found.time, first, second, "the last of them")
        return CountsDisagree(found.time, first, second)

    def _note_reading(self, reading: BatchReading[Any]) -> None:
        """Store the new frontier, coverage and statistics in the control document."""
        control, parts = self.control, reading.parts
        control.frontier = reading.frontier
        control.coverage = coverage_after(reading.coverage, reading.frontier)
        statistics = control.statistics
        statistics.messages += sum(each.messages for each in parts)
        statistics.updates += sum(each.updates for each in parts)
        statistics.duplicates += sum(each.duplicates for each in parts)
        statistics.duplicates += sum(each.duplicates for each in reading.shares)
        statistics.dropped_finished += sum(each.dropped for each in parts)
        statistics.refused += len(reading.refused)


def parts_by_task(found: Sequence[FilePart], tasks: int) -> list[list[FilePart]]:
    """Return the parts of files for each task, with about equal bytes; within a task in reading order."""
    parts: list[list[FilePart]] = [[] for _ in range(max(1, min(tasks, len(found))))]
    sizes = [0] * len(parts)
    # Largest first, each to the task with the fewest bytes.
    for split in sorted(found, key=lambda each: each.start - each.stop):
        least = sizes.index(min(sizes))
        parts[least].append(split)
        sizes[least] += split.stop - split.start
    return [sorted(task, key=lambda each: (each.ordinal, each.start)) for task in parts]


def results_of(pieces: Iterable[tuple[int, bytes]]) -> dict[int, list[Any]]:
    """Return the unpickled results of tasks, by kind."""
    results: dict[int, list[Any]] = {}
    for kind, piece in pieces:
        if kind != Kind.SEED:
            results.setdefault(kind, []).append(pickle.loads(piece))
    return results


def raise_first(results: dict[int, list[Any]]) -> None:
    """Raise the error of a task, if there is one; of several key conflicts, the one with the earliest time."""
    failures: Iterable[Exception] = results.get(Kind.FAILURE, [])
    # Sort, so that the error does not depend on which task was faster. Errors other than key conflicts first.
    for error in sorted(
        failures, key=lambda each: (each.time if isinstance(each, KeyConflict) else -1, str(each))
    ):
        raise error
