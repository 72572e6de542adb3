"""Rows of a DataFrame as records of a segment, tens of thousands at a time.

Input columns, by name; others are refused:

================  ==================  =============================================================
transaction_id    string              rows of one transaction stand together, in one partition; null
                                      makes a row a transaction of its own
operation         string or int       upsert, remove, expire, transaction (or 1, 2, 4, 3)
entity_type       string              null on a lead
primary_key       string              null for a truncate (a remove of every key) and on a lead
changed           array<string>       optional; where the column is absent it is told from the images
change            binary or string    optional; as the next two a UTF-8 JSON object
before            binary or string    optional
after             binary or string    optional
================  ==================  =============================================================

Each transaction becomes a version. Its lead is made here, unless its first row is one: operation
``transaction``, whose ``after`` is taken as it is and must count the others. The rows of a transaction
that goes on are held until its end is seen, since its lead counts them.

What would stand in the way of readers is refused (`row_checks`). The columns that images, ``change`` and
``changed`` show for the first time are reported, and a segment ends behind the first rows that show any: it
will be written again with the records of the schema in it (`wal.schema_records`), and is small so.

Nothing is done row by row in Python, but for what `names` cannot read, for the difference of images where
``changed`` is absent, and for transaction ids that JSON has to escape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area, Operation
from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.columns import Sighting
from tailrace_server.pipeline.dataframe.known_names import KnownNames, rows_with_unknown_names
from tailrace_server.pipeline.dataframe.row_checks import (
    check_bodies,
    check_identities,
    columns_named,
)
from tailrace_server.pipeline.dataframe.transaction_ids import SeenTransactions
from tailrace_server.pipeline.dataframe.whole_transactions import Transactions, starts_of
from tailrace_server.pipeline.images import difference, members, projection
from tailrace_server.wal.record.columns import BODY_COLUMNS, multiplicity_of
from tailrace_server.wal.segment.writer import with_dictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    import msgspec
    import numpy.typing as npt

    from tailrace_server.pipeline.dataframe.row_checks import NamedColumns
    from tailrace_server.pipeline.dataframe.whole_transactions import EntityTypes
    from tailrace_server.wal.segment.writer import SegmentReceipt, SegmentWriter

REQUIRED: Final = ("transaction_id", "operation", "entity_type", "primary_key")
OPTIONAL: Final = ("changed", *BODY_COLUMNS)

_OPERATIONS: Final = {
    "upsert": Operation.UPSERT,
    "remove": Operation.REMOVE,
    "expire": Operation.EXPIRE,
    "transaction": Operation.TRANSACTION,
}
ROWS_AT_ONCE: Final = 32_768
"""To look at rows takes 3 ms, however few they are."""
_BYTES_AT_ONCE: Final = 16 << 20
"""Bytes that are gathered at most, but for the batch that reaches them."""

_INPUT_TYPES: Final = {
    "transaction_id": pa.string(),
    "entity_type": pa.string(),
    "primary_key": pa.string(),
    "changed": pa.list_(pa.string()),
    **dict.fromkeys(BODY_COLUMNS, pa.binary()),
}


class SinkResult(NamedTuple):
    """What became of a partition."""

    receipts: list[SegmentReceipt]
    """Of its segments, in their order."""
    sightings: list[Sighting]
    """Versions are counted over all of them."""
    transactions: npt.NDArray[np.uint64]
    """Hashes of their ids, sorted, to notice one that lies in two partitions (`transaction_ids`)."""


class RecordSink:
    """Writes the rows of one partition to a segment, or to two.

    Rows wait until there are enough of them. Those of the last transaction go on to wait, since more may
    follow; where that one is all there is, they are held.
    """

    def __init__(
        self,
        segment: SegmentWriter,
        known: Mapping[str, Iterable[str]],
        declared: Collection[str] = (),
        *,
        next_segment: Callable[[], SegmentWriter] | None = None,
        rows_at_once: int = ROWS_AT_ONCE,
    ) -> None:
        """Take where to write, and what is known of columns.

        Args:
            segment: Where the records go.
            known: Columns that need no report, by entity type.
            declared: Entity types whose images are not to be looked at.
            next_segment: Opens the one to go on in behind the first rows with new columns; None: there is one.
            rows_at_once: How many are gathered before they are looked at, above 0.
        """
        self._segment = segment
        self._next_segment = next_segment
        self._closed: list[SegmentReceipt] = []
        self._rows_at_once = rows_at_once
        self._declared = frozenset(declared)
        self._known = {entity_type: set(names) for entity_type, names in known.items()}
        self._names = KnownNames()
        self._groups: dict[str, int] = {}
        self._sightings: list[Sighting] = []
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._held: list[pa.Table] = []
        self._held_id: str | None = None
        self._transactions = SeenTransactions()
        self._version = 0
        self._segment_start = 0
        """The version that the open segment begins with."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows. What is wrong with them may be said later, by ``finish`` at the latest.

        Raises:
            InvalidRequest: A column is missing, unknown or of another type, an operation is none,
                a row is not what `row_checks` wants, a transaction comes back behind others.
            LogFull: No room.
        """
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= self._rows_at_once or self._waiting_bytes >= _BYTES_AT_ONCE:
            self._take()

    def _take(self, *, final: bool = False) -> None:
        """Check the rows that wait, and write the transactions that end among them.

        Args:
            final: No more rows come: all transactions end.
        """
        batch = pa.concat_batches(self._waiting) if len(self._waiting) > 1 else self._waiting[0]
        self._wait_for_more([])
        rows = _normalised(batch)
        check_identities(rows)
        check_bodies(rows)
        ids = rows.column("transaction_id").chunk(0)
        starts = starts_of(ids)
        if self._held:
            if ids[0].is_valid and ids[0].as_py() == self._held_id:
                starts = starts[1:]
            else:
                self._emit()
        ending = rows.num_rows if final else int(starts[-1]) if len(starts) else 0
        if not ending:  # all of one that goes on: they are not looked at again
            self._transactions.add(ids.take(pa.array(starts)))
            self._held.append(rows)
            self._held_id = ids[0].as_py()
            return
        self._transactions.add(ids.take(pa.array(starts[starts < ending])))
        self._emit(rows.slice(0, ending))
        if ending < rows.num_rows:
            self._wait_for_more([batch.slice(ending)])

    def _wait_for_more(self, batches: list[pa.RecordBatch]) -> None:
        """Begin to gather anew, with rows of a transaction that goes on."""
        self._waiting = batches
        self._waiting_rows = sum(batch.num_rows for batch in batches)
        self._waiting_bytes = sum(batch.nbytes for batch in batches)

    def finish(self) -> SinkResult | None:
        """Write what is held and close the segment; None where there was no row.

        Raises:
            InvalidRequest: As `write`.
            LogFull: No room.
        """
        if self._waiting:
            self._take(final=True)
        if self._held:
            self._emit()
        if not self._version:
            self._segment.abandon()
            return None
        receipts = [*self._closed, self._segment.close()]
        return SinkResult(receipts, self._sightings, self._transactions.hashes())

    def _emit(self, *more: pa.Table) -> None:
        """Write whole transactions: those held, and those of ``more``."""
        parts, self._held = [*self._held, *more], []
        if self._sightings and self._next_segment is not None:
            self._closed.append(self._segment.close())
            self._segment, self._next_segment = self._next_segment(), None
            self._segment_start = self._version
        self._segment.write(self._records(pa.concat_tables(parts).combine_chunks()))

    def _records(self, rows: pa.Table) -> pa.Table:
        """Return the records of whole transactions, leads put in."""
        transactions = Transactions(rows)
        transactions.check_leads()
        column = {name: rows.column(name).chunk(0) for name in rows.schema.names}
        operations = column["operation"].to_numpy()
        changed, change = self._changes(column, operations)
        named = columns_named(rows, changed)
        self._observe(column, operations, transactions, named)
        without = transactions.starts[~transactions.has_lead]
        out = _Interleaved(len(operations), without)
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
            "entity_type": out.names(transactions.types),
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
        """Return ``changed`` and ``change``: as given, else told from the images."""
        if "changed" in column:
            return column["changed"], column["change"]
        both = pc.and_(pc.is_valid(column["before"]), pc.is_valid(column["after"]))
        updates = np.flatnonzero((operations == Operation.UPSERT) & both.to_numpy(False))
        changed: list[list[str] | None] = [None] * len(operations)
        change = column["change"].to_pylist() if len(updates) else column["change"]
        for row in updates.tolist():
            before = _members(column["before"][row].as_py())
            after = _members(column["after"][row].as_py())
            names = changed[row] = difference(before, after)
            if change[row] is None:
                change[row] = projection(after, names)
        texts = pa.array(change, pa.binary()) if isinstance(change, list) else change
        return pa.array(changed, pa.list_(pa.string())), texts

    def _observe(
        self,
        column: dict[str, pa.Array],
        operations: npt.NDArray[np.int64],
        transactions: Transactions,
        named: NamedColumns,
    ) -> None:
        """Note the columns that are new in rows of whole transactions."""
        types, codes = transactions.types
        is_open = np.array([*(name not in self._declared for name in types), False])
        looked_at = is_open[codes] & ~transactions.is_lead
        upserts = looked_at & (operations == Operation.UPSERT)
        images = _where(looked_at, column["after"], column["before"])
        changes = _where(upserts, column["change"])
        sightings: list[Sighting] = []

        def look_at(row: int) -> None:
            start, stop = np.searchsorted(named.rows, (row, row + 1))
            names = [named.names[code] for code in named.codes[start:stop]]
            change = changes[row].as_py()
            if change is not None and not names and multiplicity_of(change) is not None:
                change = None
            shown = (*_members(images[row].as_py()), *_members(change), *names)
            version = int(transactions.of_row[row]) + self._version
            sightings.extend(self._look_at(version, types[codes[row]], shown))

        # The first row of a type is news anyway, and most others are like it.
        for place, name in enumerate(types):
            if is_open[place] and name not in self._groups:
                group = self._groups[name] = len(self._groups)
                for column_name in self._known.get(name, ()):
                    self._names.add(group, _as_written(column_name))
                rows = np.flatnonzero(looked_at & (codes == place))
                if len(rows):
                    look_at(int(rows[0]))
        groups = np.array([self._groups.get(name, 0) for name in (*types, "")], np.int64)[codes]
        # Arrow may keep bytes behind a null; what they say is not asked for.
        suspects = {
            row
            for texts, asked in ((images, looked_at), (changes, upserts))
            if texts.null_count < len(texts)
            for row in rows_with_unknown_names(texts, groups, self._names).tolist()
            if asked[row]
        }
        suspects.update(self._rows_that_name_unknown(named, codes, types))
        for row in sorted(suspects):
            look_at(row)
        self._sightings += sorted(sightings, key=lambda sighting: sighting.version)

    def _rows_that_name_unknown(
        self, named: NamedColumns, codes: npt.NDArray[np.int64], types: list[str]
    ) -> Iterator[int]:
        """Yield the first row of each column in ``changed`` that is not known of its entity type."""
        width = len(named.names)
        pairs = codes[named.rows] * width + named.codes
        for pair in pc.unique(pa.array(pairs)).to_pylist():
            if named.names[pair % width] not in self._known.get(types[pair // width], ()):
                yield int(named.rows[np.argmax(pairs == pair)])

    def _look_at(self, version: int, entity_type: str, shown: Iterable[str]) -> Iterator[Sighting]:
        """Yield those of the columns that a row shows that are new."""
        known = self._known.get(entity_type)
        if known is None:
            known = self._known[entity_type] = set()
            yield Sighting(version, entity_type, None)
        for name in shown:
            if name not in known:
                known.add(name)
                if entity_type in self._groups:
                    self._names.add(self._groups[entity_type], _as_written(name))
                yield Sighting(version, entity_type, name)


class _Interleaved:
    """Puts leads between rows: a lead stands before the row that its transaction begins with."""

    def __init__(self, rows: int, before: npt.NDArray[np.int64]) -> None:
        """Take the number of rows, and the rows that a lead is put before, rising."""
        self._before = before
        total = rows + len(before)
        self._lead_places = before + np.arange(len(before))
        self._is_row = np.ones(total, np.bool_)
        self._is_row[self._lead_places] = False
        self._total = total

    def numbers(self, rows: npt.NDArray[Any], leads: npt.NDArray[Any]) -> pa.Array:
        """Return numbers of rows with those of leads between."""
        out = np.empty(self._total, rows.dtype)
        out[self._is_row] = rows
        out[self._lead_places] = leads
        return pa.array(out)

    def names(self, types: EntityTypes) -> pa.DictionaryArray:
        """Return the entity types of rows with nulls between."""
        codes = np.full(self._total, len(types.names), np.int32)
        codes[self._is_row] = types.codes
        return pa.DictionaryArray.from_arrays(
            pa.array(codes, mask=codes == len(types.names)), pa.array(types.names, pa.string())
        )

    def nulls(self, rows: pa.Array) -> pa.Array:
        """Return an array with nulls between; the data of its values is shared, not copied."""
        if rows.null_count == len(rows):
            return pa.nulls(self._total, rows.type)
        validity = self._is_row.copy()
        if rows.null_count:
            validity[self._is_row] = pc.is_valid(rows).to_numpy(zero_copy_only=False)
        bitmap = pa.py_buffer(np.packbits(validity, bitorder="little"))
        _, offset_buffer, *rest = rows.buffers()
        offsets = np.frombuffer(offset_buffer, np.int32)[rows.offset : rows.offset + len(rows) + 1]
        spread = pa.py_buffer(np.insert(offsets, self._before, offsets[self._before]))
        if pa.types.is_list(rows.type):
            return pa.Array.from_buffers(
                rows.type, self._total, [bitmap, spread], children=[rows.values]
            )
        return pa.Array.from_buffers(rows.type, self._total, [bitmap, spread, rest[0]])

    def texts(self, rows: pa.Array, leads: pa.Array) -> pa.Array:
        """Return the texts of rows with those of leads between."""
        order = np.empty(self._total, np.int64)
        order[self._is_row] = np.arange(len(rows)) + len(leads)
        order[self._lead_places] = np.arange(len(leads))
        return pa.concat_arrays([leads, rows]).take(pa.array(order))


def _normalised(batch: pa.RecordBatch) -> pa.Table:
    """Return the columns of a batch in one form; bodies that are missing are null."""
    names = batch.schema.names
    for name in REQUIRED:
        if name not in names:
            raise InvalidRequest(
                f"the DataFrame has no column {name!r}; it needs {', '.join(REQUIRED)}"
            )
    arrays = {"operation": _operations(batch.column("operation"))}
    for name in names:
        if name == "operation":
            continue
        if name not in _INPUT_TYPES:
            known = ", ".join((*REQUIRED, *OPTIONAL))
            raise InvalidRequest(f"the DataFrame has a column {name!r}; known are {known}")
        arrays[name] = _cast(name, batch.column(name), _INPUT_TYPES[name])
    for name in BODY_COLUMNS:
        if name not in arrays:
            arrays[name] = pa.nulls(batch.num_rows, pa.binary())
    return pa.table(arrays)


def _operations(column: pa.Array) -> pa.Array:
    if pa.types.is_integer(column.type):
        codes = column.cast(pa.int64())
    else:
        encoded = pc.dictionary_encode(_cast("operation", column, pa.string()))
        values = [
            _OPERATIONS.get((name or "").lower(), 0) for name in encoded.dictionary.to_pylist()
        ]
        codes = pa.array(values, pa.int64()).take(encoded.indices)
    if codes.null_count or not pc.all(pc.is_in(codes, pa.array([1, 2, 3, 4], pa.int64()))).as_py():
        raise InvalidRequest(
            f"column operation holds something else than {', '.join(_OPERATIONS)} (1, 2, 4, 3)"
        )
    return codes


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        found = column.cast(kind)
    except pa.ArrowException as error:
        raise InvalidRequest(f"column {name} is {column.type}; it must be {kind}") from error
    if kind != pa.binary():  # Spark takes any bytes for a string
        try:
            found.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidRequest(f"column {name} holds text that is not UTF-8: {error}") from error
    return found


def _where(wanted: npt.NDArray[np.bool_], *texts: pa.Array) -> pa.Array:
    """Return the first of the texts that is there, null where none is wanted."""
    if not wanted.any() or all(each.null_count == len(each) for each in texts):
        return pa.nulls(len(wanted), pa.binary())
    if wanted.all() and not texts[0].null_count:
        return texts[0]
    return pc.if_else(pa.array(wanted), pc.coalesce(*texts), pa.scalar(None, pa.binary()))


def _members(image: bytes | None) -> dict[str, msgspec.Raw]:
    return {} if image is None else members(image)


def _as_written(name: str) -> str:
    return orjson.dumps(name).decode()[1:-1]
