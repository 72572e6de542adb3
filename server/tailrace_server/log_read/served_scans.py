"""Scans of a catalog behind a server: the rows of `row_scans`, `net_changes` and `captures`.

The server filters changes by the condition of the request. The rows of a state are filtered here too, since
their condition names the columns of the plan's version.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area, Content, Criteria
from tailrace.errors import InvalidRequest
from tailrace.position import END, Position
from tailrace_server.log_read.bounds import RecordRange, following
from tailrace_server.log_read.captures import CaptureScan
from tailrace_server.log_read.net_changes import NetChangeScan, Window
from tailrace_server.log_read.row_columns import rows_met
from tailrace_server.log_read.row_scans import ChangeRowScan, StateRowScan, TruncatedRowScan
from tailrace_server.log_read.served_rows import (
    PartOfVersion,
    ServedRecords,
    as_seen,
    ranked,
    state_rows,
)
from tailrace_server.wal.base.state_rows import NO_ROWS, StatePlace, joined_rows
from tailrace_server.wal.base.winners import Winners
from tailrace_server.wal.record.columns import multiplicity_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tailrace_server.log_read.request import ReadRequest
    from tailrace_server.log_read.served_catalog import ServedCatalog
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.state.entity_names import EntityNames
    from tailrace_server.wal.state.view import LogView

_CONTENTS: Final = {"change": Content.CHANGE, "before": Content.BEFORE, "after": Content.AFTER}
_KEYS_AT_ONCE: Final = 100_000
"""About the number of keys whose last records are in memory."""
_CHUNK: Final = 1_000
"""Keys whose rows are looked up at once."""


def _names_in(names: EntityNames, view: LogView) -> tuple[str, ...]:
    """Return all names that a table has had."""
    found = {*map(names.name_in, view.schemas())} - {None}
    return tuple(sorted(each for each in found if each is not None))


def rows_before(
    log: ServedCatalog,
    names: EntityNames,
    position: Position,
    keys: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
) -> Iterator[tuple[StateRows, LogView]]:
    """Yield the rows of a table just before a position, each part with a view that knows its commit times.

    The records of the position's own version before it are held in memory.

    Args:
        log: The log.
        names: The names of the table.
        position: The position.
        keys: The only keys to read; None: all.
        columns: Names of the columns in the images; None: all.
        where: A condition that the server applies too; only for a position at which a version begins.
    """
    view, part = log.view, PartOfVersion()
    at = position.preceding().version if position.index == 0 else position.version - 1
    own_view = view
    if position.index:
        span = RecordRange(Position(at, END), position)
        criteria = Criteria(
            area=Area.DATA, entity_type=_names_in(names, view), primary_key=tuple(keys or ())
        )
        for captures in log.changes((criteria,), span, Content.AFTER | Content.CHANGE):
            part.add(as_seen(captures, names.first_name(view)))
            own_view = _timed(view, [captures[-1].version], [captures[-1].commit_timestamp])
    schemas = (view.schema_of(each) for each in (at, view.published))
    name = next(filter(None, map(names.name_in, schemas)), None)
    if name is not None and at:
        for found in log.rows(name, at, keys, columns, where):
            rows = part.over(state_rows(found))
            times = [each.commit_timestamp for each in found]
            yield rows, _timed(view, [each.position.version for each in found], times)
    if len(own := part.own()):
        yield own, own_view


class ServedCaptureScan(CaptureScan):
    """The scan of the records of a range."""

    def __init__(
        self, log: ServedCatalog, request: ReadRequest, version: int, span: RecordRange
    ) -> None:
        """Prepare to read; the arguments are those of `CaptureScan`."""
        self._log, self._whole = log, span
        super().__init__(log.source(), request, version, span)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches, each when it is requested."""
        view, names = self._log.view, self._names
        criteria = () if names is None else (Criteria(entity_type=_names_in(names, view)),)
        content = Content.HEADER
        for name in self._bodies:
            content |= _CONTENTS[name]
        for captures in self._log.changes(criteria, self._whole, content):
            head = ServedRecords.of(captures)
            batch = self._batch(_timed(view, head.versions, head.times), head, head.bodies)
            if names is not None:
                given = (head.type_codes, head.entity_types, head.versions)
                batch = batch.filter(pa.array(names.rows_in(view, *given)))
            if len(batch):
                yield batch


class ServedStateScan(StateRowScan):
    """The scan of the rows of a state."""

    def __init__(self, log: ServedCatalog, request: ReadRequest, version: int, at: int) -> None:
        """Prepare to read; the arguments are those of `StateRowScan`."""
        self._log = log
        super().__init__(log.source(), request, version, at)

    def _state(self) -> Iterator[pa.RecordBatch]:
        # The server knows columns and conditions by their names at the version that is read.
        is_named = self.use.version == self._at
        columns = [each.name for each in self._columns]
        where = self._request.where if is_named else None
        narrow = columns if is_named and where is None else None
        given = (Position(self._at + 1, 0), self.use.keys, narrow, where)
        for rows, view in rows_before(self._log, self._names, *given):
            self._view = view
            if len(shown := self._in_state(rows)):
                yield from self._state_batches(shown)


class ServedChangeScan(ChangeRowScan):
    """The scan of the change rows of a range."""

    def __init__(
        self, log: ServedCatalog, request: ReadRequest, version: int, span: RecordRange
    ) -> None:
        """Prepare to read; the arguments are those of `ChangeRowScan`.

        Raises:
            InvalidRequest: The condition cannot be applied, since the table had another name.
        """
        self._log, self._whole, self._asked = log, span, request
        super().__init__(log.source(), replace(request, where=None), version, span)
        rows_met(log.view, request, version)
        names = _names_in(self._names, log.view)
        if request.where is not None and len(names) > 1:
            raise InvalidRequest(
                f"where: {request.entity_type} was once {names[0]!r}, and a server applies a condition under "
                "one name only: filter the rows that are read, or leave option server out"
            )
        at = None if request.where is None else version
        self._criteria = Criteria(Area.DATA, names, where=request.where, where_version=at)

    def _changes(self) -> Iterator[pa.RecordBatch]:
        content, view = Content.HEADER, self._log.view
        for name in self._images:
            content |= _CONTENTS[name]
        for captures in self._log.changes((self._criteria,), self._whole, content):
            head = ServedRecords.of(as_seen(captures, self.use.entity_type))
            self._view = _timed(view, head.versions, head.times)
            given = (head.type_codes, head.entity_types, head.versions)
            rows = np.flatnonzero(self._names.rows_in(view, *given) & (head.areas == Area.DATA))
            if len(rows):
                yield from self._change_batches(head, rows, head.bodies)

    def _truncated(self, at: Position) -> Iterator[pa.RecordBatch]:
        source = replace(self._source, view=self._view)
        scan = TruncatedRowScan(source, self._asked, self.use.version, at)
        for rows, _ in rows_before(self._log, self._names, at):
            yield from scan.batches_of(rows)


class ServedNetChangeScan(NetChangeScan):
    """The scan of the net changes of a range: the rows before and after of the keys that it has.

    The last records of the keys are read in the order of the keys, as many keys at once as memory may hold.
    """

    def __init__(
        self, log: ServedCatalog, request: ReadRequest, version: int, span: RecordRange
    ) -> None:
        """Prepare to read; the arguments are those of `NetChangeScan`."""
        self._log, self._whole = log, span
        self._last_truncate: Position | None = None
        self._counts = False
        """True if records of the range count equal rows."""
        super().__init__(log.source(), request, version, span, (0, 1 << 64))

    @property
    def _truncate(self) -> Position:
        assert self._last_truncate is not None, "a row that no record of the range removes"
        return self._last_truncate

    def _windows(self, behind: StatePlace | None) -> Iterator[tuple[Window, StatePlace]]:
        place, after = StatePlace(0, ""), None
        begin = following(self._whole.begin)
        while True:
            last, stop = self._last_records(after)
            keys = last["key"].combine_chunks()
            versions, indexes = (last[each].to_numpy() for each in ("version", "index"))
            view = self._view = _timed(self._log.view, *self._times_of(last))
            # 1. Compare the rows of the keys that the range has.
            for start in range(0, len(keys), _CHUNK):
                some = keys.slice(start, _CHUNK)
                before, behind_it = (
                    self._state_of(each, some) for each in (begin, self._whole.end)
                )
                self._view = view
                stop_at = start + len(some)
                winners = _winners(some, versions[start:stop_at], indexes[start:stop_at])
                yield Window(before, behind_it, self._counts, winners), place
            # 2. All other rows before are removed by a truncate, if there is one.
            for rows, _ in (
                rows_before(self._log, self._names, begin) if self._last_truncate else ()
            ):
                mine = ~pc.is_in(rows.primary_keys, value_set=keys).to_numpy(zero_copy_only=False)
                mine &= _are_within(rows.primary_keys, after, stop)
                gone = rows.taken(np.flatnonzero(mine))
                self._view = view
                none = _winners(keys.slice(0, 0), versions[:0], indexes[:0])
                if len(gone):
                    ordered = ranked(gone, gone.primary_keys)
                    yield Window(ordered, NO_ROWS, not self._has_key, none), place
            if stop is None:
                return
            after = stop

    def _state_of(self, position: Position, keys: pa.StringArray) -> StateRows:
        found = [
            rows for rows, _ in rows_before(self._log, self._names, position, keys.to_pylist())
        ]
        return ranked(joined_rows(found), keys)

    def _times_of(self, last: pa.Table) -> tuple[NDArray[Any], NDArray[Any]]:
        versions, times = (last[each].to_numpy() for each in ("version", "time"))
        if self._last_truncate is not None:
            versions = np.append(versions, self._last_truncate.version)
            times = np.append(times, self._truncate_time)
        return versions, times

    def _last_records(self, after: str | None) -> tuple[pa.Table, str | None]:
        """Return the last record of each key of a range of keys, in their order.

        Args:
            after: The key before the range; None: the first.

        Returns:
            The columns key, version, index and time; and the last key of the range, None if it has all keys.
        """
        view, stop = self._log.view, None
        criteria = Criteria(Area.DATA, _names_in(self._names, view))
        content = Content.HEADER if self._has_key else Content.CHANGE
        found: list[pa.Table] = []
        first = True
        for captures in self._log.changes((criteria,), self._whole, content):
            head = ServedRecords.of(captures)
            given = (head.type_codes, head.entity_types, head.versions)
            mine = self._names.rows_in(view, *given) & (head.areas == Area.DATA)
            keyed = head.primary_keys.is_valid().to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(mine & ~keyed)[-1:].tolist():
                self._last_truncate = Position(int(head.versions[row]), int(head.indexes[row]))
                self._truncate_time = int(head.times[row])
                # Of a key, only records after the truncate count.
                found, mine[:row] = [], False
            mine &= keyed
            if first and mine.any():
                row, first = int(np.flatnonzero(mine)[0]), False
                change = head.bodies["change"][row].as_py()
                is_listed = head.changed[row].is_valid
                self._counts = change is not None and not is_listed and not self._has_key
                self._counts = self._counts and multiplicity_of(change) is not None
            mine &= _are_within(head.primary_keys, after, stop)
            if not mine.any():
                continue
            found.append(
                pa.table(
                    {
                        "key": head.primary_keys,
                        "version": head.versions,
                        "index": head.indexes,
                        "time": head.times,
                    }
                ).filter(pa.array(mine))
            )
            if sum(map(len, found)) > 2 * _KEYS_AT_ONCE:
                found = [_last_of_each(found)]
                if len(found[0]) > _KEYS_AT_ONCE:
                    found = [found[0].slice(0, _KEYS_AT_ONCE)]
                    stop = found[0]["key"][-1].as_py()
        return _last_of_each(found), stop


def _winners(
    keys: pa.StringArray, versions: NDArray[np.int64], indexes: NDArray[np.int32]
) -> Winners:
    """Return the last records of keys, with the place of each key as its hash."""
    none = np.zeros(len(keys), np.int64)
    hashes = np.arange(len(keys), dtype=np.uint64)
    return Winners(keys, hashes, none, versions, indexes, none.astype(np.bool_), none)


def _last_of_each(found: Sequence[pa.Table]) -> pa.Table:
    """Return the last row of each key, in the order of the keys."""
    if not found:
        kinds = {"version": pa.int64(), "index": pa.int32(), "time": pa.int64()}
        return pa.schema({"key": pa.string(), **kinds}).empty_table()
    table = pa.concat_tables(found)
    table = table.append_column("row", pa.array(np.arange(len(table))))
    rows = table.group_by("key").aggregate([("row", "max")])["row_max"]
    return table.take(rows).drop_columns(["row"]).sort_by("key")


def _are_within(keys: pa.StringArray, after: str | None, stop: str | None) -> NDArray[Any]:
    """Return a mask of the keys after one key and up to another; None: no bound."""
    mine = np.ones(len(keys), np.bool_)
    for bound, is_met in ((after, pc.greater), (stop, pc.less_equal)):
        if bound is not None:
            mine &= pc.fill_null(is_met(keys, bound), False).to_numpy(zero_copy_only=False)
    return mine


def _timed(view: LogView, versions: Any, times: Any) -> LogView:
    """Return a view that knows the commit times of some versions.

    Args:
        view: The log.
        versions: Versions in any order, with repetitions, shape (n,).
        times: The commit time of each, in µs; 0: the log no longer has it.
    """
    found, first = np.unique(versions, return_index=True)
    commits = np.stack([found, np.asarray(times, np.int64)[first]])
    return replace(view, _commits=commits, _commit_count=len(found))
