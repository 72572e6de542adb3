"""Rows that the log has and a whole snapshot of their table lacks: counted, or removed.

Every row of a snapshot is a record. So of the rows that a table has now those are missing whose last change is
below the snapshot's first version. The state is read in parts of bounded size; nothing is kept of its keys.

A row that is missing was removed from the source while no connector followed it, or the snapshot was filtered,
as by ``snapshot.select.statement.overrides``. No message distinguishes these, so an option says to remove rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace_server.pipeline.changes import CHANGE, DELETE, Change, FileSplit, position_in
from tailrace_server.pipeline.ordering.committed_reads import read_committed
from tailrace_server.pipeline.progress import LackingSnapshot
from tailrace_server.wal.base.reading import last_known
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tailrace_server.pipeline.ordering.newest_positions import NewestPositions
    from tailrace_server.pipeline.ordering.table_snapshots import TableSnapshot, TableSnapshots
    from tailrace_server.pipeline.progress import IngestCounters
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.state.view import LogView

    StatedNow = Callable[[LogView, str, StateRows], list[tuple[str, bytes | None]]]
    """Returns keys and images of rows, in the newest columns."""

_NAMED: Final = 5
"""Keys that a report names."""


class MissingRows:
    """Compares one catalog with its snapshots, for its writer. Not thread-safe; the driver's lock guards it."""

    def __init__(
        self, writer: CatalogWriter, settings: IngestSettings, counters: IngestCounters
    ) -> None:
        """Begin; nothing is read yet."""
        self._writer = writer
        self._settings = settings
        self._counters = counters
        self._ended_at: float | None = None
        """When a snapshot of all tables was first seen to have ended, by the idle clock, seconds."""

    def has_waited(self, now: float) -> bool:
        """Return True if nothing has come for the idle time since a snapshot of all tables ended."""
        self._ended_at = now if self._ended_at is None else self._ended_at
        return now - self._ended_at >= self._settings.rules.idle_s

    def compared(
        self,
        snapshots: TableSnapshots,
        stated_now: StatedNow,
        remove: Callable[[list[Change]], None],
    ) -> TableSnapshots:
        """Compare whole snapshots with the log; return the snapshots with what was done noted.

        Args:
            snapshots: Those of the catalog, with all that is committed.
            stated_now: Returns the images that removals have as the row before.
            remove: Commits removals as one version.

        Raises:
            LogCorrupted: What is read is damaged.
            SegmentMissing: Upkeep replaces files more quickly than they can be read.
        """
        removes = self._settings.removes_missing
        for name, snapshot in [*snapshots.whole(removes=removes)]:
            found = LackingSnapshot(fault=snapshot.fault)
            if not self._settings.source.counts(name) and self._had_rows(name, snapshot):
                if removes and not snapshot.fault:
                    found.removed = self._removed(name, snapshot, stated_now, remove)
                elif not snapshot.fault:
                    found.count, found.keys = self._counted(name, snapshot)
                self._counters.note_lacking(name, found)
            snapshots = snapshots.noted(name, settled=not found.count)
        return snapshots

    def without_tables(
        self, snapshots: TableSnapshots, entity_types: Iterable[str], newest: NewestPositions
    ) -> TableSnapshots:
        """Report the tables that a snapshot of all tables has no last row of; return it noted as settled."""
        self._ended_at = None
        for name, ended in [*snapshots.missing_tables(entity_types, newest)]:
            if not self._settings.source.counts(name):
                count, keys = self._counted(name, ended)
                self._counters.note_lacking(name, LackingSnapshot(count, keys, is_absent=True))
        return snapshots.noted()

    def _had_rows(self, name: str, snapshot: TableSnapshot) -> bool:
        """Return False if the log had no rows of a table before its snapshot, as before an initial one."""

        def read(view: LogView, reader: BatchReader, known: str) -> bool:
            names = EntityNames(view.schema_of(view.published), known)
            return snapshot.begun > 1 and bool(names.name_in(view.schema_of(snapshot.begun - 1)))

        return read_committed(self._writer, self._settings.mapping, name, read, False)

    def _counted(self, name: str, snapshot: TableSnapshot) -> tuple[int, list[str]]:
        """Return how many rows are missing, and the keys of the first."""

        def read(view: LogView, reader: BatchReader, known: str) -> tuple[int, list[str]]:
            count, keys = 0, list[str]()
            for rows in _missing(view, reader, known, snapshot):
                keys += rows.primary_keys[: _NAMED - len(keys)].to_pylist()
                count += len(rows)
            return count, keys

        nothing: tuple[int, list[str]] = 0, []
        return read_committed(self._writer, self._settings.mapping, name, read, nothing)

    def _removed(
        self,
        name: str,
        snapshot: TableSnapshot,
        stated_now: StatedNow,
        remove: Callable[[list[Change]], None],
    ) -> int:
        """Remove the rows that are missing, some in each version; return how many."""
        count = 0
        # Removals have the snapshot's position. So changes from before the snapshot are older than they are,
        # and changes from behind it are newer.
        place = FileSplit("").place(0, position_in(bytes.fromhex(snapshot.position) + bytes(8)))

        def read(view: LogView, reader: BatchReader, known: str) -> None:
            nonlocal count
            # The view is that of the beginning. If the read begins anew, the new view has the removals that
            # are committed, so no row is removed twice.
            for rows in _missing(view, reader, known, snapshot):
                removals = [
                    Change(
                        CHANGE,
                        place,
                        total_order=order,
                        entity_type=name,
                        operation=DELETE,
                        primary_key=key,
                        before=image,
                        timestamp=snapshot.time,
                        log=snapshot.log,
                    )
                    for order, (key, image) in enumerate(stated_now(view, known, rows))
                ]
                remove(removals)
                count += len(removals)

        read_committed(self._writer, self._settings.mapping, name, read, None)
        return count


def _missing(
    view: LogView, reader: BatchReader, name: str, snapshot: TableSnapshot
) -> Iterator[StateRows]:
    """Yield the rows of a table whose last change is below its snapshot."""
    for part in last_known(view, reader, name).parts():
        rows = np.flatnonzero(part.versions < snapshot.begun)
        if len(rows):
            yield part.taken(rows)
