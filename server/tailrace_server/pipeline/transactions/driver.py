"""The driver of an ingest: each batch becomes a commit; so does what idle time completes.

::

    lines ─▶ decode ─▶ tallies ─▶ group ─▶ records ─▶ segment ─┐
              │                     └─▶ open: pending files ───┼─▶ entry ─▶ publication
              └─▶ quarantine file                              │
                  source positions ────────────────────────────┘

Every step before the entry is repeatable, with the same result. Only the entry makes a batch part of the
log. The driver skips a batch whose (writer, batch id) is in the log already.

A *flush* is a commit without input. It happens when the idle time of an open transaction ends, or when the
input ends. Its key is (writer, last batch id, k) with k from 1.

Not thread-safe: the caller holds `lock`.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace_server.pipeline.catalog.columns import (
    ColumnInference,
    CurrentColumns,
    evolve,
    known_columns,
)
from tailrace_server.pipeline.catalog.driver import CatalogDriver
from tailrace_server.pipeline.catalog.fillings import Fillings
from tailrace_server.pipeline.catalog.newest_positions import NewestPositions
from tailrace_server.pipeline.catalog.older_rows import older_rows
from tailrace_server.pipeline.catalog.pending import read_pending, rows_of, write_pending
from tailrace_server.pipeline.catalog.quarantine import check_stop
from tailrace_server.pipeline.catalog.snapshots import MissingRows, TableSnapshots
from tailrace_server.pipeline.catalog.time_to_live import Expiry
from tailrace_server.pipeline.input.change import CHANGE, Change, to_batch
from tailrace_server.pipeline.input.table_bindings import Bindings
from tailrace_server.pipeline.run.set_aside import SetAside
from tailrace_server.pipeline.transactions.driver_state import (
    ClosedTransactions,
    IdleClock,
    OpenFiles,
    is_tallies,
    pending_after,
    tallies_from,
)
from tailrace_server.pipeline.transactions.driver_writer import DriverWriter
from tailrace_server.pipeline.transactions.grouping import (
    Decision,
    Plan,
    Released,
    group,
    next_idle,
)
from tailrace_server.pipeline.transactions.lines import count_batch, lines_before, positions, recut
from tailrace_server.pipeline.transactions.records import WrittenPlan
from tailrace_server.pipeline.transactions.row_counts import RowCounts, is_counts
from tailrace_server.pipeline.transactions.tally import (
    CUT,
    BatchSummary,
    Tally,
    cut_snapshots,
    tally,
)
from tailrace_server.wal.state.commit_notes import notes_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tailrace.schema import Schema
    from tailrace_server.pipeline.catalog.columns import KnownColumns
    from tailrace_server.pipeline.transactions.driver_writer import Chunk
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.files.documents import PendingSegment
    from tailrace_server.wal.schema.mapping import SchemaMapping
    from tailrace_server.wal.segment.writer import SegmentReceipt

    Distribute = Callable[
        ["Driver", int, int, BatchSummary, Decision, Sequence[Change]], WrittenPlan
    ]
    """A function that writes a batch, and the pending rows that it releases, in tasks; see `large_batch`."""


class Driver(CatalogDriver):
    """Commits batches and flushes to one catalog, and keeps the open transactions between them."""

    def __init__(self, writer: CatalogWriter, settings: IngestSettings) -> None:
        """Restore the state from the log: open transactions, ids of closed transactions, columns.

        Raises:
            LogCorrupted: A pending file or a lead is damaged.
        """
        super().__init__(writer, settings.publish_window_s)
        self.delete_strays()
        self.lock = threading.RLock()
        self.source = settings.source
        self._settings = settings
        mapping = settings.mapping
        self._untouched = set() if mapping is None else set(mapping.entity_types)
        """Entity types of the mapping that no commit of this run has changed."""
        self.idle = IdleClock()
        """The clock of idle time; the caller that feeds the driver moves it."""
        self.bindings = Bindings.read(writer.state.source_positions)
        """The connector, tables and key columns that the catalog's rows have come from so far."""
        self._newest = NewestPositions.read(writer.state.source_positions)
        self._snapshots = TableSnapshots.read(writer.state.source_positions)
        self._missing = MissingRows(writer, settings, self.counters)
        self._closed = ClosedTransactions.read(writer.path, writer.log.view, self.source)
        self._open: dict[str, Tally] = {}
        self._rows_files: dict[str, PendingSegment] = {}
        self._counts = RowCounts(writer.path)
        self._tallies_file: PendingSegment | None = None
        self._adopt_pending(writer.state.pending)
        self._counts.check(self.source.counts, self.schema.entity_types)
        fillings = Fillings(writer, settings)
        self._images = fillings.images  # for removals, also where images are as sent
        self._fillings = fillings if settings.makes_images_whole else None
        self._expiry: Expiry | None = None
        if self._fillings is not None and settings.expires:
            self._expiry = Expiry(writer, settings, self._images, self.counters, self.schema)
        self.distribute: Distribute | None = None
        """Writes in Spark tasks what is too large for this process; None without Spark."""
        self._note_versions()

    # What the stream calls.

    @property
    def known_columns(self) -> KnownColumns:
        """The columns of the schema; tasks report only columns that are not in it."""
        return known_columns(self.schema, self._untouched)

    @property
    def mapping(self) -> SchemaMapping | None:
        """The declared columns; None if there are none."""
        return self._settings.mapping

    @property
    def open_tallies(self) -> Mapping[str, Tally]:
        """The tallies of the open transactions, by key."""
        return self._open

    def consumed(self, file: str) -> int:
        """Return the number of lines of a file that the log has already.

        Spark gives each file to one batch only. So the number is 0 for a new file, unless another writer
        has read it: a writer whose checkpoint was lost, or from which this one has taken over.
        """
        return int(self.writer.state.source_positions.get(self.source.position_name(file), 0))

    def rows_files(self, keys: Iterable[str]) -> list[PendingSegment]:
        """Return the pending files that hold rows of some open transactions."""
        wanted = {path for key in keys if key in self._open for path in self._open[key].segments}
        return [file for path, file in self._rows_files.items() if path in wanted]

    def batch(self, batch_id: int, changes: Sequence[Change], skipped: int = 0) -> None:
        """Commit a batch, given its rows; skip a batch that the log has already."""
        if batch_id <= self.last_batch:
            return
        given = BatchSummary.of(
            changes, skipped, self.idle.now, self.source.tells_shape
        ).without_foreign_effects(self.bindings)
        decision = self.decide(batch_id, given)
        rows = [change for change in changes if change.kind == CHANGE]
        self._commit_rows(batch_id, 0, given, decision, rows)

    def decide(self, batch_id: int, given: BatchSummary) -> Decision:
        """Decide which transactions a batch releases, and which stay open.

        Raises:
            LineRefused: A line cannot be used, and the settings are strict.
        """
        self._stop_at(given.quarantined, given)
        found = self.bindings.after(given.splits)
        assert found.admits(given.splits), "rows of two tables would be one entity type"
        if self._open and self.bindings.connector not in (None, found.connector):
            # Close the former connector's open transactions first: the new one may use the same ids.
            self.flush(ended=True)
        batch = f"{self.writer.writer}-{batch_id}"
        tallies, cuts = cut_snapshots(given.tallies, self._settings.snapshot_rows, batch)
        arrived = frozenset(key for key, t in tallies.items() if t.rows)
        decision = Decision.of(self._group(tallies), self._newest, self._settings)
        return decision._replace(cuts=cuts, arrived=arrived)

    def flush(self, *, ended: bool = False) -> bool:
        """Commit the transactions that idle time, or the end of the input, completes.

        Returns:
            True if there was something to commit.
        """
        plan = self._group({}, ended=ended)
        if not plan.released and len(plan.open) == len(self._open):
            return False
        batch_id, k = self._next_flush
        decision = Decision.of(plan, self._newest, self._settings)
        given = BatchSummary({}, Counter(), [])
        self._commit_rows(batch_id, k, given, decision, ())
        return True

    def idle_left(self) -> float | None:
        """Return the seconds of idle time until a flush can complete a transaction.

        Zero or less: a flush can complete one now. None: no transaction is open.
        """
        due = next_idle(self._open.values(), self._settings.rules)
        return None if due is None else due - self.idle.now

    def expire(self, *, whole: bool = False) -> None:
        """Remove the rows whose time to live is over, by flushes; see `Expiry.run`.

        Raises:
            WriterFenced: Another writer holds the catalog.
            LogFull: No room.
        """
        if self._expiry is not None:
            self._expiry.run(self._commit_expired, whole=whole)

    @property
    def _next_flush(self) -> tuple[int, int]:
        """The batch id and k of the next flush."""
        last = self.writer.state.writers[self.writer.writer]
        return last.batch_id, last.k + 1

    def compare_snapshots(self, *, ended: bool = False) -> None:
        """Report or remove the rows that a complete snapshot of their table lacks; flushes commit the result.

        Args:
            ended: True if the input has ended, so that no more rows of an ended snapshot can come.
        """
        after = self._missing.compared(self._snapshots, self._images.stated_now, self._remove)
        if after.has_ended and (ended or self._missing.has_waited(self.idle.now)):
            after = self._missing.without_tables(after, self.bindings.tables, self._newest)
        if after is self._snapshots:
            return
        self._commit_noted([], after.positions_after(self._snapshots))
        self._snapshots = after

    def _remove(self, removals: Sequence[Change]) -> None:
        """Commit the removals of rows that a snapshot lacks, as one more version of that snapshot."""
        batch_id, k = self._next_flush
        key = f"{CUT}{self.writer.writer}-{batch_id}\0{k}"
        source = self.bindings.connector
        changes = [change._replace(transaction=key, source=source) for change in removals]
        plan = Plan((Released(tally(changes, self.idle.now)[key]),), self._open)
        decision = Decision(plan, self._newest)
        given = BatchSummary({}, Counter(), [])
        self._commit_rows(batch_id, k, given, decision, changes)

    def _commit_expired(self, write: Callable[[Path], SegmentReceipt]) -> None:
        assert self._expiry is not None
        batch_id, k = self._next_flush
        segment = write(self.writer.segment_path(batch_id, f"{k}-expired"))
        self._commit_noted([segment], self._expiry.marks())

    def _commit_noted(self, segments: list[SegmentReceipt], noted: dict[str, int | str]) -> None:
        """Commit a flush with the given segments and source positions, and publish it."""
        batch_id, k = self._next_flush
        self.commit_entry(
            batch_id=batch_id,
            k=k,
            segments=segments,
            schemas=[],
            source_positions=noted,
            publish=self.publishes_at_once,
        )
        self.publish_committed()

    # The parts of a commit.

    def _commit_rows(
        self,
        batch_id: int,
        k: int,
        given: BatchSummary,
        decision: Decision,
        rows: Sequence[Change],
    ) -> None:
        self.commit(
            batch_id, k, given, decision, lambda: self._write(batch_id, k, given, decision, rows)
        )

    def commit(
        self,
        batch_id: int,
        k: int,
        given: BatchSummary,
        decision: Decision,
        write: Callable[[], WrittenPlan],
    ) -> None:
        """Write the rows of a decision, make it durable, update the driver's state, and publish.

        Args:
            batch_id: Id of the batch; for a flush, of the last batch.
            k: 0 for the batch, from 1 for its flushes.
            given: The summary of the batch.
            decision: The transactions that are released, and those that stay open.
            write: Writes the rows.

        Raises:
            LineRefused: A version's schema cannot hold a row, and the settings say to stop.
            InvalidRequest: The mapping names a column that does not exist.
            WriterFenced: Another writer holds the catalog.
            LogFull: The disk is full.
        """
        # 1. Write the segments and rows files of the decision. No entry names them yet: a crash before
        #    step 4 leaves orphans, and the repeated batch writes them again.
        written, schemas = self._written(write, given)
        # 2. Make the quarantine durable before the entry: the entry marks these lines as consumed, so they
        #    would be lost otherwise. A repeat writes the same file again.
        quarantined = SetAside()
        quarantined.add(given.quarantined)
        quarantined.add(written.set_aside)
        if quarantined.kinds or written.parts:
            lines = [*given.lines, *written.lines]
            self.quarantine(batch_id, k, lines, lines_before(given.splits), written.parts)
        # 3. Write what stays open. The fields of this object change only in step 5: if the commit fails,
        #    they must still agree with the newest entry.
        left_open, rows_files, tallies_file = pending_after(
            decision,
            OpenFiles(self._open, self._rows_files, self._tallies_file),
            written.pending,
            self._pending_path(batch_id, f"{k}-tallies"),
        )
        counts = self._counts.files_after(
            written.counting, self._pending_path(batch_id, f"{k}-counts")
        )
        # 4. Write the entry: rows, pending files and source positions become durable in one step. In
        #    separate steps, a crash between them would lose lines or read them twice.
        bindings = self.bindings.after(given.splits)
        first = self.writer.state.last_version + 1
        snapshots = self._snapshots.after(
            decision.plan, first, self._newest, quarantined.snapshot_types
        )
        splits = () if self.numbered and self.numbered.offsets else given.splits  # notes offsets
        state = self.writer.state
        noted = notes_after(written.updates, state.unknown_changes)
        noted |= state.whole_removals.notes_after(written.removals, first)
        if self._expiry is not None:
            noted |= self._expiry.marks()
        receipt = self.commit_entry(
            batch_id=batch_id,
            k=k,
            segments=written.segments,
            schemas=schemas,
            pending=[
                *rows_files.values(),
                *([tallies_file] if tallies_file else []),
                *counts.files,
            ],
            source_positions=positions(splits, self.source)
            | bindings.positions_after(self.bindings)
            | decision.newest.positions_after(self._newest)
            | snapshots.positions_after(self._snapshots)
            | noted,
            publish=self.publishes_at_once,
        )
        # 5. Update this object to agree with the entry, then publish.
        self.bindings, self._newest = bindings, decision.newest
        self._snapshots = snapshots
        self._untouched -= {sighting.entity_type for sighting in written.sightings}
        self._open, self._rows_files, self._tallies_file = left_open, rows_files, tallies_file
        self._counts = counts
        if written.counting is not None:
            self.counters.below_zero += written.counting.below_zero
        if self._fillings is not None and written.segments:
            self._fillings.keep(written.filling, schemas, self.schema)
            self.counters.incomplete_images += written.filling.incomplete if written.filling else 0
        self._closed.add_released(receipt.first_version, decision.plan)
        count_batch(self.counters, given, decision.plan, written.set_aside)
        self.publish_committed()

    def _written(
        self, write: Callable[[], WrittenPlan], given: BatchSummary
    ) -> tuple[WrittenPlan, list[tuple[int, Schema]]]:
        """Write the rows; return the result and the new schemas, which only the written images show."""
        written = write()
        try:
            self._stop_at(written.set_aside, given)
            placeholders = self.source.placeholders if written.segments else ()
            return written, evolve(self.schema, written.sightings, self.mapping, placeholders)
        except TailraceError:
            # Delete the files: no entry will name them.
            paths = [segment.path for segment in written.segments]
            for path in (*paths, *(file.path for file in written.pending)):
                (self.writer.path / path).unlink(missing_ok=True)
            raise

    def _stop_at(self, quarantined: SetAside, given: BatchSummary) -> None:
        """Raise LineRefused for the first quarantined line at which the settings say to stop."""
        strict, incompatible = self._settings.strict, self._settings.stop_on_incompatible
        blocks = lines_before(given.splits)
        check_stop(quarantined, blocks, strict=strict, incompatible=incompatible)

    def _group(self, tallies: Mapping[str, Tally], *, ended: bool = False) -> Plan:
        return group(
            tallies,
            self._open,
            self._closed.versions,
            self._settings.rules,
            now=self.idle.now,
            ended=ended,
        )

    def _write(
        self,
        batch_id: int,
        k: int,
        given: BatchSummary,
        decision: Decision,
        changes: Sequence[Change],
    ) -> WrittenPlan:
        """Write the records of the released transactions, and the rows of the open ones.

        This process writes them, unless the released pending rows are more than those of a small batch.
        """
        plan = decision.plan
        # 1. A small batch may complete a transaction whose rows filled many batches. Their number is in the
        #    tallies. To read the rows into this process would take unbounded memory.
        waiting = sum(
            self._open[r.tally.key].rows for r in plan.released if r.tally.key in self._open
        )
        if self.distribute is not None and waiting > self._settings.small_batch_rows:
            return self.distribute(self, batch_id, k, given, decision, changes)
        # 2. Assign every row to its released transaction, or to what stays open. Snapshot rows first get the
        #    key of their cut, because the plan uses that key.
        rows = recut(changes, decision.cuts)
        parts: dict[str, list[Change]] = {released.tally.key: [] for released in plan.released}
        left: list[Change] = []
        for change in itertools.chain(self._pending_rows(parts), rows):
            held = parts.get(change.transaction or "")
            (left if held is None else held).append(change)
        # 3. Write one segment in the order of the plan, which is the order of the versions.
        lines: list[Change] = []
        chunk = [(released, parts.pop(released.tally.key)) for released in plan.released]
        written = self.write_versions(batch_id, k, decision, [chunk], lines.extend)
        # 4. Write the rows that stay open, all of this batch: step 2 reads no other pending rows.
        pending = []
        if left:
            path = self._pending_path(batch_id, f"{k}-rows")
            pending.append(write_pending(path, to_batch(left)))
        return written._replace(pending=pending, lines=lines)

    def depends_on_earlier(self, decision: Decision, *, fills: bool) -> bool:
        """Return True if a version may depend on all versions before it; ``fills``: images may lack values."""
        fills = fills and self._fillings is not None
        return fills or decision.may_be_older or bool(self.source.keyless)

    def write_versions(
        self,
        batch_id: int,
        k: int,
        decision: Decision,
        chunks: Iterable[Chunk],
        set_aside: Callable[[list[Change]], None],
    ) -> WrittenPlan:
        """Write the segment of a commit in this process; see `DriverWriter.write`."""
        counting = self._counts.begin() if self.source.keyless else None
        if not decision.plan.released:
            return WrittenPlan([], [], [], counting)
        columns = ColumnInference(self.known_columns, self.source.unavailable)
        filling = None
        if self._fillings is not None:
            current = CurrentColumns(self.schema, self.mapping, columns.sightings)
            filling = self._fillings.begin(current)
        older = older_rows(self.writer, self._settings, self._newest, decision.may_be_older)
        path = self.writer.segment_path(batch_id, f"{k}-driver")
        of_commit = (columns, self.source, self.mapping, counting, filling, older)
        return DriverWriter(path, *of_commit).write(chunks, set_aside)

    def _pending_rows(self, keys: Iterable[str]) -> Iterator[Change]:
        """Yield the pending rows of the given transactions, which are released now."""
        wanted = [key for key in keys if key in self._open]
        for file in self.rows_files(wanted):
            held = [key for key in wanted if file.path in self._open[key].segments]
            yield from rows_of(read_pending(self.writer.path, file), held)

    def _pending_path(self, batch_id: int, name: str) -> Path:
        return self.writer.segment_path(batch_id, f"pending-{name}")

    def _adopt_pending(self, files: Iterable[PendingSegment]) -> None:
        """Restore the open transactions from the newest entry; their idle time begins now."""
        for file in files:
            table = read_pending(self.writer.path, file)
            if is_counts(table):
                self._counts.adopt(file, table)
            elif is_tallies(table):
                self._tallies_file = file
                self._open = tallies_from(table, self.idle.now)
            else:
                self._rows_files[file.path] = file

    def _note_versions(self) -> None:
        super()._note_versions()
        self.counters.pending = len(self._open)
