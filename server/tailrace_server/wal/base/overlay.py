"""A base's rows with what the log says behind them.

Both come by (key hash, key), so they are merged as they come: of the base a batch at a time, of the log a
window of last records whose images were gathered at once::

    base      ▆▆▆▆▆▆ ▆▆▆▆▆▆ ▆▆▆▆▆▆ ▆▆▆▆▆▆      batches
    log         ▂ ▂     ▂      ▂     ▂ ▂       last records; those that remove hide rows of the base
    merged    ▆▆▆▆▆▆ ▆▆▆▆▆▆ ▆▆▆▆▆▆ ▆▆▆▆▆▆      each batch without the keys that the log names, and theirs
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tailrace_server.wal.base.base_files import read_batch
from tailrace_server.wal.base.counts import added_counts
from tailrace_server.wal.base.images import images_of
from tailrace_server.wal.base.state_rows import (
    NO_ROWS,
    StatePlace,
    StateRows,
    joined_rows,
    rows_up_to,
)
from tailrace_server.wal.base.winners import HASHES_END, Wanted, are_equal, ordered

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tailrace_server.wal.base.winners import FoldBounds, LogTable, Winners
    from tailrace_server.wal.files.base_documents import BaseTableDocument
    from tailrace_server.wal.segment.reader import BatchReader


class BaseRows:
    """The rows of a base's table from a key hash on, batch by batch."""

    def __init__(
        self, reader: BatchReader, table: BaseTableDocument | None, wanted: Wanted
    ) -> None:
        """Read nothing yet.

        Args:
            reader: Reads the files.
            table: What is read; None: no rows.
            wanted: The key hashes to choose.
        """
        self._wanted = wanted
        self._batches = _batches(reader, table, wanted)
        self._left = NO_ROWS
        """Of the batch that was read last, what has not been asked for."""

    def until(self, place: StatePlace | None, stop: int) -> Iterator[StateRows]:
        """Yield the next rows, up to a place and below a key hash; none empty."""
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
            # The batches that a hash may be in are neighbours, nearly always one.
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
    """Yield the rows of a base with the last records behind it in their place; some may be empty.

    Args:
        table: Where the records lie.
        winners: The last records of all keys that have any, removals among them, below ``stop``.
        base: The rows below them.
        stop: Key hash before which both are merged.
        bounds: What may be gathered.
    """
    start = 0
    while start < len(winners):
        window, rows = window_of(table, winners, start, bounds)
        start += len(window)
        last = StatePlace(int(window.hashes[-1]), window.keys[-1].as_py())
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
    """Return the next winners whose images can be held at once, and the rows that they leave."""
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


def _living(window: Winners, rows: StateRows, start: int, stop: int) -> StateRows:
    """Return the rows that some winners of a window leave."""
    first = int(np.count_nonzero(window.lives[:start]))
    return rows.slice(first, first + int(np.count_nonzero(window.lives[start:stop])))


def _overlaid(below: StateRows, winners: Winners, rows: StateRows, table: LogTable) -> StateRows:
    """Return a base's rows without those of the winners' keys, and the rows that the winners leave."""
    if not len(winners):
        return below
    named = _named(below, winners)
    replaced = named >= 0
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


def _named(below: StateRows, winners: Winners) -> npt.NDArray[np.int64]:
    """Return for each row the winner of its key; -1 where there is none."""
    named = np.full(len(below), -1, np.int64)
    rows = np.flatnonzero(np.isin(below.key_hashes, winners.hashes))
    if not len(rows):
        return named
    hashes = below.key_hashes[rows]
    first = np.searchsorted(winners.hashes, hashes, "left")
    equal = are_equal(below.primary_keys, rows, winners.keys, first)
    named[rows[equal]] = first[equal]
    # Other keys of the same hash: compared one by one, as there are hardly ever any.
    for row, start in zip(rows[~equal].tolist(), first[~equal].tolist(), strict=True):
        key = below.primary_keys[row].as_py()
        stop = int(np.searchsorted(winners.hashes, below.key_hashes[row], "right"))
        for place in range(start, stop):
            if winners.keys[place].as_py() == key:
                named[row] = place
    return named
