"""The writer of whole transactions into an existing catalog, with one segment per commit.

The commit's entry carries a small segment; a larger segment is a file of its own. Programs open this writer as
a ``LogWriter``, which also creates the catalog (log_writer.py).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from tailrace.criteria import Area, Operation
from tailrace.errors import InvalidRequest
from tailrace_server.machine_code.loader import loops
from tailrace_server.wal.before_images import BeforeImages, check_options
from tailrace_server.wal.columnar import ColumnarRecords
from tailrace_server.wal.large_transaction import write_transaction
from tailrace_server.wal.record.columns import check_lead, lead_of
from tailrace_server.wal.record.input_rows import (
    check_mutations,
    row_name,
    rows_of_batch,
    rows_of_mutations,
)
from tailrace_server.wal.record.mutation import columns_of, with_changes
from tailrace_server.wal.schema.records import record_rows
from tailrace_server.wal.schema.shown_columns import ShownColumns
from tailrace_server.wal.segment.carried import ROWS_MAX, CarriedSegment, carried_segment
from tailrace_server.wal.segment.writer import SegmentReceipt, SegmentWriter
from tailrace_server.wal.state.whole_removals import removals_in, removals_of
from tailrace_server.wal.transaction_buffer import Attempt, Buffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Self
    from uuid import UUID

    import msgspec

    from tailrace.position import Position
    from tailrace.schema import Schema
    from tailrace_server.machine_code.loader import Loops
    from tailrace_server.wal.catalog_writer import CatalogWriter, CommitReceipt, Publication
    from tailrace_server.wal.large_transaction import LargeTransaction
    from tailrace_server.wal.record.input_rows import InputRows
    from tailrace_server.wal.record.mutation import Mutation
    from tailrace_server.wal.schema.builder import Announced
    from tailrace_server.wal.schema.mapping import SchemaMapping
    from tailrace_server.wal.schema.records import SchemaRecord
    from tailrace_server.wal.state.state import LogState
    from tailrace_server.wal.upkeep.compaction import Compaction


COLUMNAR_FROM: Final = ROWS_MAX
"""Number of mutations from which a transaction is appended by columns. Its entry could not carry it. A smaller
transaction takes a third of the time by rows (ADR 0126)."""


class TransactionWriter:
    """Appends transactions to one catalog. A context manager; not thread-safe.

    ``append`` buffers, ``commit`` makes durable, ``publish`` releases to readers; ``commit(publish=True)`` does
    both with one object. Leaving the context without an exception commits and publishes what is buffered.
    """

    def __init__(
        self,
        writer: CatalogWriter,
        mapping: SchemaMapping | None = None,
        *,
        whole_removals: bool = False,
        images: Literal["as-sent", "full"] = "as-sent",
        announces: bool = False,
    ) -> None:
        """Append under the epoch of an open writer.

        Args:
            writer: The writer of the catalog.
            mapping: Declared columns (schema/mapping.py).
            whole_removals: True if ``before`` of each removal has the value of every column. The log then notes
                this (state/whole_removals.py).
            images: ``full`` fills in each ``before`` that is not given, with the newest image of the row
                (`before_images`). The mapping can say otherwise for an entity type.
            announces: True if a database announces the columns (`announce`). Then only the types of the mapping
                are rules for values: the database has checked its own types.

        Raises:
            InvalidRequest: As `check_options`.
        """
        check_options(mapping, images)
        self._whole_removals = whole_removals
        self._writer = writer
        self._buffer = Buffer()
        self._attempt: Attempt | None = None
        self._attempts = 0
        self._closed = False
        view = writer.log.view
        schema = view.schema_of(writer.state.last_version)
        self._shown = ShownColumns(schema, mapping, announces=announces)
        self._columnar = ColumnarRecords(self._shown)
        self._befores: BeforeImages | None = None
        declared = () if mapping is None else mapping.entity_types.values()
        if images == "full" or any(each.whole_images for each in declared):
            self._befores = BeforeImages(writer, mapping, full=images == "full")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.commit(publish=True)
        finally:
            self.close(hurried=kind is not None)

    @property
    def uuid(self) -> UUID:
        """The uuid of the catalog."""
        return self._writer.uuid

    @property
    def epoch(self) -> int:
        """The epoch under which this writer commits."""
        return self._writer.epoch

    @property
    def state(self) -> LogState:
        """The log as far as this writer has read it."""
        return self._writer.state

    def append(
        self,
        mutations: Sequence[Mutation],
        *,
        transaction_id: str | None = None,
        source_timestamp: int | None = None,
        **lead_extras: Any,
    ) -> None:
        """Buffer one transaction, which becomes one version; without mutations the version is its lead alone.

        Args:
            mutations: Mutations in the source's order, at most one per key. The transaction's schema changes
                get the indexes from 1 on, and the mutations follow.
            transaction_id: The source's name for the transaction.
            source_timestamp: Time at which the source committed the transaction, in microseconds.
            lead_extras: Further fields of the lead, as for record.lead_text, except the fields that are counted
                here.

        Raises:
            InvalidRequest: A mutation breaks a rule (`mutation.check`, `row_rules`, `ValueRules`); an image is
                not a UTF-8 JSON object; a text or a field of the lead cannot be written; or the mapping
                declares types that the columns cannot have. Nothing of the transaction is buffered.
            LogCorrupted: The image before is filled in, and a part of the log that has it is damaged.
        """
        self._check_open()
        check_lead(transaction_id, source_timestamp, lead_extras)
        befores = self._befores
        with nullcontext() if befores is None else befores.staging(self._shown):
            if befores is not None:
                check_mutations(mutations, 0)
                mutations = befores.mutations(mutations, self._shown.coming)
            self._append(mutations, transaction_id, source_timestamp, lead_extras)

    def _append(
        self,
        mutations: Sequence[Mutation],
        transaction_id: str | None,
        source_timestamp: int | None,
        lead_extras: Mapping[str, Any],
    ) -> None:
        found = loops(len(mutations), COLUMNAR_FROM)
        if found is not None:
            rows = rows_of_mutations(mutations, transaction_id, source_timestamp)
            if rows is not None:
                self._append_columns(rows, found, lead_extras)
                return
        self._append_rows(mutations, transaction_id, source_timestamp, lead_extras)

    def append_batch(self, batch: pa.RecordBatch, *, new: bool = False, **lead_extras: Any) -> None:
        """Buffer the transactions of an Arrow record batch, with the same result as ``append`` for each.

        record/input_rows.py describes the columns. The batch's memory is retained until the commit.

        Args:
            batch: Rows in the source's order. Rows of one transaction must be in one batch. Without a column
                ``transaction_id`` all rows are one transaction. An empty batch buffers nothing.
            new: True if no row exists before, so none is looked up. Commit before these rows change.
            lead_extras: Further fields of each lead, as for ``append``.

        Raises:
            InvalidRequest: As ``append``; or a column is missing, unknown or of a wrong type. The error names
                the column and the row, from 0. Nothing of the batch is buffered.
            LogCorrupted: As ``append``.
        """
        self._check_open()
        check_lead(None, None, lead_extras)
        if not isinstance(batch, pa.RecordBatch):
            raise InvalidRequest(
                f"append_batch requires a pyarrow.RecordBatch, not {type(batch).__name__}; for a "
                "Table, append each of its to_batches()"
            )
        if not batch.num_rows:
            return
        rows = rows_of_batch(batch)
        befores = None if new else self._befores
        with nullcontext() if befores is None else befores.staging(self._shown):
            self._append_rows_of_batch(rows, lead_extras, befores)

    def _append_rows_of_batch(
        self, rows: InputRows, lead_extras: Mapping[str, Any], befores: BeforeImages | None
    ) -> None:
        found = loops(len(rows), COLUMNAR_FROM)
        # A declared rename takes effect with its first use. Rows before that use list ``changed`` in another
        # order, and only the row path notices where the order changes.
        if found is not None and not self._shown.may_rename(rows.entity_types):
            if befores is not None:
                rows = befores.rows(rows, self._shown.coming)
            self._append_columns(rows, found, lead_extras)
            return
        before = self._buffer.mark(), self._shown.schema
        try:
            for start, each in zip(rows.starts.tolist(), rows.split(), strict=True):
                mutations = each.mutations()
                if befores is not None:
                    mutations = befores.mutations(mutations, self._shown.coming)
                lead = (each.ids[0], each.timestamps[0], lead_extras)
                self._append_rows(mutations, *lead, first_row=start)
                if befores is not None:
                    befores.settle(self._shown.schema)
        except InvalidRequest:
            self._buffer.drop(before[0])
            self._restore(before[1])
            raise

    def announce(self, entity_type: str, announced: Announced) -> tuple[str, ...]:
        """Announce all columns of an entity type from its next buffered row on; return its key before.

        Columns of an earlier announcement that are missing now count as dropped. The writer must have been
        created with ``announces``.

        Args:
            entity_type: Name of the entity type.
            announced: Its columns and its key.
        """
        self._check_open()
        before = self._shown.coming.key_columns(entity_type)
        self._shown.announce(entity_type, announced)
        return before

    def newest_images(self, entity_type: str, keys: Iterable[str]) -> dict[str, bytes]:
        """Return key → newest image of the rows that exist, with all buffered changes; for ``images="full"``.

        Args:
            entity_type: Name of the entity type.
            keys: Keys of rows.

        Raises:
            LogCorrupted: A part of the log that is read is damaged.
        """
        self._check_open()
        assert self._befores is not None, "newest images are known only with images full"
        return self._befores.newest(entity_type, keys, self._shown.coming)

    def expect_new(self, entity_type: str, keys: Iterable[str]) -> None:
        """State that keys of next inserts do not exist yet, so that ``images="full"`` does not look them up."""
        if self._befores is not None:
            self._befores.expect_new(entity_type, keys)

    def commit(
        self, *, publish: bool = False, source_positions: Mapping[str, str | int] | None = None
    ) -> CommitReceipt | None:
        """Make the buffered transactions durable; return None if there is nothing to commit.

        After an error they are still buffered: call again. A repeat never writes them twice.

        Args:
            publish: Also release these and all earlier commits to readers. This makes one object durable, where
                ``commit`` and ``publish`` make two. If the log has a gate, the gate publishes later.
            source_positions: Name → position that a source has reached with these transactions. The log stores
                both in one commit, also without a transaction. ``state.source_positions`` has the newest.

        Raises:
            WriterFenced: A newer writer holds the catalog.
            LogFull: The file system is full.
        """
        self._check_open()
        # 1. First repeat a commit that failed, with its batch id and its segment. It may be in the log already,
        #    and a commit with more transactions would write its transactions again.
        receipt = self._finish_attempt()
        if not self._buffer.transactions and not source_positions:
            if publish:
                self.publish()
            return receipt
        # 2. Turn the buffer into an attempt before the commit: a failed commit can then be repeated unchanged.
        batch_id, buffer = self._next_batch(), self._buffer
        segments = [self._segment(batch_id)] if buffer.transactions else []
        changes, positions = buffer.schema_changes, dict(source_positions or {})
        self._attempt = Attempt(batch_id, segments, changes, buffer.removals, positions)
        self._buffer = Buffer()
        return self._finish_attempt(publish=publish)

    def commit_large(
        self, transaction: LargeTransaction, *, source_positions: Mapping[str, str | int]
    ) -> CommitReceipt | None:
        """Commit the buffer, then publish a transaction in parts; raise as ``append_batch`` and ``commit``."""
        self.commit()
        batch_id = self._next_batch()
        self._attempts += 1
        path = self._writer.segment_path(batch_id, str(self._attempts))
        parts = self._shown, self._columnar, self._befores
        segment, changes, removals = write_transaction(path, transaction, *parts)
        removals = {name: lacking or not self._whole_removals for name, lacking in removals.items()}
        self._attempt = Attempt(batch_id, [segment], changes, removals, source_positions)
        return self._finish_attempt(publish=True)

    def publish(self) -> Publication | None:
        """Release all committed versions to readers; return None if none is new, or if the log has a gate."""
        return self._writer.publish()

    def compact(self) -> Compaction | None:
        """Compact small neighbouring segments now; return None if there are none. See compaction.py."""
        return self._writer.compact()

    def trim(self, *, before: int) -> Position:
        """Drop all versions below ``before``; return the oldest retained position. See retention.py."""
        return self._writer.trim(before=before)

    def close(self, *, hurried: bool = False) -> None:
        """Close the writer; uncommitted transactions are lost. Idempotent.

        Waits until running upkeep ends: at most a minute, or 2 s if ``hurried``, as after an error.
        """
        self._closed = True
        self._writer.close(hurried=hurried)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest("this writer is closed; open another one")

    def _append_rows(
        self,
        mutations: Sequence[Mutation],
        transaction_id: str | None,
        source_timestamp: int | None,
        lead_extras: Mapping[str, Any],
        *,
        first_row: int = 0,
    ) -> None:
        """Buffer one transaction row by row; columnar.py does the same by columns.

        Row numbers in errors start at ``first_row``.
        """
        # 1. Refuse invalid mutations before any column is noted.
        shown, schema = self._shown, self._shown.schema
        rows = []
        check_mutations(mutations, first_row)
        for place, mutation in enumerate(mutations, first_row):
            before, after = (_members(mutation, name, place) for name in ("before", "after"))
            _members(mutation, "change", place)
            if mutation.area is Area.DATA and shown.rules.concern(mutation.entity_type):
                fault = shown.rules.fault_of(
                    mutation.entity_type,
                    mutation.primary_key,
                    before,
                    after,
                    change=mutation.change,
                )
                if fault is not None:
                    column, why = fault
                    name = row_name(place, mutation.entity_type, mutation.primary_key)
                    raise InvalidRequest(f"column {column} of {name}: {why}")
            rows.append((mutation, *with_changes(mutation, before, after)))
        # 2. Note the columns of the images. If the transaction is refused later, roll this back: the schema
        #    must not have columns that no record of the log has.
        try:
            for mutation, changed, _ in rows:
                if mutation.area is Area.DATA:
                    images = (mutation.after, mutation.before)
                    shown.note(mutation.entity_type, images, changed or ())
            changes = shown.changes()
            # 3. Count the records, including those of schema changes, which precede the mutations.
            counts: dict[str, int] = {}
            names = [each.entity_type for each in changes]
            for name in (*names, *(each.entity_type for each in mutations)):
                counts[name] = counts.get(name, 0) + 1
            lead = lead_of(transaction_id, source_timestamp, lead_extras, counts, len(changes))
        except InvalidRequest:
            self._restore(schema)
            raise
        # 4. Buffer lead, schema changes and mutations. Nothing fails from here on, so the buffer has all of a
        #    transaction or nothing. ``changed`` is in the order of the schema, which is known only now.
        buffer = self._buffer
        version = buffer.transactions
        lead_head = (version, 0, Area.INFRASTRUCTURE, Operation.TRANSACTION, None, None, None)
        buffer.add(*lead_head, None, None, lead)
        for row in record_rows(version, changes):
            buffer.add(*row)
        for index, (mutation, changed, change) in enumerate(rows, 1 + len(changes)):
            if mutation.area is Area.DATA and changed:
                changed = shown.in_order(mutation.entity_type, changed)
            buffer.add(
                version,
                index,
                mutation.area,
                mutation.operation,
                mutation.entity_type,
                mutation.primary_key,
                changed,
                change,
                mutation.before,
                mutation.after,
            )
        if changes:
            buffer.schema_changes.append((version, shown.finish()))
        buffer.note_removals(removals_of(mutations), whole=self._whole_removals)
        buffer.transactions += 1

    def _append_columns(
        self, rows: InputRows, found: Loops, lead_extras: Mapping[str, Any]
    ) -> None:
        """Buffer all transactions of some rows; after an error none is buffered."""

        def text_of_lead(
            place: int, counts: dict[str, int], changes: Sequence[SchemaRecord]
        ) -> bytes:
            given = (rows.ids[place], rows.timestamps[place], lead_extras)
            return lead_of(*given, counts, len(changes))

        schema, buffer = self._shown.schema, self._buffer
        try:
            batches, schemas = self._columnar.append(rows, found, buffer.transactions, text_of_lead)
        except InvalidRequest:
            self._restore(schema)
            raise
        except pa.ArrowException as error:
            self._restore(schema)
            raise InvalidRequest(
                "the rows have more bytes than a column of a record batch may have (about 2 "
                f"GiB): append fewer rows at once ({error})"
            ) from error
        removals = removals_in(
            *(rows.entity_types, rows.type_codes, rows.operations, rows.keys, rows.before)
        )
        buffer.note_removals(removals, whole=self._whole_removals)
        buffer.add_batches(batches)
        buffer.schema_changes += schemas
        buffer.transactions += len(rows.starts)

    def _restore(self, schema: Schema) -> None:
        """Roll the schema back to ``schema``, without the columns of refused transactions."""
        self._shown.restore(schema)
        self._columnar.forget()

    def _next_batch(self) -> int:
        last = self._writer.state.writers.get(self._writer.writer)
        return 0 if last is None else last.batch_id + 1

    def _segment(self, batch_id: int) -> CarriedSegment | SegmentReceipt:
        if self._buffer.small:
            return carried_segment(self._buffer.columns)
        self._attempts += 1
        path = self._writer.segment_path(batch_id, str(self._attempts))
        with SegmentWriter(path) as segment:
            for batch in self._buffer.all_batches():
                segment.write(batch)
            return segment.close()

    def _finish_attempt(self, *, publish: bool = False) -> CommitReceipt | None:
        attempt = self._attempt
        if attempt is None:
            return None
        state = self._writer.state
        receipt = self._writer.commit(
            batch_id=attempt.batch_id,
            segments=attempt.segments,
            source_positions={
                **attempt.source_positions,
                **state.whole_removals.notes_after(attempt.removals, state.last_version + 1),
            },
            schema_changes=attempt.schema_changes,
            publish=publish,
        )
        self._attempt = None
        if self._befores is not None and not self._buffer.transactions:
            self._befores.committed()
        return receipt


def _members(mutation: Mutation, column: str, place: int) -> Mapping[str, msgspec.Raw]:
    """Return the columns of an image; an error names the row."""
    try:
        return columns_of(getattr(mutation, column))
    except InvalidRequest as error:
        raise InvalidRequest(
            f"column {column} of {row_name(place, mutation.entity_type, mutation.primary_key)}: {error}"
        ) from error
