"""The Spark data source ``tailrace``: a DataFrame or a stream becomes versions of a catalog.

::

    spark.dataSource.register(TailraceDataSource)
    df.write.format("tailrace").option("log", ROOT).option("catalog", NAME).mode("append").save()
    df.writeStream.format("tailrace")…                  with checkpointLocation and option "writer"

Input columns: `input_columns`. Rows become versions in the order of the partitions and of the rows in each.
Rows of one transaction are adjacent, or are refused (`transaction_ids`). Sort before you write: a sink
cannot ask Spark for it.

=========  ==========================================================================================
option     meaning
=========  ==========================================================================================
log        the log root (with ``catalog``); or ``path`` = ROOT/NAME
catalog    name of the catalog; made if absent
writer     stable name of the writer; default ``spark``. A restart under the same name needs no
           ``take_over``. Once another name has taken over, a stream goes on under a new name only
batch      (batch writes) a number that rises from write to write; a repeat is skipped if it has the
           same rows, and refused if not. Default: none, so that every write counts
publish    ``true`` (default) publishes with the commit, ``false`` leaves that to a later writer
take_over  ``true`` lets a writer of a new name have the catalog, and a new checkpoint its writer
columns    JSON, entity type → its columns: images of these types are not inspected for new ones.
           ``df.schema.jsonValue()`` gives types, too, and rows have to fit them; a list of names does
           not. A member ``key`` beside ``fields`` names the columns of the key
whole_     ``true`` if each ``before`` of a removal has the value of every column of its row; the log
removals   then says so. Default: ``false``
=========  ==========================================================================================

A write has two phases. Tasks write segments, each under a name of its own; the commit makes one entry of
them. A task that fails or runs twice leaves a segment that no entry names. Opening takes a new epoch of the
catalog, which fences every earlier writer. The commit of a batch that the log knows changes nothing: it is
known by Spark's query id, which tasks can read and which is that of the checkpoint, and by its number
(`wal.source_batches`). A write without a number is never a repeat.

A stream opens the catalog for each batch, since Spark makes a new source for each and keeps no state in it.
So a run that wakes up looks like one that starts; the writer's name and the checkpoint decide. Once another
name or another checkpoint has taken over, the run is fenced. The commit uses the epoch that the tasks wrote
under.

Which process: ``writer()``, ``streamWriter()`` and ``commit()`` run beside the driver, ``write()`` in tasks.
The pickled writer and the messages of the tasks carry what both sides share.
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
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.catalog.columns import Sighting, evolve, known_columns
from tailrace_server.pipeline.catalog.driver import CatalogDriver
from tailrace_server.pipeline.dataframe.file_order import Part, in_order, runs_of_files
from tailrace_server.pipeline.dataframe.sink import RecordSink, SinkResult
from tailrace_server.pipeline.dataframe.transactions import refuse_split
from tailrace_server.pipeline.dataframe.write_options import Options
from tailrace_server.pipeline.spark.checkpoint import QUERY_ID, Checkpoint, local_path
from tailrace_server.wal.catalog import drop_catalog, list_catalogs, open_writer
from tailrace_server.wal.catalog_writer import CatalogWriter
from tailrace_server.wal.schema.value_rules import ValueRules
from tailrace_server.wal.segment.writer import SegmentWriter
from tailrace_server.wal.source_batches import BatchContent, SourceBatch
from tailrace_server.wal.state.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from tailrace.schema import Schema

__all__ = ["TailraceDataSource"]


class TailraceDataSource(DataSource):
    """Registers under the name ``tailrace``."""

    _travelled = False
    """True if this object was pickled. Spark pickles the one whose writer commits a stream's batches."""

    def __getstate__(self) -> dict[str, Any]:
        """Mark the copy at the other end as travelled."""
        return {**self.__dict__, "_travelled": True}

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return "tailrace"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Open the catalog for a batch write.

        Raises:
            InvalidRequest: An option is missing or unknown, or the mode is not append.
            UnknownWriter: The catalog belongs to another writer.
        """
        if overwrite:
            raise InvalidRequest("a log is only appended to: use mode('append')")
        return BatchWriter(OpenedCatalog.open(Options.of(self.options)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Open the catalog for a batch of a stream, unless the writer is there to commit.

        Raises:
            InvalidRequest: An option is missing or unknown, or the mode is not append.
            UnknownWriter: The catalog belongs to another writer, or the writer to another checkpoint.
            WriterFenced: Another name has taken over.
        """
        if overwrite:
            raise InvalidRequest("a log is only appended to: use outputMode('append')")
        options = Options.of(self.options)
        if options.batch is not None:
            raise InvalidRequest("option batch is for batch writes; a stream numbers its batches")
        sink = None if self._travelled else OpenedCatalog.open(options, may_be_fenced=True)
        return StreamWriter(options, sink)


@dataclass(frozen=True)
class OpenedCatalog:
    """An opened catalog, as it travels between processes."""

    options: Options
    epoch: int
    batch_id: int
    """The writer's batch id that comes next; it is part of the names of segments."""
    columns: Mapping[str, Sequence[str]]
    """Entity type → columns: those of the catalog then, and those of the options."""
    rules: ValueRules
    """Those for values and keys, by the columns of the catalog then and those of the options."""
    is_new: bool
    """True if the catalog was made for this write."""

    @classmethod
    def open(cls, options: Options, *, may_be_fenced: bool = False) -> OpenedCatalog:
        """Take a new epoch of the catalog; see `CatalogWriter.open`."""
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
            known = {name: tuple(columns) for name, columns in known_columns(schema).items()}
            stated = [schema, *(each for _, each in evolve(schema, options.declared()))]
            return cls(
                options,
                writer.epoch,
                writer.state.writers[options.writer].batch_id + 1,
                {**known, **options.columns},
                ValueRules(stated[-1]),
                is_new,
            )

    def drop_unused(self) -> None:
        """Drop the catalog if it was made for this write and has nothing but its opening."""
        folder = self.options.root / self.options.catalog
        if not self.is_new or not folder.is_dir():
            return
        state = CommitLog.open(folder).state
        if (state.epoch, state.last_entry, state.last_version) == (self.epoch, 1, 0):
            drop_catalog(self.options.root, self.options.catalog)

    def write(
        self, batches: Iterator[pa.RecordBatch], attempt: str, stream: str | None
    ) -> TaskCommit:
        """Write the rows of a task to segments. Runs in the task.

        Args:
            batches: The rows.
            attempt: A name that no other attempt of a task has.
            stream: Id of the streaming query that the task belongs to, if any.
        """
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
    """Epoch that it wrote under."""
    parts: list[Part]
    """In the order of the rows; empty if there were none."""
    stream: str
    """Id of the streaming query that it belonged to; empty for none."""


class BatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame."""

    def __init__(self, sink: OpenedCatalog) -> None:
        """Take an opened catalog."""
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition."""
        return self._sink.write(iterator, *_attempt())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the batch, once if it has a number.

        In ``foreachBatch`` the number is one of the stream's, so it belongs to the stream's checkpoint.
        """
        options = self._sink.options
        commits = _commits(messages)
        source = None
        if options.batch is not None:
            stream = commits[0].stream if commits else ""
            source = SourceBatch(
                stream, options.batch, _content(commits), take_over=options.take_over
            )
        _commit(options, self._sink.epoch, commits, source)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave the segments: a commit may have named them, or be about to. If not, they are orphans.

        A catalog that was made for this write goes with it, unless another writer has it by now.
        """
        self._sink.drop_unused()


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes or commits one micro-batch of a stream."""

    def __init__(self, options: Options, sink: OpenedCatalog | None) -> None:
        """Take an opened catalog to write; None to commit."""
        self._options = options
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition."""
        assert self._sink is not None
        return self._sink.write(iterator, *_attempt())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a micro-batch, once."""
        commits = _commits(messages)
        # Without tasks nothing tells the checkpoint, and the next batch would be refused for a gap. Spark
        # runs a task for a batch without rows, too.
        if not commits or not all(each.stream for each in commits):
            raise InvalidRequest(
                f"Spark did not say to which query batch {batchId} belongs; nothing was committed"
            )
        self._check_order(commits, batchId)
        options = self._options
        source = SourceBatch(
            *(commits[0].stream, batchId, _content(commits)),
            consecutive=True,
            take_over=options.take_over,
        )
        # The epoch that the tasks wrote under: a later one, of a run that took over meanwhile, would let this
        # commit pass its fence.
        _commit(options, max(each.epoch for each in commits), commits, source)

    def _check_order(self, commits: Sequence[TaskCommit], batch_id: int) -> None:
        """Refuse a batch of several files whose rows do not say which file they are of."""
        if not self._options.checkpoint or any(
            part.place is not None for each in commits for part in each.parts
        ):
            return
        folder = Path(local_path(self._options.checkpoint))
        files = Checkpoint(folder).plan(batch_id).files or ()
        if len(files) > 1:
            raise InvalidRequest(
                f"batch {batch_id} has {len(files)} files, and Spark lays them out by size, not by time; "
                "select the column _metadata too, and they are taken by time, name and line"
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave the segments, as `BatchWriter.abort`."""


def _commit(
    options: Options, epoch: int, commits: Sequence[TaskCommit], source: SourceBatch | None
) -> None:
    """Make one entry of what the tasks wrote, and publish it. Runs beside the driver.

    Raises:
        InvalidRequest: A transaction lies in two tasks, or the log has the batch with other content.
        UnknownWriter: The writer takes the batches of another checkpoint.
        WriterFenced: A newer writer holds the catalog.
    """
    # 1. Each task has checked its own rows. A transaction in two partitions shows here only; then the batch is
    #    refused for good, and no retry will name its segments.
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
    # 2. One entry under the epoch that the segments were written in. If the batch is in the log, its segments
    #    are left alone and the first receipt stands.
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
    """Return a name that no other attempt of a task has, in this JVM or an earlier one, and the query's id."""
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
            "a task reported nothing: continuous triggers are not supported, nothing was committed"
        )
    return commits


def _content(commits: Sequence[TaskCommit]) -> BatchContent:
    """Return the content of all tasks together."""
    contents = (part.result.content for each in commits for part in each.parts)
    return reduce(BatchContent.plus, contents, BatchContent())


def _removals(results: Sequence[SinkResult], *, whole: bool) -> dict[str, bool]:
    """Return the entity types with removed rows; True if an image may lack values."""
    found: dict[str, bool] = {}
    for name, lacking in (each for result in results for each in result.removals.items()):
        found[name] = lacking or not whole or found.get(name, False)
    return found


def _in_commit(
    results: Sequence[SinkResult], declared: Collection[tuple[str, str | None]]
) -> Iterator[Sighting]:
    """Yield the sightings of all tasks, by version relative to the commit, without declared columns."""
    start = 0
    for result in results:
        for sighting in result.sightings:
            if (sighting.entity_type, sighting.name) not in declared:
                yield sighting._replace(version=start + sighting.version)
        start += sum(receipt.transactions for receipt in result.receipts)


def _named(schema: Schema, entity_types: Collection[str]) -> set[tuple[str, str | None]]:
    """Return the columns that a schema has for some entity types.

    A declaration that leaves a column out drops it; an update that names that column does not bring it back.
    """
    return {
        (entity_type, column.name)
        for entity_type in entity_types
        for column in schema.entity_types.get(entity_type, ())
    }


def register(spark: Any) -> None:
    """Make ``format("tailrace")`` known to a session."""
    spark.dataSource.register(TailraceDataSource)
