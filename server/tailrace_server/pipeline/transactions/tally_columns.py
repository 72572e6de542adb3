"""The tallies of rows that were decoded by columns: those of `tally.tally`, without an object for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.pipeline.input.change import arrivals_of, positions_of
from tailrace_server.pipeline.transactions.driver_state import TALLY_SCHEMA

if TYPE_CHECKING:
    import numpy.typing as npt

    from tailrace_server.pipeline.transactions.tally import Tally

    Longs = npt.NDArray[np.int64]


def tally_columns(rows: pa.RecordBatch, marks: dict[str, Tally]) -> pa.RecordBatch:
    """Return the tallies of some rows, as a table of `TALLY_SCHEMA`.

    Args:
        rows: Rows of `ROWS` of one split, in the order of arrival, at least one. Each has a position and a
            timestamp, and none is a snapshot row.
        marks: Transaction key → tally of other changes. The tallies of the transactions in ``rows`` that have
            only BEGIN or END, as usual, are removed from it and joined.
    """
    # 1. Sort the rows by transaction; those of one transaction stay in order.
    encoded = pc.dictionary_encode(rows.column("transaction"))
    keys, codes = encoded.dictionary, encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    codes = codes[order].astype(np.int64)
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    first, last = order[starts], order[np.append(starts[1:], len(order)) - 1]
    column = {name: rows.column(name).take(pa.array(order)) for name in ("entity_type", "log")}
    places = rows.column("place")
    arrivals = arrivals_of(places)
    times = rows.column("timestamp").to_numpy()[order]
    # 2. Rank the rows by place, which begins with the position.
    ranked = np.lexsort((np.arange(len(order)), *positions_of(places).T[::-1]))
    ranks = np.empty(len(order), np.int64)
    ranks[ranked] = np.arange(len(order))
    ranks = ranks[order]
    positions = pc.binary_slice(places, 0, 24)
    # 3. One span for each entity type and log, and the first row of each entity type, in the order of rows.
    types = _codes(column["entity_type"])
    of_type = _Groups(codes, types)
    of_span = _Groups(codes, types * (len(order) + 1) + _codes(column["log"]))
    row = pa.array(of_span.first)
    spans = pa.StructArray.from_arrays(
        [
            column["entity_type"].take(row),
            column["log"].take(row),
            positions.take(pa.array(ranked[of_span.reduced(np.minimum, ranks)])),
            positions.take(pa.array(ranked[of_span.reduced(np.maximum, ranks)])),
            pa.array(of_span.reduced(np.minimum, times)),
            pa.array(of_span.reduced(np.maximum, times)),
            pa.array(np.zeros(len(of_span.first), np.int64)),
        ],
        fields=[*TALLY_SCHEMA.field("spans").type.value_type],
    )
    row = pa.array(of_type.first)
    first_rows = pa.MapArray.from_arrays(
        of_type.offsets,
        column["entity_type"].take(row),
        arrivals.take(pa.array(order[of_type.first])),
    )
    # 4. Join the marks; a transaction mostly has its END among the lines after its rows.
    count = len(starts)
    held = [
        marks.pop(key) if key in marks and not (marks[key].rows or marks[key].quarantined) else None
        for key in keys.to_pylist()
    ]
    ids = _least(rows.column("transaction_id"), order, starts)
    if any(held):
        given = zip(ids.to_pylist(), (each and each.transaction_id for each in held), strict=True)
        both = [min(filter(None, pair), default=None) for pair in given]
        ids = pa.array(both, pa.string())
    found = {
        "key": keys,
        "transaction_id": ids,
        "place": places.take(pa.array(ranked[np.minimum.reduceat(ranks, starts)])),
        "first_arrival": arrivals.take(pa.array(first)),
        "last_arrival": arrivals.take(pa.array(last)),
        "first_rows": first_rows,
        "rows": pa.array(np.diff(starts, append=len(order))),
        "mark": pa.array([each and each.mark for each in held], pa.binary()),
        "expected": pa.array([each and each.expected for each in held], pa.int64()),
        "quarantined": pa.array(np.zeros(count, np.int64)),
        "timestamp": pa.array(np.maximum.reduceat(times, starts)),
        "source": _least(rows.column("source"), order, starts),
        "spans": pa.ListArray.from_arrays(of_span.offsets, spans),
        "segments": pa.array([[]] * count, pa.list_(pa.string())),
    }
    return pa.RecordBatch.from_arrays(
        [found[f.name] if f.name in found else pa.nulls(count, f.type) for f in TALLY_SCHEMA],
        schema=TALLY_SCHEMA,
    )


class _Groups:
    """Groups of rows of a transaction, in the order of their first rows."""

    def __init__(self, transactions: Longs, codes: Longs) -> None:
        pairs = transactions * (int(codes.max()) + 1) + codes
        self._sorted = np.argsort(pairs, kind="stable")
        self._starts = np.flatnonzero(np.diff(pairs[self._sorted], prepend=-1))
        first = self._sorted[self._starts]
        self._order = np.argsort(first)
        self.first: Longs = first[self._order]
        """The first row of each group."""
        counts = np.bincount(transactions[self.first])
        self.offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        """The first group of each transaction, and the end of the last."""

    def reduced(self, function: np.ufunc, values: Longs) -> Longs:
        """Return the least or greatest value of each group."""
        found: Longs = function.reduceat(values[self._sorted], self._starts)[self._order]
        return found


def _codes(texts: pa.Array) -> Longs:
    found: Longs = pc.dictionary_encode(texts).indices.fill_null(-1).to_numpy().astype(np.int64) + 1
    return found


def _least(texts: pa.Array, order: Longs, starts: Longs) -> pa.Array:
    """Return the least text of each transaction; null if all are null."""
    encoded = pc.dictionary_encode(texts)
    names = encoded.dictionary
    by_text = pc.sort_indices(names)
    ranks = np.empty(len(names) + 1, np.int64)
    ranks[by_text.to_numpy()] = np.arange(len(names))
    ranks[-1] = len(names)
    found = ranks[encoded.indices.fill_null(len(names)).to_numpy()][order]
    least = np.minimum.reduceat(found, starts)
    return names.take(by_text.take(pa.array(least, mask=least == len(names))))
