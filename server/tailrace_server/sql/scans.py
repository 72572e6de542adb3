"""Scans of the log for the tables of a statement, as Arrow batches of the needed columns, keys and versions.

A state comes from a base and the log after it (`wal.base`), changes come from the log only. A compaction can
replace files during a scan. The scan then takes a newer view and continues after the last row that it returned.
"""

# Long: scans of state and of changes share columns, misfits and the recovery from files that were replaced.

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area
from tailrace.errors import InvalidRequest, PositionCompacted
from tailrace.position import END, Position
from tailrace_server.rows.lens import ViewAsked, change_lens
from tailrace_server.sql.change_tables import ChangeTableRows
from tailrace_server.sql.pushdown import CHANGE_TYPES, Amount, change_codes, change_types
from tailrace_server.sql.shown import CDC_JSON, ROW_TIMESTAMP
from tailrace_server.sql.statements import refuse_alike
from tailrace_server.sql.typed_rows import (
    MISFITS,
    TIMESTAMP,
    TypedRows,
    misfits_array,
    own_columns,
)
from tailrace_server.sql.view_conditions import rows_in_view, unsure_row
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.wal.base.reading import table_state
from tailrace_server.wal.base.winners import LogTable, Wanted
from tailrace_server.wal.record.columns import BODY_COLUMNS
from tailrace_server.wal.record.keys import key_hash, type_seed
from tailrace_server.wal.schema.restating import table_columns
from tailrace_server.wal.segment.parallel import TakenRecords, are_between, read_batches
from tailrace_server.wal.segment.reader import SegmentMissing
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from tailrace.errors import LogCorrupted
    from tailrace.schema import Column, Schema
    from tailrace_server.rows.lens import ChangeLens
    from tailrace_server.sql.shown import ShownRows, ShownTables, ViewShown
    from tailrace_server.sql.statements import TableUse
    from tailrace_server.wal.base.reading import TableState
    from tailrace_server.wal.base.state_rows import StatePlace, StateRows
    from tailrace_server.wal.files.sequence_documents import ViewDocument
    from tailrace_server.wal.segment.parallel import ReadBatch, RecordColumns
    from tailrace_server.wal.segment.reader import BatchHead, BatchReader
    from tailrace_server.wal.segment.refs import BatchRef
    from tailrace_server.wal.state.view import LogView

_PART_ROWS: Final = 8_192
_FIRST_ROWS: Final = 2_048
"""Rows in each of the first parts: as many as DuckDB computes at once, so that the answer begins soon."""
_FEW_ROWS: Final = 64
"""A batch with at most so many matching rows is joined with others before it is decoded."""
_FEW_BATCHES, _FEW_BYTES = 16, 4 << 20
_IMAGES: Final = ("before", "after")


@dataclass(frozen=True)
class LogSource:
    """A log that statements read; threads may share it."""

    view: LogView
    """The published log; all tables of a statement read this view."""
    reader: BatchReader
    newer: Callable[[SegmentMissing], LogView]
    """Returns a newer view when a file of the present view is gone; raises if there is none. Blocks."""
    on_damage: Callable[[LogCorrupted], None] | None = None
    """Called with the error of a damaged base that the read then avoids; None: the error is raised."""
    shown: ShownTables | None = None
    """The visible part of the log; None: everything."""

    def of_view(self, document: ViewDocument) -> ViewShown | None:
        """Return what grants on a view itself make visible; None: the grants of its entity type apply."""
        return None if self.shown is None else self.shown.view(document, self.view)

    def schema_of(self, version: int) -> Schema:
        """Return the visible part of the schema of a published version."""
        schema = self.view.schema_of(version)
        return schema if self.shown is None else self.shown.schema(schema)


def resumed(
    source: LogSource,
    begin: Position,
    read: Callable[[LogView, Position], Iterator[tuple[pa.RecordBatch | None, Position]]],
) -> Iterator[pa.RecordBatch]:
    """Yield batches in the order of the log, also if a compaction replaces files meanwhile.

    Args:
        source: The log.
        begin: The position just before the first record.
        read: Yields the batches after a position in a view, each with its last position. A batch of None only
            moves the position on.

    Raises:
        PositionCompacted: A trim has removed records that were not read yet.
    """
    view, done = source.view, begin
    while True:
        try:
            # `done` advances only after a batch was yielded: a retry with a newer view then continues exactly
            # there.
            for batch, position in read(view, done):
                if batch is not None:
                    yield batch
                done = position
        except SegmentMissing as missing:
            view = source.newer(missing)
            # The newer view has been trimmed past the place where this scan stopped: rows would be missing.
            if done < view.oldest.preceding():
                newest = Position(view.published, END)
                raise PositionCompacted(done, view.oldest, newest) from None
        else:
            return


class StatementScan:
    """The scan of one table of a statement. It is iterated once, in the thread that runs the statement."""

    def __init__(
        self,
        source: LogSource,
        use: TableUse,
        stopped: Callable[[], bool],
        on_misfit: OnMisfit = OnMisfit.RAISE,
    ) -> None:
        """Prepare to read.

        Args:
            source: The log.
            use: The table, with the part of it that the statement needs.
            stopped: Returns True once the rest is not needed; called before each part.
            on_misfit: What happens to a value that its column cannot hold.
        """
        self.use = use
        self._source = source
        self._view = source.view
        self._stopped = stopped
        schema = self._view.schema_of(use.version)
        if use.entity_type not in schema.entity_types:
            schema = self._view.schema_of(self._view.published)
        self._names = EntityNames(schema, use.entity_type)
        self._shown: ShownRows | None = None
        is_change = use.changes is not None
        if (tables := source.shown if use.shown is None else use.shown.tables) is not None:
            self._shown = tables.rows(use.entity_type, self._view, use.version, changes=is_change)
        every = self._shown_of(table_columns(schema, use.entity_type, changes=is_change))
        document = use.view if use.form is None else use.form.view
        of_view = None if document is None else ViewAsked.of(document, self._view)
        if of_view is not None and of_view.columns and use.form is None:
            names = of_view.columns
            every = tuple(replace(each, name=names[each.id]) for each in every if each.id in names)
        is_named = use.names is None or MISFITS in use.names
        self._with_misfits = is_named and on_misfit is OnMisfit.NULL
        self._columns = self._needed(every)
        typed = (self._view, schema, use.entity_type, self._names, self._columns)
        self._typed = TypedRows(
            *typed,
            shown=self._shown,
            shown_of=self._shown_of,
            on_misfit=on_misfit,
            unread=use.excluded if on_misfit is OnMisfit.RAISE and not is_change else frozenset(),
        )
        self._form = None
        if use.form is not None:
            given = (self._view, self._names, schema, use.form, self._shown, of_view)
            self._form = ChangeTableRows(*given, on_misfit)
        self._own = own_columns(of_changes=is_change, with_misfits=on_misfit is OnMisfit.NULL)
        rights = None if self._shown is None else self._shown.rights
        self._changes_seen: ChangeLens | None = None
        self._rows_seen = None if is_change else rows_in_view(use, self._view, rights)
        if is_change:
            self._changes_seen = change_lens(
                *(self._view, self._names, use.entity_type, use.version, rights, of_view),
                gives_other_columns=use.form is not None,
            )
        self.schema = self._arrow_schema()
        """The Arrow schema of the batches."""
        metadata = (*self._own, *(() if use.changes is None else _IMAGES))
        outer = () if use.shown is None else use.shown.document.columns
        self.all_columns = (*(outer or (each.name for each in every)), *metadata)
        if use.form is not None:
            self.all_columns = (ROW_TIMESTAMP, *(use.form.keys or ("_primary_key",)), CDC_JSON)
        """Names of all columns that the statement could name, read or not."""
        self.rows = 0
        """The number of rows returned so far."""

    def _needed(self, every: tuple[Column, ...]) -> tuple[Column, ...]:
        """Return the columns to read, among the visible columns of the entity type."""
        use, is_change = self.use, self.use.changes is not None
        named = [each for each in every if use.names is None or each.name.lower() in use.names]
        # If the statement names no column of the images, give DuckDB all: its errors can then hint at names.
        columns = tuple(named or (every if is_change else ()))
        columns = every if self._with_misfits else columns
        refuse_alike(use, columns if is_change else named)
        return columns

    def _shown_of(self, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        if self.use.shown is not None:
            columns = self.use.shown.columns(columns)
        return columns if self._shown is None else self._shown.columns(columns)

    def _arrow_schema(self) -> pa.Schema:
        names = self.use.names
        if self.use.changes is None:
            taken = {column.name.lower() for column in self._columns}
            more = [(name, kind) for name, kind in self._own.items() if name not in taken]
            fields = [*self._typed.schema, *(pa.field(*each) for each in more)]
        else:
            fields = [pa.field(*each) for each in self._own.items()]
            if self._form is None:
                image = pa.struct(list(self._typed.schema))
                fields += [pa.field(name, image) for name in _IMAGES]
            else:
                fields += self._form.fields
        chosen = [each for each in fields if names is None or each.name.lower() in names]
        # DuckDB takes a table without columns for empty, but count(*) needs its rows: give it one column.
        return pa.schema(chosen or [pa.field("_index", pa.int32())])

    def batches(self) -> pa.RecordBatchReader:
        """Return a reader that reads each batch from the log when it is requested."""
        return pa.RecordBatchReader.from_batches(self.schema, self._read())

    def _read(self) -> Iterator[pa.RecordBatch]:
        parts = self._state() if self.use.changes is None else self._changes()
        for part in parts:
            if self._stopped():
                raise InvalidRequest("the statement was stopped")
            self.rows += len(part)
            yield part

    # State.

    def _state(self) -> Iterator[pa.RecordBatch]:
        behind: StatePlace | None = None
        while True:
            try:
                table = self._table_state()
                for rows in self._state_parts(table, behind):
                    if len(shown := self._in_state(rows)):
                        yield from self._state_batches(shown)
                    if len(rows):
                        behind = rows.place(-1)
            except SegmentMissing as missing:
                # Retry with the newer view: `behind` is the last row that was returned, so no row is repeated.
                self._view = self._source.newer(missing)
            else:
                return

    def _table_state(self) -> TableState:
        use = self.use
        read = (self._view, self._source.reader, use.entity_type, use.version)
        return table_state(*read, self._source.on_damage)

    def _state_parts(self, table: TableState, behind: StatePlace | None) -> Iterable[StateRows]:
        """Return the rows of the state after a place, in parts."""
        use = self.use
        return table.parts(behind) if use.keys is None else [table.rows_of(use.keys)]

    def _in_state(self, rows: StateRows) -> StateRows:
        """Return the rows that are granted and, if the table is a view, meet its condition.

        Raises:
            InvalidRequest: It is unknown if one of the rows is in the view, which SQL cannot express.
        """
        assert self._rows_seen is not None
        seen, is_sure = self._rows_seen.rows(rows)
        if not is_sure.all():
            row = int(np.flatnonzero(~is_sure)[0])
            raise unsure_row(self.use, int(seen.versions[row]), int(seen.indexes[row]))
        return seen

    def _state_batches(self, rows: StateRows) -> Iterator[pa.RecordBatch]:
        # A row without a key is in the table once for each time it was inserted.
        return map(self._state_batch, rows.repeated(_PART_ROWS, _FEW_BYTES))

    def _state_batch(self, rows: StateRows) -> pa.RecordBatch:
        typed, misfits = self._typed.read(
            *(rows.images, rows.versions, rows.indexes, rows.primary_keys),
            with_misfits=self._with_misfits,
        )
        arrays = dict(zip(typed.schema.names, typed.columns, strict=True))
        more = {
            "_primary_key": lambda: rows.primary_keys,
            "_version": lambda: pa.array(rows.versions),
            "_index": lambda: pa.array(rows.indexes),
            "_commit_timestamp": lambda: self._times(rows.versions),
            MISFITS: lambda: misfits_array(len(rows), misfits),
        }
        arrays |= {name: more[name]() for name in self.schema.names if name not in arrays}
        return pa.record_batch([arrays[name] for name in self.schema.names], schema=self.schema)

    def _times(self, versions: NDArray[np.int64]) -> pa.Array:
        """Return the commit times of versions; null if the log no longer has the time."""
        found = self._view.known_timestamps_of(versions)
        times = pa.array(found, mask=None if found.all() else found == 0)
        return times.view(TIMESTAMP)

    def amount(self) -> Amount | None:
        """Return how much of the log the scan will read, as far as this is known without reading.

        Returns None if the caller may not see all of the log: the figures would reveal whether a hidden key
        exists. The bytes are an upper bound. They include the images of all batches, but only those of batches
        with matching rows are read.
        """
        if self._source.shown is not None:
            return None
        use, view = self.use, self._view
        base = size = 0
        images: tuple[str, ...] = ("after",)
        if use.changes is None:
            state = self._table_state()
            base, size = state.base_version, state.base_bytes if use.keys is None else 0
            first, last = base + 1, use.version
        else:
            first, last = use.versions.both(use.changes)
            images = self._images
        found = self._table.batches_of(first - 1, last, self._wanted) if first <= last else ()
        refs = [ref for _, ref in found]
        for ref in refs:
            lengths = zip(BODY_COLUMNS, ref.body_lengths, strict=True)
            size += ref.head_length + sum(length for name, length in lengths if name in images)
        return Amount(base, len(refs), size, len(view), view.bytes_from(view.oldest))

    # Changes.

    def _changes(self) -> Iterator[pa.RecordBatch]:
        assert self.use.changes is not None
        if self.use.newest_first:
            yield from self._newest_first(*self.use.versions.both(self.use.changes))
            return
        begin, end = self._range()

        def behind(
            view: LogView, done: Position
        ) -> Iterator[tuple[pa.RecordBatch | None, Position]]:
            self._view = view
            return self._changes_behind(done, end)

        if begin < end:
            yield from resumed(replace(self._source, view=self._view), begin, behind)

    def _range(self) -> tuple[Position, Position]:
        """Return the positions just before and just after the changes to read."""
        assert self.use.changes is not None
        first, last = self.use.versions.both(self.use.changes)
        return Position(first - 1, END), Position(last + 1, 0)

    def _newest_first(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield the changes of some versions, newest first."""
        end = Position(last + 1, 0)  # changes at and after this position have been yielded
        while first <= last:
            table, done = self._table, Position(first - 1, END)
            refs = [each for _, each in table.batches_of(first - 1, end.version, self._wanted)]
            try:
                for batch in self._read_batches(table, reversed(refs)):
                    head, chosen, bodies = self._chosen(table, batch, done, end)
                    for part in self._parts(chosen[::-1]):
                        yield self._changes_batch(head, np.ascontiguousarray(part), bodies)
                        end = Position(int(head.versions[part[-1]]), int(head.indexes[part[-1]]))
                    end = min(end, batch.ref.first)
            except SegmentMissing as missing:
                self._view = view = self._source.newer(missing)
                # The scan still needs the oldest of its versions, and the newer view no longer has them.
                if Position(first, 0) < view.oldest:
                    newest = Position(view.published, END)
                    raise PositionCompacted(done, view.oldest, newest) from None
            else:
                return

    def _changes_behind(
        self, done: Position, end: Position
    ) -> Iterator[tuple[pa.RecordBatch | None, Position]]:
        """Yield the changes between two positions (exclusive), each part with its last position.

        A part of None only moves the position on, to the end of a batch.
        """
        table = self._table
        after = done.version - 1 if done.index != END else done.version
        found = table.batches_of(after, end.preceding().version, self._wanted)
        few: list[TakenRecords] = []
        for batch in self._read_batches(table, (ref for _, ref in found)):
            head, chosen, bodies = self._chosen(table, batch, done, end)
            # A lookup by key matches few records of each batch. Join them: decoding several batches together
            # costs about as much as decoding one.
            if self._form is None and self.use.keys is not None and len(chosen) <= _FEW_ROWS:
                if len(chosen):
                    few.append(TakenRecords.of(head, chosen, bodies))
                if len(few) < _FEW_BATCHES and sum(each.nbytes for each in few) < _FEW_BYTES:
                    continue
                # This batch's rows are among the joined ones now. Else the joined rows come first, in the order
                # of the log.
                chosen = chosen[:0]
            if few:
                yield from self._joined(few)
                few = []
            for part in self._parts(chosen):
                position = Position(int(head.versions[part[-1]]), int(head.indexes[part[-1]]))
                for each in self._change_batches(head, part, bodies):
                    yield each, position
            yield None, batch.ref.last
        if few:
            yield from self._joined(few)

    def _joined(self, few: list[TakenRecords]) -> Iterator[tuple[pa.RecordBatch, Position]]:
        taken = TakenRecords.joined(few)
        position = Position(int(taken.versions[-1]), int(taken.indexes[-1]))
        for each in self._change_batches(taken, np.arange(len(taken)), taken.bodies):
            yield each, position

    def _change_batches(
        self, head: RecordColumns, rows: NDArray[np.int64], bodies: Mapping[str, pa.BinaryArray]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches of some records; reading them raises no ``SegmentMissing``."""
        yield self._changes_batch(head, rows, bodies)

    def _read_batches(self, table: LogTable, refs: Iterable[BatchRef]) -> Iterator[ReadBatch]:
        """Yield batches in their order, read by one thread for each bucket of a change table."""
        threads = 1 if self.use.form is None else self.use.form.salt_buckets
        return read_batches(table.reader, refs, self._images, self._rows, threads)

    def _chosen(
        self, table: LogTable, batch: ReadBatch, done: Position, end: Position
    ) -> tuple[BatchHead, NDArray[np.int64], Mapping[str, pa.BinaryArray]]:
        """Return a batch's head, its visible changes between two positions (exclusive), and their bodies."""
        ref, head = batch.ref, batch.head
        rows = self._rows(head)
        if ref.first <= done or ref.last >= end:
            rows = rows[are_between(head.versions[rows], head.indexes[rows], done, end)]
        chosen, seen = self._meant(head, rows), self._changes_seen
        if self._shown is not None:
            chosen = self._shown.granted_names(head, chosen)
        # Drop the rows that the head alone rules out before any image is read.
        if seen is not None and not seen.evaluates and len(chosen):
            chosen = seen.changes(head, chosen, {}).rows
        if self._images:
            table.refuse_expired(ref, chosen)
        bodies = batch.bodies or (table.reader.body(ref, self._images) if len(chosen) else {})
        if seen is not None and seen.evaluates and len(chosen):
            head, bodies, chosen = seen.changes(head, chosen, bodies)
            chosen = self._of_kinds(head, chosen)
        return head, chosen, bodies

    def _rows(self, head: BatchHead) -> NDArray[np.int64]:
        """Return the records of a batch that belong to the table and whose key hashes match the requested keys.

        Different keys may have one hash: ``_meant`` compares the keys themselves.
        """
        names, view = self._names, self._view
        # Compare hashes first: few records remain, so that the costlier tests run on these only.
        if self._all_hashes is not None:
            rows = np.flatnonzero(self._all_hashes.of(head.key_hashes) & (head.areas == Area.DATA))
            codes, versions = head.type_codes[rows], head.versions[rows]
            if len(rows):
                rows = rows[names.rows_in(view, codes, head.entity_types, versions)]
            return rows
        mine = names.rows_in(view, head.type_codes, head.entity_types, head.versions)
        return np.flatnonzero(mine & (head.areas == Area.DATA))

    def _meant(self, head: BatchHead, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the given records that have a requested key and a requested kind of change."""
        use = self.use
        if use.keys is not None and len(rows):
            keys = head.primary_keys.take(pa.array(rows))
            named = pc.is_in(keys, value_set=pa.array(use.keys, pa.string()))
            rows = rows[named.to_numpy(zero_copy_only=False)]
        # If conditions on rows apply, an update may appear to the caller as an insert or a delete. The kind is
        # known only after the rows are evaluated.
        return rows if self._evaluates else self._of_kinds(head, rows)

    def _of_kinds(self, head: BatchHead, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        wanted = self.use.change_types
        if wanted is not None and len(rows):
            kinds = np.array([each in wanted for each in CHANGE_TYPES])
            rows = rows[kinds[change_codes(head, rows)]]
        return rows

    @property
    def _evaluates(self) -> bool:
        """True if conditions on the values of rows decide which changes are visible."""
        return self._changes_seen is not None and self._changes_seen.evaluates

    def _parts(self, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Yield rows in parts of bounded size; the first parts are smaller."""
        start = 0
        while start < len(rows):
            stop = start + (_FIRST_ROWS if self.rows < _PART_ROWS else _PART_ROWS)
            yield rows[start:stop]
            start = stop

    @property
    def _table(self) -> LogTable:
        names, view = self._names, self._view
        return LogTable(view, self._source.reader, names, names.first_name(view), counted=False)

    @cached_property
    def _wanted(self) -> Wanted:
        if self.use.keys is None:
            return Wanted()
        seed = type_seed(self._names.first_name(self._view))
        hashes = [key_hash(seed, key) for key in self.use.keys]
        return Wanted(chosen=np.unique(np.array(hashes, np.uint64)))

    @cached_property
    def _all_hashes(self) -> Wanted | None:
        """Hashes of the keys under every name that the entity type has had; None: all keys are requested."""
        if self.use.keys is None:
            return None
        names = {*map(self._names.name_in, self._view.schemas())}
        seeds = [type_seed(name) for name in names if name is not None]
        hashes = [key_hash(seed, key) for seed in seeds for key in self.use.keys]
        return Wanted(chosen=np.array(hashes, np.uint64))

    @cached_property
    def _images(self) -> tuple[str, ...]:
        needed = _IMAGES if self._evaluates else ()
        if self._form is not None:
            return tuple(dict.fromkeys((*self._form.bodies, *needed)))
        return needed or self._images_shown

    @cached_property
    def _images_shown(self) -> tuple[str, ...]:
        if self._with_misfits:
            return _IMAGES
        return tuple(each for each in _IMAGES if each in self.schema.names)

    def _changes_batch(
        self, head: RecordColumns, rows: NDArray[np.int64], bodies: Mapping[str, pa.BinaryArray]
    ) -> pa.RecordBatch:
        places = pa.array(rows)
        versions, indexes = head.versions[rows], head.indexes[rows]
        misfits: dict[int, dict[str, object]] = {}
        if self._form is None:
            images = self._images_shown
            more = {each: self._image_structs(each, bodies, head, rows, misfits) for each in images}
        else:
            more = self._form.arrays(head, rows, bodies, misfits)
        more[MISFITS] = misfits_array(len(rows), misfits)
        arrays = []
        for name in self.schema.names:
            match name:
                case "_commit_version":
                    arrays.append(pa.array(versions))
                case "_index":
                    arrays.append(pa.array(indexes))
                case "_commit_timestamp":
                    arrays.append(self._times(versions))
                case "_change_type":
                    arrays.append(change_types(head, rows))
                case "_primary_key":
                    arrays.append(head.primary_keys.take(places))
                case _:
                    arrays.append(more[name])
        return pa.record_batch(arrays, schema=self.schema)

    def _image_structs(
        self,
        name: str,
        bodies: Mapping[str, pa.BinaryArray],
        head: RecordColumns,
        rows: NDArray[np.int64],
        misfits: dict[int, dict[str, object]],
    ) -> pa.Array:
        """Return the images of one kind as structures, and add the texts of their misfits by row."""
        places, found = pa.array(rows), bodies[name]
        images = found if found.null_count == len(found) else found.take(places)
        if images.null_count == len(images):  # as before inserts
            return pa.nulls(len(rows), pa.struct(list(self._typed.schema)))
        keys = None if self._shown is None else head.primary_keys.take(places)
        at = (head.versions[rows], head.indexes[rows])
        typed, texts = self._typed.read(images, *at, keys, with_misfits=self._with_misfits)
        for row, each in texts.items():
            misfits.setdefault(row, {})[name] = each
        fields = list(typed.schema)
        return pa.StructArray.from_arrays(typed.columns, fields=fields, mask=images.is_null())
