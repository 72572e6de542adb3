"""A Delta table with a change feed as a source: ``tailrace ingest delta``.

::

    no position     all rows of the newest version ──▶ the differences to the log, as one version
    position N      the change feed of N + 1 … newest ──▶ a version for each version of the table with rows

The position is the number of the log's newest batch of the stream ``delta:TABLE:SNAPSHOT``
(`wal.source_batches`). It is in the entry that has the rows, so a kill at any moment loses and repeats nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tailrace_server.pipeline.feed.source import SourceLost, SourceRefused, SourceUnreachable
from tailrace_server.pipeline.run.progress import IngestCounters
from tailrace_server.pipeline.run.source_figures import SourceFigures
from tailrace_server.pipeline.tables.writing import read_all, state_of, write_rows
from tailrace_server.wal.source_batches import newest_batch, stream_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.pipeline.run.progress import ProgressReporter
    from tailrace_server.pipeline.run.stop_signals import Stopping
    from tailrace_server.pipeline.tables.settings import DeltaFeedSettings
    from tailrace_server.wal.state.state import LogState

WRITER: Final = "delta"
"""Name of the writer in the log."""
_FEED: Final = "delta.enableChangeDataFeed"
_AT_ONCE: Final = 1_000
"""Maximum number of versions of the table in a commit."""
_UNREADABLE: Final = "the table cannot be read: files of its newest version are missing"
_AGAIN: Final = "run with --resnapshot, which reads all rows again and writes only what differs"


class DeltaSource:
    """The versions of one Delta table, and the catalog that has them."""

    writer = None
    """Each commit opens the catalog anew."""

    def __init__(self, settings: DeltaFeedSettings, reporter: ProgressReporter) -> None:
        """Open the table.

        Raises:
            SourceUnreachable: There is no such table.
            SourceRefused: It has no change feed.
        """
        self.counters = IngestCounters()
        self._settings = settings
        self._reporter = reporter
        self._resnapshot = settings.resnapshot
        try:
            self._table = DeltaTable(settings.table)
        except TableNotFoundError:
            raise SourceUnreachable(f"--table {settings.table}: there is no Delta table") from None
        if self._table.metadata().configuration.get(_FEED, "").lower() != "true":
            raise SourceRefused(
                f"--table {settings.table}: the table has no change feed; set its property {_FEED} to "
                "true, or use tailrace ingest snapshot"
            )
        self._prefix = f"delta:{self._table.metadata().id}:"

    def run(self, stopping: Stopping) -> None:
        """Write the versions so far; with ``follow``, also later ones, until a signal.

        Raises:
            SourceLost: Changes are missing, so that a new snapshot is needed.
            InvalidRequest: A row cannot be written.
            UnknownWriter, WriterFenced, LogFull: As ``CatalogWriter.open`` and ``commit``.
        """
        while True:
            self._table.update_incremental()
            while not stopping.is_set() and self._advance():
                pass
            if not self._settings.follow or stopping.wait(self._settings.every_s):
                return

    def _advance(self) -> bool:
        """Write the next versions; return False if the catalog has all of them."""
        newest, state = self._table.version(), state_of(self._settings)
        before = 0 if state is None else state.last_version
        stream, position = self._position(state)
        if position is None:
            # A new name, because the table's versions begin again below the catalog's if it was restored.
            stream = f"{self._prefix}{uuid4().hex[:8]}"
            found = self._table.to_pyarrow_dataset()

            def rows() -> pa.RecordBatchReader:
                return found.scanner().to_reader()

            self._write(found.schema, rows, _UNREADABLE, (stream, newest), before, snapshot=True)
            self._resnapshot = False
            return True
        self._measure(position)
        if position == newest:
            return False
        if position > newest:
            raise SourceLost(
                f"the table is at version {newest}, and the catalog has version {position}: the table "
                f"was restored from a copy; {_AGAIN}"
            )
        first, last = position + 1, min(newest, position + _AT_ONCE)
        gone = f"the changes of versions {first} to {last} cannot be read; {_AGAIN}"
        try:
            feed = pa.RecordBatchReader.from_stream(self._table.load_cdf(first, last))
        except (DeltaError, OSError) as error:
            raise SourceLost(f"{gone}: {error}") from error
        self._write(feed.schema, lambda: feed, gone, (stream, last), before, snapshot=False)
        return True

    def _position(self, state: LogState | None) -> tuple[str, int | None]:
        """Return the stream of the catalog, and the table's version that it has; None: none yet."""
        stream = None if state is None else stream_of(state, WRITER)
        if state is None or stream is None or self._resnapshot:
            return "", None
        if not stream.startswith(self._prefix):
            raise SourceLost(
                f"the catalog has the rows of another Delta table ({stream}): if the table was created "
                f"again, {_AGAIN}"
            )
        return stream, newest_batch(state, stream)

    def _write(
        self,
        schema: pa.Schema,
        opened: Callable[[], pa.RecordBatchReader],
        gone: str,
        batch: tuple[str, int],
        before: int,
        *,
        snapshot: bool,
    ) -> None:
        rows = read_all(opened, lambda error: SourceLost(f"{gone}: {error}"))
        count, state = write_rows(
            self._settings, WRITER, schema, rows, snapshot=snapshot, batch=batch
        )
        counters = self.counters
        counters.rows += count
        counters.lines += 1
        counters.versions += state.last_version - before
        counters.committed, counters.published = state.last_version, state.published
        self._measure(batch[1])
        self._reporter.progress(counters)

    def _measure(self, version: int) -> None:
        """Export the version of the table that the catalog has."""
        behind = self._table.version() - version
        self.counters.sources[self._prefix.removesuffix(":")] = SourceFigures(
            "versions", {"": version}, {"": behind}, self.counters.rows
        )
