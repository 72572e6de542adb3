"""Conversion of records into differences: the rows that a version adds, and the rows that it removes.

===============================  ==========================================================
record                           differences
===============================  ==========================================================
UPSERT of a key without a row    (after, +1)
UPSERT of a key with a row       (before, -1), (after, +1)
REMOVE, EXPIRE                   (before, -1)
``change`` is ``{"diff": d}``    (the row, d): entity types without keys, ingested from CDCv2
REMOVE without a key             (each row, minus its count): a truncate
===============================  ==========================================================

If the columns have changed since the last row of a key was exported, the difference removes that row instead of
``before``: the source may have changed its rows without records, by dropping a column, setting a default or
rounding a number.

The differences of a version are summed for each row, and zeros are left out. The collection of rows at a
version is the sum of all differences up to the version, even if transactions came late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.criteria import Operation
from tailrace.errors import ImagesMissing
from tailrace_server.export.errors import ImageUnfit
from tailrace_server.export.row_form import Unfit
from tailrace_server.wal.record.columns import multiplicity_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Set

    from tailrace.schema import Column
    from tailrace_server.export.row_form import Row, RowForm
    from tailrace_server.wal.state.entity_records import EntityRecords, Record, Version

_CHANGES_MAX: Final = 100_000
"""Number of changes after which they are merged into the array; a merge copies the array."""


class LiveKeys:
    """The hashes of the keys that have a row: a sorted array, and the changes since the array was made.

    An array takes 8 bytes for each key, a Python set 70. Two keys with the same hash are treated as one key.
    """

    def __init__(self) -> None:
        self._sorted = np.empty(0, np.uint64)
        self._changes: dict[int, bool] = {}

    def __contains__(self, key_hash: int) -> bool:
        found = self._changes.get(key_hash)
        if found is not None:
            return found
        wanted = np.uint64(key_hash)
        place = int(np.searchsorted(self._sorted, wanted))
        return place < len(self._sorted) and bool(self._sorted[place] == wanted)

    def put(self, key_hash: int, *, live: bool) -> None:
        """Record that a key has a row now (``live``), or has none."""
        self._changes[key_hash] = live
        if len(self._changes) >= _CHANGES_MAX:
            self._merge()

    def clear(self) -> None:
        """Record that no key has a row."""
        self._sorted = np.empty(0, np.uint64)
        self._changes.clear()

    def _merge(self) -> None:
        touched = np.array(list(self._changes), np.uint64)
        live = np.array([key for key, alive in self._changes.items() if alive], np.uint64)
        # Remove all changed keys, then add those that have a row.
        kept = np.setdiff1d(self._sorted, touched, assume_unique=True)
        self._sorted = np.sort(np.concatenate([kept, live]))
        self._changes.clear()


Rows = dict["Row", int]
"""Row → its count, or the change of its count; never 0."""


_HALF: Final = -1
"""Value of `Differences._at` if the last rows are not maintained, or are those in the middle of a version."""

Layout = tuple["Hashable", ...]
"""The id, type and encoding of each column, and True for a dropped one."""
LastRows = dict[str, tuple["Row", Layout]]
"""Key → its last row, and the layout by which the row was read."""


def multiplicity(record: Record) -> int | None:
    """Return the change of a row's count that a record states; None if the record's row has a key."""
    if record.change is None or record.updated or (record.before is None and record.after is None):
        return None
    return multiplicity_of(record.change)


class ImageCheck:
    """Checks that every record has the images that the export needs. Pass each version once, in order."""

    def __init__(self, records: EntityRecords) -> None:
        self._records = records
        self._live = LiveKeys()
        self.layouts: set[Layout] = set()
        """The layouts of the versions so far."""
        self._columns: tuple[Column, ...] | None = None
        """The columns of the last version."""

    def see(self, version: Version) -> None:
        """Check one version.

        Raises:
            ImagesMissing: A record lacks an image. An UPSERT without ``before`` is an insert, unless its key
                already has a row or the record names changed columns.
        """
        if version.columns is not self._columns:  # all versions of a schema share one object
            self._columns = version.columns
            self.layouts.add(_layout(version.columns))
        for record in version.records:
            if record.key is None:  # a truncate: no key has a row any more
                self._live.clear()
                continue
            if multiplicity(record) is not None:
                continue
            if record.operation != Operation.UPSERT:
                if record.before is None:
                    raise ImagesMissing(version.number, record.key, "before")
                self._live.put(record.key_hash, live=False)
                continue
            if record.after is None:
                raise ImagesMissing(version.number, record.key, "after")
            # An UPSERT without ``before`` must be an insert. It is none if it names changed columns, or if its
            # key has a row. Late transactions are not checked, as newer changes of the key may precede them.
            known = record.updated or record.key_hash in self._live
            if record.before is None and known and not self._records.is_late(version.number):
                raise ImagesMissing(version.number, record.key, "before")
            self._live.put(record.key_hash, live=True)


class Differences:
    """The differences of the versions of one entity type, in the form of one stream."""

    def __init__(self, records: EntityRecords, form: RowForm, layouts: Set[Layout]) -> None:
        """Bind to records and a form.

        Args:
            records: The records to read.
            form: The form of the rows.
            layouts: The layouts of all versions up to the requested ones; the set may grow. If it has more than
                one, the last row of each key is in memory.
        """
        self._records = records
        self._form = form
        self._layouts = layouts
        self._last: LastRows = {}
        """The last rows of keys after version `_at`, if there are several layouts."""
        self._at = 0

    def between(self, first: int, stop: int) -> Iterator[tuple[int, Rows]]:
        """Yield (version, differences) from ``first`` to ``stop`` (exclusive).

        Skip versions without differences.

        Raises:
            ImageUnfit: An image does not fit the form.
            PositionCompacted, LogCorrupted: The log cannot be read.
        """
        self._catch_up(first - 1)
        for version in self._records.versions(first, stop):
            # If the caller stops here, or an error is raised, the last rows are those in the middle of a
            # version.
            self._at = _HALF
            rows = self._of(version)
            self._at = version.number if self._altered else _HALF
            if rows:
                yield version.number, rows
        self._at = stop - 1 if self._altered else _HALF

    def collection(self, version: int) -> Rows:
        """Return the rows at a version: the sum of all differences from the log's beginning.

        All rows are in memory.

        Raises:
            ImageUnfit: An image does not fit the form.
            PositionCompacted, LogCorrupted: The log, or its beginning, cannot be read.
        """
        rows: Rows = {}
        last: LastRows = {}
        for each in self._records.versions(1, version + 1):
            self._add(rows, each, last)
        return rows

    @property
    def _altered(self) -> bool:
        return len(self._layouts) > 1

    def _catch_up(self, version: int) -> None:
        """Read the last rows of keys as of a version from the retained log, if they are needed."""
        if not self._altered or self._at == version:
            return
        self._last = {}
        oldest = self._records.view.oldest.version
        for each in self._records.versions(oldest, max(oldest, version + 1)):
            self._add({}, each, self._last)
        self._at = version

    def _of(self, version: Version) -> Rows:
        if all(record.key is not None for record in version.records):
            rows: Rows = {}
            self._add(rows, version, self._last)
            return rows
        # A truncate removes every row, so its differences need the whole collection before it. Compute the
        # collection only now: truncates are too rare to maintain it all the time.
        before = self.collection(version.number - 1)
        rows = dict(before)
        self._add(rows, version, self._last)
        # The differences are the collection after the version minus the collection before it.
        for row, count in before.items():
            _add(rows, row, -count)
        return rows

    def _add(self, rows: Rows, version: Version, last: LastRows) -> None:
        """Apply the records of a version to ``rows`` and to the last rows; a truncate empties both."""
        # A late record is older than other records of its key that were read before it: its row is not the
        # last.
        follow = self._altered and not self._records.is_late(version.number)
        layout = _layout(version.columns) if follow else ()
        for record in version.records:
            if record.key is None:
                rows.clear()
                last.clear()
                continue
            diff = multiplicity(record)
            if diff is not None:
                row = record.before if record.after is None else record.after
                assert row is not None
                _add(rows, self._row(version, record, row), diff)
                continue
            held = last.get(record.key) if follow else None
            if record.before is not None:
                # If the layout has changed, remove the row that was added, as ``before`` has another form now.
                if held is not None and held[1] != layout:
                    went = held[0]
                else:
                    went = self._row(version, record, record.before)
                _add(rows, went, -1)
            if follow:
                last.pop(record.key, None)
            if record.after is not None and record.operation == Operation.UPSERT:
                came = self._row(version, record, record.after)
                _add(rows, came, 1)
                if follow:
                    last[record.key] = came, layout

    def _row(self, version: Version, record: Record, image: bytes) -> Row:
        try:
            return self._form.row(image, version.columns)
        except Unfit as error:
            raise ImageUnfit(version.number, record.key, str(error)) from None


def _layout(columns: tuple[Column, ...]) -> Layout:
    return tuple((each.id, each.sql_type, each.encoding, each.dropped) for each in columns)


def _add(rows: Rows, row: Row, diff: int) -> None:
    count = rows.pop(row, 0) + diff
    if count:
        rows[row] = count
