"""One entity type as of one version, read part by part, wherever its files are by then.

::

    place ─▶ part: rows behind it ─▶ block: the form in which one kind of reader gets them
             shared by all readers       shared by all readers of that kind
             the table at this version

A version never changes, so a place holds for as long as it can be read. Borders between parts are chosen by the
key hashes of the rows, not by where a reader began: readers that begin at different places, such as those that
return to a restarted server, soon ask for the same parts. Parts are read in reader threads.
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
            """Bytes that it holds."""


_LOOKUPS_AT_ONCE: Final = 1_024
"""Keys that are looked up together."""
_BORDERS: Final = np.uint64(4_096 - 1)
"""A part ends behind a row whose key hash has none of these bits: behind one in so many."""
_ROWS_MAX: Final = 8_192
"""It ends here, too, where no such row comes, …"""
_BYTES_MAX: Final = 4 << 20
"""… and at so many bytes of keys and images."""
_LAST_KEY: Final = "\U0010ffff" * 8
_PART_BYTES: Final = 400


@dataclass(frozen=True, slots=True, eq=False)
class TablePart:
    """Neighbouring rows. Immutable."""

    rows: StateRows
    end: StatePlace | None
    """Behind all of the part; None: behind the table."""

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return _PART_BYTES + _nbytes(self.rows)


_END: Final = TablePart(NO_ROWS, None)


@dataclass(frozen=True, slots=True, eq=False)
class TableScan:
    """The parts of a whole table, in order."""

    table: TableState
    scans: OpenScans
    name: Hashable
    """Of the table, as of its version."""

    def behind(self, place: StatePlace | None) -> TablePart:
        """Return the part behind a place; behind the last row comes one without rows and without an end."""
        scan = self.scans.take((self.name, place)) or _parts(self.table, place)
        rows = next(scan, None)
        if rows is None:
            return _END
        end = rows.place(-1)
        self.scans.keep((self.name, end), scan)
        return TablePart(rows, end)

    def of_digest(self, mark: RowMark, shown: Callable[[StateRows], bool]) -> StatePlace:
        """Return the place of the row whose key has a digest: all of them are looked at.

        Args:
            mark: Has the digest.
            shown: Tells whether a row is for the reader. One that is not is as if it were not there.

        Raises:
            InvalidRequest: The table has no such row.
        """
        for rows in self.table.parts():
            for row, key in enumerate(rows.primary_keys.to_pylist()):
                if mark.is_of_key(key) and shown(rows.slice(row, row + 1)):
                    return rows.place(row)
        raise unknown_row()


@dataclass(frozen=True, slots=True, eq=False)
class KeyedRows:
    """The rows that some keys have, in the order of the table."""

    table: TableState
    places: tuple[StatePlace, ...]
    """Of the keys, in order."""

    @classmethod
    def of(cls, table: TableState, primary_keys: tuple[str, ...]) -> KeyedRows:
        """Sort keys by their places; each counts once."""
        return cls(table, tuple(sorted(map(table.place_of, {*primary_keys}))))

    def behind(self, place: StatePlace | None) -> TablePart:
        """Return the part behind a place, as of a whole table."""
        # By halving: a scan from the first key for each part would cost the square of the keys.
        start = 0 if place is None else bisect_right(self.places, place)
        chosen = self.places[start : start + _LOOKUPS_AT_ONCE]
        if not chosen:
            return _END
        rows = self.table.rows_of([each.primary_key for each in chosen])
        return TablePart(rows, None if chosen[-1] is self.places[-1] else chosen[-1])

    def of_digest(self, mark: RowMark, shown: Callable[[StateRows], bool]) -> StatePlace:
        """Return the place of the key that has a digest, whether there is a row or not.

        Raises:
            InvalidRequest: None of the keys has.
        """
        for each in self.places:
            if mark.is_of_key(each.primary_key):
                return each
        raise unknown_row()


def before_hash(key_hash: int) -> StatePlace | None:
    """Return a place with no row between it and the first of a key hash; None: before all rows."""
    return StatePlace(key_hash - 1, _LAST_KEY) if key_hash else None


def unknown_row() -> InvalidRequest:
    """Return that a cursor is of another state."""
    return InvalidRequest(
        "after: the cursor stands behind a row that this state does not have; resume with a cursor as it came"
    )


def _parts(table: TableState, behind: StatePlace | None) -> Iterator[StateRows]:
    """Yield the rows behind a place in parts, whose borders soon are those of any other reader."""
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
    """Return rows joined, in memory of their own: a slice would keep all that it was cut from."""
    if len(parts) > 1:
        return joined_rows(parts)
    return parts[0].taken(np.arange(len(parts[0])))


def _nbytes(rows: StateRows) -> int:
    columns = rows.key_hashes, rows.versions, rows.indexes, rows.counts
    fixed = sum(each.nbytes for each in columns)
    return fixed + int(rows.primary_keys.nbytes) + int(rows.images.nbytes)


_B = TypeVar("_B", bound="_Block")

_KEYS_AT_ONCE: Final = 2_000
"""Keys that are sorted by their places on the event loop, in a few milliseconds."""


class PinnedTable:
    """A table at a version; ``open`` it first."""

    view: LogView
    """The newest one that had all of its files when it was opened."""
    table: TableState

    def __init__(
        self, log: FollowedLog, entity_type: str, version: int, keys: tuple[str, ...] | None
    ) -> None:
        """Name it; ``keys`` are those whose rows are read, None for all."""
        self.entity_type = entity_type
        self.version = version
        self._log = log
        self._keys = keys

    async def open(self) -> None:
        """Take the newest view, in which the version has the same rows wherever its files are.

        Raises:
            InvalidRequest: The log does not know the entity type, or the version is not published.
            PositionCompacted: The version lies below what is kept.
            LogCorrupted: What is read is damaged.
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
        """Return the block that ``made`` makes, in a reader thread, of the part behind a place.

        ``form`` identifies its results among the others from the same part. Errors as ``open``.
        """
        reading = self._log.reading
        while True:
            # The block first: while it is there, nothing has to be read.
            key = (self._name, place, *form)
            if (ready := reading.ready_state_block(key)) is not None:
                return cast("_B", ready)
            try:
                if isinstance(self._rows, KeyedRows):
                    # Nobody else asks for these rows, so they are read and encoded in one go.
                    return await reading.state_block(key, partial(self._made, place, made))
                part = await reading.table_part(
                    (self._name, place), partial(self._rows.behind, place)
                )
                return await reading.state_block(key, partial(made, self, part))
            except SegmentMissing as missing:
                await self._recover(missing)

    def ready(self, place: StatePlace | None, form: tuple[Hashable, ...]) -> _Block | None:
        """Return what ``behind`` would, if it is at hand; else None, and nothing is read."""
        return self._log.reading.ready_state_block((self._name, place, *form))

    def _made(self, place: StatePlace | None, made: Callable[[PinnedTable, TablePart], _B]) -> _B:
        return made(self, self._rows.behind(place))

    async def behind_page(self, page: str, found: Callable[[TableScan | KeyedRows], _B]) -> _B:
        """Return what ``found`` finds in the rows, in a reader thread, once for all who ask for this page."""
        while True:
            try:
                return await self._log.reading.state_block(
                    (self._name, page), partial(found, self._rows)
                )
            except SegmentMissing as missing:
                await self._recover(missing)

    async def place_of(self, mark: RowMark, shown: Callable[[StateRows], bool]) -> StatePlace:
        """Return the place of the row that a mark names; ``shown`` as of ``TableScan.of_digest``.

        Raises:
            InvalidRequest: The table has no such row.
        """
        if mark.primary_key is not None:
            return self.table.place_of(mark.primary_key)
        while True:
            try:
                found = await asyncio.to_thread(self._rows.of_digest, mark, shown)
            except SegmentMissing as missing:
                await self._recover(missing)
            else:
                return found

    def keep(self, place: StatePlace, form: tuple[Hashable, ...], block: _Block) -> None:
        """Keep a block under a place in it, from which its reader will continue."""
        self._log.reading.keep_state_block((self._name, place, *form), block)

    @property
    def whole_removals(self) -> WholeRemovals:
        """The rows whose removed images are known to be whole, though a state has none."""
        return self.view.whole_removals

    def schema_of(self, version: int) -> Schema:
        """Return the schema of a version, in which the entity type has the name that it is read by.

        Rows keep the form that they had. Without this nothing would be known of those from before a rename.
        """
        return self._as_named(self.view.schema_of(version))

    def schemas_of(
        self, versions: npt.NDArray[np.int64]
    ) -> tuple[list[Schema], npt.NDArray[np.int64]]:
        """Return the same for many versions, as ``LogView.schemas_of``."""
        schemas, which = self.view.schemas_of(versions)
        return [*map(self._as_named, schemas)], which

    def schemas(self) -> Iterator[Schema]:
        """Yield the schemas of the log, oldest first, as they are."""
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
