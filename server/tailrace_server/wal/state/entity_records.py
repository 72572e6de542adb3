"""The records of one entity type in a log, version by version, across renames of the entity type.

An entity type is identified by the id of its first column, which a rename does not change. Records have the
name that was valid in their version. Only published versions are read.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from tailrace.criteria import Area
from tailrace.errors import EntityTypeUnknown, LogCorrupted, PositionCompacted
from tailrace.position import Position
from tailrace_server.wal.segment.reader import SegmentMissing
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.schema import Column, Schema
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.segment.refs import BatchRef
    from tailrace_server.wal.state.commit_log import CommitLog
    from tailrace_server.wal.state.view import LogView

_NO_GAPS: Final = (
    "the rows are computed from all versions since; ingest the lost rows again, into another "
    "catalog"
)


class Record(NamedTuple):
    """One record of the entity type."""

    operation: int
    key_hash: int
    key: str | None
    """The row's primary key; None for a truncate, which removes all rows of the entity type."""
    updated: bool
    """True if the record lists changed columns. It is then an update: a row with the key existed before."""
    change: bytes | None
    before: bytes | None
    after: bytes | None


class Version(NamedTuple):
    """The records that one version has of the entity type; at least one."""

    number: int
    columns: tuple[Column, ...]
    """The entity type's columns in this version's schema, including dropped columns."""
    records: list[Record]


class EntityRecords:
    """Reads one entity type's records from one log. Methods block; use it from one thread at a time."""

    def __init__(self, log: CommitLog, reader: BatchReader, entity_type: str) -> None:
        """Bind to the entity type that has a name in the newest published schema.

        Raises:
            EntityTypeUnknown: That schema has no entity type of this name.
        """
        self._log = log
        self._reader = reader
        schema = log.view.schema_of(log.view.published)
        if entity_type not in schema.entity_types:
            raise EntityTypeUnknown(log.view.name, entity_type, (*schema.entity_types,))
        self._names = EntityNames(schema, entity_type)
        self._late_in: tuple[BatchRef | None, set[int]] = (None, set())
        """Cache of ``_late_versions``: the batch that was checked last, and the late versions in it."""

    @property
    def view(self) -> LogView:
        """The newest view of the log."""
        return self._log.view

    def columns_in(self, schema: Schema) -> tuple[Column, ...]:
        """Return the entity type's columns in a schema; empty if the schema does not have the entity type."""
        name = self._names.name_in(schema)
        return () if name is None else schema.entity_types[name]

    def require(self, version: int) -> None:
        """Check that the log still has a version and all later ones.

        Raises:
            PositionCompacted: The version was trimmed.
        """
        view = self.view
        if view.oldest > Position(version, 0):
            newest = Position(view.published, 0)
            raise PositionCompacted(Position(version, 0), view.oldest, newest, _NO_GAPS)

    def versions(self, first: int, stop: int) -> Iterator[Version]:
        """Yield the versions from ``first`` up to ``stop``, exclusive, that have records of the entity type.

        If a compaction has replaced a segment meanwhile, reading continues with the newest view.

        Raises:
            PositionCompacted: One of the versions was trimmed.
            BodiesExpired: The bodies of one of the records have expired.
            LogCorrupted: A segment is damaged or missing.
        """
        # A segment that is missing twice, without a newer view in between, is lost: no compaction or trim took
        # it.
        missed = ""
        while True:
            self.require(first)
            try:
                for version in self._read(self.view, first, stop):
                    yield version
                    first, missed = version.number + 1, ""
            except SegmentMissing as missing:
                if missing.path == missed and not self._refreshed():
                    raise LogCorrupted(missing.path, 0, "the segment is missing") from missing
                missed = missing.path
                self._refreshed()
            else:
                return

    def is_late(self, version: int) -> bool:
        """Return True if a version has late changes: by its lead record, some belong to an earlier version."""
        missed = ""
        while True:
            try:
                return version in self._late_versions(version)
            except SegmentMissing as missing:
                if missing.path == missed and not self._refreshed():
                    raise LogCorrupted(missing.path, 0, "the segment is missing") from missing
                missed = missing.path
                self._refreshed()

    def _late_versions(self, version: int) -> set[int]:
        """Return all versions with late changes whose lead records are in the batch with a version's lead."""
        view = self.view
        ref = view.batch(view.find(Position(version, 0)))
        # Callers ask for ascending versions, so the leads of a batch are read only once.
        if ref != self._late_in[0]:
            head = self._reader.head(ref)
            leads = self._reader.body(ref, ("after",))["after"]
            numbers, rows = np.unique(head.versions, return_index=True)
            if ref.first.index:  # the lead of the first version is in the batch before
                numbers, rows = numbers[1:], rows[1:]
            found = zip(numbers.tolist(), leads.take(pa.array(rows)).to_pylist(), strict=True)
            late = {number for number, lead in found if orjson.loads(lead or b"{}").get("late")}
            self._late_in = ref, late
        return self._late_in[1]

    def _refreshed(self) -> bool:
        return self._log.refresh() is not None

    def _read(self, view: LogView, first: int, stop: int) -> Iterator[Version]:
        open_version: Version | None = None
        for place in range(view.find(Position(first, 0)), len(view)):
            ref = view.batch(place)
            if ref.first.version >= stop:
                break
            for version in self._in_batch(view, ref, first, stop):
                # A version may extend over several batches: yield it once its last record has been read.
                if open_version is not None and open_version.number == version.number:
                    open_version.records.extend(version.records)
                    continue
                if open_version is not None:
                    yield open_version
                open_version = version
        if open_version is not None:
            yield open_version

    def _in_batch(self, view: LogView, ref: BatchRef, first: int, stop: int) -> Iterator[Version]:
        """Yield the records of a batch; its first and last versions may extend beyond it."""
        # 1. Choose rows by the head; images are read only if there are any.
        head = self._reader.head(ref)
        versions = head.versions
        wanted = (head.areas == Area.DATA) & (versions >= first) & (versions < stop)
        wanted &= self._names.rows_in(view, head.type_codes, head.entity_types, versions)
        rows = np.flatnonzero(wanted)
        if not len(rows):
            return
        view.bodies.refuse(head, rows)
        body = self._reader.body(ref, ("change", "before", "after"))
        taken = pa.array(rows)
        fields = (
            head.operations[rows].tolist(),
            head.key_hashes[rows].tolist(),
            head.primary_keys.take(taken).to_pylist(),
            head.changed.is_valid().take(taken).to_pylist(),
            *(body[name].take(taken).to_pylist() for name in ("change", "before", "after")),
        )
        records = list(map(Record, *fields))
        # 2. Rows are in log order, so the records of one version are neighbours.
        numbers = versions[rows]
        borders = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(rows)]
        for start, end in pairwise(borders):
            number = int(numbers[start])
            columns = self.columns_in(view.schema_of(number))
            yield Version(number, columns, records[start:end])
