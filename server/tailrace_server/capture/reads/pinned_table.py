"""One entity type as of one version, read part by part, wherever its files are by then.

::

    place ─▶ part: rows behind it ─▶ block: what one kind of reader is sent of them
             shared by all who read      shared by all who are sent the same
             the table at this version

A version never changes, so a place holds for as long as it can be read. Borders between parts are chosen by the
key hashes of the rows, not by where a reader began: readers that begin at different places, as those that come
back to a server that was restarted, soon ask for the same parts.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from tailrace_server.capture.reads.table_parts import KeyedRows, TableScan
from tailrace_server.wal.segment.reader import SegmentMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    import numpy as np
    import numpy.typing as npt

    from tailrace.cursor import RowMark
    from tailrace.schema import Schema
    from tailrace_server.capture.delivery.followed_log import FollowedLog
    from tailrace_server.capture.reads.table_parts import TablePart
    from tailrace_server.wal.base.reading import TableState
    from tailrace_server.wal.base.state_rows import StatePlace, StateRows
    from tailrace_server.wal.state.view import LogView
    from tailrace_server.wal.state.whole_removals import WholeRemovals

    class _Block(Protocol):
        @property
        def nbytes(self) -> int:
            """Bytes that it holds."""


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
