"""State: the rows of one entity type as of one version V, each as the capture of its last change.

A read is pinned to V before its first message; later writes do not affect it. A client that applies the rows
and then the changes after ``cursor`` is consistent with the log: no version is missing, and none is applied
twice.

The rows are ordered by key hash. The order has no meaning, but is the same in every read of V. So a read with a
limit continues after its last row, with a page.
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
    """One read of state. Call ``begin`` first, then iterate over it once."""

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
        """Bind a read to a log; nothing is read before ``begin``.

        Args:
            log: The log.
            request: The request.
            terms: The terms on which the read was admitted.
            codec: The wire form of the frames, already cut to the granted columns.
            condition: The requested condition on rows; None: all rows.
            of_view: The requested view, whose entity type is read; None: an entity type was requested.
        """
        super().__init__(terms)
        self.version = 0
        """The version V; set by ``begin``."""
        self.has_next = False
        """True, after the last message, if the limit ended the read before the last row."""
        self._log = log
        self._view = log.view
        self._request = request
        self._whole_codec = self._codec = codec
        self._condition = condition
        self._of_view = of_view
        self._name = request.entity_type if of_view is None else of_view.name
        """The name in pages: that of the requested view or entity type."""
        self._chosen: Hashable = None
        """Part of the cache key of blocks that identifies the conditions; None: no condition."""
        self._left = request.limit
        """Number of rows that may still be delivered; None: no limit."""
        self._place: StatePlace | None = None
        """Place after the last row that was delivered or filtered out; None before the first."""
        self._last: StatePlace | None = None
        """Place after the last delivered row; None before the first."""
        self._block: StateBlock | None = None
        """The block that the next message is cut from; None: only the cache may have it."""

    @property
    def catalog_uuid(self) -> UUID:
        """The UUID of the log that is read."""
        return self._view.uuid

    @property
    def entity_type(self) -> str:
        """The entity type whose rows are read; for a view, the view's entity type."""
        return self._request.entity_type

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the images, by their names at V; empty: all columns."""
        return self._request.columns

    @property
    def definition(self) -> bytes:
        """Identity of the requested view's definition, as views may be redefined; empty: no view."""
        return b"" if self._of_view is None else self._of_view.identity

    @property
    def commit_timestamp(self) -> int:
        """Commit time of V, in microseconds; 0 for version 0, or if the log no longer has it."""
        return self._view.known_timestamp_of(self.version) or 0

    @property
    def cursor(self) -> Cursor:
        """The cursor after V, for a subscription that continues there."""
        return self._view.cursor(self.version, END)

    def resume_cursor(self) -> StatePage | None:
        """Return the page after the last delivered row; before the first row, the requested page or None."""
        if self._last is None:
            return self._request.page
        return StatePage.behind(self.cursor, self._name, *self._last)

    def page_behind(self, primary_key: str) -> StatePage:
        """Return the page after the row with a key."""
        place = self._table.table.place_of(primary_key)
        return StatePage.behind(self.cursor, self._name, *place)

    def next_page(self) -> StatePage | None:
        """Return the page that follows a finished read; None if no rows are left."""
        return self.resume_cursor() if self.has_next else None

    def _let_go(self) -> None:
        self._block = None

    async def begin(self) -> None:
        """Determine V and open the table, so that an impossible read fails before its first message.

        Raises:
            DeadlineExceeded: The version to wait for was not published in time.
            InvalidRequest: The version or time is in the future, or the page belongs to another read.
            CatalogReplaced: The page belongs to another log.
            PositionCompacted: V is below the oldest retained version.
            EntityTypeUnknown: No published version has the entity type.
            InvalidRequest, NotPermitted: A requested column does not exist at V or is hidden; see
            ``ids_asked``.
        """
        page = self._request.page
        self.version = await version_asked(self._log, self._request, self._name)
        await self._open()
        if page is not None:
            # Find the place of the page. Conditions of grants decide which rows are visible, so they are part
            # of the key under which the place is cached.
            lens, shown = self._encoder.lens, self.use.narrowed.shown
            find = partial(block_behind_page, page=page, lens=lens)
            told = "" if shown is None or not lens.has_conditions else shown.identity.hex()
            self._place = (await self._table.behind_page(f"{page}{told}", find)).end

    async def _open(self) -> None:
        """Open the table through the newest view, and compile codec and lens for it."""
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
        # Each condition comes with the columns that it may name; None: the columns of the table at V.
        conditions: list[tuple[StateCondition, Sequence[Column] | None]] = []
        if of_view is not None and of_view.condition is not None:
            conditions.append((of_view.condition, of_view.request))
        if self._condition is not None:
            conditions.append((self._condition, None if of_view is None else of_view.shown))
        if conditions:
            # Reads with equal conditions share cached blocks, if everything is granted to them. Otherwise the
            # blocks are this read's alone.
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
            # Errors may name only columns that are visible in some rows; a view's columns all are.
            hints: list[str] | None = None
            if rights is not None and named is None:
                names = (each.name for each in values.columns)
                hints = [name for name in names if any(each.columns.shows(name) for each in rights)]
            asked.append(condition.bound(values.columns if named is None else named, hints))
        return row_lens(values, view, rights, asked)

    def _ids_asked(self, table: PinnedTable) -> frozenset[int]:
        """Return the ids of the requested columns, looked up by their names at V."""
        schema = table.schema_of(self.version)
        # A table that was created after V has no rows and no
        # columns at V: check the names in the newest schema.
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
            SubscriberTooSlow: The reader stalled, and other readers needed the memory of its message.
            ServerFull: There was no room for a large message within the send deadline.
        """
        while True:
            # 1. Get the block after all delivered rows. It is read again if it was dropped meanwhile.
            block = await self._block_behind()
            row, rows = block.first_behind(self._place), len(block)
            while row < rows and self._block is block:
                if self._left == 0:
                    # The next page begins in this block and usually is requested at once, so cache the block.
                    self.has_next = True
                    assert self._place is not None
                    self._table.keep(self._place, self._form(), block)
                    return
                # 2. Cut a message. If it has to wait for room, hold
                #    neither the message nor its block meanwhile.
                await self._log.turns.turn(self)
                assert block.frames is not None
                count_max = rows - row if self._left is None else min(rows - row, self._left)
                frames = block.frames.fitting(row, count_max, self.last.bytes_max)
                if not self.last.admits(len(frames.data), self):
                    self._let_go()
                    del block, frames
                    await self._turn()
                    break
                # 3. Deliver the message.
                row += frames.count
                self._left = None if self._left is None else self._left - frames.count
                self._last = self._place = block.place(row - 1)
                yield self._handed(frames)
                del frames
                await self._taken()
            else:
                # 4. The block has no rows left. Or it was dropped
                #    while the reader took a message: read it again.
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
