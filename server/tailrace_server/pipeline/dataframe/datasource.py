"""The Spark data source ``tailrace``: a DataFrame or a stream becomes versions of a catalog.

::

    spark.dataSource.register(TailraceDataSource)
    df.write.format("tailrace").option("log", ROOT).option("catalog", NAME).mode("append").save()
    df.writeStream.format("tailrace")…                  with checkpointLocation and option "writer"

Rows have one of two forms. *Typed rows*, chosen by the options ``entityType`` and ``key``, have the columns of
a table; `typed_rows` lists the columns that describe changes, and `typed_commit` says how rows are written.
*Records* have the columns of `input_rows`. They become versions in the order of the partitions and of the rows
in each. Rows of one transaction must be adjacent; otherwise they are refused (`transactions`). Sort before you
write: a sink cannot ask Spark to sort. `write_options` lists the options of a write.

A write has two phases. Tasks write segments, each under a unique name; the commit puts these segments into one
log entry. A task that fails or runs twice leaves a segment that no entry names. Opening the catalog takes a new
epoch, which fences every earlier writer. The commit of a batch that is already in the log changes nothing. A
batch is identified by its number and by Spark's query id, which tasks can read and which the checkpoint stores
(`wal.source_batches`). A write without a number is never a repeat.

A stream opens the catalog for each batch, since Spark makes a new source object for each batch and keeps no
state in it. So a run that wakes up looks like a run that starts; only the writer's name and the checkpoint make
the difference. Once another name or another checkpoint has taken over, the run is fenced. The commit uses the
epoch under which the tasks wrote.

Spark calls ``writer()``, ``streamWriter()`` and ``commit()`` in a Python process beside the driver, and
``write()`` in tasks. The pickled writer and the messages of the tasks carry the shared state.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    WriterCommitMessage,
)

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.catalog.columns import Sighting, evolve, known_columns
from tailrace_server.pipeline.catalog.driver import CatalogDriver
from tailrace_server.pipeline.dataframe.file_order import Part, in_order, runs_of_files
from tailrace_server.pipeline.dataframe.reading import ReadSource
from tailrace_server.pipeline.dataframe.sink import RecordSink, SinkResult
from tailrace_server.pipeline.dataframe.transactions import refuse_split
from tailrace_server.pipeline.dataframe.typed_commit import (
    TypedPart,
    commit_typed,
    stated,
    with_hashes,
    write_typed,
)
from tailrace_server.pipeline.dataframe.write_options import Options
from tailrace_server.pipeline.spark.checkpoint import QUERY_ID, Checkpoint, local_path
from tailrace_server.wal.catalog import drop_catalog, list_catalogs, open_writer
from tailrace_server.wal.catalog_writer import CatalogWriter
from tailrace_server.wal.schema.value_rules import ValueRules
from tailrace_server.wal.segment.writer import SegmentWriter, relative_path
from tailrace_server.wal.source_batches import BatchContent, SourceBatch
from tailrace_server.wal.state.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from tailrace.schema import Schema
    from tailrace_server.pipeline.dataframe.typed_rows import TypedForm

__all__ = ["TailraceDataSource"]


class TailraceDataSource(DataSource):
    """Spark's entry point: the data source named ``tailrace``. This module writes, and `reading` reads."""

    _travelled = False
    """True if this object was unpickled. To commit a batch of a stream, Spark uses an unpickled object."""
    _source: ReadSource | None = None
    """The read; None before the call of ``schema``. Spark skips this call if the user gives a schema."""

    def __getstate__(self) -> dict[str, Any]:
        """Mark the copy that is unpickled elsewhere."""
        return {**self.__dict__, "_travelled": True}

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return "tailrace"

    def schema(self) -> StructType:
        """Return the columns of a read; from now on this source reads only them, and a batch only this range.

        Raises:
            TailraceError: The options are wrong, or the log does not have what they name.
        """
        self._source = ReadSource.of(self.options)
        return self._source.columns

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a fixed range.

        Raises:
            TailraceError: As ``schema``; or the options are those of a stream.
        """
        return (self._source or ReadSource.of(self.options)).batch(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of a range that grows.

        Raises:
            TailraceError: As ``schema``; or the options are those of a batch read.
        """
        return (self._source or ReadSource.of(self.options)).stream(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a writer for a batch write, with the catalog opened.

        Raises:
            InvalidRequest: An option is missing or unknown, or the mode is not append.
            UnknownWriter: The catalog belongs to another writer.
        """
        if overwrite:
            raise InvalidRequest(
                "a log supports only appends: use mode('append'); to write the differences to a whole "
                "table, add option('mode', 'snapshot')"
            )
        options = Options.of(self.options)
        return BatchWriter(OpenedCatalog.open(options, options.typed(schema.jsonValue())))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return a writer for one batch of a stream; open the catalog unless the writer is only to commit.

        Raises:
            InvalidRequest: An option is missing or unknown, or the mode is not append.
            UnknownWriter: The catalog belongs to another writer, or the writer to another checkpoint.
            WriterFenced: A writer with another name has taken over.
        """
        if overwrite:
            raise InvalidRequest("a log supports only appends: use outputMode('append')")
        options = Options.of(self.options)
        if options.batch is not None:
            raise InvalidRequest(
                "option batch is for batch writes; leave it out, as a stream numbers its batches "
                "itself"
            )
        if options.snapshot:
            raise InvalidRequest("mode=snapshot is for batch writes; in a stream use foreachBatch")
        typed = options.typed(schema.jsonValue())
        # An unpickled source only commits. To open the catalog again would take a new epoch and fence its own
        # tasks.
        sink = None if self._travelled else OpenedCatalog.open(options, typed, may_be_fenced=True)
        return StreamWriter(options, sink, typed)


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
                typed = with_hashes(typed, writer.log.committed_view())
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
            stream: The id of the streaming query that the task belongs to; None: it belongs to none.
        """
        if self.typed is not None:
            folder = self.options.root / self.options.catalog
            name = relative_path(self._path(attempt)).removesuffix(".arrow")
            part = write_typed(self.typed, batches, folder, name)
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

    def _path(self, name: str) -> Path:
        folder = self.options.root / self.options.catalog / "segments" / str(self.epoch)
        return folder / f"{self.options.writer}-{self.batch_id}-{name}.arrow"


@dataclass
class TaskCommit(WriterCommitMessage):
    """The report of a task to the commit."""

    epoch: int
    """The epoch under which the task wrote."""
    parts: list[Part]
    """The parts that the task wrote, in the order of their rows; empty if there were no rows."""
    stream: str
    """The id of the streaming query that the task belongs to; empty: none."""
    typed: TypedPart | None = None
    """The typed rows that the task wrote; None: the rows were records."""


class BatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame."""

    def __init__(self, sink: OpenedCatalog) -> None:
        """Bind to an opened catalog."""
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition."""
        return self._sink.write(iterator, *_attempt())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the batch; if its number is already in the log, do nothing.

        In ``foreachBatch`` the number is that of a stream's batch, so it is compared with numbers of the same
        checkpoint.
        """
        options = self._sink.options
        commits = _commits(messages)
        source = None
        if options.batch is not None:
            stream = commits[0].stream if commits else ""
            source = SourceBatch(
                stream, options.batch, _content(commits), take_over=options.take_over
            )
        _commit(options, self._sink.typed, self._sink.epoch, commits, source)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave the segments: a commit may have named them, or may be about to. Otherwise they are orphans.

        The catalog is dropped if this write created it and no other writer has it by now.
        """
        self._sink.drop_unused()


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes or commits one micro-batch of a stream."""

    def __init__(
        self, options: Options, sink: OpenedCatalog | None, typed: TypedForm | None = None
    ) -> None:
        """Bind to an opened catalog, to write; None, to commit."""
        self._options = options
        self._typed = typed
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition."""
        assert self._sink is not None
        return self._sink.write(iterator, *_attempt())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a micro-batch; if it is already in the log, do nothing."""
        commits = _commits(messages)
        # Only tasks know the query id, which identifies the checkpoint. A batch without an id cannot be
        # numbered, and the next batch would be refused because of the gap. Spark runs a task even for a batch
        # without rows.
        if not commits or not all(each.stream for each in commits):
            raise InvalidRequest(f"Spark gave no query for batch {batchId}; nothing was committed")
        self._check_order(commits, batchId)
        options = self._options
        source = SourceBatch(
            *(commits[0].stream, batchId, _content(commits)),
            consecutive=True,
            take_over=options.take_over,
        )
        # Use the epoch under which the tasks wrote. If another run has taken over since, its later epoch would
        # let this commit pass the fence.
        epoch = max(each.epoch for each in commits)
        _commit(options, self._typed, epoch, commits, source)

    def _check_order(self, commits: Sequence[TaskCommit], batch_id: int) -> None:
        """Refuse a batch of several files whose rows do not say which file they come from."""
        # The order of typed rows does not matter: they are one version, or numbered.
        if (
            self._typed is not None
            or not self._options.checkpoint
            or any(part.place is not None for each in commits for part in each.parts)
        ):
            return
        folder = Path(local_path(self._options.checkpoint))
        files = Checkpoint(folder).plan(batch_id).files or ()
        if len(files) > 1:
            raise InvalidRequest(
                f"batch {batch_id} has {len(files)} files, and Spark reads them in order of size, "
                "not of time; select the column _metadata too, so that they are written by time, "
                "name and line"
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave the segments, as in `BatchWriter.abort`."""


def _commit(
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


def _attempt() -> tuple[str, str | None]:
    """Return a name that no other attempt of a task has, and the id of the task's query."""
    context = TaskContext.get()
    assert context is not None
    name = f"{context.partitionId()}-{uuid4().hex[:16]}"
    return name, context.getLocalProperty(QUERY_ID)


def _commits(messages: Sequence[WriterCommitMessage | None]) -> list[TaskCommit]:
    """Return the reports of the tasks, in the order of the partitions."""
    commits = [message for message in messages if isinstance(message, TaskCommit)]
    if len(commits) < len(messages):
        # A continuous trigger commits without having written; Spark does not say so.
        raise InvalidRequest(
            "a task sent no result, probably because of a continuous trigger, which is not "
            "supported; nothing was committed"
        )
    return commits


def _content(commits: Sequence[TaskCommit]) -> BatchContent:
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


def register(spark: Any) -> None:
    """Register ``format("tailrace")`` with a session."""
    spark.dataSource.register(TailraceDataSource)
