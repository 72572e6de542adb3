"""The plan of a read: what it returns, and its parts, which threads or Spark tasks read independently.

A plan pins the range and the columns, so its parts return the same rows whenever and wherever they are read.
The concatenation of all parts, in their order, is the result. A part of changes or captures is a range of the
log, in log order. A part of a state is a range of key hashes.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tailrace.errors import EntityTypeUnknown, InvalidRequest
from tailrace.position import END, Position
from tailrace_server.log_read.ahead import read_ahead
from tailrace_server.log_read.bounds import RecordRange, following
from tailrace_server.log_read.opened import OpenLog
from tailrace_server.log_read.part import ReadPart
from tailrace_server.log_read.request import Deduplication, Shape
from tailrace_server.log_read.served_log import ServedLog
from tailrace_server.wal.segment.reader import SegmentMissing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace_server.log_read.request import ReadRequest
    from tailrace_server.wal.state.view import LogView

AnyLog = OpenLog | ServedLog
"""A log that is read: its folder, or the server that has it."""
CURSOR: Final = b"tailrace.cursor"
"""Key of the schema's metadata: the cursor that continues after the read."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The schema and the parts of a read, and where it continues."""

    schema: pa.Schema
    """The schema of all batches; its metadata has the cursor under ``tailrace.cursor``."""
    parts: tuple[ReadPart, ...]
    """The parts, in the order of the result; empty if there is nothing to read."""
    first: int
    """The first version that is read; for a state, its version."""
    last: int
    """The last version that is read; below ``first`` if there is none."""
    cursor: str
    """The cursor that continues after the read."""

    def reader(self, log: AnyLog | None = None, threads: int = 1) -> pa.RecordBatchReader:
        """Return a reader of all parts, in order except for a state.

        Args:
            log: The open log, which the reader closes at its end; None: it opens the log itself.
            threads: Number of parts that are read at once.
        """

        def batches() -> Iterator[pa.RecordBatch]:
            with ExitStack() as stack:
                opened = log or (open_log(self.parts[0].request) if self.parts else None)
                if opened is not None:
                    stack.push(opened)
                # The rows of a state have no order, and its parts are large.
                in_order = not self.parts or self.parts[0].request.shape is not Shape.STATE
                parts = [partial(read_part, each, opened) for each in self.parts]
                yield from read_ahead(parts, threads, in_order=in_order)

        return pa.RecordBatchReader.from_batches(self.schema, batches())


def open_log(request: ReadRequest) -> AnyLog:
    """Open the log of a request: its folder, or a connection to its server."""
    if request.log is None:
        return ServedLog(request)
    return OpenLog(request.log, request.catalog)


def read_part(part: ReadPart, log: AnyLog | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part as batches of the plan's schema.

    A compaction meanwhile has no effect. Nothing is returned twice.

    Args:
        part: The part.
        log: The open log; None: it is opened and closed here.

    Raises:
        PositionCompacted: A trim has removed records of the part. The rows so far are incomplete.
        InvalidRequest: A value does not fit its column; or this machine has an older copy of the log.
        CatalogReplaced: The catalog is another one now.
        LogCorrupted: The log is damaged.
    """
    with ExitStack() as stack:
        opened = log or open_log(part.request)
        if log is None:
            stack.push(opened)
        opened.must_have(part.uuid, max(part.version, part.span.end.preceding().version))
        yield from opened.scan(part).batches()


def plan(request: ReadRequest, log: AnyLog | None = None) -> ReadPlan:
    """Return the plan of a read. It looks up the range and the columns, and reads no rows.

    Args:
        request: The read.
        log: The open log; None: the log is opened and closed here.

    Raises:
        EntityTypeUnknown, InvalidRequest: The request does not fit the log; the error says how.
        PositionCompacted: The range begins before the oldest retained position.
        CatalogReplaced, HistoryReplaced, CursorAhead: A cursor is of another log or history.
    """
    with ExitStack() as stack:
        opened = log or open_log(request)
        if log is None:
            stack.push(opened)
        while True:
            try:
                return _planned(request, opened)
            except SegmentMissing as missing:
                assert isinstance(opened, OpenLog)
                opened.newer(missing)


def _planned(request: ReadRequest, log: AnyLog) -> ReadPlan:
    view, is_state = log.view, request.shape is Shape.STATE
    # 1. Pin the range and the version whose schema gives the columns.
    if is_state:
        at = log.version_of(request)
        span, newest = RecordRange(Position(0, END), Position(at + 1, 0)), at
    else:
        span, newest = log.span(request), view.published
    version = newest if request.schema_version is None else request.schema_version
    if not 0 <= version <= view.published:
        raise InvalidRequest(
            f"schemaVersion {version}: the newest version of catalog {view.name!r} is {view.published}"
        )
    _refuse_unknown(view, request, version)
    # 2. The scan of the whole checks the columns and the condition; nothing is read.
    whole = ReadPart(request, view.uuid, version, span)
    schema = log.scan(whole).schema
    by_key = is_state or request.deduplication is not Deduplication.NONE
    parts = log.parts(whole, by_key=by_key)
    last = max(span.begin, span.end.preceding())
    cursor = str(log.cursor(last))
    return ReadPlan(
        schema.with_metadata({CURSOR: cursor.encode()}),
        parts,
        last.version if is_state else following(span.begin).version,
        last.version,
        cursor,
    )


def versions_within(
    log: AnyLog,
    after: int,
    max_rows: int | None = None,
    max_versions: int | None = None,
    entity_type: str | None = None,
    schema_version: int | None = None,
) -> int:
    """Return the last version of a batch of a stream that begins after a version.

    The batch has whole versions only. It has at least one version if there is a newer one, even if that has
    more rows.

    Args:
        log: The open log, refreshed by the caller.
        after: The last version of the batch before.
        max_rows: The most records of the batch, of all entity types; None: no limit.
        max_versions: The most versions of the batch; None: no limit.
        entity_type: Name of the only table that is read: segments without it do not count. None: all tables.
        schema_version: The version whose schema has that name; None: the newest.
    """
    view = log.view
    last = view.published
    if max_versions is not None:
        last = min(last, after + max(1, max_versions))
    if max_rows is None or last <= after + 1:
        return last
    return log.version_within(after, last, max_rows, entity_type, schema_version)


def _refuse_unknown(view: LogView, request: ReadRequest, version: int) -> None:
    name = request.entity_type
    if name is None:
        return
    newest = view.schema_of(view.published).entity_types
    if name not in newest and name not in view.schema_of(version).entity_types:
        raise EntityTypeUnknown(view.name, name, list(newest))
