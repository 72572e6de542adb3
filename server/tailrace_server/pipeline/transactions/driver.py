"""The driver's side of an ingest: one batch after the other becomes a commit, and idle time too.

::

    lines ─▶ decode ─▶ tallies ─▶ group ─▶ records ─▶ segment ─┐
              │                     └─▶ open: pending files ───┼─▶ entry ─▶ publication
              └─▶ quarantine file                              │
                  source positions ────────────────────────────┘

Every step before the entry can be repeated and gives the same. Only the entry makes a batch part of the
log. A batch whose (writer, batch id) the log knows is passed over.

A *flush* is a commit without input: the idle time of an open transaction has ended, or the input has.
Its key is (writer, last batch id, k) with k from 1.

Not thread-safe by itself; `lock` is held by whoever calls.
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
    Sighting,
    evolve,
    known_columns,
)
from tailrace_server.pipeline.catalog.driver import CatalogDriver, LineRefused
from tailrace_server.pipeline.catalog.last_images import LastImages
from tailrace_server.pipeline.catalog.newest_positions import NewestPositions
from tailrace_server.pipeline.catalog.older_rows import older_rows
from tailrace_server.pipeline.catalog.pending import read_pending, rows_of, write_pending
from tailrace_server.pipeline.catalog.record_table import ROWS_PER_WRITE
from tailrace_server.pipeline.catalog.snapshots import MissingRows, TableSnapshots
from tailrace_server.pipeline.catalog.time_to_live import Expiry
from tailrace_server.pipeline.input.change import CHANGE, Change, to_batch
from tailrace_server.pipeline.input.table_bindings import Bindings
from tailrace_server.pipeline.transactions.driver_state import (
    ClosedTransactions,
    IdleClock,
    OpenFiles,
    is_tallies,
    pending_after,
    tallies_from,
)
from tailrace_server.pipeline.transactions.grouping import (
    Decision,
    Plan,
    Released,
    group,
    next_idle,
)
from tailrace_server.pipeline.transactions.lines import count_batch, lines_before, positions, recut
from tailrace_server.pipeline.transactions.records import RecordBuilder, WrittenPlan
from tailrace_server.pipeline.transactions.row_counts import RowCounts, is_counts
from tailrace_server.pipeline.transactions.tally import (
    CUT,
    BatchSummary,
    Tally,
    cut_snapshots,
    tally,
)
from tailrace_server.wal.segment.writer import SegmentWriter
from tailrace_server.wal.state.commit_notes import notes_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tailrace.schema import Schema
    from tailrace_server.pipeline.catalog.columns import KnownColumns
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.files.documents import PendingSegment
    from tailrace_server.wal.schema.mapping import SchemaMapping
    from tailrace_server.wal.segment.writer import SegmentReceipt

    Distribute = Callable[["Driver", int, int, Decision, Sequence[Change]], WrittenPlan]
    """Writes the rows of a batch, and the pending rows that it releases, in tasks; see `large_batch`."""


class Driver(CatalogDriver):
    """Commits batches and flushes to one catalog; keeps what is open between them."""

    def __init__(self, writer: CatalogWriter, settings: IngestSettings) -> None:
        """Go on from what the log says: open transactions, closed ids, columns.

        Raises:
            LogCorrupted: A pending file or a lead is damaged.
        """
        super().__init__(writer, settings.publish_window_s)
        self.lock = threading.RLock()
        self.source = settings.source
        self._settings = settings
        mapping = settings.mapping
        self._untouched = set() if mapping is None else set(mapping.entity_types)
        """Entity types of the mapping that no commit of this run has touched."""
        self.idle = IdleClock()
        """The clock that idle time is read from; the caller that feeds the driver moves it."""
        self.bindings = Bindings.read(writer.state.source_positions)
        """The sources of the catalog's rows so far."""
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
        self._stated = LastImages(writer, settings)  # for removals, also where images are as sent
        self._images = self._stated if settings.makes_images_whole else None
        self._expiry: Expiry | None = None
        if self._images is not None and settings.expires:
            self._expiry = Expiry(writer, settings, self._images, self.counters, self.schema)
        self.distribute: Distribute | None = None
        """Writes in tasks what is too large for this process; None without Spark."""
        self._note_versions()

    # What the stream calls.

    @property
    def known_columns(self) -> KnownColumns:
        """Columns that the schema has; tasks report only others."""
        return known_columns(self.schema, self._untouched)

    @property
    def mapping(self) -> SchemaMapping | None:
        """The columns that are declared."""
        return self._settings.mapping

    @property
    def open_tallies(self) -> Mapping[str, Tally]:
        """The tallies of the open transactions, by key."""
        return self._open

    def consumed(self, file: str) -> int:
        """Return how many lines of a file the log holds already.

        Spark gives a file to one batch only. So there are none, unless another writer read the file: one
        whose checkpoint was lost, or from which this one has taken over.
        """
        return int(self.writer.state.source_positions.get(self.source.position_name(file), 0))

    def rows_files(self, keys: Iterable[str]) -> list[PendingSegment]:
        """Return the pending files that hold rows of some open transactions."""
        wanted = {path for key in keys if key in self._open for path in self._open[key].segments}
        return [file for path, file in self._rows_files.items() if path in wanted]

    def batch(self, batch_id: int, changes: Sequence[Change], skipped: int = 0) -> None:
        """Commit a batch from its rows. A batch that the log knows is passed over."""
        if batch_id <= self.last_batch:
            return
        given = BatchSummary.of(changes, skipped, self.idle.now).without_foreign_effects(
            self.bindings
        )
        decision = self.decide(batch_id, given)
        rows = [change for change in changes if change.kind == CHANGE]
        self.commit(batch_id, 0, given, decision, lambda: self._write(batch_id, 0, decision, rows))

    def decide(self, batch_id: int, given: BatchSummary) -> Decision:
        """Decide what becomes of a batch.

        Raises:
            LineRefused: A line cannot be used, and the settings are strict.
        """
        self._stop_at(given.quarantined, given)
        found = self.bindings.after(given.splits)
        assert found.admits(given.splits), "rows of two tables would be one entity type"
        if self._open and self.bindings.connector not in (None, found.connector):
            # What is open is the former connector's, and the new one may use the same ids.
            self.flush(ended=True)
        batch = f"{self.writer.writer}-{batch_id}"
        tallies, cuts = cut_snapshots(given.tallies, self._settings.snapshot_rows, batch)
        arrived = frozenset(key for key, t in tallies.items() if t.rows)
        decision = Decision.of(self._group(tallies), self._newest, self._settings)
        return decision._replace(cuts=cuts, arrived=arrived)

    def flush(self, *, ended: bool = False) -> bool:
        """Commit what idle time, or the end of the input, completes; return whether there was any."""
        plan = self._group({}, ended=ended)
        if not plan.released and len(plan.open) == len(self._open):
            return False
        batch_id, k = self._next_flush
        decision = Decision.of(plan, self._newest, self._settings)
        self.commit(
            batch_id,
            k,
            BatchSummary({}, Counter(), [], []),
            decision,
            lambda: self._write(batch_id, k, decision, ()),
        )
        return True

    def idle_left(self) -> float | None:
        """Return how many seconds the idle clock goes until a flush may have something to do.

        Zero or less: a flush may have something to do now. None: nothing is open.
        """
        due = next_idle(self._open.values(), self._settings.rules)
        return None if due is None else due - self.idle.now

    def expire(self, *, whole: bool = False) -> None:
        """Remove rows whose time to live is over, see `Expiry.run`: flushes without input.

        Raises:
            WriterFenced: Another writer holds the catalog.
            LogFull: No room.
        """
        if self._expiry is not None:
            self._expiry.run(self._commit_expired, whole=whole)

    @property
    def _next_flush(self) -> tuple[int, int]:
        """Batch id and k of the next commit without input."""
        last = self.writer.state.writers[self.writer.writer]
        return last.batch_id, last.k + 1

    def compare_snapshots(self, *, ended: bool = False) -> None:
        """Report the rows that whole snapshots of their tables lack, or remove them: flushes without input.

        Args:
            ended: The input has ended, so no row of a snapshot that has ended waits in it.
        """
        after = self._missing.compared(self._snapshots, self._stated.stated_now, self._remove)
        if after.has_ended and (ended or self._missing.has_waited(self.idle.now)):
            after = self._missing.without_tables(after, self.bindings.tables, self._newest)
        if after is self._snapshots:
            return
        self._commit_noted([], after.positions_after(self._snapshots))
        self._snapshots = after

    def _remove(self, removals: Sequence[Change]) -> None:
        """Commit removals of rows that a snapshot lacks as one of its versions."""
        batch_id, k = self._next_flush
        key = f"{CUT}{self.writer.writer}-{batch_id}\0{k}"
        source = self.bindings.connector
        changes = [change._replace(transaction=key, source=source) for change in removals]
        plan = Plan((Released(tally(changes, self.idle.now)[key]),), self._open)
        decision = Decision(plan, self._newest)
        given = BatchSummary({}, Counter(), [], [])
        self.commit(
            batch_id, k, given, decision, lambda: self._write(batch_id, k, decision, changes)
        )

    def _commit_expired(self, write: Callable[[Path], SegmentReceipt]) -> None:
        assert self._expiry is not None
        batch_id, k = self._next_flush
        segment = write(self.writer.segment_path(batch_id, f"{k}-expired"))
        self._commit_noted([segment], self._expiry.marks())

    def _commit_noted(self, segments: list[SegmentReceipt], noted: dict[str, int | str]) -> None:
        """Commit a flush of some segments and source positions, and publish."""
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

    def commit(
        self,
        batch_id: int,
        k: int,
        given: BatchSummary,
        decision: Decision,
        write: Callable[[], WrittenPlan],
    ) -> None:
        """Write a decision and make it durable, take over what follows from it, and publish.

        Args:
            batch_id: Of the batch, or the last one.
            k: 0 for the batch, from 1 for its flushes.
            given: What is known of the batch without its rows.
            decision: What is released, and what stays open.
            write: Writes the rows.

        Raises:
            LineRefused: A version's schema cannot hold a row, and the settings say to stop.
            InvalidRequest: The mapping names a column that is not there.
            WriterFenced: Another writer holds the catalog.
            LogFull: No room.
        """
        # 1. Segments and rows files of the decision. Nothing names them yet, so a crash from here to
        #    step 4 leaves orphans, and the batch that is run again writes them anew.
        written, schemas = self._written(write, given)
        # 2. The quarantine, durable before the entry: the entry says that these lines are consumed, and
        #    they must not be lost. A repeat writes the same file again.
        quarantined = [*given.quarantined, *written.set_aside]
        if quarantined:
            self.quarantine(batch_id, quarantined, lines_before(given.splits), k)
        # 3. What stays open. The fields of this object change only in step 5: if the commit fails, they
        #    must still say what the newest entry says.
        left_open, rows_files, tallies_file = pending_after(
            decision,
            OpenFiles(self._open, self._rows_files, self._tallies_file),
            written.pending,
            self._pending_path(batch_id, f"{k}-tallies"),
        )
        counts = self._counts.files_after(
            written.counting, self._pending_path(batch_id, f"{k}-counts")
        )
        # 4. The entry: rows, pending files and source positions become durable in one step. Apart, a
        #    crash between them would lose lines or read them twice.
        bindings = self.bindings.after(given.splits)
        first = self.writer.state.last_version + 1
        snapshots = self._snapshots.after(decision.plan, first, self._newest, quarantined)
        bound = bindings.positions_after(self.bindings)
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
            source_positions=positions(given.splits, self.source)
            | bound
            | decision.newest.positions_after(self._newest)
            | snapshots.positions_after(self._snapshots)
            | noted,
            publish=self.publishes_at_once,
        )
        # 5. Take over what the entry says, then publish.
        self.bindings, self._newest = bindings, decision.newest
        self._snapshots = snapshots
        self._untouched -= {sighting.entity_type for sighting in written.sightings}
        self._open, self._rows_files, self._tallies_file = left_open, rows_files, tallies_file
        self._counts = counts
        if written.counting is not None:
            self.counters.below_zero += written.counting.below_zero
        if self._images is not None and written.segments:
            self._images.keep(written.filling, schemas, self.schema)
            self.counters.incomplete_images += written.filling.incomplete if written.filling else 0
        self._closed.add_released(receipt.first_version, decision.plan)
        count_batch(self.counters, given, decision.plan, quarantined)
        self.counters.count_by_entity_type(given.rows, given.quarantined, written.set_aside)
        self.counters.count_shapes(
            given.quarantined, lines_before(given.splits), self.source.tells_shape
        )
        self.publish_committed()

    def _written(
        self, write: Callable[[], WrittenPlan], given: BatchSummary
    ) -> tuple[WrittenPlan, list[tuple[int, Schema]]]:
        """Write, and return the schemas that follow: only the images show which columns there are."""
        written = write()
        try:
            self._stop_at(written.set_aside, given)
            placeholders = self.source.placeholders if written.segments else ()
            return written, evolve(self.schema, written.sightings, self.mapping, placeholders)
        except TailraceError:
            # No entry will name these files.
            paths = [segment.path for segment in written.segments]
            for path in (*paths, *(file.path for file in written.pending)):
                (self.writer.path / path).unlink(missing_ok=True)
            raise

    def _stop_at(self, quarantined: Sequence[Change], given: BatchSummary) -> None:
        """Stop at the first line that cannot be used, if the settings say so.

        Raises:
            LineRefused: There is one.
        """
        stops = [
            change
            for change in quarantined
            if self._settings.strict or (self._settings.stop_on_incompatible and change.number)
        ]
        if stops:
            option = "--strict" if self._settings.strict else "--on-incompatible stop"
            raise LineRefused.first(stops, lines_before(given.splits), option)

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
        self, batch_id: int, k: int, decision: Decision, changes: Sequence[Change]
    ) -> WrittenPlan:
        """Write the records of what is released and the rows of what stays open.

        In this process, unless the pending rows would not fit a small batch.
        """
        plan = decision.plan
        # 1. A small batch may complete a transaction whose rows filled many batches. Only their number
        #    is known here; to read them into this process would take unbounded memory.
        waiting = sum(
            self._open[r.tally.key].rows for r in plan.released if r.tally.key in self._open
        )
        #    Counts and images of rows follow from all versions before, so those are not written in tasks.
        follows = self.source.keyless or self._images is not None or decision.may_be_older
        distribute = None if follows else self.distribute
        if distribute is not None and waiting > self._settings.small_batch_rows:
            return distribute(self, batch_id, k, decision, changes)
        # 2. Every row goes to its transaction, or to what stays open. Snapshot rows get the key of their
        #    cut first, since the plan knows them by it.
        rows = recut(changes, decision.cuts)
        parts: dict[str, list[Change]] = {released.tally.key: [] for released in plan.released}
        left: list[Change] = []
        for change in itertools.chain(self._pending_rows(parts), rows):
            held = parts.get(change.transaction or "")
            (left if held is None else held).append(change)
        # 3. One segment in the order of the plan, which is the order of the versions. A transaction's
        #    rows are dropped as soon as they are written.
        sightings: list[Sighting] = []
        set_aside: list[Change] = []
        segments: list[SegmentReceipt] = []
        updates: dict[str, bool] = {}
        removals: dict[str, bool] = {}
        counting = filling = None
        if self.source.keyless:
            released_rows = itertools.chain.from_iterable(parts.values())
            counting = self._counts.begin(
                row for row in released_rows if self.source.counts(row.entity_type or "")
            )
        if plan.released:
            columns = ColumnInference(self.known_columns, self.source.unavailable)
            if self._images is not None:
                current = CurrentColumns(self.schema, self.mapping, columns.sightings)
                filling = self._images.begin(itertools.chain(*parts.values()), current)
            older = older_rows(
                self.writer, self._settings, self._newest, decision.may_be_older, parts
            )
            builder = RecordBuilder(columns, self.source, self.mapping, counting, filling, older)
            with SegmentWriter(self.writer.segment_path(batch_id, f"{k}-driver")) as segment:
                for released in plan.released:
                    builder.add(released, parts.pop(released.tally.key))
                    if builder.rows >= ROWS_PER_WRITE:
                        segment.write(builder.take())
                segment.write(builder.take())
                segments.append(segment.close())
            sightings, set_aside = columns.sightings, builder.set_aside
            updates, removals = builder.updates, builder.removals
        # 4. Only the batch's own rows are left: pending ones were read for what is released alone.
        pending = []
        if left:
            path = self._pending_path(batch_id, f"{k}-rows")
            pending.append(write_pending(path, to_batch(left)))
        return WrittenPlan(
            segments, sightings, pending, counting, set_aside, updates, removals, filling
        )

    def _pending_rows(self, keys: Iterable[str]) -> Iterator[Change]:
        """Yield the rows that earlier batches left open of transactions that are released now."""
        wanted = [key for key in keys if key in self._open]
        for file in self.rows_files(wanted):
            held = [key for key in wanted if file.path in self._open[key].segments]
            yield from rows_of(read_pending(self.writer.path, file), held)

    def _pending_path(self, batch_id: int, name: str) -> Path:
        return self.writer.segment_path(batch_id, f"pending-{name}")

    def _adopt_pending(self, files: Iterable[PendingSegment]) -> None:
        """Take over the open transactions of the newest entry; their idle time begins now."""
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
