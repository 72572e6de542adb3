"""Transactions of mutations in, one segment per commit, into a catalog that exists.

A small segment is carried by the commit's entry, a larger one is a file of its own. Programs open it as a
``LogWriter``, which creates the catalog too (log_writer.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tailrace.criteria import Area, Operation
from tailrace.errors import InvalidRequest
from tailrace_server.wal.columnar import ColumnarRecords
from tailrace_server.wal.record.columns import lead_text
from tailrace_server.wal.record.input_rows import (
    row_name,
    rows_of_batch,
    rows_of_mutations,
)
from tailrace_server.wal.record.mutation import check, columns_of, with_changes
from tailrace_server.wal.schema.records import record_rows
from tailrace_server.wal.schema.shown_columns import ShownColumns
from tailrace_server.wal.segment.carried import (
    BYTES_MAX,
    ROWS_MAX,
    CarriedSegment,
    carried_segment,
)
from tailrace_server.wal.segment.writer import SegmentReceipt, SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self
    from uuid import UUID

    import msgspec

    from tailrace.position import Position
    from tailrace.schema import Schema
    from tailrace_server.wal.catalog_writer import CatalogWriter, CommitReceipt, Publication
    from tailrace_server.wal.record.input_rows import InputRows
    from tailrace_server.wal.record.mutation import Mutation
    from tailrace_server.wal.schema.mapping import SchemaMapping
    from tailrace_server.wal.schema.records import SchemaRecord
    from tailrace_server.wal.state.state import LogState
    from tailrace_server.wal.upkeep.compaction import Compaction

_COLUMNS = (
    ("version", pa.int64()),
    ("index", pa.int32()),
    ("area", pa.uint8()),
    ("operation", pa.uint8()),
    ("entity_type", pa.utf8()),
    ("primary_key", pa.utf8()),
    ("changed", pa.list_(pa.utf8())),
    ("change", pa.binary()),
    ("before", pa.binary()),
    ("after", pa.binary()),
)
_SCHEMA = pa.schema(_COLUMNS)


@dataclass(slots=True)
class _Buffer:
    """Transactions that wait for their commit: batches of records, and behind them records by columns."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    columns: tuple[list[Any], ...] = field(default_factory=lambda: tuple([] for _ in _COLUMNS))
    transactions: int = 0
    schema_changes: list[tuple[int, Schema]] = field(default_factory=list)

    bytes: int = 0
    """Of the images in ``columns``."""

    def add(self, *values: Any) -> None:
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)
        self.bytes += sum(len(image) for image in values[-3:] if image is not None)

    def add_batches(self, batches: Sequence[pa.RecordBatch]) -> None:
        self.batches += [*self._batch_of_columns(), *batches]
        self.columns, self.bytes = tuple([] for _ in _COLUMNS), 0

    @property
    def small(self) -> bool:
        """Whether the commit's entry can carry it."""
        if self.batches:  # they are made of many rows
            return False
        return len(self.columns[0]) <= ROWS_MAX and self.bytes <= BYTES_MAX

    def mark(self) -> tuple[int, int, int, int]:
        """Return where ``drop`` goes back to, as long as nothing but ``add`` comes in between."""
        return len(self.columns[0]), self.transactions, len(self.schema_changes), self.bytes

    def drop(self, mark: tuple[int, int, int, int]) -> None:
        rows, self.transactions, schema_changes, self.bytes = mark
        for column in self.columns:
            del column[rows:]
        del self.schema_changes[schema_changes:]

    def all_batches(self) -> list[pa.RecordBatch]:
        return [*self.batches, *self._batch_of_columns()]

    def _batch_of_columns(self) -> list[pa.RecordBatch]:
        if not self.columns[0]:
            return []
        arrays = [
            pa.array(column, kind) for column, (_, kind) in zip(self.columns, _COLUMNS, strict=True)
        ]
        return [pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)]


@dataclass(slots=True)
class _Attempt:
    """A commit that has begun: a failed one is repeated as it was before anything else is committed."""

    batch_id: int
    segment: CarriedSegment | SegmentReceipt
    schema_changes: list[tuple[int, Schema]]


COLUMNAR_FROM: Final = 49
"""Mutations from which a transaction is appended by columns: fewer are quicker one by one."""

_COUNTED: Final = frozenset({"mutation_count", "counts", "schema_changes"})
"""What a lead says of the records behind it."""


class TransactionWriter:
    """Appends transactions to one catalog. A context manager; not thread-safe.

    ``append`` buffers, ``commit`` makes durable, ``publish`` releases to readers; ``commit(publish=True)`` does
    both with one object. Leaving the context commits and publishes what is left, unless an error leaves it.
    """

    def __init__(self, writer: CatalogWriter, mapping: SchemaMapping | None = None) -> None:
        """Append under a writer's epoch; ``mapping`` declares columns (schema/mapping.py).

        Raises:
            InvalidRequest: The mapping wants images to be filled, which only an ingest of a source does.
        """
        for name, declared in () if mapping is None else mapping.entity_types.items():
            assert mapping is not None
            if declared.time_to_live is not None:
                raise InvalidRequest(
                    f"{mapping.where(name)}.ttl: only tailrace ingest debezium lets rows expire; leave it out, "
                    "and append mutations of Operation.EXPIRE"
                )
            if declared.whole_images:
                raise InvalidRequest(
                    f"{mapping.where(name)}.images: a writer's images are written as they are given; "
                    "leave it out, or say as-sent"
                )
        self._writer = writer
        self._buffer = _Buffer()
        self._attempt: _Attempt | None = None
        self._attempts = 0
        self._closed = False
        view = writer.log.view
        self._shown = ShownColumns(view.schema_of(writer.state.last_version), mapping)
        self._columnar = ColumnarRecords(self._shown)

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
        """The catalog's identity."""
        return self._writer.uuid

    @property
    def epoch(self) -> int:
        """The epoch that it writes under."""
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
        """Buffer one transaction, which becomes one version; without mutations it is its lead alone.

        Args:
            mutations: In source order; they get the indexes 1, 2, …, behind the records of what they change
                about the schema. At most one for each key: of two, subscribers get both, but what is stated as
                CDCv2 has two changes of one row at one time, at which its readers stop (`DiffsDisagree`).
            transaction_id: The source's name of it.
            source_timestamp: When the source committed it, µs.
            lead_extras: Further fields of the lead, as record.lead_text takes them; not what is counted here.

        Raises:
            InvalidRequest: A mutation has no meaning (`mutation.check`); an image is no UTF-8 JSON object, or
                holds a value that its declared type cannot; a text or a field of the lead cannot be written;
                the mapping declares what the columns cannot become. Nothing of the transaction is buffered.
        """
        self._check_open()
        _check_lead(transaction_id, lead_extras)
        if len(mutations) >= COLUMNAR_FROM:
            rows = rows_of_mutations(mutations, transaction_id, source_timestamp)
            if rows is not None:
                self._append_columns(rows, lead_extras)
                return
        self._append_rows(mutations, transaction_id, source_timestamp, lead_extras)

    def append_batch(self, batch: pa.RecordBatch, **lead_extras: Any) -> None:
        """Buffer the transactions of an Arrow record batch; the log reads as after ``append`` of each.

        Its columns are described in record/input_rows.py. The batch's memory is kept until the commit.

        Args:
            batch: Rows in source order. Without a column ``transaction_id`` they are one transaction; those
                of one transaction lie in one batch. Without rows nothing is buffered.
            lead_extras: Further fields of each lead, as ``append`` takes them.

        Raises:
            InvalidRequest: As ``append``, or a column is missing, unknown or of another type. The error names
                the column and the row, from 0. Nothing of the batch is buffered.
        """
        self._check_open()
        _check_lead(None, lead_extras)
        if not isinstance(batch, pa.RecordBatch):
            raise InvalidRequest(
                f"append_batch takes a pyarrow.RecordBatch, not {type(batch).__name__}; of a Table, append "
                "each of its to_batches()"
            )
        if not batch.num_rows:
            return
        rows = rows_of_batch(batch)
        # A declared rename takes effect with its first use; ``changed`` of what comes before has another order.
        if len(rows) >= COLUMNAR_FROM and not self._shown.may_rename(rows.entity_types):
            self._append_columns(rows, lead_extras)
            return
        before = self._buffer.mark(), self._shown.schema
        try:
            for start, each in zip(rows.starts.tolist(), rows.split(), strict=True):
                self._append_rows(
                    each.mutations(), each.ids[0], each.timestamps[0], lead_extras, first_row=start
                )
        except InvalidRequest:
            self._buffer.drop(before[0])
            self._restore(before[1])
            raise

    def commit(self, *, publish: bool = False) -> CommitReceipt | None:
        """Make the buffered transactions durable; None when there are none.

        After an error they are still buffered: call again. A repeat never writes them twice.

        Args:
            publish: Release them to readers too, and all that was committed before: as ``publish`` after it,
                but with one object made durable in place of two. Where a gate stands, the gate does that.

        Raises:
            WriterFenced: A newer writer holds the catalog.
            LogFull: No room.
        """
        self._check_open()
        # 1. A commit that failed is repeated first, under its batch id and with its segment: it may be in the
        #    log already, and a commit of more transactions would write those again.
        receipt = self._finish_attempt()
        if not self._buffer.transactions:
            if publish:
                self.publish()
            return receipt
        # 2. What is buffered becomes an attempt before it is committed, so that a failure leaves it to be
        #    repeated.
        last = self._writer.state.writers.get(self._writer.writer)
        batch_id = 0 if last is None else last.batch_id + 1
        buffer = self._buffer
        segment = carried_segment(buffer.columns) if buffer.small else self._write_segment(batch_id)
        self._attempt = _Attempt(batch_id, segment, buffer.schema_changes)
        self._buffer = _Buffer()
        return self._finish_attempt(publish=publish)

    def publish(self) -> Publication | None:
        """Release everything committed to readers; None when there is nothing new, or a gate does it."""
        return self._writer.publish()

    def compact(self) -> Compaction | None:
        """Compact small neighbouring segments now; None when there are none. See compaction.py."""
        return self._writer.compact()

    def trim(self, *, before: int) -> Position:
        """Give up all versions below ``before``; return the oldest position kept. See retention.py."""
        return self._writer.trim(before=before)

    def close(self, *, hurried: bool = False) -> None:
        """End the writer; transactions that are not committed are lost. Idempotent.

        Upkeep that has begun is waited for, a minute at most; ``hurried``, as after an error, 2 s.
        """
        self._closed = True
        self._writer.close(hurried=hurried)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest("this writer is closed; open another")

    def _append_rows(
        self,
        mutations: Sequence[Mutation],
        transaction_id: str | None,
        source_timestamp: int | None,
        lead_extras: Mapping[str, Any],
        *,
        first_row: int = 0,
    ) -> None:
        """Buffer a transaction, a mutation at a time; columnar.py does the same by columns.

        Errors count rows from ``first_row``.
        """
        # 1. Refuse what cannot be written, before anything is noted.
        shown, schema = self._shown, self._shown.schema
        rows = []
        for place, mutation in enumerate(mutations, first_row):
            check(mutation)
            before, after = (_members(mutation, name, place) for name in ("before", "after"))
            _members(mutation, "change", place)
            if mutation.area is Area.DATA and shown.declares(mutation.entity_type):
                fault = shown.fault_of(mutation.entity_type, after)
                if fault is not None:
                    raise InvalidRequest(f"column after of {_named(mutation, place)}: {fault}")
            rows.append((mutation, *with_changes(mutation, before, after)))
        # 2. Note the columns that the mutations show. If the transaction is refused from here on, they are
        #    forgotten: the schema must not have columns that no record of the log shows.
        try:
            for mutation, changed, _ in rows:
                if mutation.area is Area.DATA:
                    images = (mutation.after, mutation.before)
                    shown.note(mutation.entity_type, images, changed or ())
            changes = shown.changes()
            # 3. Count the records, those of schema changes too, which come before the mutations.
            counts: dict[str, int] = {}
            for name in (
                *(each.entity_type for each in changes),
                *(each.entity_type for each in mutations),
            ):
                counts[name] = counts.get(name, 0) + 1
            lead = _lead(transaction_id, source_timestamp, lead_extras, counts, changes)
        except InvalidRequest:
            self._restore(schema)
            raise
        # 4. Buffer lead, schema changes and mutations. Nothing fails from here on, so a transaction is in the
        #    buffer whole or not at all. The order of ``changed`` is that of the schema, known only now.
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
        buffer.transactions += 1

    def _append_columns(self, rows: InputRows, lead_extras: Mapping[str, Any]) -> None:
        """Buffer all transactions of some rows, or none."""

        def lead_of(place: int, counts: dict[str, int], changes: Sequence[SchemaRecord]) -> bytes:
            return _lead(rows.ids[place], rows.timestamps[place], lead_extras, counts, changes)

        schema, buffer = self._shown.schema, self._buffer
        try:
            batches, schemas = self._columnar.append(rows, buffer.transactions, lead_of)
        except InvalidRequest:
            self._restore(schema)
            raise
        buffer.add_batches(batches)
        buffer.schema_changes += schemas
        buffer.transactions += len(rows.starts)

    def _restore(self, schema: Schema) -> None:
        """Forget the columns that refused transactions showed."""
        self._shown.restore(schema)
        self._columnar.forget()

    def _write_segment(self, batch_id: int) -> SegmentReceipt:
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
        receipt = self._writer.commit(
            batch_id=attempt.batch_id,
            segments=[attempt.segment],
            schema_changes=attempt.schema_changes,
            publish=publish,
        )
        self._attempt = None
        return receipt


def _check_lead(transaction_id: object, lead_extras: Mapping[str, Any]) -> None:
    for name in _COUNTED & lead_extras.keys():
        raise InvalidRequest(f"{name} of a lead is counted here; name yours otherwise")
    if not isinstance(transaction_id, str | None):
        raise InvalidRequest(f"transaction_id {transaction_id!r}: it must be a text or None")


def _lead(
    transaction_id: str | None,
    source_timestamp: int | None,
    extras: Mapping[str, Any],
    counts: dict[str, int],
    changes: Sequence[SchemaRecord],
) -> bytes:
    """Return the text of a lead; ``counts`` has the records of schema changes too."""
    extras = dict(extras)
    if changes:
        extras.setdefault("source_count", sum(counts.values()) - len(changes))
        extras["schema_changes"] = len(changes)
    try:
        return lead_text(
            transaction_id=transaction_id,
            counts=counts,
            source_timestamp=source_timestamp,
            **extras,
        )
    except TypeError as error:
        raise InvalidRequest(f"a lead must be JSON: {error}") from error


def _members(mutation: Mutation, column: str, place: int) -> Mapping[str, msgspec.Raw]:
    """Return the columns of an image; the error says whose."""
    try:
        return columns_of(getattr(mutation, column))
    except InvalidRequest as error:
        raise InvalidRequest(f"column {column} of {_named(mutation, place)}: {error}") from error


def _named(mutation: Mutation, place: int) -> str:
    return row_name(place, mutation.entity_type, mutation.primary_key)
