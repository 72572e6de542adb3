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

A write has two phases (`catalog_write`). The commit of a batch that is already in the log changes nothing. A
batch is identified by its number and by Spark's query id, which tasks can read and which the checkpoint stores
(`wal.source_batches`). A write without a number is never a repeat.

A stream opens the catalog for each batch, since Spark makes a new source object for each batch and keeps no
state in it. So a run that wakes up looks like a run that starts; only the writer's name and the checkpoint make
the difference. Once another name or another checkpoint has taken over, the run is fenced. The commit uses the
epoch under which the tasks wrote.

Spark calls ``writer()``, ``streamWriter()`` and ``commit()`` in a Python process beside the driver, and
``write()`` in tasks. The pickled writer and the messages of the tasks carry the shared state.

To find the class, Spark starts two further processes. So this module imports what reads and what writes only
where they begin: it would take each process longer than all the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from tailrace_server.pipeline.spark.checkpoint import QUERY_ID, Checkpoint, local_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from tailrace_server.pipeline.dataframe.catalog_write import OpenedCatalog, TaskCommit
    from tailrace_server.pipeline.dataframe.reading import ReadSource
    from tailrace_server.pipeline.dataframe.typed_rows import TypedForm
    from tailrace_server.pipeline.dataframe.write_options import Options

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
        self._source = self._read()
        return self._source.columns

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a fixed range.

        Raises:
            TailraceError: As ``schema``; or the options are those of a stream.
        """
        return self._read().batch(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of a range that grows.

        Raises:
            TailraceError: As ``schema``; or the options are those of a batch read.
        """
        return self._read().stream(schema)

    def _read(self) -> ReadSource:
        from tailrace_server.pipeline.dataframe.reading import ReadSource

        return self._source or ReadSource.of(self.options)

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
        from tailrace_server.pipeline.dataframe.catalog_write import OpenedCatalog
        from tailrace_server.pipeline.dataframe.write_options import Options

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
        from tailrace_server.pipeline.dataframe.catalog_write import OpenedCatalog
        from tailrace_server.pipeline.dataframe.write_options import Options

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


@dataclass
class TaskMessage(WriterCommitMessage):
    """The report of a task, in the class that Spark wants."""

    commit: TaskCommit


class BatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame."""

    def __init__(self, sink: OpenedCatalog) -> None:
        """Bind to an opened catalog."""
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition."""
        return TaskMessage(self._sink.write(iterator, *_attempt()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the batch; if its number is already in the log, do nothing."""
        self._sink.commit(_commits(messages))

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
        return TaskMessage(self._sink.write(iterator, *_attempt()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a micro-batch; if it is already in the log, do nothing."""
        from tailrace_server.pipeline.dataframe.catalog_write import commit_parts, content_of
        from tailrace_server.wal.source_batches import SourceBatch

        commits = _commits(messages)
        # Only tasks know the query id, which identifies the checkpoint. A batch without an id cannot be
        # numbered, and the next batch would be refused because of the gap. Spark runs a task even for a batch
        # without rows.
        if not commits or not all(each.stream for each in commits):
            raise InvalidRequest(f"Spark gave no query for batch {batchId}; nothing was committed")
        self._check_order(commits, batchId)
        options = self._options
        source = SourceBatch(
            *(commits[0].stream, batchId, content_of(commits)),
            consecutive=True,
            take_over=options.take_over,
        )
        # Use the epoch under which the tasks wrote. If another run has taken over since, its later epoch would
        # let this commit pass the fence.
        epoch = max(each.epoch for each in commits)
        commit_parts(options, self._typed, epoch, commits, source)

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


def _attempt() -> tuple[str, str | None]:
    """Return a name that no other attempt of a task has, and the id of the task's query."""
    context = TaskContext.get()
    assert context is not None
    name = f"{context.partitionId()}-{uuid4().hex[:16]}"
    return name, context.getLocalProperty(QUERY_ID)


def _commits(messages: Sequence[WriterCommitMessage | None]) -> list[TaskCommit]:
    """Return the reports of the tasks, in the order of the partitions."""
    commits = [each.commit for each in messages if isinstance(each, TaskMessage)]
    if len(commits) < len(messages):
        # A continuous trigger commits without having written; Spark does not say so.
        raise InvalidRequest(
            "a task sent no result, probably because of a continuous trigger, which is not "
            "supported; nothing was committed"
        )
    return commits


def register(spark: Any) -> None:
    """Register ``format("tailrace")`` with a session."""
    spark.dataSource.register(TailraceDataSource)
