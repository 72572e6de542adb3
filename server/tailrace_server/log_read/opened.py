"""A catalog's log, opened for reads by several threads, which a compaction or a trim may change meanwhile."""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Self

from tailrace.errors import CatalogReplaced, InvalidRequest
from tailrace.position import END, Position
from tailrace_server.log_read.bounds import RecordRange, following, span_of
from tailrace_server.log_read.captures import CaptureScan
from tailrace_server.log_read.net_changes import NetChangeScan
from tailrace_server.log_read.request import Deduplication, Shape
from tailrace_server.log_read.row_columns import names_of
from tailrace_server.log_read.row_scans import ChangeRowScan, StateRowScan
from tailrace_server.sql.scans import LogSource
from tailrace_server.sql.version_bounds import last_version
from tailrace_server.wal.base.reading import table_state
from tailrace_server.wal.base.winners import HASHES_END, LogTable
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.segment.reader import BatchReader, SegmentMissing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID

    from tailrace.cursor import Cursor
    from tailrace.errors import LogCorrupted
    from tailrace_server.log_read.part import ReadPart
    from tailrace_server.log_read.request import ReadRequest
    from tailrace_server.sql.scans import StatementScan
    from tailrace_server.wal.segment.refs import BatchRef
    from tailrace_server.wal.state.entity_names import EntityNames
    from tailrace_server.wal.state.view import LogView

_PARTS_OF_LOG: Final = 2
"""Number of parts of a state that has no base."""
_PART_BYTES: Final = 256 << 20
"""A part with as many bytes of images gets no further record batch."""
_log = logging.getLogger(__name__)


class OpenLog:
    """An open log; a context manager. Threads may share it."""

    def __init__(self, root: Path, catalog: str) -> None:
        """Open the log; only this process's memory is written.

        Args:
            root: The log root.
            catalog: Name of the catalog.

        Raises:
            CatalogUnknown: There is no such catalog.
            LogUnreadable, LogCorrupted: As ``open_catalog``.
        """
        self._log = open_catalog(root, catalog)
        self.reader = BatchReader(self._log.path)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. Idempotent."""
        self.reader.close()

    @property
    def view(self) -> LogView:
        """The newest published versions that were read so far."""
        return self._log.view

    def refreshed(self) -> LogView:
        """Read what was published since, and return the newest versions."""
        with self._lock:
            self._log.refresh()
            return self._log.view

    def source(self) -> LogSource:
        """Return the log as a source of scans."""
        return LogSource(self.view, self.reader, self.newer, note_damage)

    def span(self, request: ReadRequest) -> RecordRange:
        """Return the range of a request; raises as `span_of`."""
        return span_of(self.view, request)

    def version_of(self, request: ReadRequest) -> int:
        """Return the version of a state; raises as `last_version`."""
        return self.view.published if request.at is None else last_version(self.view, request.at)

    def cursor(self, position: Position) -> Cursor:
        """Return the cursor after a position."""
        return self.view.cursor(*position)

    def must_have(self, uuid: UUID, version: int) -> None:
        """Check that this is a certain log, and that it has a version.

        Raises:
            CatalogReplaced: The catalog is another one now.
            InvalidRequest: The log, as this machine sees it, lacks the version.
        """
        view = self.view
        if view.uuid != uuid:
            raise CatalogReplaced(view.name, uuid, view.uuid)
        if view.published < version and self.refreshed().published < version:
            raise InvalidRequest(
                f"catalog {view.name!r}: on this machine the log ends with version {self.view.published}, but "
                f"the read needs version {version}; give all machines the same log folder"
            )

    def newer(self, missing: SegmentMissing) -> LogView:
        """Return a view without a file that a compaction or a trim has removed.

        Raises:
            SegmentMissing: The newest view still names the file: the log is damaged.
        """
        with self._lock:
            view = self._log.view
            # Another thread may have read a newer view already. If even the newest view names the missing
            # segment, the log is damaged.
            if _names(view, missing.path):
                self._log.refresh()
                view = self._log.view
            if _names(view, missing.path):
                raise missing
            return view

    # Parts of a read.

    def scan(self, part: ReadPart) -> StatementScan | CaptureScan:
        """Return the scan of a part; nothing is read yet."""
        request, given = part.request, (self.source(), part.request, part.version)
        if request.shape is Shape.CAPTURES:
            return CaptureScan(*given, part.span)
        if request.shape is Shape.STATE:
            return StateRowScan(*given, part.span.end.preceding().version, part.hashes)
        if request.deduplication is Deduplication.NET_CHANGES:
            return NetChangeScan(*given, part.span, part.hashes)
        return ChangeRowScan(*given, part.span)

    def parts(self, whole: ReadPart, *, by_key: bool) -> tuple[ReadPart, ...]:
        """Return the parts of a read: ranges of key hashes, or of the log.

        Raises:
            SegmentMissing: A compaction or a trim has removed a file; continue with `newer`.
        """
        return (_key_parts if by_key else _range_parts)(self, whole)

    def version_within(
        self,
        after: int,
        last: int,
        max_rows: int,
        entity_type: str | None,
        schema_version: int | None,
    ) -> int:
        """Return the last version of a batch of whole versions that begins after a version.

        Args:
            after: The last version of the batch before.
            last: The last version that the batch may have.
            max_rows: The most records of the batch; its first version may have more.
            entity_type: The only table that is read: segments without it do not count. None: all tables.
            schema_version: The version whose schema has that name; None: the last.
        """
        source, span = self.source(), RecordRange(Position(after, END), Position(last + 1, 0))
        while True:
            try:
                names = None
                if entity_type is not None:
                    names = names_of(source.view, entity_type, schema_version or last)
                return _last_within(source, span, max_rows, names)
            except SegmentMissing as missing:
                source = replace(source, view=source.newer(missing))


def _names(view: LogView, path: str) -> bool:
    return path in view.segment_paths()


def note_damage(damaged: LogCorrupted) -> None:
    """Log the error of a damaged base that a read avoided."""
    _log.warning(
        "%s; the read avoided it. `tailrace log rebase --anew` makes the bases again", damaged
    )


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
    for ref in _batches_in(log.source(), whole.span, names):
        rows += ref.rows
        size += sum(ref.body_lengths)
        if rows >= request.rows_per_part or size >= _PART_BYTES:
            stop = min(following(ref.last), end)
            parts.append(replace(whole, span=RecordRange(begin, stop)))
            begin, rows, size = stop.preceding(), 0, 0
    if rows:
        parts.append(replace(whole, span=RecordRange(begin, end)))
    return tuple(parts)


def _batches_in(
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


def _last_within(
    source: LogSource, span: RecordRange, max_rows: int, names: EntityNames | None
) -> int:
    after, last = span.begin.version, span.end.preceding().version
    rows = 0
    for ref in _batches_in(source, span, names):
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
