"""From records to differences: what a version adds to the collection of rows, and what it takes away.

===============================  ==========================================================
record                           differences
===============================  ==========================================================
UPSERT of a key without a row    (after, +1)
UPSERT of a key with a row       (before, -1), (after, +1)
REMOVE, EXPIRE                   (before, -1)
``change`` is ``{"diff": d}``    (the row, d): the entity type has no keys, as ingested from CDCv2
REMOVE without a key             (each row that there is, -1 for each time)
===============================  ==========================================================

A version's differences are added up: one number for each row, no zeros. So the collection at a version is the
sum of all differences up to it, whatever order late transactions came in.
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
"""Row → how often it is there, or by how much that changes; never 0."""


def multiplicity(record: Record) -> int | None:
    """Return by how much a record changes how often its row is there; None where rows have keys."""
    if record.change is None or record.updated or (record.before is None and record.after is None):
        return None
    return multiplicity_of(record.change)


class ImageCheck:
    """Sees to it that every record says what went. Sees each version once, in order."""

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
            if record.key is None:
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
            known = record.updated or record.key_hash in self._live
            if record.before is None and known and not self._records.is_late(version.number):
                raise ImagesMissing(version.number, record.key, "before")
            self._live.put(record.key_hash, live=True)


class Differences:
    """Differences of one entity type's versions, in the form of one stream."""

    def __init__(self, records: EntityRecords, form: RowForm) -> None:
        """Bind to what is read and the form of its rows."""
        self._records = records
        self._form = form

    def between(self, first: int, stop: int) -> Iterator[tuple[int, Rows]]:
        """Yield the versions from ``first`` up to ``stop``, exclusive, that change anything, and by what.

        Raises:
            ImageUnfit: An image does not fit the form.
            PositionCompacted, LogCorrupted: As ``EntityRecords.versions``.
        """
        for version in self._records.versions(first, stop):
            rows = self._of(version)
            if rows:
                yield version.number, rows

    def collection(self, version: int) -> Rows:
        """Return the rows that there are at a version, folded from the log's beginning.

        Memory is that of the rows. Raises as ``between``; PositionCompacted where the beginning is gone.
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
        before = self.collection(version.number - 1)
        rows = dict(before)
        self._add(rows, version)
        for row, count in before.items():
            _add(rows, row, -count)
        return rows

    def _add(self, rows: Rows, version: Version) -> None:
        """Add a version's differences to rows, which a truncate empties."""
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
