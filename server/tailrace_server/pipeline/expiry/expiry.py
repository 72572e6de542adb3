"""Rows whose time to live is over: found, and removed by records of operation EXPIRE.

A row and its due time follow from the log alone: from its last committed change. So
nothing of this is kept across runs, and a row that an earlier run removed is not there any more::

    look     new records of the log ─▶ when their rows are due (due_rows.py, at the first look from all rows)
    due      the rows that are due, as base and log have them now ─▶ when they are really due
    expire   those that are ─▶ a version of EXPIRE records ─▶ entry

Before a row is removed it is looked up once more. The catalog has one writer, which does nothing else
meanwhile. So a change that is in the log before counts, and one that comes later makes the row anew.

The clock is the writer's, that commits are stamped with. It is asked at each look. If it steps back, rows that
would be due are not, until it has come so far again; those that it removed stay removed.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from tailrace.criteria import Area, Operation
from tailrace_server.pipeline.expiry.due_times import check_times
from tailrace_server.pipeline.expiry.expiring_table import ExpiringTable
from tailrace_server.pipeline.expiry.known_commits import marks_after
from tailrace_server.pipeline.ordering.committed_reads import read_committed
from tailrace_server.pipeline.record_table import record_table
from tailrace_server.wal.base.reading import last_known
from tailrace_server.wal.record.columns import lead_text
from tailrace_server.wal.segment.writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tailrace.schema import Schema
    from tailrace_server.pipeline.filling.last_images import LastImages
    from tailrace_server.pipeline.progress import IngestCounters
    from tailrace_server.pipeline.record_table import Row
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.segment.writer import SegmentReceipt
    from tailrace_server.wal.state.view import LogView

    Write = Callable[[Path], SegmentReceipt]
    """Writes a version of expired rows to a segment of this path."""

_LOOK_EVERY_S: Final = 1.0
"""While the ingest follows its source."""


class Expiry:
    """Lets the rows of a catalog expire, for its writer. Not thread-safe; the driver's lock guards it."""

    def __init__(
        self,
        writer: CatalogWriter,
        settings: IngestSettings,
        images: LastImages,
        counters: IngestCounters,
        schema: Schema,
    ) -> None:
        """Begin; nothing is read yet.

        Args:
            writer: The catalog's.
            settings: Say which rows expire.
            images: They receive the expired rows.
            counters: Of the ingest.
            schema: The newest one of the catalog.

        Raises:
            InvalidRequest: A column that is to say when rows are due is not there, or says no moments.
        """
        self._writer = writer
        self._images = images
        self._counters = counters
        mapping = self._mapping = settings.mapping
        declared = {} if mapping is None else mapping.entity_types
        self._tables = [
            ExpiringTable(mapping, name, each.time_to_live, settings)
            for name, each in declared.items()
            if mapping is not None and each.time_to_live is not None
        ]
        for table in self._tables:
            check_times(mapping, schema, table.entity_type)
        self._look_at = 0.0
        """When the next look is due, by the monotonic clock."""

    def run(self, commit: Callable[[Write], None], *, whole: bool) -> None:
        """Remove rows that are due now, in the order of the tables, each in one version.

        Args:
            commit: Makes a version durable. An error in it ends this; nothing is lost, and nothing done twice.
            whole: All that are due, now. Otherwise once a second, and 65,536 rows of each table at most: then
                the rest is removed with the next calls, and batches come in between.

        Raises:
            InvalidRequest: The column that says when rows are due is not there, or says no moments.
            LogCorrupted: A part of base or log that is read is damaged.
            SegmentMissing: Upkeep replaces files more quickly than they can be read.
        """
        at = time.monotonic()
        if not whole and at < self._look_at:
            return
        now = self._writer.now()
        left = False
        for table in self._tables:
            while self._expire_some(table, now, commit):
                left = not whole
                if left:
                    break
        self._look_at = at if left else at + _LOOK_EVERY_S
        self._counters.first_due_us = min(table.first_due for table in self._tables)
        self._counters.unread_times = {
            table.entity_type: table.unread for table in self._tables if table.unread.count
        }

    def marks(self) -> dict[str, int | str]:
        """Return as source positions what the next commit has to note, see commit_notes.py."""
        ages_s = {table.age_s for table in self._tables if table.age_s is not None}
        state = self._writer.state
        return marks_after(state.source_positions, ages_s, state.last_version, state.last_timestamp)

    def _expire_some(self, table: ExpiringTable, now: int, commit: Callable[[Write], None]) -> bool:
        """Remove up to 65,536 rows of a table; return whether more may be due."""

        def expire(view: LogView, reader: BatchReader, name: str) -> bool:
            state = last_known(view, reader, name)
            positions = self._writer.state.source_positions
            due = table.due(state, positions, now)
            if not len(due):
                return False
            for rows in table.found(state, positions, due, now):
                self._expire(view, name, rows, now, commit)
            return True

        return read_committed(self._writer, self._mapping, table.entity_type, expire, False)

    def _expire(
        self, view: LogView, name: str, rows: StateRows, now: int, commit: Callable[[Write], None]
    ) -> None:
        known = self._images.stated_now(view, name, rows)
        commit(partial(_write, name, known, now))
        self._images.have_expired(name, [key for key, _ in known])
        self._counters.expired += len(known)


def _write(
    entity_type: str, rows: Sequence[tuple[str, bytes | None]], now: int, path: Path
) -> SegmentReceipt:
    """Write a version of expired rows, each a key and its last image."""
    lead = lead_text(
        transaction_id=None, counts={entity_type: len(rows)}, source_count=0, expired_at=now
    )
    kind = int(Area.INFRASTRUCTURE), int(Operation.TRANSACTION)
    records: list[Row] = [(0, 0, *kind, None, None, None, None, None, lead)]
    expire = int(Area.DATA), int(Operation.EXPIRE)
    for index, (key, before) in enumerate(rows, 1):
        records.append((0, index, *expire, entity_type, key, None, None, before, None))
    with SegmentWriter(path) as segment:
        segment.write(record_table(records))
        return segment.close()
