"""A transaction that is larger than memory: its rows come in parts, and become one segment.

Each part is checked and completed as a record batch of `TransactionWriter` is. The lead comes first and has the
number of rows, so the caller counts them before. The changes of the schema come with the lead: the columns must
have been announced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace_server.machine_code.loader import loops_made
from tailrace_server.wal.record.columns import lead_of
from tailrace_server.wal.record.input_rows import rows_of_batch
from tailrace_server.wal.segment.writer import SegmentReceipt, SegmentWriter
from tailrace_server.wal.state.whole_removals import removals_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tailrace.schema import Schema
    from tailrace_server.wal.before_images import BeforeImages
    from tailrace_server.wal.columnar import ColumnarRecords
    from tailrace_server.wal.schema.records import SchemaRecord
    from tailrace_server.wal.schema.shown_columns import ShownColumns


class LargeTransaction(NamedTuple):
    """A transaction whose rows come in parts."""

    parts: Iterable[pa.RecordBatch]
    """Rows as for `TransactionWriter.append_batch`; all parts have the same ``transaction_id``, and no key
    occurs twice."""
    counts: Mapping[str, int]
    """Entity type → number of rows, at least one."""
    transaction_id: str
    source_timestamp: int | None
    """Time of the commit at the source, in microseconds since 1970."""


class WrittenTransaction(NamedTuple):
    """A transaction in a segment that is not committed yet."""

    segment: SegmentReceipt
    schema_changes: list[tuple[int, Schema]]
    removals: dict[str, bool]
    """As `removals_in` returns them."""


def write_transaction(
    path: Path,
    given: LargeTransaction,
    shown: ShownColumns,
    columnar: ColumnarRecords,
    befores: BeforeImages | None,
) -> WrittenTransaction:
    """Write a transaction to a segment.

    Args:
        path: The segment.
        given: The transaction.
        shown: The columns of the log, with the announced ones.
        columnar: Converts the rows.
        befores: Fills in images before; none may be buffered.

    Raises:
        InvalidRequest, LogCorrupted: As ``TransactionWriter.append_batch``.
        OSError: The loops cannot be made.
    """
    machine = loops_made()
    for name in given.counts:
        shown.note(name, ())
    own = shown.changes()
    schemas = [(0, shown.finish())] if own else []
    written, removals = 0, dict[str, bool]()

    def text_of_lead(_: int, __: Mapping[str, int], changes: Sequence[SchemaRecord]) -> bytes:
        counts = dict(given.counts)
        for each in changes:
            counts[each.entity_type] = counts.get(each.entity_type, 0) + 1
        return lead_of(given.transaction_id, given.source_timestamp, {}, counts, len(changes))

    with SegmentWriter(path) as segment:
        for part in given.parts:
            rows = rows_of_batch(part)
            assert len(rows.starts) == 1, "all rows have the same transaction id"
            if befores is not None:
                rows = befores.passing(rows, shown.schema)
            batches, later = columnar.append(rows, machine, 0, text_of_lead, own, written)
            assert not later, "all columns were announced"
            for batch in batches:
                segment.write(batch)
                written += batch.num_rows
            own = []
            found = removals_in(
                *(rows.entity_types, rows.type_codes, rows.operations, rows.keys, rows.before)
            )
            for name, lacking in found.items():
                removals[name] = lacking or removals.get(name, False)
        return WrittenTransaction(segment.close(), schemas, removals)
