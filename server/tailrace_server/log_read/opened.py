"""A catalog's log, opened for reads by several threads, which a compaction or a trim may change meanwhile."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Self

from tailrace.errors import CatalogReplaced, InvalidRequest
from tailrace_server.log_read.bounds import span_of
from tailrace_server.sql.scans import LogSource
from tailrace_server.sql.version_bounds import last_version
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.segment.reader import BatchReader

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from tailrace.cursor import Cursor
    from tailrace.errors import LogCorrupted
    from tailrace.position import Position
    from tailrace_server.log_read.bounds import RecordRange
    from tailrace_server.log_read.request import ReadRequest
    from tailrace_server.wal.segment.reader import SegmentMissing
    from tailrace_server.wal.state.view import LogView

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


def _names(view: LogView, path: str) -> bool:
    return path in view.segment_paths()


def note_damage(damaged: LogCorrupted) -> None:
    """Log the error of a damaged base that a read avoided."""
    _log.warning(
        "%s; the read avoided it. `tailrace log rebase --anew` makes the bases again", damaged
    )
