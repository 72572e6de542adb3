"""Scans whose rows have the columns of the table at the top level: change rows, and rows of a state.

===================  ================================================================================
record               change rows
===================  ================================================================================
insert               ``insert`` with the row after
update               ``update_preimage`` with the row before, ``update_postimage`` with the row after;
                     without a row before in the log, only ``update_postimage``
removal, expiry      ``delete`` with the row before
truncate             ``delete`` of each row that existed just before, in no particular order
``diff`` of d rows   in a table without a key: d times ``insert``, or -d times ``delete``
===================  ================================================================================

So a program that applies inserts and postimages, and deletes by key, has the table's state after each version.
If a row lacks the value of a key column, as a removal without a row before does, the column has the value of
the primary key. All rows of a record have its position, which is the cursor that continues after the record.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import InvalidRequest
from tailrace.position import Position
from tailrace_server.log_read.request import CHANGE_TYPES
from tailrace_server.log_read.row_columns import (
    OF_CHANGES,
    OF_STATE,
    WHERE,
    RowImages,
    cursor_texts,
    needed_columns,
    rows_met,
    rows_schema,
)
from tailrace_server.sql.change_tables import keys_as_images
from tailrace_server.sql.pushdown import change_codes
from tailrace_server.sql.scans import StatementScan
from tailrace_server.sql.statements import Bounds, TableUse
from tailrace_server.sql.typed_rows import misfits_array, reader_of
from tailrace_server.wal.base.reading import table_state
from tailrace_server.wal.base.winners import HASHES_END, Wanted
from tailrace_server.wal.files.sequence_documents import ViewDocument
from tailrace_server.wal.record.columns import multiplicity_of
from tailrace_server.wal.segment.parallel import are_between
from tailrace_server.wal.segment.reader import SegmentMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from tailrace.schema import Column
    from tailrace_server.log_read.request import ReadRequest
    from tailrace_server.sql.scans import LogSource
    from tailrace_server.typed.reader import ColumnReader
    from tailrace_server.wal.base.reading import TableState
    from tailrace_server.wal.base.state_rows import StatePlace, StateRows
    from tailrace_server.wal.segment.parallel import RecordColumns

_INSERT, _UPDATE, _DELETE, _EXPIRE, _TRUNCATE = range(5)
"""The results of ``change_codes``."""
_PREIMAGE, _POSTIMAGE, _REMOVAL = 1, 2, 3
"""Places in CHANGE_TYPES."""
_BATCH_ROWS: Final = 65_536


class RowScan(StatementScan):
    """The base of scans with the columns of a request. Missing values of key columns come from the keys."""

    def __init__(self, source: LogSource, request: ReadRequest, use: TableUse) -> None:
        """Prepare to read the columns of the request.

        Args:
            source: The log.
            request: The read.
            use: The table, with the version whose schema gives the columns.
        """
        self._request = request
        self._known: tuple[str, ...] = ()
        self._has_key = False
        """True if the columns of the key are known."""
        super().__init__(source, use, lambda: False, request.on_misfit)
        self._keys = tuple(each for each in self._columns if each.key)
        wanted = request.change_types or CHANGE_TYPES
        self._wants = np.array([each in wanted for each in CHANGE_TYPES])
        """True for each of CHANGE_TYPES that the request wants."""

    def _needed(self, every: tuple[Column, ...]) -> tuple[Column, ...]:
        self._known = tuple(each.name for each in every)
        self._has_key = any(each.key for each in every)
        return needed_columns(self._request, every)

    def _arrow_schema(self) -> pa.Schema:
        own = OF_STATE if self.use.changes is None else OF_CHANGES
        return rows_schema(self._request, self._typed.schema, own, self._known)

    def _state_before(self, position: Position) -> TableState:
        """Return the state of the table just before a position."""
        at = position.preceding().version
        schemas = (self._view.schema_of(each) for each in (at, self._view.published))
        name = next(filter(None, map(self._names.name_in, schemas)), self.use.entity_type)
        given = (self._view, self._source.reader, name, at, self._source.on_damage)
        return table_state(*given, position if position.index else None)

    @cached_property
    def _key_reader(self) -> ColumnReader:
        schema = self._view.schema_of(self.use.version)
        return reader_of(self._view, schema, self._keys, self._request.on_misfit)

    def _batch(
        self,
        images: RowImages,
        versions: NDArray[np.int64],
        keys: Callable[[], pa.StringArray],
        own: Mapping[str, pa.Array],
    ) -> pa.RecordBatch:
        """Return rows.

        Args:
            images: The images of the rows.
            versions: The version that each row's image was written with.
            keys: Returns the primary key of each row.
            own: The columns that the shape adds.
        """
        read = [
            self._typed.read(
                *(each, images.versions, images.indexes, None), with_misfits=self._with_misfits
            )
            for each in images.sides
        ]
        found = pa.concat_batches([each.batch for each in read]) if len(read) > 1 else read[0].batch
        misfits = dict(read[0].misfits)
        for place, each in enumerate(read[1:], 1):
            misfits |= {
                row + place * len(images.versions): text for row, text in each.misfits.items()
            }
        if images.rows is not None:
            found = found.take(pa.array(images.rows))
            if misfits:
                rows = enumerate(images.rows.tolist())
                misfits = {place: misfits[row] for place, row in rows if row in misfits}
        arrays = dict(zip(found.schema.names, found.columns, strict=True))
        if self._keys:
            self._fill_keys(arrays, versions, keys)
        arrays |= own
        if self._with_misfits:
            arrays["_misfits"] = misfits_array(len(versions), misfits)
        return pa.record_batch([arrays[each] for each in self.schema.names], schema=self.schema)

    def _state_rows(self, rows: StateRows, own: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Return rows of a state, with the columns that the shape adds."""
        images = RowImages([rows.images], rows.versions, rows.indexes)
        return self._batch(images, rows.versions, lambda: rows.primary_keys, own)

    def _fill_keys(
        self,
        arrays: dict[str, pa.Array],
        versions: NDArray[np.int64],
        keys_of: Callable[[], pa.StringArray],
    ) -> None:
        """Replace nulls in the columns of the key by the values of the primary keys."""
        if not any(arrays[each.name].null_count for each in self._keys):
            return
        keys = keys_of()
        lacking = np.zeros(len(keys), np.bool_)
        for each in self._keys:
            lacking |= arrays[each.name].is_null().to_numpy(zero_copy_only=False)
        lacking &= keys.is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(lacking)
        if not len(rows):
            return
        schemas, which = self._view.schemas_of(versions[rows])
        written = [*map(self._names.columns_in, schemas)]
        try:
            images = keys_as_images(keys.take(pa.array(rows)), written, which)
            found = self._key_reader.read_mixed(images, written, which).batch
        except ValueError as error:
            raise InvalidRequest(
                f"{self.use.entity_type} at version {versions[rows[0]]}: the row has no value for its key, and "
                f"its primary key cannot be used instead: {error}"
            ) from None
        for each in self._keys:
            array, places = arrays[each.name], pa.array(rows)
            values = pc.coalesce(array.take(places), found.column(each.name))
            arrays[each.name] = pc.replace_with_mask(array, pa.array(lacking), values)


class StateRowScan(RowScan):
    """The scan of the rows of a state whose keys have hashes in a range."""

    def __init__(
        self,
        source: LogSource,
        request: ReadRequest,
        version: int,
        at: int,
        hashes: tuple[int, int] = (0, HASHES_END),
    ) -> None:
        """Prepare to read.

        Args:
            source: The log.
            request: The read.
            version: The version whose schema gives the columns.
            at: The version of the state.
            hashes: The first and the end (exclusive) of the range of key hashes.
        """
        self._at, self._hashes = at, Wanted(*hashes)
        self._returned: tuple[int, Position] | None = None
        """The rows with key hashes below the first, up to the second in the log, are returned; None: no row."""
        name = request.entity_type or ""
        met = rows_met(source.view, request, version)
        use = TableUse("", name, version, None, None, request.keys, rows_met=met)
        super().__init__(source, request, use)

    def _table_state(self) -> TableState:
        return self._state_before(Position(self._at + 1, 0))

    def _state(self) -> Iterator[pa.RecordBatch]:
        table = self._table_state()
        if self.use.keys is None and table.in_log:
            begin = end = self._hashes.start
            try:
                for stop, rows in table.log_parts(self._hashes):
                    if stop != end:
                        begin, end = end, stop
                    yield from self._state_batches(self._in_state(rows))
                    self._returned = (end, Position(int(rows.versions[-1]), int(rows.indexes[-1])))
                return
            except SegmentMissing as missing:
                # A compaction or a trim has replaced the file. Read the rest in the order of keys, which needs
                # no particular files.
                self._view = self._source.newer(missing)
                self._hashes = replace(self._hashes, start=begin)
        yield from super()._state()

    def _state_parts(self, table: TableState, behind: StatePlace | None) -> Iterable[StateRows]:
        if self.use.keys is not None:
            return super()._state_parts(table, behind)
        return map(self._not_returned, table.parts(behind, self._hashes))

    def _not_returned(self, rows: StateRows) -> StateRows:
        if self._returned is None:
            return rows
        end, done = self._returned
        left = are_between(rows.versions, rows.indexes, done, Position(self._at + 1, 0))
        left |= rows.key_hashes > np.uint64(end - 1)
        return rows.taken(np.flatnonzero(left))

    def _state_batch(self, rows: StateRows) -> pa.RecordBatch:
        own = {
            "_commit_version": pa.array(rows.versions),
            "_commit_timestamp": self._times(rows.versions),
        }
        return self._state_rows(rows, own)


class TruncatedRowScan(StateRowScan):
    """The scan of the rows that a truncate removes, as change rows."""

    def __init__(
        self, source: LogSource, request: ReadRequest, version: int, truncate: Position
    ) -> None:
        self._truncate = truncate
        super().__init__(source, request, version, truncate.version)

    def batches_of(self, rows: StateRows) -> Iterator[pa.RecordBatch]:
        """Yield the change rows of some rows that existed before."""
        if len(shown := self._in_state(rows)):
            yield from self._state_batches(shown)

    def _arrow_schema(self) -> pa.Schema:
        return rows_schema(self._request, self._typed.schema, OF_CHANGES, self._known)

    def _table_state(self) -> TableState:
        return self._state_before(self._truncate)

    def _state_batch(self, rows: StateRows) -> pa.RecordBatch:
        versions = np.full(len(rows), self._truncate.version, np.int64)
        indexes = np.full(len(rows), self._truncate.index, np.int32)
        own = {
            "_change_type": pa.repeat(CHANGE_TYPES[_REMOVAL], len(rows)),
            "_commit_version": pa.array(versions),
            "_commit_timestamp": self._times(versions),
            "_position": cursor_texts(self._view, versions, indexes),
        }
        return self._state_rows(rows, own)


class ChangeRowScan(RowScan):
    """The scan of change rows between two positions, both exclusive."""

    def __init__(
        self, source: LogSource, request: ReadRequest, version: int, span: tuple[Position, Position]
    ) -> None:
        """Prepare to read.

        Args:
            source: The log.
            request: The read.
            version: The version whose schema gives the columns.
            span: The positions just before the first and just after the last record.
        """
        self._span = span
        name, where = request.entity_type or "", None
        if rows_met(source.view, request, version) is not None:
            assert request.where is not None
            where = ViewDocument(WHERE, name, version, [], request.where, 0)
        use = TableUse("", name, version, Bounds(0, version), None, None, view=where)
        super().__init__(source, request, use)

    def _range(self) -> tuple[Position, Position]:
        return self._span

    @cached_property
    def _images(self) -> tuple[str, ...]:
        return ("before", "after", "change") if self._may_count else ("before", "after")

    @cached_property
    def _may_count(self) -> bool:
        """True if the table once had no key: then records may count equal rows."""
        columns = map(self._names.columns_in, self._view.schemas())
        return any(each and not any(column.key for column in each) for each in columns)

    def _parts(self, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        # A record batch is in memory as a whole, so its rows need no smaller parts.
        return iter([rows] if len(rows) else [])

    def _change_batches(
        self, head: RecordColumns, rows: NDArray[np.int64], bodies: Mapping[str, pa.BinaryArray]
    ) -> Iterator[pa.RecordBatch]:
        codes, start = change_codes(head, rows), 0
        for stop in (*np.flatnonzero(codes == _TRUNCATE).tolist(), len(rows)):
            if start < stop:
                yield from self._keyed(head, rows[start:stop], codes[start:stop], bodies)
            if stop < len(rows) and self._wants[_REMOVAL]:
                at = Position(int(head.versions[rows[stop]]), int(head.indexes[rows[stop]]))
                yield from self._truncated(at)
            start = stop + 1

    def _truncated(self, at: Position) -> Iterator[pa.RecordBatch]:
        """Yield the change rows of a truncate."""
        source = replace(self._source, view=self._view)
        yield from TruncatedRowScan(source, self._request, self.use.version, at).batches()

    def _keyed(
        self,
        head: RecordColumns,
        rows: NDArray[np.int64],
        codes: NDArray[np.int64],
        bodies: Mapping[str, pa.BinaryArray],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the change rows of records that have a key."""
        has_before, has_after = (_are_there(bodies[each], rows) for each in ("before", "after"))
        # 1. Each record gives a row, of its image after, or before if it removes a row. An update with both
        #    images gives two, the image before first. A record that counts gives one, which is repeated below.
        types, is_after = _TYPE_OF[codes], codes <= _UPDATE
        times, record = None, None
        if self._may_count and (diffs := self._diffs(head, rows, bodies)) is not None:
            counts = diffs != 0
            times = np.where(counts, np.abs(diffs), 1)
            types[counts] = np.where(diffs[counts] > 0, _INSERT, _REMOVAL)
            is_after[counts] = has_after[counts]
        gives_two = (codes == _UPDATE) & has_before
        if gives_two.any():
            record = np.repeat(np.arange(len(rows)), gives_two + 1)
            firsts = np.flatnonzero(gives_two) + np.arange(np.count_nonzero(gives_two))
            types, is_after = types[record], is_after[record]
            types[firsts], is_after[firsts] = _PREIMAGE, False
        # 2. Drop the rows that are not wanted, before their images are parsed.
        wanted = self._wants[types]
        if not wanted.all():
            record = np.flatnonzero(wanted) if record is None else record[wanted]
            types, is_after = types[wanted], is_after[wanted]
        if record is not None:
            rows, has_before, has_after = rows[record], has_before[record], has_after[record]
            times = None if times is None else times[record]
        if not len(rows):
            return
        self._refuse_nameless(head, rows, types, is_after, has_before, has_after)
        images = RowImages.of(head, bodies, rows, is_after)
        batch = self._change_batch(head, rows, images, types)
        # 3. Repeat rows that count, in batches of bounded size.
        for part in repeated_rows(len(batch), times):
            yield batch if part is None else batch.take(pa.array(part))

    def _change_batch(
        self,
        head: RecordColumns,
        rows: NDArray[np.int64],
        images: RowImages,
        types: NDArray[np.int64],
    ) -> pa.RecordBatch:
        versions, indexes = head.versions, head.indexes
        if images.rows is not None or len(rows) < len(versions):
            versions, indexes = versions[rows], indexes[rows]
        names = self.schema.names
        own = {"_commit_version": pa.array(versions)}
        if "_change_type" in names:
            own["_change_type"] = _TYPES.take(pa.array(types))
        if "_commit_timestamp" in names:
            own["_commit_timestamp"] = self._times(versions)
        if "_position" in names:
            own["_position"] = cursor_texts(self._view, versions, indexes)
        return self._batch(images, versions, lambda: head.primary_keys.take(pa.array(rows)), own)

    def _refuse_nameless(
        self,
        head: RecordColumns,
        rows: NDArray[np.int64],
        types: NDArray[np.int64],
        is_after: NDArray[np.bool_],
        has_before: NDArray[np.bool_],
        has_after: NDArray[np.bool_],
    ) -> None:
        """Check that each delete says which row it means.

        Raises:
            InvalidRequest: A removal has no row before, and the key's columns are unknown.
        """
        if self._has_key:
            return
        lost = np.flatnonzero((types == _REMOVAL) & ~np.where(is_after, has_after, has_before))
        if len(lost):
            row = rows[lost[0]]
            raise InvalidRequest(
                f"{self.use.entity_type} at {head.versions[row]}:{head.indexes[row]}: the log has no row "
                "before, and does not know the columns of the key, so this delete would name no row; declare "
                "the key, or read the shape captures"
            )

    def _diffs(
        self, head: RecordColumns, rows: NDArray[np.int64], bodies: Mapping[str, pa.BinaryArray]
    ) -> NDArray[np.int64] | None:
        """Return by how much each record counts its row; 0: it does not count. None: no record counts."""
        changes = bodies["change"].take(pa.array(rows))
        if changes.null_count == len(changes):
            return None
        found = pc.fill_null(pc.starts_with(changes, '{"diff":'), False)
        mine = np.flatnonzero(found.to_numpy(zero_copy_only=False))
        # Only records that list no changed columns count.
        unlisted = head.changed.take(pa.array(rows[mine])).is_null().to_numpy(zero_copy_only=False)
        diffs = np.zeros(len(rows), np.int64)
        for row in mine[unlisted].tolist():
            diffs[row] = multiplicity_of(changes[row].as_py()) or 0
        return diffs


_TYPES: Final = pa.array(CHANGE_TYPES)
_TYPE_OF: Final = np.array([_INSERT, _POSTIMAGE, _REMOVAL, _REMOVAL])
"""The change type of the last row of each of ``change_codes``."""


def repeated_rows(
    count: int, times: NDArray[np.int64] | None
) -> Iterator[NDArray[np.int64] | None]:
    """Yield the places of rows, each as often as wanted, in parts; None: all rows, once."""
    if not count:
        return
    if times is None or (times == 1).all():
        yield None
        return
    # A count may have 63 bits: split the rows so that the sum of the counts of a group fits.
    groups = np.flatnonzero(times > _BATCH_ROWS)
    for group in np.split(np.arange(count), np.union1d(groups, groups + 1)):
        ends = np.cumsum(times[group])
        total = int(ends[-1]) if len(group) else 0
        for start in range(0, total, _BATCH_ROWS):
            rows = np.arange(start, min(start + _BATCH_ROWS, total))
            yield group[np.searchsorted(ends, rows, "right")]


def _are_there(values: pa.Array, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of the rows that have a value."""
    if values.null_count in (0, len(values)):  # all records of a batch are often alike
        return np.full(len(rows), not values.null_count)
    found: NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)[rows]
    return found
