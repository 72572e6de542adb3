"""The sink: it turns rows of a DataFrame into records of a segment, tens of thousands at a time.

`input_rows` describes the input columns. Each transaction becomes a version. The sink makes the lead record of
a transaction, unless the first row is a lead: a row with operation ``transaction``, whose ``after`` is used as
it is and must count the other rows. The rows of an unfinished transaction are held until its end, since the
lead counts them.

Rows that readers could not handle are refused (`input_rows`). Columns that are new in images, ``change`` or
``changed`` are reported (`new_columns`). The segment ends after the first rows with new columns: the commit
writes that segment again with the records of the schema in it (`wal.schema.records`), so it should be small.

Python handles single rows only if it must: texts that may have unknown names, the difference of images if
``changed`` is absent, and transaction ids that JSON has to escape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area, Operation
from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.dataframe.input_rows import (
    check_bodies,
    check_identities,
    check_keys,
    check_values,
    columns_named,
    content_of,
    input_table,
)
from tailrace_server.pipeline.dataframe.new_columns import NewColumns
from tailrace_server.pipeline.dataframe.transactions import SeenTransactions, Transactions
from tailrace_server.wal.record.images import difference, members, projection
from tailrace_server.wal.record.interleaving import Interleaved, starts_of
from tailrace_server.wal.segment.writer import with_dictionary
from tailrace_server.wal.source_batches import BatchContent
from tailrace_server.wal.state.whole_removals import removals_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    import numpy.typing as npt

    from tailrace_server.pipeline.catalog.columns import Sighting
    from tailrace_server.wal.schema.value_rules import ValueRules
    from tailrace_server.wal.segment.writer import SegmentReceipt, SegmentWriter

ROWS_AT_ONCE: Final = 32_768
"""Rows that are checked and written together; a call takes 3 ms, even for few rows."""
_BYTES_AT_ONCE: Final = 16 << 20
"""Bytes of rows that are gathered; the last batch may exceed the bound."""


class SinkResult(NamedTuple):
    """The result of writing a partition."""

    receipts: list[SegmentReceipt]
    """The segments of the partition, in the order of their transactions."""
    sightings: list[Sighting]
    """New columns, by version relative to the beginning of the first segment."""
    transactions: npt.NDArray[np.uint64]
    """Hashes of the transaction ids, sorted, to find a transaction that is in two partitions
    (`transactions`).
    """
    content: BatchContent
    """The fingerprint of the rows, to compare a repeated batch with."""
    removals: dict[str, bool]
    """Entity type → True if the image of a removed row lacks values; only types with removed rows."""


class RecordSink:
    """Writes the rows of one partition to one segment, or to two.

    Rows are in one of two places. *Waiting* rows are unchecked batches as they arrived; once there are enough,
    they are checked and written together. *Held* rows are checked, and belong to one transaction whose end has
    not arrived.
    """

    def __init__(
        self,
        segment: SegmentWriter,
        known: Mapping[str, Iterable[str]],
        declared: Collection[str] = (),
        *,
        rules: ValueRules | None = None,
        next_segment: Callable[[], SegmentWriter] | None = None,
        rows_at_once: int = ROWS_AT_ONCE,
    ) -> None:
        """Start without rows.

        Args:
            segment: The segment to write to.
            known: Columns that need not be reported, by entity type.
            declared: Entity types whose images are not inspected for new columns.
            rules: The rules for values and keys, from the columns of the catalog; None: no rules.
            next_segment: Opens the segment for the rows after the first new columns; None: use one segment
                only.
            rows_at_once: Number of waiting rows that are checked and written together, above 0.
        """
        self._segment = segment
        self._next_segment = next_segment
        self._closed: list[SegmentReceipt] = []
        self._rows_at_once = rows_at_once
        self._columns = NewColumns(known, declared)
        self._rules = rules
        self._removals: dict[str, bool] = {}
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._held: list[pa.Table] = []
        """Checked rows of one unfinished transaction; later rows are appended."""
        self._held_id: str | None = None
        """Id of the transaction whose rows are held."""
        self._transactions = SeenTransactions()
        self._content = BatchContent()
        self._version = 0
        """Number of transactions written so far."""
        self._segment_start = 0
        """The first version of the open segment."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. An error in them may be raised by this call or by a later one, up to ``finish``.

        Raises:
            InvalidRequest: The rows are refused by `input_rows`, or a transaction reappears after others.
            LogFull: There is no space.
        """
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= self._rows_at_once or self._waiting_bytes >= _BYTES_AT_ONCE:
            self._write_ended()

    def _write_ended(self, *, final: bool = False) -> None:
        """Check the waiting rows, and write the transactions that end among them.

        Args:
            final: True if no more rows come, so that all transactions end.
        """
        # 1. Check. Empty the waiting rows first: `finish` must not write rows that are refused here.
        batch = pa.concat_batches(self._waiting) if len(self._waiting) > 1 else self._waiting[0]
        self._wait_for_more([])
        rows = input_table(batch)
        check_identities(rows)
        check_bodies(rows)
        ids = rows.column("transaction_id").chunk(0)
        starts = starts_of(ids)
        # 2. Either these rows continue the held transaction, or that transaction has ended.
        if self._held:
            if ids[0].is_valid and ids[0].as_py() == self._held_id:
                starts = starts[1:]
            else:
                self._write_whole()
        # 3. The last transaction may continue, so only the transactions before it have ended. If it is the only
        #    one, hold its checked rows: if they stayed waiting, a transaction larger than the bound would be
        #    checked again with each batch.
        ending = rows.num_rows if final else int(starts[-1]) if len(starts) else 0
        if not ending:
            self._transactions.add(ids.take(pa.array(starts)))
            self._held.append(rows)
            self._held_id = ids[0].as_py()
            return
        # 4. Mark ids as seen once their rows are written or held. The last transaction's rows wait, so its id
        #    is not marked yet.
        self._transactions.add(ids.take(pa.array(starts[starts < ending])))
        self._write_whole(rows.slice(0, ending))
        if ending < rows.num_rows:
            self._wait_for_more([batch.slice(ending)])

    def _wait_for_more(self, batches: list[pa.RecordBatch]) -> None:
        """Replace the waiting rows."""
        self._waiting = batches
        self._waiting_rows = sum(batch.num_rows for batch in batches)
        self._waiting_bytes = sum(batch.nbytes for batch in batches)

    def finish(self) -> SinkResult | None:
        """Write the remaining rows and close the segment; return None if there were no rows.

        Raises:
            InvalidRequest: As in `write`.
            LogFull: There is no space.
        """
        if self._waiting:
            self._write_ended(final=True)
        if self._held:
            self._write_whole()
        if not self._version:
            self._segment.abandon()
            return None
        receipts = [*self._closed, self._segment.close()]
        return SinkResult(
            receipts,
            self._columns.sightings,
            self._transactions.hashes(),
            self._content,
            self._removals,
        )

    def _write_whole(self, *more: pa.Table) -> None:
        """Write whole transactions: the one whose rows are held, and those in ``more``."""
        # The commit will write the segment with new columns again. End it here to keep it small, at the price
        # of one more segment.
        parts, self._held = [*self._held, *more], []
        if self._columns.sightings and self._next_segment is not None:
            self._closed.append(self._segment.close())
            self._segment, self._next_segment = self._next_segment(), None
            self._segment_start = self._version
        rows = pa.concat_tables(parts).combine_chunks()
        if any(column.num_chunks > 1 for column in rows.columns):
            raise InvalidRequest(
                f"transaction {rows.column('transaction_id')[0].as_py()!r} has more than 2 GiB in a column; "
                "write it as several transactions"
            )
        self._segment.write(self._records(rows))

    def _records(self, rows: pa.Table) -> pa.Table:
        """Return the records of whole transactions, including the leads that the rows do not have."""
        self._content = self._content.plus(content_of(rows))
        transactions = Transactions(rows)
        transactions.check_leads()
        types = transactions.types
        check_keys(rows, types.codes, transactions.starts)
        if self._rules is not None:
            check_values(rows, *types, self._rules)
        column = {name: rows.column(name).chunk(0) for name in rows.schema.names}
        operations = column["operation"].to_numpy()
        removed = (column["primary_key"], column["before"])
        for name, lacking in removals_in(*types, operations, *removed).items():
            self._removals[name] = lacking or self._removals.get(name, False)
        changed, change = self._changes(column, operations)
        named = columns_named(rows, changed)
        self._columns.observe(column, operations, transactions, named, self._version)
        without = transactions.starts[~transactions.has_lead]
        out = Interleaved(len(operations), without)
        lead_count = len(without)
        versions = np.arange(len(transactions.starts)) + self._version - self._segment_start
        self._version += len(versions)
        arrays = {
            "version": out.numbers(versions[transactions.of_row], versions[~transactions.has_lead]),
            "index": out.numbers(transactions.index, np.zeros(lead_count, np.int32)),
            "area": out.numbers(
                np.where(transactions.is_lead, Area.INFRASTRUCTURE, Area.DATA).astype(np.uint8),
                np.full(lead_count, Area.INFRASTRUCTURE, np.uint8),
            ),
            "operation": out.numbers(
                operations.astype(np.uint8), np.full(lead_count, Operation.TRANSACTION, np.uint8)
            ),
            "entity_type": out.names(*transactions.types),
            "primary_key": out.nulls(column["primary_key"]),
            "changed": with_dictionary(out.nulls(named.lists), pa.array(named.names, pa.string())),
            "change": out.nulls(change),
            "before": out.nulls(column["before"]),
            "after": out.texts(column["after"], transactions.lead_texts()),
        }
        return pa.table(arrays)

    def _changes(
        self, column: dict[str, pa.Array], operations: npt.NDArray[np.int64]
    ) -> tuple[pa.Array, pa.Array]:
        """Return ``changed`` and ``change`` as given.

        Without a column ``changed``, compute them from the images.
        """
        if "changed" in column:
            return column["changed"], column["change"]
        both = pc.and_(pc.is_valid(column["before"]), pc.is_valid(column["after"]))
        updates = np.flatnonzero((operations == Operation.UPSERT) & both.to_numpy(False))
        changed: list[list[str] | None] = [None] * len(operations)
        change = column["change"].to_pylist() if len(updates) else column["change"]
        for row in updates.tolist():
            before = members(column["before"][row].as_py())
            after = members(column["after"][row].as_py())
            names = changed[row] = difference(before, after)
            if change[row] is None:
                change[row] = projection(after, names)
        texts = pa.array(change, pa.binary()) if isinstance(change, list) else change
        return pa.array(changed, pa.list_(pa.string())), texts
