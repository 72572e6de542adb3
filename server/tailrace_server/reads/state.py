"""State: the rows of one entity type as of one version V, each as the capture that it came with.

A read is pinned to V before its first message, and V never changes afterwards, whatever is written meanwhile.
Whoever applies the rows and then the changes behind ``cursor`` has what the log has: no version is missing,
and none comes twice.

Rows come in the order of their key hashes, which means nothing and is the same for every read of V. So a read
that was cut continues behind its last row, in the same order, with a page.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from tailrace.errors import EntityTypeUnknown
from tailrace.position import END
from tailrace_server.codecs.column_cut import column_codec, living_codec
from tailrace_server.reads.log_read import LogRead
from tailrace_server.reads.pinned_table import PinnedTable
from tailrace_server.reads.state_blocks import StateEncoder, block_behind_page
from tailrace_server.reads.state_place import StatePage
from tailrace_server.reads.state_request import ids_asked, version_asked
from tailrace_server.rows.lens import row_lens
from tailrace_server.typed.table_values import TableValues

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable, Sequence
    from uuid import UUID

    from tailrace.cursor import Cursor
    from tailrace.schema import Column
    from tailrace_server.codecs import Codec
    from tailrace_server.grants.shown import Rule
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.log_cache.frames import Frames
    from tailrace_server.reads.log_read import ReadTerms
    from tailrace_server.reads.state_blocks import StateBlock
    from tailrace_server.reads.state_request import StateRequest
    from tailrace_server.reads.view_rows import ViewRows
    from tailrace_server.rows.lens import RowLens
    from tailrace_server.rows.state_filter import StateCondition
    from tailrace_server.wal.base.state_rows import StatePlace
    from tailrace_server.wal.state.view import LogView


class StateRead(LogRead):
    """One read of state; ``begin`` it, then iterate it once."""

    def __init__(
        self,
        log: FollowedLog,
        request: StateRequest,
        terms: ReadTerms,
        *,
        codec: Codec,
        condition: StateCondition | None = None,
        of_view: ViewRows | None = None,
    ) -> None:
        """Bind it to a log; nothing is looked at before ``begin``.

        Args:
            log: What is read.
            request: What of it.
            terms: What it was admitted with.
            codec: The wire form of the frames, cut to what is granted.
            condition: Which rows are given; None: all of them.
            of_view: The view that was requested, whose entity type is read; None: none.
        """
        super().__init__(terms)
        self.version = 0
        """After ``begin``: V."""
        self.has_next = False
        """After the last message: whether the limit cut the rows short."""
        self._log = log
        self._view = log.view
        self._request = request
        self._whole_codec = self._codec = codec
        self._condition = condition
        self._of_view = of_view
        self._name = request.entity_type if of_view is None else of_view.name
        """The identity of the read that pages belong to."""
        self._chosen: Hashable = None
        """The key of its blocks, which differs between conditions."""
        self._left = request.limit
        """Rows that it may still give; None without a limit."""
        self._place: StatePlace | None = None
        """Behind the last row that was handed over or left out; None before the first."""
        self._last: StatePlace | None = None
        """Behind the last row that was handed over; None before the first."""
        self._block: StateBlock | None = None
        """The block that the next message is cut from; None where the cache alone has it."""

    @property
    def catalog_uuid(self) -> UUID:
        """The log that is read."""
        return self._view.uuid

    @property
    def entity_type(self) -> str:
        """The entity type whose rows are read, also where a view was requested."""
        return self._request.entity_type

    @property
    def columns(self) -> tuple[str, ...]:
        """The names, as of V, of the columns that images have; empty: all of them."""
        return self._request.columns

    @property
    def definition(self) -> bytes:
        """The identity of the requested view among the earlier ones of its name; empty: no view."""
        return b"" if self._of_view is None else self._of_view.identity

    @property
    def commit_timestamp(self) -> int:
        """When V was committed, µs; 0 for the empty state, or where it is forgotten."""
        return self._view.known_timestamp_of(self.version) or 0

    @property
    def cursor(self) -> Cursor:
        """The cursor that continues from V."""
        return self._view.cursor(self.version, END)

    def resume_cursor(self) -> StatePage | None:
        """Return the page behind the last row that was handed over; None before the first."""
        if self._last is None:
            return self._request.page
        return StatePage.behind(self.cursor, self._name, *self._last)

    def page_behind(self, primary_key: str) -> StatePage:
        """Return the page behind the row of a key."""
        place = self._table.table.place_of(primary_key)
        return StatePage.behind(self.cursor, self._name, *place)

    def next_page(self) -> StatePage | None:
        """Return the page behind a read that is over; None when nothing follows."""
        return self.resume_cursor() if self.has_next else None

    def _let_go(self) -> None:
        self._block = None

    async def begin(self) -> None:
        """Find V and the table: a read that cannot be answered is refused before its first message.

        Raises:
            DeadlineExceeded: The version that it waits for was not published in time.
            InvalidRequest: A version or a time that is still to come, or a page of another read.
            CatalogReplaced: A page's log is not this one.
            PositionCompacted: V lies below what is kept.
            EntityTypeUnknown: No published version has the entity type.
            InvalidRequest, NotPermitted: A requested column does not exist at V, as `ids_asked`.
        """
        page = self._request.page
        self.version = await version_asked(self._log, self._request, self._name)
        await self._open()
        if page is not None:
            lens, shown = self._encoder.lens, self.use.narrowed.shown
            find = partial(block_behind_page, page=page, lens=lens)
            told = "" if shown is None or not lens.has_conditions else shown.identity.hex()
            self._place = (await self._table.behind_page(f"{page}{told}", find)).end

    async def _open(self) -> None:
        """Open the table, in the newest view."""
        self._refuse_unknown_type(self._log.view)
        table = PinnedTable(self._log, self.entity_type, self.version, self.use.keys)
        await table.open()
        self._table, self._view = table, table.view
        shown, of_view = self.use.narrowed.shown, self._of_view
        if of_view is None and self._request.columns:
            self._codec = column_codec(self._whole_codec, self._ids_asked(table))
        else:
            at = table.schema_of(self.version)
            self._codec = living_codec(self._whole_codec, at, self.entity_type)
        # Columns that each condition may name; None: those of the table at V.
        conditions: list[tuple[StateCondition, Sequence[Column] | None]] = []
        if of_view is not None and of_view.condition is not None:
            conditions.append((of_view.condition, of_view.request))
        if self._condition is not None:
            conditions.append((self._condition, None if of_view is None else of_view.shown))
        if conditions:
            # Blocks of equal conditions are the same, as long as all is shown.
            self._chosen = (self.definition, self._condition) if shown is None else object()
        rights = None if shown is None else shown.rules_of(self.entity_type)
        compile_lens = partial(self._lens, table.view, rights, conditions)
        # Conditions are bound in a thread, as they may have thousands of values.
        binds = conditions or (shown is not None and shown.has_conditions(self.entity_type))
        self._encoder = StateEncoder(
            self.entity_type,
            self._codec,
            not self._request.keys_only,
            self._terms.message_bytes,
            await asyncio.to_thread(compile_lens) if binds else compile_lens(),
        )

    def _lens(
        self,
        view: LogView,
        rights: Sequence[Rule] | None,
        conditions: Sequence[tuple[StateCondition, Sequence[Column] | None]],
    ) -> RowLens:
        values = TableValues(view, self.entity_type, self.version)
        asked = []
        for condition, named in conditions:
            hints: list[str] | None = None
            if rights is not None and named is None:
                names = (each.name for each in values.columns)
                hints = [name for name in names if any(each.columns.shows(name) for each in rights)]
            asked.append(condition.bound(values.columns if named is None else named, hints))
        return row_lens(values, view, rights, asked)

    def _ids_asked(self, table: PinnedTable) -> frozenset[int]:
        """Return the ids of the requested columns, found by the names that they have at V."""
        schema = table.schema_of(self.version)
        # A table that begins behind V has no rows at V, and no columns yet by which names could be checked.
        if self.entity_type not in schema.entity_types:
            schema = table.view.schema_of(table.view.published)
        columns = schema.columns(self.entity_type)
        granted = self.use.columns_of(self.entity_type)
        return ids_asked(self._request, self.version, columns, granted)

    def _refuse_unknown_type(self, view: LogView) -> None:
        name = self.entity_type
        newest = view.schema_of(view.published).entity_types
        if name not in newest and name not in view.schema_of(self.version).entity_types:
            raise EntityTypeUnknown(view.name, name, self.use.granted_types(newest))

    async def __aiter__(self) -> AsyncIterator[Frames]:
        """Yield messages of whole rows.

        Raises:
            SubscriberTooSlow: Its reader stalled, and others needed the memory of its message.
            ServerFull: There was no room for a large message within the send deadline.
        """
        while True:
            # 1. The block behind all that was handed over. It is read again where it was let go meanwhile.
            block = await self._block_behind()
            row, rows = block.first_behind(self._place), len(block)
            while row < rows and self._block is block:
                if self._left == 0:
                    # The next page begins in this block, and most often comes at once.
                    self.has_next = True
                    assert self._place is not None
                    self._table.keep(self._place, self._form(), block)
                    return
                # 2. A message, once there is room for it. While it waits, neither it nor its block is held.
                await self._log.turns.turn(self)
                assert block.frames is not None
                count_max = rows - row if self._left is None else min(rows - row, self._left)
                frames = block.frames.fitting(row, count_max, self.last.bytes_max)
                if not self.last.admits(len(frames.data), self):
                    self._let_go()
                    del block, frames
                    await self._turn()
                    break
                # 3. It is handed over.
                row += frames.count
                self._left = None if self._left is None else self._left - frames.count
                self._last = self._place = block.place(row - 1)
                yield self._handed(frames)
                del frames
                await self._taken()
            else:
                # 4. The block has nothing left, or was let go while its reader took a message.
                if row < rows:
                    continue
                if block.end is None:
                    return
                self._place = block.end
                self._let_go()

    async def _block_behind(self) -> StateBlock:
        if self._block is not None:
            return self._block
        block = await self._table.behind(self._place, self._form(), self._encoder.block)
        self._block, self._view = block, self._table.view
        return block

    def _form(self) -> tuple[Hashable, ...]:
        return self._codec.name, self._request.keys_only, self._chosen
