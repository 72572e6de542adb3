"""A write to a catalog in two phases: tasks write segments, and one commit makes versions of them.

::

    OpenedCatalog.open ─▶ write, once for each part of the rows, in any process ─▶ commit_parts

`datasource` calls these for Spark, and the sources in `pipeline/tables` in their own process. A task that fails
or runs twice leaves a segment that no entry names. Opening the catalog takes a new epoch, which fences every
earlier writer.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.catalog.columns import Sighting, evolve, known_columns
from tailrace_server.pipeline.catalog.driver import CatalogDriver
from tailrace_server.pipeline.dataframe.file_order import Part, in_order, runs_of_files
from tailrace_server.pipeline.dataframe.sink import RecordSink, SinkResult
from tailrace_server.pipeline.dataframe.transactions import refuse_split
from tailrace_server.pipeline.dataframe.typed_commit import (
    commit_typed,
    prepared,
    stated,
    write_typed,
)
from tailrace_server.wal.catalog import drop_catalog, list_catalogs, open_writer
from tailrace_server.wal.catalog_writer import CatalogWriter
from tailrace_server.wal.schema.value_rules import ValueRules
from tailrace_server.wal.segment.writer import SegmentWriter, relative_path
from tailrace_server.wal.source_batches import BatchContent, SourceBatch
from tailrace_server.wal.state.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tailrace.schema import Schema
    from tailrace_server.pipeline.dataframe.runs import TypedPart
    from tailrace_server.pipeline.dataframe.typed_rows import TypedForm
    from tailrace_server.pipeline.dataframe.write_options import Options


@dataclass(frozen=True)
class OpenedCatalog:
    """An opened catalog, in a form that can be sent to other processes."""

    options: Options
    typed: TypedForm | None
    """The form of typed rows; None: the rows are records."""
    epoch: int
    batch_id: int
    """The writer's next batch id, which is part of the names of segments."""
    columns: Mapping[str, Sequence[str]]
    """Entity type → column names: those in the catalog at opening, and those in the options."""
    rules: ValueRules
    """The rules for values and keys, from the columns in the catalog at opening and those in the options."""
    is_new: bool
    """True if this write created the catalog."""

    @classmethod
    def open(
        cls, options: Options, typed: TypedForm | None = None, *, may_be_fenced: bool = False
    ) -> OpenedCatalog:
        """Open the catalog, and take a new epoch of it; `CatalogWriter.open` and `stated` have the errors."""
        is_new = options.catalog not in list_catalogs(options.root)
        with open_writer(
            options.root,
            options.catalog,
            writer=options.writer,
            take_over=options.take_over,
            may_be_fenced=may_be_fenced,
            publish_left=options.publish,
            stream=options.stored_query_id(),
        ) as writer:
            schema = writer.log.view.schema_of(writer.state.last_version)
            if typed is not None:
                typed = prepared(typed, options, writer)
                if typed.entity_type:
                    stated(schema, typed, [typed.entity_type])
            known = {name: tuple(columns) for name, columns in known_columns(schema).items()}
            declared = [schema, *(each for _, each in evolve(schema, options.declared()))]
            return cls(
                options,
                typed,
                writer.epoch,
                writer.state.writers[options.writer].batch_id + 1,
                {**known, **options.columns},
                ValueRules(declared[-1]),
                is_new,
            )

    def drop_unused(self) -> None:
        """Drop the catalog if this write created it and nothing has been committed to it."""
        folder = self.options.root / self.options.catalog
        if not self.is_new or not folder.is_dir():
            return
        state = CommitLog.open(folder).state
        # A later epoch or entry belongs to another writer, whose catalog must not be dropped.
        if (state.epoch, state.last_entry, state.last_version) == (self.epoch, 1, 0):
            drop_catalog(self.options.root, self.options.catalog)

    def write(
        self, batches: Iterator[pa.RecordBatch], attempt: str, stream: str | None
    ) -> TaskCommit:
        """Write the rows of a task to segments. Runs in the task.

        Args:
            batches: The rows.
            attempt: A name that is unique to this attempt of the task.
            stream: The id of the stream that numbers this batch, if a stream does; None otherwise.
        """
        if self.typed is not None:
            folder = self.options.root / self.options.catalog
            name = relative_path(self._path(attempt)).removesuffix(".arrow")
            numbered = stream is not None or self.options.batch is not None
            part = write_typed(self.typed, batches, folder, name, numbered=numbered)
            return TaskCommit(self.epoch, [], stream or "", part)
        parts = []
        runs = itertools.groupby(runs_of_files(batches), key=lambda run: run[0])
        for number, (place, run) in enumerate(runs):
            name = f"{attempt}-{number}" if number else attempt
            result = self._write_run((batch for _, batch in run), name)
            if result is not None:
                parts.append(Part(place, result))
        return TaskCommit(self.epoch, parts, stream or "")

    def _write_run(self, batches: Iterator[pa.RecordBatch], name: str) -> SinkResult | None:
        with ExitStack() as stack:

            def open_segment(suffix: str) -> SegmentWriter:
                return stack.enter_context(SegmentWriter(self._path(name + suffix)))

            sink = RecordSink(
                open_segment(""),
                self.columns,
                self.options.columns,
                rules=self.rules,
                next_segment=partial(open_segment, "-rest"),
            )
            for batch in batches:
                sink.write(batch)
            return sink.finish()

    def commit(self, parts: Sequence[TaskCommit], *, take_over: bool | None = None) -> None:
        """Commit the parts as a batch; if its number is already in the log, do nothing. See `commit_parts`.

        In Spark's ``foreachBatch`` the number is that of a stream's batch, so it is compared with numbers
        of the same checkpoint.

        Args:
            parts: The reports of the tasks.
            take_over: Permission to accept another stream than the log's; None: as in the options.
        """
        options = self.options
        take_over = options.take_over if take_over is None else take_over
        source = None
        if options.batch is not None:
            stream = parts[0].stream if parts else ""
            content = content_of(parts)
            source = SourceBatch(stream, options.batch, content, take_over=take_over)
        commit_parts(options, self.typed, self.epoch, parts, source)

    def _path(self, name: str) -> Path:
        folder = self.options.root / self.options.catalog / "segments" / str(self.epoch)
        return folder / f"{self.options.writer}-{self.batch_id}-{name}.arrow"


@dataclass
class TaskCommit:
    """The report of a task to the commit."""

    epoch: int
    """The epoch under which the task wrote."""
    parts: list[Part]
    """The parts that the task wrote, in the order of their rows; empty if there were no rows."""
    stream: str
    """The id of the streaming query that the task belongs to; empty: none."""
    typed: TypedPart | None = None
    """The typed rows that the task wrote; None: the rows were records."""


def commit_parts(
    options: Options,
    typed: TypedForm | None,
    epoch: int,
    commits: Sequence[TaskCommit],
    source: SourceBatch | None,
) -> None:
    """Put the segments of the tasks into one log entry, and publish it. Runs beside the driver.

    Raises:
        InvalidRequest: A transaction is in two tasks, or the log has the batch with other content.
        UnknownWriter: The writer takes the batches of another checkpoint.
        WriterFenced: A newer writer holds the catalog.
    """
    if typed is not None:
        parts = [each.typed for each in commits if each.typed is not None]
        commit_typed(options, typed, epoch, parts, source)
        return
    # 1. Each task has checked its own rows. Only here can a transaction in two partitions be detected. The
    #    batch is then refused for good, so no retry will name its segments, and they are deleted.
    results = [part.result for part in in_order([part for each in commits for part in each.parts])]
    folder = options.root / options.catalog
    receipts = [receipt for each in results for receipt in each.receipts]
    try:
        refuse_split(
            [
                (each.transactions, [folder / receipt.path for receipt in each.receipts])
                for each in results
            ]
        )
    except InvalidRequest:
        for receipt in receipts:
            (folder / receipt.path).unlink(missing_ok=True)
        raise
    # 2. Commit one entry under the epoch in which the segments were written. If the batch is already in the
    #    log, its first commit remains valid, and these segments are orphans.
    with CatalogWriter.attach(
        options.root, options.catalog, epoch=epoch, writer=options.writer
    ) as writer:
        driver = CatalogDriver(writer)
        driver.numbered = source
        seen = _in_commit(results, _named(driver.schema, options.columns))
        driver.commit_entry(
            segments=receipts,
            schemas=evolve(driver.schema, [*options.declared(), *seen] if results else []),
            source_positions=writer.state.whole_removals.notes_after(
                _removals(results, whole=options.whole_removals), writer.state.last_version + 1
            ),
            publish=options.publish,
        )


def content_of(commits: Sequence[TaskCommit]) -> BatchContent:
    """Return the combined content of all tasks."""
    contents = [part.result.content for each in commits for part in each.parts]
    contents += [each.typed.tally.content for each in commits if each.typed is not None]
    return reduce(BatchContent.plus, contents, BatchContent())


def _removals(results: Sequence[SinkResult], *, whole: bool) -> dict[str, bool]:
    """Return the entity types with removed rows; True if an image of such a row may lack values."""
    found: dict[str, bool] = {}
    for name, lacking in (each for result in results for each in result.removals.items()):
        found[name] = lacking or not whole or found.get(name, False)
    return found


def _in_commit(
    results: Sequence[SinkResult], declared: Collection[tuple[str, str | None]]
) -> Iterator[Sighting]:
    """Yield the columns seen by all tasks, by version relative to the commit, without declared columns."""
    start = 0
    for result in results:
        for sighting in result.sightings:
            if (sighting.entity_type, sighting.name) not in declared:
                yield sighting._replace(version=start + sighting.version)
        # The versions of a task follow those of the tasks before it.
        start += sum(receipt.transactions for receipt in result.receipts)


def _named(schema: Schema, entity_types: Collection[str]) -> set[tuple[str, str | None]]:
    """Return the columns that a schema has for some entity types, as (entity type, column name).

    A declaration that leaves a column out drops the column. An update that names the column must not bring it
    back.
    """
    return {
        (entity_type, column.name)
        for entity_type in entity_types
        for column in schema.entity_types.get(entity_type, ())
    }
