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
from tailrace_server.wal.record.columns import lead_text
from tailrace_server.wal.record.mutation import Mutation, check, columns_of, with_changes
from tailrace_server.wal.schema.builder import SchemaBuilder
from tailrace_server.wal.schema.column_types import TypeInference
from tailrace_server.wal.schema.records import record_rows, schema_records
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
    from tailrace_server.wal.schema.mapping import SchemaMapping
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
    """Transactions that wait for their commit, by columns."""

    columns: tuple[list[Any], ...] = field(default_factory=lambda: tuple([] for _ in _COLUMNS))
    transactions: int = 0
    schema_changes: list[tuple[int, Schema]] = field(default_factory=list)

    bytes: int = 0
    """Of the images."""

    def add(self, *values: Any) -> None:
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)
        self.bytes += sum(len(image) for image in values[-3:] if image is not None)

    @property
    def small(self) -> bool:
        """Whether the commit's entry can carry it."""
        return len(self.columns[0]) <= ROWS_MAX and self.bytes <= BYTES_MAX

    def table(self) -> pa.RecordBatch:
        arrays = [
            pa.array(column, kind) for column, (_, kind) in zip(self.columns, _COLUMNS, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


@dataclass(slots=True)
class _Attempt:
    """A commit that has begun: a failed one is repeated as it was before anything else is committed."""

    batch_id: int
    segment: CarriedSegment | SegmentReceipt
    schema_changes: list[tuple[int, Schema]]


_COUNTED: Final = frozenset({"mutation_count", "counts", "schema_changes"})
"""What a lead says of the records behind it."""


class TransactionWriter:
    """Appends transactions to one catalog. A context manager; not thread-safe.

    ``append`` buffers, ``commit`` makes durable, ``publish`` releases to readers; ``commit(publish=True)`` does
    both with one object. Leaving the context commits and publishes what is left, unless an error leaves it.
    """

    def __init__(self, writer: CatalogWriter, mapping: SchemaMapping | None = None) -> None:
        """Append under a writer's epoch; ``mapping`` declares columns (schema/mapping.py)."""
        self._writer = writer
        self._buffer = _Buffer()
        self._attempt: _Attempt | None = None
        self._attempts = 0
        self._closed = False
        view = writer.log.view
        self._schema = view.schema_of(writer.state.last_version)
        """That of the transaction appended last."""
        self._mapping = mapping
        self._builder = SchemaBuilder(self._schema, mapping)
        self._inference = TypeInference()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.commit(publish=True)
        finally:
            self.close()

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
        # 1. Refuse what cannot be written, before anything is noted.
        self._check_open()
        for name in _COUNTED & lead_extras.keys():
            raise InvalidRequest(f"{name} of a lead is counted here; name yours otherwise")
        if not isinstance(transaction_id, str | None):
            raise InvalidRequest(f"transaction_id {transaction_id!r}: it must be a text or None")
        rows = []
        for mutation in mutations:
            check(mutation)
            before, after = columns_of(mutation.before), columns_of(mutation.after)
            columns_of(mutation.change)
            self._check_types(mutation, after)
            rows.append((mutation, *with_changes(mutation, before, after)))
        # 2. Note the columns that the mutations show. If the transaction is refused from here on, they are
        #    forgotten: the schema must not have columns that no record of the log shows.
        try:
            for mutation, changed, _ in rows:
                self._note_columns(mutation, changed or ())
        except InvalidRequest:
            self._forget_seen()
            raise
        schema = self._builder.schema()
        changes = schema_records(self._schema, schema)
        # 3. Count the records, those of schema changes too, which come before the mutations.
        counts: dict[str, int] = {}
        names = [each.entity_type for each in changes] + [each.entity_type for each in mutations]
        for name in names:
            counts[name] = counts.get(name, 0) + 1
        if changes:
            lead_extras.setdefault("source_count", len(mutations))
            lead_extras["schema_changes"] = len(changes)
        buffer = self._buffer
        version = buffer.transactions
        try:
            lead = lead_text(
                transaction_id=transaction_id,
                counts=counts,
                source_timestamp=source_timestamp,
                **lead_extras,
            )
        except TypeError as error:
            self._forget_seen()
            raise InvalidRequest(f"a lead must be JSON: {error}") from error
        # 4. Buffer lead, schema changes and mutations. Nothing fails from here on, so a transaction is in the
        #    buffer whole or not at all. The order of ``changed`` is that of the schema, known only now.
        lead_head = (version, 0, Area.INFRASTRUCTURE, Operation.TRANSACTION, None, None, None)
        buffer.add(*lead_head, None, None, lead)
        for row in record_rows(version, changes):
            buffer.add(*row)
        for index, (mutation, changed, change) in enumerate(rows, 1 + len(changes)):
            if mutation.area is Area.DATA:
                changed = self._builder.in_order(mutation.entity_type, changed)
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
            buffer.schema_changes.append((version, schema))
            self._schema = schema
        buffer.transactions += 1

    def commit(self, *, publish: bool = False) -> CommitReceipt | None:
        """Make the buffered transactions durable; None when there are none.

        After an error they are still buffered: call again. A repeat never writes them twice.

        Args:
            publish: Release them to readers too, and all that was committed before: as ``publish`` after it,
                but with one object made durable in place of two.

        Raises:
            InvalidRequest: ``publish``, and the catalog has state tables.
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
        """Release everything committed to readers; None when there is nothing new. Errors as ``commit``."""
        return self._writer.publish()

    def compact(self) -> Compaction | None:
        """Compact small neighbouring segments now; None when there are none. See compaction.py."""
        return self._writer.compact()

    def trim(self, *, before: int) -> Position:
        """Give up all versions below ``before``; return the oldest position kept. See retention.py."""
        return self._writer.trim(before=before)

    def close(self) -> None:
        """End the writer; transactions that are not committed are lost. Idempotent."""
        self._closed = True
        self._writer.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest("this writer is closed; open another")

    def _note_columns(self, mutation: Mutation, changed: Sequence[str]) -> None:
        """Take the columns that a mutation shows into the schema."""
        if mutation.area is not Area.DATA:
            return
        entity_type, builder = mutation.entity_type, self._builder
        builder.see(entity_type)
        for image in (mutation.after, mutation.before):
            if image is not None and (found := self._inference.unseen(entity_type, image)):
                builder.see(entity_type, found)
        if changed:
            builder.see(entity_type, [(name, None) for name in changed])

    def _forget_seen(self) -> None:
        """Forget the columns that a refused transaction showed."""
        self._builder = SchemaBuilder(self._schema, self._mapping)
        self._inference.forget()

    def _check_types(self, mutation: Mutation, after: Mapping[str, msgspec.Raw]) -> None:
        if self._mapping is not None and mutation.area is Area.DATA:
            fault = self._mapping.fault_of(mutation.entity_type, after)
            if fault is not None:
                raise InvalidRequest(f"{mutation.entity_type} {mutation.primary_key}: {fault}")

    def _write_segment(self, batch_id: int) -> SegmentReceipt:
        self._attempts += 1
        path = self._writer.segment_path(batch_id, str(self._attempts))
        with SegmentWriter(path) as segment:
            segment.write(self._buffer.table())
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
