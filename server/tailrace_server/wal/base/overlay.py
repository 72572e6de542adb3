"""The merge of a base's rows with the later changes in the log; or these changes without the base.

Both rows and changes are sorted by (key hash, key), so they can be merged while they are read: one batch of the
base at a time, and one window of winners at a time. A winner is the last record of a key in the log. A window
is a range of winners whose images are read together::

    base      ▆▆▆▆▆▆ ▆▆▆▆▆▆ ▆▆▆▆▆▆ ▆▆▆▆▆▆      batches
    log         ▂ ▂     ▂      ▂     ▂ ▂       winners; a removal hides the base's row of its key
    merged    ▆▆▆▆▆▆ ▆▆▆▆▆▆ ▆▆▆▆▆▆ ▆▆▆▆▆▆      rows of keys without a winner, and the winners' rows

The winners of neighbouring keys are spread over the whole log. So a window has many keys, and its images are
read batch by batch: each batch of the log is read once for a window, however many winners it has.

``TableChanges`` has the changes from the state at one version to the state at another, and reads no unchanged
rows::

    state at 40   +   changes of 41 … 57   =   state at 57
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tailrace_server.wal.base.base_files import read_batch
from tailrace_server.wal.base.counts import added_counts
from tailrace_server.wal.base.state_rows import (
    NO_ROWS,
    StatePlace,
    StateRows,
    joined_rows,
    rows_up_to,
)
from tailrace_server.wal.base.winners import (
    HASHES_END,
    FoldBounds,
    Wanted,
    Winners,
    are_equal,
    batch_and_row,
    fold,
    ordered,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tailrace_server.wal.base.winners import LogTable
    from tailrace_server.wal.files.sequence_documents import BaseTableDocument
    from tailrace_server.wal.segment.reader import BatchReader


def images_of(table: LogTable, places: npt.NDArray[np.int64], bounds: FoldBounds) -> pa.BinaryArray:
    """Return the ``after`` images of the first records: at least one, and as many as the bounds allow.

    Args:
        table: The table that has the records.
        places: Places of the records, in the order of their keys, shape (n,); at least one.
        bounds: The most rows and bytes to read. A single image may be larger.

    Raises:
        BodiesExpired: One of the images has expired.
    """
    # 1. Sort the records by batch, so that each batch is read once.
    count = min(len(places), bounds.image_rows)
    order = np.argsort(places[:count], kind="stable")
    batches, rows = batch_and_row(places[:count][order])
    borders = [0, *(np.flatnonzero(np.diff(batches)) + 1).tolist(), count]
    parts: list[tuple[npt.NDArray[np.int64], pa.BinaryArray]] = []
    gathered = 0
    for start, stop in pairwise(borders):
        ref = table.view.batch(int(batches[start]))
        mine = order[start:stop]
        within = mine < count
        if not within.any():
            continue
        table.refuse_expired(ref, rows[start:stop][within])
        found = table.reader.body(ref, ("after",))["after"].take(pa.array(rows[start:stop][within]))
        parts.append((mine[within], found))
        gathered += found.nbytes
        # 2. Too many bytes: leave the upper half of the records to the next window, and drop their images.
        while gathered > bounds.image_bytes and count > 1:
            count //= 2
            parts = [
                (each[each < count], images.filter(pa.array(each < count)))
                for each, images in parts
            ]
            gathered = sum(images.nbytes for _, images in parts)
    # 3. Bring the images back into the order of the records.
    back = np.empty(count, np.int64)
    back[np.concatenate([each for each, _ in parts])] = np.arange(count)
    return pa.concat_arrays([images for _, images in parts]).take(pa.array(back))


class BaseRows:
    """Reads the wanted rows of a table in a base, in order, batch by batch."""

    def __init__(
        self, reader: BatchReader, table: BaseTableDocument | None, wanted: Wanted
    ) -> None:
        """Prepare to read; ``until`` reads.

        Args:
            reader: Reads the files.
            table: The table to read; None: a table without rows.
            wanted: Key hashes of the rows to return.
        """
        self._wanted = wanted
        self._batches = _batches(reader, table, wanted)
        self._left = NO_ROWS
        """Rows of the last batch that were not yielded yet."""

    def until(self, place: StatePlace | None, stop: int) -> Iterator[StateRows]:
        """Yield the next rows, at or before a place and below a key hash; no part is empty.

        Args:
            place: The last place to yield; None: no limit.
            stop: Key hash at which to stop, exclusive.
        """
        while True:
            if not len(self._left):
                found = next(self._batches, None)
                if found is None:
                    return
                places = self._wanted.places_in(found.key_hashes)
                self._left = found if len(places) == len(found) else found.taken(places)
                continue
            rows = self._left
            count = len(rows)
            if stop < HASHES_END:
                count = int(np.searchsorted(rows.key_hashes, np.uint64(stop), "left"))
            if place is not None:
                count = min(count, rows.count_up_to(place))
            self._left = rows.slice(count, len(rows))
            if count:
                yield rows.slice(0, count)
            if count < len(rows):
                return


def _batches(
    reader: BatchReader, table: BaseTableDocument | None, wanted: Wanted
) -> Iterator[StateRows]:
    for file in () if table is None else table.files:
        if file.last_hash[-1] < wanted.start or file.first_hash[0] >= wanted.stop:
            continue
        first, last = np.array(file.first_hash, np.uint64), np.array(file.last_hash, np.uint64)
        chosen = last >= np.uint64(wanted.start)
        if wanted.chosen is not None:
            # Hashes are sorted, so a hash can only be in a range of neighbouring batches, nearly always one.
            # Add +1 where each range begins and -1 where it ends: the running sum is above 0 inside of any
            # range.
            starts = np.searchsorted(last, wanted.chosen, "left")
            stops = np.searchsorted(first, wanted.chosen, "right")
            marks = np.zeros(len(first) + 1, np.int64)
            held = starts < stops
            np.add.at(marks, starts[held], 1)
            np.add.at(marks, stops[held], -1)
            chosen &= np.cumsum(marks)[:-1] > 0
        for place in np.flatnonzero(chosen).tolist():
            yield read_batch(reader, file, place)


def merged(
    table: LogTable, winners: Winners, base: BaseRows, stop: int, bounds: FoldBounds
) -> Iterator[StateRows]:
    """Yield the rows of a base, updated by the last records after the base; parts may be empty.

    Args:
        table: The table that has the records.
        winners: The last record of each key below ``stop`` that has records, including removals.
        base: The rows of the base.
        stop: Key hash at which the merge ends, exclusive.
        bounds: The most images to read at once.
    """
    start = 0
    while start < len(winners):
        window, rows = window_of(table, winners, start, bounds)
        start += len(window)
        last = StatePlace(int(window.hashes[-1]), window.keys[-1].as_py())
        # Merge each part of the base with the winners up to its last row. The last window has no limit here:
        # all of the base's rows below ``stop`` belong to it.
        done = 0
        for below in base.until(last if start < len(winners) else None, stop):
            end = rows_up_to(window.hashes, window.keys, below.place(-1))
            yield _overlaid(below, window.slice(done, end), _living(window, rows, done, end), table)
            done = end
        yield _living(window, rows, done, len(window))
    yield from base.until(None, stop)


def window_of(
    table: LogTable, winners: Winners, start: int, bounds: FoldBounds
) -> tuple[Winners, StateRows]:
    """Return the next winners whose images fit in memory together, and the rows of their keys."""
    window = winners.slice(start, min(start + bounds.image_rows, len(winners)))
    alive = np.flatnonzero(window.lives)
    if not len(alive):
        return window, NO_ROWS
    images = images_of(table, window.places[alive], bounds)
    if len(images) < len(alive):
        window = window.slice(0, int(alive[len(images)]))
        alive = alive[: len(images)]
    left = window.taken(alive)
    counts = left.diffs if table.counted else np.ones(len(left), np.int64)
    return window, StateRows(left.hashes, left.keys, left.versions, left.indexes, counts, images)


def rows_by_batch(table: LogTable, winners: Winners) -> Iterator[StateRows]:
    """Yield the rows of the last records of keys in the order of the log, batch by batch.

    Args:
        table: The table that has the records; it has a key.
        winners: The last records, without removals.
    """
    order = np.argsort(winners.places)
    batches, rows = batch_and_row(winners.places[order])
    borders = [*np.flatnonzero(np.diff(batches, prepend=-1)).tolist(), len(order)]
    for start, stop in pairwise(borders):
        ref = table.view.batch(int(batches[start]))
        mine = rows[start:stop]
        table.refuse_expired(ref, mine)
        images = table.reader.body(ref, ("after",))["after"]
        if len(mine) < len(images):
            images = images.take(pa.array(mine))
        each = winners.taken(order[start:stop])
        counts = np.ones(len(each), np.int64)
        yield StateRows(each.hashes, each.keys, each.versions, each.indexes, counts, images)


def _living(window: Winners, rows: StateRows, start: int, stop: int) -> StateRows:
    """Return the rows of the winners from ``start`` up to ``stop``, exclusive; removals have no row.

    Args:
        window: The winners.
        rows: The rows of all winners in the window that are not removals.
        start: The first winner.
        stop: The end of the winners.
    """
    first = int(np.count_nonzero(window.lives[:start]))
    return rows.slice(first, first + int(np.count_nonzero(window.lives[start:stop])))


def _overlaid(below: StateRows, winners: Winners, rows: StateRows, table: LogTable) -> StateRows:
    """Return the winners' rows together with the base's rows of all other keys, in order.

    Args:
        below: Rows of the base.
        winners: The winners in the same range of keys.
        rows: The rows of those winners that are not removals.
        table: The table of all of these.
    """
    if not len(winners):
        return below
    named = places_in(below, winners.hashes, winners.keys)
    replaced = named >= 0
    # In a table without keys, a winner has only what was added to the row's count.
    if table.counted and replaced.any():
        counts = np.zeros(len(winners), np.int64)
        counts[named[replaced]] = below.counts[replaced]
        counts = added_counts(rows.primary_keys, rows.counts, counts[winners.lives])
        rows = replace(rows, counts=counts)
    kept = below.taken(np.flatnonzero(~replaced)) if replaced.any() else below
    if not len(rows):
        return kept
    both = joined_rows([kept, rows])
    return both.taken(ordered(both.key_hashes, both.primary_keys)[0])


def places_in(
    rows: StateRows, hashes: npt.NDArray[np.uint64], keys: pa.StringArray
) -> npt.NDArray[np.int64]:
    """Return, for each row, the place of its key among sorted keys; -1 if it is not among them.

    Args:
        rows: Sorted rows.
        hashes: The hashes of the keys, sorted.
        keys: The keys, each once.
    """
    named = np.full(len(rows), -1, np.int64)
    found = np.flatnonzero(np.isin(rows.key_hashes, hashes))
    if not len(found):
        return named
    first = np.searchsorted(hashes, rows.key_hashes[found], "left")
    equal = are_equal(rows.primary_keys, found, keys, first)
    named[found[equal]] = first[equal]
    # Several keys with one hash are very rare: compare them one by one.
    for row, start in zip(found[~equal].tolist(), first[~equal].tolist(), strict=True):
        key = rows.primary_keys[row].as_py()
        stop = int(np.searchsorted(hashes, rows.key_hashes[row], "right"))
        for place in range(start, stop):
            if keys[place].as_py() == key:
                named[row] = place
    return named


_BOUNDS: Final = FoldBounds()


@dataclass(frozen=True, slots=True, eq=False)
class ChangedRows:
    """A part of the changes of a table, sorted by (key hash, key)."""

    rows: StateRows
    """The rows of the changed keys whose last record is no removal. In a table without keys, ``counts`` has the
    number that was added to each row's count."""
    removed: Winners
    """The changed keys whose last record is a removal. In a table without keys, ``diffs`` has the number that
    was added to each row's count."""


class TableChanges:
    """The changes of a table after one version and up to another. Read ``parts`` only once; calls block."""

    def __init__(self, table: LogTable, after: int, version: int) -> None:
        """Read the heads of the records; ``parts`` reads the images.

        Args:
            table: The table in the log; its view must include ``version``.
            after: The version before the changes; the log must have all versions above it.
            version: The last version, inclusive.

        Raises:
            LogCorrupted: A part of the log that is read is damaged.
            SegmentMissing: A file was deleted: begin again with a newer view.
        """
        self._table, self._after, self._version = table, after, version
        self._first = fold(table, after, version, Wanted(), _BOUNDS, whole=False)

    @property
    def truncated(self) -> bool:
        """True if the changes include a truncate. Then all older rows are removed, and ``parts`` omits them."""
        return self._first.truncated

    def parts(self) -> Iterator[ChangedRows]:
        """Yield the changes, in parts of bounded images. Raises the same errors as the constructor."""
        found, wanted = self._first, Wanted()
        while True:
            start = 0
            while start < len(found.winners):
                window, rows = window_of(self._table, found.winners, start, _BOUNDS)
                start += len(window)
                yield ChangedRows(rows, window.taken(~window.lives))
            if found.stop >= wanted.stop:
                return
            wanted = replace(wanted, start=found.stop)
            found = fold(self._table, self._after, self._version, wanted, _BOUNDS, whole=False)
