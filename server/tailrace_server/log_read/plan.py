"""The plan of a read: what it returns, and its parts, which threads or Spark tasks read independently.

A plan pins the range and the columns, so its parts return the same rows whenever and wherever they are read.
The concatenation of all parts, in their order, is the result. A part of changes or captures is a range of the
log, in log order. A part of a state is a range of key hashes.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tailrace.errors import EntityTypeUnknown, InvalidRequest
from tailrace.position import END, Position
from tailrace_server.log_read.ahead import read_ahead
from tailrace_server.log_read.bounds import RecordRange, following
from tailrace_server.log_read.captures import CaptureScan
from tailrace_server.log_read.net_changes import NetChangeScan
from tailrace_server.log_read.opened import OpenLog, note_damage
from tailrace_server.log_read.request import Deduplication, Shape
from tailrace_server.log_read.row_columns import names_of
from tailrace_server.log_read.row_scans import ChangeRowScan, StateRowScan
from tailrace_server.log_read.served_log import ServedLog
from tailrace_server.log_read.served_scans import (
    ServedCaptureScan,
    ServedChangeScan,
    ServedNetChangeScan,
    ServedStateScan,
)
from tailrace_server.wal.base.reading import table_state
from tailrace_server.wal.base.winners import HASHES_END, LogTable
from tailrace_server.wal.segment.reader import SegmentMissing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from tailrace_server.log_read.request import ReadRequest
    from tailrace_server.sql.scans import LogSource, StatementScan
    from tailrace_server.wal.segment.refs import BatchRef
    from tailrace_server.wal.state.entity_names import EntityNames
    from tailrace_server.wal.state.view import LogView

AnyLog = OpenLog | ServedLog
"""A log that is read: its folder, or the server that has it."""
CURSOR: Final = b"tailrace.cursor"
"""Key of the schema's metadata: the cursor that continues after the read."""
_PARTS_OF_LOG: Final = 2
"""Number of parts of a state that has no base."""
_PART_BYTES: Final = 256 << 20
"""A part with as many bytes of images gets no further record batch."""


@dataclass(frozen=True, slots=True)
class ReadPart:
    """A part of a read that is read alone, with bounded memory. It can be pickled."""

    request: ReadRequest
    uuid: UUID
    """The log's uuid: a part of another log is refused."""
    version: int
    """The version whose schema gives the columns, and of the state."""
    span: RecordRange
    """The records of the part; for a state, those up to its version."""
    hashes: tuple[int, int] = (0, HASHES_END)
    """The first and the end (exclusive) of the range of key hashes."""

    def batches(self, log: AnyLog | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the part as batches of the plan's schema.

        A compaction meanwhile has no effect. Nothing is returned twice.

        Args:
            log: The open log; None: the part opens and closes the log itself.

        Raises:
            PositionCompacted: A trim has removed records of the part. The rows so far are incomplete.
            InvalidRequest: A value does not fit its column; or this machine has an older copy of the log.
            CatalogReplaced: The catalog is another one now.
            LogCorrupted: The log is damaged.
        """
        with ExitStack() as stack:
            opened = log or open_log(self.request)
            if log is None:
                stack.push(opened)
            opened.must_have(self.uuid, max(self.version, self.span.end.preceding().version))
            yield from self.scan(opened).batches()

    def scan(self, log: AnyLog) -> StatementScan | CaptureScan:
        """Return the scan of the part; nothing is read yet."""
        if isinstance(log, ServedLog):
            return self._served(log)
        if self.request.shape is Shape.CAPTURES:
            return CaptureScan(log.source(), self.request, self.version, self.span)
        if self.request.shape is Shape.STATE:
            at = self.span.end.preceding().version
            return StateRowScan(log.source(), self.request, self.version, at, self.hashes)
        given = (log.source(), self.request, self.version, self.span)
        if self.request.deduplication is Deduplication.NET_CHANGES:
            return NetChangeScan(*given, self.hashes)
        return ChangeRowScan(*given)

    def _served(self, log: ServedLog) -> StatementScan | CaptureScan:
        given = (log, self.request, self.version)
        if self.request.shape is Shape.CAPTURES:
            return ServedCaptureScan(*given, self.span)
        if self.request.shape is Shape.STATE:
            return ServedStateScan(*given, self.span.end.preceding().version)
        if self.request.deduplication is Deduplication.NET_CHANGES:
            return ServedNetChangeScan(*given, self.span)
        return ServedChangeScan(*given, self.span)


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
                parts = [partial(each.batches, opened) for each in self.parts]
                yield from read_ahead(parts, threads, in_order=in_order)

        return pa.RecordBatchReader.from_batches(self.schema, batches())


def open_log(request: ReadRequest) -> AnyLog:
    """Open the log of a request: its folder, or a connection to its server."""
    if request.log is None:
        return ServedLog(request)
    return OpenLog(request.log, request.catalog)


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
    schema = whole.scan(log).schema
    by_key = is_state or request.deduplication is not Deduplication.NONE
    if isinstance(log, ServedLog):
        parts = _version_parts(whole, is_whole=by_key)
    else:
        parts = (_key_parts if by_key else _range_parts)(log, whole)
    last = max(span.begin, span.end.preceding())
    cursor = str(log.cursor(last))
    return ReadPlan(
        schema.with_metadata({CURSOR: cursor.encode()}),
        parts,
        last.version if is_state else following(span.begin).version,
        last.version,
        cursor,
    )


def _version_parts(whole: ReadPart, *, is_whole: bool) -> tuple[ReadPart, ...]:
    """Return the parts of a read through a server, which does not report where its records are.

    A part has at most as many versions as it should have records.
    """
    begin, end = whole.span
    if following(begin) >= end:
        return ()
    first, last = following(begin).version, end.preceding().version
    step = last - first + 1 if is_whole else whole.request.rows_per_part
    ends = [Position(each, 0) for each in range(first + step, last + 1, step)]
    bounds = [begin, *(each.preceding() for each in ends)]
    spans = zip(bounds, [*ends, end], strict=True)
    return tuple(replace(whole, span=RecordRange(*each)) for each in spans)


def _key_parts(log: OpenLog, whole: ReadPart) -> tuple[ReadPart, ...]:
    """Return the parts of a state or of net changes: ranges of key hashes with about equally many rows."""
    request, at = whole.request, whole.span.end.preceding().version
    assert request.entity_type is not None
    state = table_state(log.view, log.reader, request.entity_type, at, note_damage)
    after = sum(ref.rows for _, ref in state.log_table.batches(state.base_version, at))
    is_empty = following(whole.span.begin) >= whole.span.end
    if is_empty or not state.base_rows + after:
        return ()
    count = math.ceil((state.base_rows + after) / request.rows_per_part)
    # Each part reads all of the log after the base: with more parts that would take most of the time.
    count = min(count, _PARTS_OF_LOG + _PARTS_OF_LOG * state.base_rows // max(after, 1))
    count = 1 if request.keys is not None else count
    ends = [HASHES_END * each // count for each in range(count + 1)]
    return tuple(replace(whole, hashes=each) for each in pairwise(ends))


def _range_parts(log: OpenLog, whole: ReadPart) -> tuple[ReadPart, ...]:
    """Return the parts of a range of the log; each ends where a record batch ends."""
    request, (begin, end) = whole.request, whole.span
    parts: list[ReadPart] = []
    rows, size = 0, 0
    names = None
    if request.entity_type is not None:
        names = names_of(log.view, request.entity_type, whole.version)
    for ref in batches_in(log.source(), whole.span, names):
        rows += ref.rows
        size += sum(ref.body_lengths)
        if rows >= request.rows_per_part or size >= _PART_BYTES:
            stop = min(following(ref.last), end)
            parts.append(replace(whole, span=RecordRange(begin, stop)))
            begin, rows, size = stop.preceding(), 0, 0
    if rows:
        parts.append(replace(whole, span=RecordRange(begin, end)))
    return tuple(parts)


def batches_in(
    source: LogSource, span: RecordRange, names: EntityNames | None
) -> Iterator[BatchRef]:
    """Yield the record batches that may have records of a range.

    Args:
        source: The log.
        span: The range.
        names: The names of the only table that is read; None: all tables are.
    """
    view, (begin, end) = source.view, span
    after, last = begin.version - (begin.index != END), end.preceding().version
    if names is not None:
        table = LogTable(view, source.reader, names, names.first_name(view), counted=False)
        refs = (ref for _, ref in table.batches(after, last))
        yield from (ref for ref in refs if begin < ref.last and ref.first < end)
        return
    for place in range(view.find(following(begin)), len(view)):
        ref = view.batch(place)
        if ref.first >= end:
            return
        yield ref


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
    if isinstance(log, ServedLog):
        return min(last, log.version_within(after, entity_type, max_rows))
    source, span = log.source(), RecordRange(Position(after, END), Position(last + 1, 0))
    while True:
        try:
            names = None
            if entity_type is not None:
                names = names_of(source.view, entity_type, schema_version or last)
            return _last_within(source, span, max_rows, names)
        except SegmentMissing as missing:
            source = replace(source, view=source.newer(missing))


def _last_within(
    source: LogSource, span: RecordRange, max_rows: int, names: EntityNames | None
) -> int:
    after, last = span.begin.version, span.end.preceding().version
    rows = 0
    for ref in batches_in(source, span, names):
        # Only a batch in which the range begins or the limit is reached is read.
        if ref.first > span.begin and rows + ref.rows <= max_rows:
            rows += ref.rows
            continue
        versions = source.reader.head(ref).versions
        versions = versions[versions > after]
        if rows + len(versions) > max_rows:
            # The version of the first record beyond the limit is left out, and with it all of its records.
            return min(last, max(after + 1, int(versions[max_rows - rows]) - 1))
        rows += len(versions)
    return last


def _refuse_unknown(view: LogView, request: ReadRequest, version: int) -> None:
    name = request.entity_type
    if name is None:
        return
    newest = view.schema_of(view.published).entity_types
    if name not in newest and name not in view.schema_of(version).entity_types:
        raise EntityTypeUnknown(view.name, name, list(newest))
