"""Turns records into differences: the rows that a version adds, and the rows that it removes.

===============================  ==========================================================
record                           differences
===============================  ==========================================================
UPSERT of a key without a row    (after, +1)
UPSERT of a key with a row       (before, -1), (after, +1)
REMOVE, EXPIRE                   (before, -1)
``change`` is ``{"diff": d}``    (the row, d): entity types without keys, ingested from CDCv2
REMOVE without a key             (each row, minus its count): a truncate
===============================  ==========================================================

The differences of a version are summed for each row, and zeros are left out. The collection of rows at a
version is the sum of all differences up to it, also if transactions came late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.criteria import Operation
from tailrace.errors import ImagesMissing
from tailrace_server.export.errors import ImageUnfit
from tailrace_server.export.live_keys import LiveKeys
from tailrace_server.export.row_form import Unfit
from tailrace_server.wal.record.columns import multiplicity_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace_server.export.row_form import Row, RowForm
    from tailrace_server.wal.state.entity_records import EntityRecords, Record, Version

Rows = dict["Row", int]
"""Row → its count, or the change of its count; never 0."""


def multiplicity(record: Record) -> int | None:
    """Return the change of a row's count that a record states; None if rows have keys."""
    if record.change is None or record.updated or (record.before is None and record.after is None):
        return None
    return multiplicity_of(record.change)


class ImageCheck:
    """Checks that every record has the images that the export needs. Takes each version once, in order."""

    def __init__(self, records: EntityRecords) -> None:
        self._records = records
        self._live = LiveKeys()

    def see(self, version: Version) -> None:
        """Check one version.

        Raises:
            ImagesMissing: A record lacks an image. An UPSERT without ``before`` is an insert, unless its key
                has a row already or the record names changed columns.
        """
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
            # Without ``before`` it must be an insert. That is known to be wrong if it names changed columns, or
            # if its key has a row. A late transaction may come behind newer changes of its key: not checked.
            known = record.updated or record.key_hash in self._live
            if record.before is None and known and not self._records.is_late(version.number):
                raise ImagesMissing(version.number, record.key, "before")
            self._live.put(record.key_hash, live=True)


class Differences:
    """Differences of one entity type's versions, in the form of one stream."""

    def __init__(self, records: EntityRecords, form: RowForm) -> None:
        """Keep the records to read and the form of their rows."""
        self._records = records
        self._form = form

    def between(self, first: int, stop: int) -> Iterator[tuple[int, Rows]]:
        """Yield (version, differences) from ``first`` up to ``stop``, exclusive; skip versions without any.

        Raises:
            ImageUnfit: An image does not fit the form.
            PositionCompacted, LogCorrupted: As ``EntityRecords.versions``.
        """
        for version in self._records.versions(first, stop):
            rows = self._of(version)
            if rows:
                yield version.number, rows

    def collection(self, version: int) -> Rows:
        """Return the rows at a version, added up from the log's beginning.

        All rows are held in memory. Errors as `between`; PositionCompacted if the log's beginning is gone.
        """
        rows: Rows = {}
        for each in self._records.versions(1, version + 1):
            self._add(rows, each)
        return rows

    def _of(self, version: Version) -> Rows:
        if all(record.key is not None for record in version.records):
            rows: Rows = {}
            self._add(rows, version)
            return rows
        # A truncate removes every row, so its differences need the whole collection before it. Truncates are
        # rare enough that the collection is not kept up to date for them.
        before = self.collection(version.number - 1)
        rows = dict(before)
        self._add(rows, version)
        for row, count in before.items():
            _add(rows, row, -count)
        return rows

    def _add(self, rows: Rows, version: Version) -> None:
        """Apply the records of a version to rows; a truncate empties them."""
        for record in version.records:
            if record.key is None:
                rows.clear()
                continue
            diff = multiplicity(record)
            if diff is not None:
                row = record.before if record.after is None else record.after
                assert row is not None
                _add(rows, self._row(version, record, row), diff)
                continue
            if record.before is not None:
                _add(rows, self._row(version, record, record.before), -1)
            if record.after is not None and record.operation == Operation.UPSERT:
                _add(rows, self._row(version, record, record.after), 1)

    def _row(self, version: Version, record: Record, image: bytes) -> Row:
        try:
            return self._form.row(image, version.columns)
        except Unfit as error:
            raise ImageUnfit(version.number, record.key, str(error)) from None


def _add(rows: Rows, row: Row, diff: int) -> None:
    count = rows.pop(row, 0) + diff
    if count:
        rows[row] = count
