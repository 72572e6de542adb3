"""The write of Arrow rows from this process: the phases of a Spark write, with one task."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa

from tailrace_server.pipeline.dataframe.catalog_write import OpenedCatalog
from tailrace_server.pipeline.dataframe.table_schema import json_of, plain
from tailrace_server.pipeline.dataframe.write_options import Options
from tailrace_server.wal.catalog import list_catalogs
from tailrace_server.wal.state.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from tailrace.errors import TailraceError
    from tailrace_server.pipeline.tables.settings import TableSettings
    from tailrace_server.wal.state.state import LogState


def write_rows(
    settings: TableSettings,
    writer: str,
    schema: pa.Schema,
    rows: Generator[pa.RecordBatch],
    *,
    snapshot: bool,
    batch: tuple[str, int] | None = None,
) -> tuple[int, LogState]:
    """Write rows as one commit.

    Args:
        settings: The catalog and the entity type.
        writer: Name of the writer in the log.
        schema: The columns of the rows.
        rows: The rows, which are closed; with columns that describe changes unless they are a snapshot
            (`typed_rows`).
        snapshot: True if these are all rows of the entity type: the differences become one version.
        batch: Id of the source and number of this batch, if the source numbers its batches.

    Returns:
        The number of rows read, and the state of the log after the commit.

    Raises:
        InvalidRequest: A row or a column cannot be written; nothing was.
        UnknownWriter: The catalog belongs to another writer.
        LogFull: There is no space.
    """
    schema = pa.schema([(each.name, plain(each.name, each.type)) for each in schema])
    stream, number = batch or (None, None)
    options = Options(
        root=settings.log,
        catalog=settings.catalog,
        writer=writer,
        batch=number,
        take_over=settings.take_over,
        # A snapshot takes the old image of a removed row from the log, and a change feed has it.
        whole_removals=not snapshot,
        entity_type=settings.entity_type,
        key=settings.key,
        snapshot=snapshot,
    )
    count = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for each in rows:
            if each.num_rows:
                count += each.num_rows
                yield each if each.schema == schema else each.cast(schema)

    opened = OpenedCatalog.open(options, options.typed(json_of(schema)))
    try:
        with closing(rows):
            part = opened.write(batches(), uuid4().hex, stream)
        # The caller has decided that this source may write, so another one before it is no error.
        opened.commit([part], take_over=True)
    except BaseException:
        opened.drop_unused()
        raise
    return count, CommitLog.open(options.root / options.catalog).state


def read_all(
    opened: Callable[[], pa.RecordBatchReader], unreadable: Callable[[Exception], TailraceError]
) -> Generator[pa.RecordBatch]:
    """Yield the batches of a reader, and close it, also if the rest of them is not wanted.

    Args:
        opened: Opens the reader. A reader that is left open may abort the process at its end.
        unreadable: Returns the error to raise for one of the reader.
    """
    try:
        with opened() as reader:
            yield from reader
    except (pa.ArrowException, OSError) as error:
        raise unreadable(error) from error


def state_of(settings: TableSettings) -> LogState | None:
    """Return the state of the catalog; None if it does not exist."""
    if settings.catalog not in list_catalogs(settings.log):
        return None
    return CommitLog.open(settings.log / settings.catalog).state
