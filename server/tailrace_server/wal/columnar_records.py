"""The records of whole transactions, made of their rows by columns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.criteria import Area, Operation
from tailrace_server.wal.record.interleaving import Interleaved
from tailrace_server.wal.schema.records import record_rows, rows_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from tailrace_server.wal.record.input_rows import InputRows
    from tailrace_server.wal.schema.records import SchemaRecord

    LeadText = Callable[[int, dict[str, int], Sequence[SchemaRecord]], bytes]
    """Makes the text of a lead: the transaction, its records by entity type, its schema changes."""


class TransactionRecords:
    """Rows of transactions with their leads, and with the records of schema changes behind these."""

    def __init__(
        self,
        rows: InputRows,
        hashes: npt.NDArray[np.uint64],
        changed: pa.ListArray,
        change: pa.BinaryArray,
        first: int,
        changes: dict[int, list[SchemaRecord]],
        lead_text: LeadText,
    ) -> None:
        """Take the rows, and what is known of them.

        Args:
            rows: The rows.
            hashes: The hashes of their keys.
            changed: Lists of names.
            change: Of all rows.
            first: Version of the first transaction.
            changes: Schema changes by transaction.
            lead_text: Makes the text of a lead.
        """
        self._rows = rows
        self._hashes = hashes
        self._changed = changed
        self._change = change
        self._first = first
        self._changes = changes
        self._lead_text = lead_text
        self._bounds = [*rows.starts.tolist(), len(rows)]

    def batches(self) -> list[pa.RecordBatch]:
        """Return them, cut where a schema change is."""
        # A transaction that changes the schema begins a run: its lead and the records of the schema are a
        # batch by themselves, and its rows, further back by these records, come without a lead.
        found = []
        count = len(self._rows.starts)
        begins = sorted({0, *self._changes})
        for start, stop in zip(begins, [*begins[1:], count], strict=True):
            changes = self._changes.get(start)
            if changes:
                lead = self._lead(start)
                version = self._first + start
                area, operation = int(Area.INFRASTRUCTURE), int(Operation.TRANSACTION)
                row = (version, 0, area, operation, None, None, None, None, None, lead)
                found.append(rows_batch([row, *record_rows(version, changes)]))
            found.append(self._run(start, stop, len(changes or ())))
        return found

    def _lead(self, place: int) -> bytes:
        changes = self._changes.get(place, [])
        names = [each.entity_type for each in changes]
        start, stop = self._bounds[place], self._bounds[place + 1]
        counts = Counter(names)
        types = self._rows.entity_types
        if len(types) == 1:
            counts[types[0]] += stop - start
        else:
            for code, number in Counter(self._rows.type_codes[start:stop].tolist()).items():
                counts[types[code]] += number
        return self._lead_text(place, dict(counts), changes)

    def _run(self, start: int, stop: int, schema_records: int) -> pa.RecordBatch:
        """Return the records of transactions; ``schema_records`` come behind the lead of the first one.

        If there are any, that lead and they are not among the records returned.
        """
        rows, bounds = self._rows, self._bounds
        begin, end = bounds[start], bounds[stop]
        starts = rows.starts[start:stop]
        sizes = np.diff(starts, append=end)
        versions = np.arange(start, stop, dtype=np.int64) + self._first
        index = np.arange(1, end - begin + 1) - np.repeat(starts - begin, sizes)
        index[: sizes[0]] += schema_records
        own = slice(1 if schema_records else 0, None)
        leads = versions[own]
        out = Interleaved(end - begin, starts[own] - begin)
        texts = [self._lead(place) for place in range(start, stop)[own]]
        area, operation = Area.INFRASTRUCTURE, Operation.TRANSACTION
        part = slice(begin, end)
        arrays = {
            "version": out.numbers(np.repeat(versions, sizes), leads),
            "index": out.numbers(index.astype(np.int32), np.zeros(len(leads), np.int32)),
            "area": out.numbers(
                np.full(end - begin, Area.DATA, np.uint8), np.full(len(leads), area, np.uint8)
            ),
            "operation": out.numbers(
                rows.operations[part], np.full(len(leads), operation, np.uint8)
            ),
            "entity_type": out.names(rows.entity_types, rows.type_codes[part]),
            "primary_key": out.nulls(rows.keys[part]),
            "changed": out.nulls(self._changed[part]),
            "change": out.nulls(self._change[part]),
            "before": out.nulls(rows.before[part]),
            "after": out.texts(rows.after[part], pa.array(texts, pa.binary())),
        }
        arrays["key_hash"] = out.numbers(self._hashes[part], np.zeros(len(leads), np.uint64))
        return pa.RecordBatch.from_pydict(arrays)
