"""The net change of each key over a range: the difference between two states, as change rows.

==========  =========  ================================================================================
row before  row after  change rows
==========  =========  ================================================================================
no          yes        ``insert``
yes         no         ``delete``
yes         yes        ``update_preimage`` and ``update_postimage``, if a record of the range changed the
                       row; without ``compute_updates`` a ``delete`` and an ``insert``
no          no         none
==========  =========  ================================================================================

Both states and the last records of the range are read side by side, in the order of key hashes, so memory is
bounded. Only the keys that the range has are read, unless it has a truncate. A row has the version and the
position of its key's last record in the range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area
from tailrace.errors import PositionCompacted
from tailrace.position import END, Position
from tailrace_server.log_read.bounds import following
from tailrace_server.log_read.request import CHANGE_TYPES
from tailrace_server.log_read.row_columns import cursor_texts, rows_met
from tailrace_server.log_read.row_scans import RowScan, repeated_rows
from tailrace_server.sql.statements import Bounds, TableUse
from tailrace_server.sql.view_conditions import rows_in_view, unsure_row
from tailrace_server.wal.base.state_rows import NO_ROWS, joined_rows
from tailrace_server.wal.base.winners import FoldBounds, LogTable, Wanted, fold
from tailrace_server.wal.segment.parallel import are_between
from tailrace_server.wal.segment.reader import SegmentMissing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tailrace_server.log_read.request import ReadRequest
    from tailrace_server.sql.scans import LogSource
    from tailrace_server.wal.base.state_rows import StatePlace, StateRows
    from tailrace_server.wal.base.winners import Winners

_BOUNDS: Final = FoldBounds()
_INSERT, _PREIMAGE, _POSTIMAGE, _DELETE = range(4)
"""Places in CHANGE_TYPES."""


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """All that is known of the keys in a range of places."""

    before: StateRows
    after: StateRows
    counted: bool
    """True if the table has no key, so that rows have counts."""
    last: Winners
    """The last record of each key in the range; not of keys that only a truncate removed."""


class NetChangeScan(RowScan):
    """The scan of the net changes between two positions of keys whose hashes are in a range."""

    def __init__(
        self,
        source: LogSource,
        request: ReadRequest,
        version: int,
        span: tuple[Position, Position],
        hashes: tuple[int, int],
    ) -> None:
        """Prepare to read.

        Args:
            source: The log.
            request: The read.
            version: The version whose schema gives the columns.
            span: The positions just before the first and just after the last record.
            hashes: The first and the end (exclusive) of the range of key hashes.
        """
        self._span, self._hashes = span, Wanted(*hashes)
        name = request.entity_type or ""
        super().__init__(
            source, request, TableUse("", name, version, Bounds(0, version), None, None)
        )
        met = rows_met(source.view, request, version)
        self._of_state = replace(self.use, changes=None, rows_met=met)
        self._lens = rows_in_view(self._of_state, self._view, None)

    def _changes(self) -> Iterator[pa.RecordBatch]:
        behind: StatePlace | None = None
        while True:
            try:
                for window, place in self._windows(behind):
                    yield from self._of_window(window)
                    behind = place
            except SegmentMissing as missing:
                # A compaction replaced the file. `behind` is the last place that was returned.
                self._view = self._source.newer(missing)
                if self._span[0] < self._view.oldest.preceding():
                    newest = Position(self._view.published, END)
                    raise PositionCompacted(self._span[0], self._view.oldest, newest) from None
            else:
                return

    def _windows(self, behind: StatePlace | None) -> Iterator[tuple[Window, StatePlace]]:
        """Yield all keys after a place, in windows, each with its last place."""
        wanted = self._hashes
        if behind is not None:
            wanted = replace(wanted, start=max(wanted.start, behind.key_hash))
        begin, end = self._span
        view, names = self._view, self._names
        table = LogTable(
            *(view, self._source.reader, names, names.first_name(view)),
            counted=False,
            span=self._span,
        )
        first = begin.version if begin.index == END else begin.version - 1
        states = [self._state_before(each) for each in (following(begin), end)]
        while True:
            # 1. The last records say which keys to compare; after a truncate, all keys.
            found = fold(table, first, end.preceding().version, wanted, _BOUNDS, whole=False)
            chosen = None if found.truncated else np.unique(found.winners.hashes)
            mine = Wanted(wanted.start, found.stop, chosen)
            # 2. Cut the rows of both states at the smaller last place, so that each key is in one window.
            rest = [NO_ROWS, NO_ROWS]
            sides = [state.parts(behind, mine) for state in states]
            done = [False, False]
            while len(found.winners) or found.truncated:
                for side in (0, 1):
                    if not done[side] and not len(rest[side]):
                        rest[side] = next(sides[side], NO_ROWS)
                        done[side] = not len(rest[side])
                places = [rows.place(-1) for rows in rest if len(rows)]
                if not places:
                    break
                cut = min(places)
                counts = [rows.count_up_to(cut) for rows in rest]
                taken = [rows.slice(0, count) for rows, count in zip(rest, counts, strict=True)]
                rest = [rows.slice(n, len(rows)) for rows, n in zip(rest, counts, strict=True)]
                yield Window(taken[0], taken[1], states[1].counted, found.winners), cut
            if found.stop >= wanted.stop:
                return
            wanted = replace(wanted, start=found.stop)

    def _of_window(self, window: Window) -> Iterator[pa.RecordBatch]:
        before, after = (self._seen(rows) for rows in (window.before, window.after))
        # 1. Find the row after of each row before, and choose the rows that differ.
        partner = _places_in(before.primary_keys, after.primary_keys)
        stays = np.flatnonzero(partner >= 0)
        other = partner[stays]
        takes = [np.ones(len(before), np.int64), np.ones(len(after), np.int64)]
        if window.counted:
            takes = [np.maximum(rows.counts, 0) for rows in (before, after)]
            both = np.minimum(takes[0][stays], takes[1][other])
            takes[0][stays] -= both
            takes[1][other] -= both
        else:
            same = (before.versions[stays] == after.versions[other]) & (
                before.indexes[stays] == after.indexes[other]
            )
            takes[0][stays[same]] = takes[1][other[same]] = 0
        kinds = [np.full(len(before), _DELETE), np.full(len(after), _INSERT)]
        if self._request.compute_updates and not window.counted:
            kinds[0][stays], kinds[1][other] = _PREIMAGE, _POSTIMAGE
        # 2. Put both sides in the order of their keys, the row before first.
        rows, types = joined_rows([before, after]), np.concatenate(kinds)
        times = np.where(self._wants[types], np.concatenate(takes), 0)
        order = np.argsort(rows.key_hashes, kind="stable")
        order = order[times[order] > 0]
        for part in repeated_rows(len(order), times[order]):
            chosen = order if part is None else order[part]
            yield self._net_batch(rows.taken(chosen), types[chosen], window.last)

    def _seen(self, rows: StateRows) -> StateRows:
        """Return the rows that meet the condition of the request."""
        seen, is_sure = self._lens.rows(rows)
        if not is_sure.all():
            row = int(np.flatnonzero(~is_sure)[0])
            raise unsure_row(self._of_state, int(seen.versions[row]), int(seen.indexes[row]))
        return seen

    def _net_batch(
        self, rows: StateRows, types: NDArray[np.int64], last: Winners
    ) -> pa.RecordBatch:
        first = np.searchsorted(last.hashes, rows.key_hashes[0], "left")
        stop = np.searchsorted(last.hashes, rows.key_hashes[-1], "right")
        last = last.slice(int(first), int(stop))
        place = _places_in(rows.primary_keys, last.keys)
        versions, indexes = np.empty(len(rows), np.int64), np.empty(len(rows), np.int32)
        known = place >= 0
        versions[known], indexes[known] = last.versions[place[known]], last.indexes[place[known]]
        if not known.all():
            versions[~known], indexes[~known] = self._truncate
        own = {
            "_change_type": pa.array(CHANGE_TYPES).take(pa.array(types)),
            "_commit_version": pa.array(versions),
            "_commit_timestamp": self._times(versions),
            "_position": cursor_texts(self._view, versions, indexes),
        }
        return self._state_rows(rows, own)

    @cached_property
    def _truncate(self) -> Position:
        """The position of the last truncate in the range."""
        found = Position(0, 0)
        begin, end = self._span
        for _, ref in self._table.batches(begin.version - 1, end.preceding().version):
            head = self._source.reader.head(ref)
            mine = (head.areas == Area.DATA) & (head.key_hashes == 0)
            mine &= self._names.rows_in(
                self._view, head.type_codes, head.entity_types, head.versions
            )
            mine &= are_between(head.versions, head.indexes, begin, end)
            for row in np.flatnonzero(mine)[-1:].tolist():
                found = Position(int(head.versions[row]), int(head.indexes[row]))
        assert found.version, "a row that no record of the range removes"
        return found


def _places_in(keys: pa.StringArray, among: pa.StringArray) -> NDArray[np.int64]:
    """Return the place of each key among others; -1 for a key that is not among them."""
    found = pc.fill_null(pc.index_in(keys, value_set=among), -1)
    places: NDArray[np.int64] = found.to_numpy(zero_copy_only=False).astype(np.int64)
    return places
