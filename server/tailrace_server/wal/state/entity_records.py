"""The records of one entity type in a log, version by version, across renames of the entity type.

An entity type keeps its identity when it is renamed: the id of its first column. Records of earlier versions
have the name of that time. Published versions only.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from tailrace.criteria import Area
from tailrace.errors import InvalidRequest, LogCorrupted, PositionCompacted
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
    "rows are folded from every version since; what the log has lost has to be ingested again, into another "
    "catalog"
)


class Record(NamedTuple):
    """One record of the entity type."""

    operation: int
    key_hash: int
    key: str | None
    """None: all rows of the entity type (a truncate)."""
    updated: bool
    """True if the record itself says that there was a row before: it names the columns that changed."""
    change: bytes | None
    before: bytes | None
    after: bytes | None


class Version(NamedTuple):
    """The records of one version; at least one."""

    number: int
    columns: tuple[Column, ...]
    """Those of the entity type in this version's schema, dropped ones included."""
    records: list[Record]


class EntityRecords:
    """Reads one entity type's records from one log. Blocks; one thread at a time."""

    def __init__(self, log: CommitLog, reader: BatchReader, entity_type: str) -> None:
        """Bind to the entity type that has a name now.

        Raises:
            InvalidRequest: No entity type of the newest published schema has the name.
        """
        self._log = log
        self._reader = reader
        schema = log.view.schema_of(log.view.published)
        if entity_type not in schema.entity_types:
            names = ", ".join(sorted(schema.entity_types)) or "none yet"
            raise InvalidRequest(
                f"catalog {log.view.name!r} has no entity type {entity_type!r}; known: {names}"
            )
        self._names = EntityNames(schema, entity_type)
        self._late_in: tuple[BatchRef | None, set[int]] = (None, set())
        """The batch that was last asked for late versions, and those."""

    @property
    def view(self) -> LogView:
        """The newest view that was read."""
        return self._log.view

    def columns_in(self, schema: Schema) -> tuple[Column, ...]:
        """Return the entity type's columns in a schema; none before it was known."""
        name = self._names.name_in(schema)
        return () if name is None else schema.entity_types[name]

    def require(self, version: int) -> None:
        """Check that the log reaches back to a version.

        Raises:
            PositionCompacted: It does not.
        """
        view = self.view
        if view.oldest > Position(version, 0):
            newest = Position(view.published, 0)
            raise PositionCompacted(Position(version, 0), view.oldest, newest, _NO_GAPS)

    def versions(self, first: int, stop: int) -> Iterator[Version]:
        """Yield the versions from ``first`` up to ``stop``, exclusive, that have records of the entity type.

        Files that a compaction has replaced meanwhile are looked for in the newest view.

        Raises:
            PositionCompacted: Retention has taken one of them.
            BodiesExpired: Retention has taken the bodies of one of their records.
            LogCorrupted: A segment is damaged, or missing.
        """
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
        """Return True if a version has changes that came too late for their own version, as its lead says."""
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
        """Return the late ones of the versions whose leads are in one batch with a version's."""
        view = self.view
        ref = view.batch(view.find(Position(version, 0)))
        # One after the other is asked for: the leads of a batch are read once.
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
        numbers = versions[rows]
        borders = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(rows)]
        for start, end in pairwise(borders):
            number = int(numbers[start])
            columns = self.columns_in(view.schema_of(number))
            yield Version(number, columns, records[start:end])
