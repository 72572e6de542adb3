"""The state of a table at a version: the newest image of each key, read from the log.

State is what a reader has who applied every record up to the version in the order of the log, late ones too:

===========================  ==================================================================
UPSERT of a key              the row of that key, with the record's ``after``
REMOVE, EXPIRE of a key      no row
REMOVE without a key         no rows at all (a truncate)
``change`` is ``{"diff"}``   the row counts by the sum of these numbers: tables without a key
===========================  ==================================================================

So state at V and then the captures behind V give what all captures give. A row whose key changes is a removal
and an insert, as in the log. Images are texts as they were sent, read by the schema of their own version.

Rows come by (key hash, key), in parts of bounded size, so a reader goes on in the middle by the place of the
last row that it has. Heads are read first, and images only of records that are the last of their key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tailrace.criteria import Area
from tailrace.errors import InvalidRequest, PositionCompacted
from tailrace.position import FIRST, Position
from tailrace_server.wal.base.images import images_of
from tailrace_server.wal.base.state_rows import NO_ROWS, StatePlace, StateRows, joined_rows
from tailrace_server.wal.base.winners import (
    FoldBounds,
    LogTable,
    Wanted,
    fold,
)
from tailrace_server.wal.record.columns import multiplicity_of
from tailrace_server.wal.record.key_hash import key_hash, type_seed
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace_server.wal.base.winners import Winners
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.state.view import LogView

_BOUNDS: Final = FoldBounds()
_NO_BASE: Final = (
    "the log was trimmed and has no base, so nothing says what the rows were; the newest images of keys that "
    "changed since are in the log"
)


@dataclass(frozen=True, slots=True)
class TableState:
    """The rows of one entity type at one version. Reads when asked; blocks; threads may share it.

    Its calls raise ``SegmentMissing`` where a compaction or a trim has taken a file since the view was made:
    ask for the same version of a newer view, and go on behind the last row.
    """

    entity_type: str
    version: int
    _table: LogTable
    _bounds: FoldBounds = _BOUNDS

    def parts(self, behind: StatePlace | None = None) -> Iterator[StateRows]:
        """Yield the rows by (key hash, key), none empty.

        A part has at most 8,192 rows and 4 MiB of keys and images, unless one row is larger. While it runs it
        keeps the heads of up to two million records, 45 bytes and the key of each, and 64 MiB of images; of a
        larger table it reads the log's heads once for each million keys.

        Args:
            behind: Begin behind this place; None: with the first row.

        Raises:
            LogCorrupted: What is read is damaged.
            SegmentMissing: A file is gone.
        """
        for rows in self._windows(Wanted(0 if behind is None else behind.key_hash)):
            passed = 0 if behind is None else rows.count_up_to(behind)
            left = rows.slice(passed, len(rows)) if passed else rows
            yield from left.parts(self._bounds.part_rows, self._bounds.part_bytes)

    def rows_of(self, primary_keys: Sequence[str]) -> StateRows:
        """Return the rows of some keys, those that exist, by (key hash, key).

        All images of the keys are in memory at once, so ask for a bounded number. Errors as ``parts``.
        """
        keys = sorted(set(primary_keys))
        if not keys:
            return NO_ROWS
        seed = type_seed(self._table.seed_name)
        hashes = np.unique(np.array([key_hash(seed, key) for key in keys], np.uint64))
        rows = joined_rows([*self._windows(Wanted(chosen=hashes))])
        asked = np.flatnonzero(np.isin(rows.primary_keys.to_pylist(), keys))
        return rows if len(asked) == len(rows) else rows.taken(asked)

    def place_of(self, primary_key: str) -> StatePlace:
        """Return the place that the row of a key has, or would have."""
        return StatePlace(key_hash(type_seed(self._table.seed_name), primary_key), primary_key)

    def _windows(self, wanted: Wanted) -> Iterator[StateRows]:
        """Yield the rows of some key hashes in windows of bounded images."""
        while True:
            found = fold(self._table, 0, self.version, wanted, self._bounds, whole=True)
            yield from self._rows(found.winners)
            if found.stop >= wanted.stop:
                return
            wanted = replace(wanted, start=found.stop)

    def _rows(self, winners: Winners) -> Iterator[StateRows]:
        """Yield the rows that winners leave, in windows of bounded images."""
        living = winners if winners.lives.all() else winners.taken(winners.lives)
        start = 0
        while start < len(living):
            images = images_of(self._table, living.places[start:], self._bounds)
            window = living.slice(start, start + len(images))
            start += len(images)
            yield StateRows(
                window.hashes,
                window.keys,
                window.versions,
                window.indexes,
                window.diffs if self._table.counted else np.ones(len(window), np.int64),
                images,
            )


def table_state(view: LogView, reader: BatchReader, entity_type: str, version: int) -> TableState:
    """Return the state of an entity type as of a published version.

    Args:
        view: The log, with all of its schemas.
        reader: Reads its batches; must stay open while the state is read.
        entity_type: Its name in the schema of the version, else in the newest one.
        version: From 0 on; with version 0 there are no rows.

    Raises:
        InvalidRequest: No entity type is called so, or the version is not published.
        PositionCompacted: The log does not reach back to its rows.
    """
    if not 0 <= version <= view.published:
        raise InvalidRequest(
            f"version {version} of catalog {view.name!r} cannot be read: the newest published is "
            f"{view.published}"
        )
    names = _names(view, entity_type, version)
    if view.oldest > FIRST:
        newest = Position(view.published, 0)
        raise PositionCompacted(Position(version, 0), view.oldest, newest, _NO_BASE)
    table = LogTable(view, reader, names, names.first_name(view), counted=False)
    return TableState(entity_type, version, _with_counts(table, version))


def _names(view: LogView, entity_type: str, version: int) -> EntityNames:
    for number in (version, view.published):
        schema = view.schema_of(number)
        if entity_type in schema.entity_types:
            return EntityNames(schema, entity_type)
    known = ", ".join(sorted(view.schema_of(view.published).entity_types)) or "none yet"
    raise InvalidRequest(
        f"catalog {view.name!r} has no entity type {entity_type!r}; known: {known}"
    )


def _with_counts(table: LogTable, version: int) -> LogTable:
    """Return the table with whether its rows are counted: its first record with an image says so."""
    name = table.names.name_in(table.view.schema_of(version))
    columns = table.view.schema_of(version).entity_types.get(name or "", ())
    if any(column.key for column in columns):
        return table
    for _, ref in table.batches(0, version):
        head = table.reader.head(ref)
        ours = table.names.rows_in(table.view, head.type_codes, head.entity_types, head.versions)
        ours &= (head.areas == Area.DATA) & (head.key_hashes != 0)
        rows = np.flatnonzero(ours)
        if len(rows):
            first = pa.array(rows[:1])
            if head.changed[int(rows[0])].is_valid:
                return table
            change = table.reader.body(ref, ("change",))["change"].take(first)[0].as_py()
            counted = change is not None and multiplicity_of(change) is not None
            return replace(table, counted=counted)
    return table
