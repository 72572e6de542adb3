"""The state of one entity type as of one version, read in parts, while its files may be compacted.

::

    place ─▶ part: rows after the place ─▶ block: these rows, encoded for one kind of reader
             shared by all readers of      shared by all readers of that kind
             the table at this version

The rows of a version never change, so a place stays valid as long as the version can be read. The borders
between parts depend on the key hashes of the rows, not on the place where a reader began. So readers that begin
at different places, such as readers that return to a restarted server, soon request the same parts. Parts are
read in reader threads.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

import numpy as np

from tailrace.errors import InvalidRequest
from tailrace_server.wal.base.state_rows import NO_ROWS, StatePlace, StateRows, joined_rows
from tailrace_server.wal.segment.reader import SegmentMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    import numpy.typing as npt

    from tailrace.cursor import RowMark
    from tailrace.schema import Schema
    from tailrace_server.log_cache.batch_cache import OpenScans
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.wal.base.reading import TableState
    from tailrace_server.wal.state.view import LogView
    from tailrace_server.wal.state.whole_removals import WholeRemovals

    class _Block(Protocol):
        @property
        def nbytes(self) -> int:
            """Memory of the block in bytes."""


_LOOKUPS_AT_ONCE: Final = 1_024
"""The most keys that are looked up together."""
_BORDERS: Final = np.uint64(4_096 - 1)
"""Mask of key hashes: a part ends after a row whose masked hash is 0, about every 4,096th row."""
_ROWS_MAX: Final = 8_192
"""Number of rows from which a part ends even without such a hash."""
_BYTES_MAX: Final = 4 << 20
"""Bytes of keys and images from which a part ends even without such a hash."""
_LAST_KEY: Final = "\U0010ffff" * 8
_PART_BYTES: Final = 400


@dataclass(frozen=True, slots=True, eq=False)
class TablePart:
    """Consecutive rows of a table. Immutable."""

    rows: StateRows
    end: StatePlace | None
    """The place after the part; None: the end of the table."""

    @property
    def nbytes(self) -> int:
        """Memory of the part in bytes."""
        return _PART_BYTES + _nbytes(self.rows)


_END: Final = TablePart(NO_ROWS, None)


@dataclass(frozen=True, slots=True, eq=False)
class TableScan:
    """Reader of the parts of a whole table, in order."""

    table: TableState
    scans: OpenScans
    """Cache of open scans by place, so that the next part continues the scan of the part before."""
    name: Hashable
    """Key of the table as of its version."""

    def behind(self, place: StatePlace | None) -> TablePart:
        """Return the part after a place; after the last row, an empty part with ``end`` None."""
        # Continue the scan that has ended at this place, if it is
        # still open: a new one would have to search the place.
        scan = self.scans.take((self.name, place)) or _parts(self.table, place)
        rows = next(scan, None)
        if rows is None:
            return _END
        end = rows.place(-1)
        self.scans.keep((self.name, end), scan)
        return TablePart(rows, end)

    def place_of(
        self,
        is_key: Callable[[str], bool],
        shown: Callable[[StateRows], bool],
        key_hash: int | None = None,
    ) -> StatePlace | None:
        """Return the place of a row, given the digest of its key; None if the table has no such row. It scans.

        Args:
            is_key: Function that returns True for the key of the row.
            shown: Function that returns True if a single row is visible to the reader; other rows are ignored.
            key_hash: The key hash of the row, so that only rows with this hash are scanned; None: all rows.
        """
        start = None if key_hash is None else before_hash(key_hash)
        for rows in self.table.parts(start):
            stop = len(rows)
            # Rows are sorted by key hash: only the first rows can have the hash.
            if key_hash is not None:
                stop = int(np.searchsorted(rows.key_hashes, np.uint64(key_hash), "right"))
            for row, key in enumerate(rows.primary_keys.slice(0, stop).to_pylist()):
                if is_key(key) and shown(rows.slice(row, row + 1)):
                    return rows.place(row)
            if stop < len(rows):
                break
        return None


@dataclass(frozen=True, slots=True, eq=False)
class KeyedRows:
    """Reader of the rows with some keys, in the order of the table."""

    table: TableState
    places: tuple[StatePlace, ...]
    """The places of the keys, in order."""

    @classmethod
    def of(cls, table: TableState, primary_keys: tuple[str, ...]) -> KeyedRows:
        """Create the reader for some keys; duplicates are ignored."""
        return cls(table, tuple(sorted(map(table.place_of, {*primary_keys}))))

    def behind(self, place: StatePlace | None) -> TablePart:
        """Return the part after a place; after the last row, an empty part with ``end`` None."""
        # Binary search: to scan from the first key for each part would be quadratic in the number of keys.
        start = 0 if place is None else bisect_right(self.places, place)
        chosen = self.places[start : start + _LOOKUPS_AT_ONCE]
        if not chosen:
            return _END
        rows = self.table.rows_of([each.primary_key for each in chosen])
        return TablePart(rows, None if chosen[-1] is self.places[-1] else chosen[-1])

    def place_of(
        self,
        is_key: Callable[[str], bool],
        shown: Callable[[StateRows], bool],
        key_hash: int | None = None,
    ) -> StatePlace | None:
        """Return the place of a key, even if the table has no row with it; None: no such key."""
        keys = (each for each in self.places if key_hash in (None, each.key_hash))
        return next((each for each in keys if is_key(each.primary_key)), None)


def before_hash(key_hash: int) -> StatePlace | None:
    """Return a place just before the first possible row with a key hash; None: before all rows."""
    return StatePlace(key_hash - 1, _LAST_KEY) if key_hash else None


def _unknown_row() -> InvalidRequest:
    """Return the error for a cursor whose row is not in this state."""
    return InvalidRequest(
        "after: the cursor is after a row that this state does not have; resume with a cursor as it came"
    )


def _parts(table: TableState, behind: StatePlace | None) -> Iterator[StateRows]:
    """Yield the rows after a place in parts, whose borders mostly depend on key hashes only."""
    # A part ends at the first row with a border hash, so scans from any two places have the same borders after
    # the first one. The limits of rows and bytes apply only to regions without such a row.
    held: list[StateRows] = []
    count = nbytes = 0
    for rows in table.parts(behind):
        start = 0
        for border in np.flatnonzero((rows.key_hashes & _BORDERS) == 0).tolist():
            held.append(rows.slice(start, border + 1))
            yield _own(held)
            held, count, nbytes, start = [], 0, 0, border + 1
        if start < len(rows):
            rest = rows.slice(start, len(rows))
            held.append(rest)
            count, nbytes = count + len(rest), nbytes + _nbytes(rest)
        if count >= _ROWS_MAX or nbytes >= _BYTES_MAX:
            yield _own(held)
            held, count, nbytes = [], 0, 0
    if held:
        yield _own(held)


def _own(parts: list[StateRows]) -> StateRows:
    """Join rows, and copy them even if there is one part: a slice would keep its whole array in memory."""
    if len(parts) > 1:
        return joined_rows(parts)
    return parts[0].taken(np.arange(len(parts[0])))


def _nbytes(rows: StateRows) -> int:
    columns = rows.key_hashes, rows.versions, rows.indexes, rows.counts
    fixed = sum(each.nbytes for each in columns)
    return fixed + int(rows.primary_keys.nbytes) + int(rows.images.nbytes)


_B = TypeVar("_B", bound="_Block")

_KEYS_AT_ONCE: Final = 2_000
"""The most keys that are sorted by their places on the event loop, in a few milliseconds."""


class PinnedTable:
    """A table as of one version. Call ``open`` first."""

    view: LogView
    """The newest view at the time of ``open``, which had all files of the table."""
    table: TableState
    """The table as of the version, found through ``view``."""

    def __init__(
        self, log: FollowedLog, entity_type: str, version: int, keys: tuple[str, ...] | None
    ) -> None:
        """Bind a table at a version; ``keys`` are the keys whose rows are read, None for all rows."""
        self.entity_type = entity_type
        self.version = version
        self._log = log
        self._keys = keys

    async def open(self) -> None:
        """Open the table through the newest view of the log.

        Compaction changes the files of a version, but never its rows. So a table can be opened again in a newer
        view and continued at the same place.

        Raises:
            InvalidRequest: The log does not have the entity type, or the version is not published.
            PositionCompacted: The version is below the oldest retained one.
            LogCorrupted: The files of the table are damaged.
        """
        while True:
            view = self._log.view
            try:
                table = await self._log.reading.table_state(view, self.entity_type, self.version)
            except SegmentMissing as missing:
                await self._log.recover(missing, view.end_row)
            else:
                break
        self.view, self.table = view, table
        self._schemas: dict[int, Schema] = {}
        name = (view.revision, self.entity_type, self.version)
        if self._keys is None:
            self._name: Hashable = name
            self._rows: TableScan | KeyedRows = TableScan(
                table, self._log.reading.scans, (view.opening, *name)
            )
            return
        # Blocks of some keys are of no use to other readers: give them a cache key that no other reader has.
        self._name = (name, object())
        sort = partial(KeyedRows.of, table, self._keys)
        few = len(self._keys) <= _KEYS_AT_ONCE
        self._rows = sort() if few else await asyncio.to_thread(sort)

    async def behind(
        self,
        place: StatePlace | None,
        form: tuple[Hashable, ...],
        made: Callable[[PinnedTable, TablePart], _B],
    ) -> _B:
        """Return the block of the part after a place, from the cache or made in a reader thread.

        Args:
            place: The place; None: before all rows.
            form: Cache key that distinguishes the results of different ``made`` functions for the same part.
            made: Function that makes the block of a part.

        Raises:
            TailraceError: ``open`` raises it.
        """
        reading = self._log.reading
        while True:
            # Look up the block before the part: if it is cached, nothing has to be read.
            key = (self._name, place, *form)
            if (ready := reading.ready_state_block(key)) is not None:
                return cast("_B", ready)
            try:
                if isinstance(self._rows, KeyedRows):
                    # Only this reader has these keys, so the part itself is not cached.
                    return await reading.state_block(key, partial(self._made, place, made))
                part = await reading.table_part(
                    (self._name, place), partial(self._rows.behind, place)
                )
                return await reading.state_block(key, partial(made, self, part))
            except SegmentMissing as missing:
                await self._recover(missing)

    def ready(self, place: StatePlace | None, form: tuple[Hashable, ...]) -> _Block | None:
        """Return the block that ``behind`` would return, if it is cached; otherwise None, without reading."""
        return self._log.reading.ready_state_block((self._name, place, *form))

    def _made(self, place: StatePlace | None, made: Callable[[PinnedTable, TablePart], _B]) -> _B:
        return made(self, self._rows.behind(place))

    async def behind_page(self, page: str, found: Callable[[TableScan | KeyedRows], _B]) -> _B:
        """Return the block that ``found`` makes of all rows, in a reader thread; cached by ``page``."""
        while True:
            try:
                return await self._log.reading.state_block(
                    (self._name, page), partial(found, self._rows)
                )
            except SegmentMissing as missing:
                await self._recover(missing)

    async def place_of(self, mark: RowMark, shown: Callable[[StateRows], bool]) -> StatePlace:
        """Return the place of the row that a mark names.

        Args:
            mark: The mark, with the row's key or its digest.
            shown: Function that returns True if a single row is visible to the reader; other rows are ignored.

        Raises:
            InvalidRequest: The table has no such row.
        """
        if mark.primary_key is not None:
            return self.table.place_of(mark.primary_key)
        while True:
            try:
                found = await asyncio.to_thread(self._rows.place_of, mark.is_of_key, shown)
            except SegmentMissing as missing:
                await self._recover(missing)
            else:
                if found is None:
                    raise _unknown_row()
                return found

    def keep(self, place: StatePlace, form: tuple[Hashable, ...], block: _Block) -> None:
        """Cache a block under a place within it, at which its reader will continue."""
        self._log.reading.keep_state_block((self._name, place, *form), block)

    @property
    def whole_removals(self) -> WholeRemovals:
        """The log's notes on images of removed rows; a state has no removed rows, so they are not used."""
        return self.view.whole_removals

    def schema_of(self, version: int) -> Schema:
        """Return the schema of a version, extended by the name under which the entity type is read.

        Rows have the schema that they were written with. Rows from before a rename could not be decoded without
        this, as their schema has only the former name.
        """
        return self._as_named(self.view.schema_of(version))

    def schemas_of(
        self, versions: npt.NDArray[np.int64]
    ) -> tuple[list[Schema], npt.NDArray[np.int64]]:
        """Return the schemas of ``schema_of`` for many versions, and each version's index among them."""
        schemas, which = self.view.schemas_of(versions)
        return [*map(self._as_named, schemas)], which

    def schemas(self) -> Iterator[Schema]:
        """Yield the unchanged schemas of the log, oldest first."""
        return self.view.schemas()

    def _as_named(self, schema: Schema) -> Schema:
        then = self.table.names.name_in(schema)
        if then is None or then == self.entity_type:
            return schema
        found = self._schemas.get(schema.id)
        if found is None:
            types = {**schema.entity_types, self.entity_type: schema.entity_types[then]}
            found = self._schemas.setdefault(schema.id, replace(schema, entity_types=types))
        return found

    async def _recover(self, missing: SegmentMissing) -> None:
        await self._log.recover(missing, self.view.end_row)
        await self.open()
