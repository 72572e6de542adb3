"""The first phase of a subscription that begins with a state: the rows of its tables as of one version V.

::

    tables by name ─▶ blocks of a table ─▶ messages, then the changes from V + 1 on
                      read in a task       cut as they are asked for

Nothing of the log behind V is read meanwhile. The subscription's intake is at V + 1 from the beginning. So
it is noticed if retention takes what comes next: the subscription ends before all rows are sent for nothing.

The next capture is known by its place (row and ordinal), never by a number in a block: a block that was let go
is made again, perhaps of another base, and may begin and end elsewhere.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from tailrace.capture import StateComplete
from tailrace.criteria import After, FromState
from tailrace.cursor import StateCursor, type_mark
from tailrace.errors import InvalidRequest, PositionCompacted, again, kept
from tailrace.position import END, Position
from tailrace_server.live.state_rows import RowMatcher, keys_of, tables_of
from tailrace_server.log_cache.frames import Frames
from tailrace_server.log_cache.start import refuse_other_history
from tailrace_server.reads.pinned_table import PinnedTable, before_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from tailrace.criteria import Beginning, Start
    from tailrace.cursor import Cursor
    from tailrace.errors import TailraceError
    from tailrace_server.live.options import DeliveryOptions
    from tailrace_server.live.state_rows import MatchedBlock
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.log_cache.last_message import LastMessage
    from tailrace_server.resources.memory import Wakeable
    from tailrace_server.rows.predicate import Predicate
    from tailrace_server.wal.base.state_rows import StatePlace

_STALLED_S: Final = 1.0
"""Of a reader that has not moved for so long the cache alone keeps the block."""
_ADVICE: Final = (
    "subscribe anew with initial STATE and no cursor; its rows take the place of those that came"
)
"""The advice if a state cannot be continued."""


class StatePhase:
    """The rows that one subscription is sent first; made by ``begun``. Lives on the event loop."""

    def __init__(
        self,
        log: FollowedLog,
        predicate: Predicate,
        options: DeliveryOptions,
        begin: StateCursor,
        tables: Sequence[str],
    ) -> None:
        """Begin before the first row of some tables, whose order ``begin`` knows."""
        self.version = begin.version
        self._log = log
        self._options = options
        self._predicate = predicate
        self._matcher = RowMatcher(
            predicate, options.codec, options.content, options.message_bytes, begin
        )
        self._passed: StateCursor | tuple[str, str, int] = begin
        """The cursor behind all that was handed over, or what it is made of."""
        self._tables = [*reversed(tables)]
        """Those that are not read to their end, the next one last."""
        self._table: PinnedTable | None = None
        self._place: StatePlace | None = None
        """The block begins behind it; None: with the table."""
        self._last: tuple[StatePlace, int] | None = None
        """Row and ordinal of the last capture behind ``_place`` that was handed over, where one was, as of
        ``_noted``."""
        self._block: MatchedBlock | None = None
        self._next = 0
        """Next capture of the block."""
        self._stop = 0
        """Captures of the block."""
        self._noted = 0
        """The next one when ``_last`` and ``_passed`` were noted: once a message would cost more than the
        message."""
        self._headers: MatchedBlock | None = None
        """The block's captures without bodies, once one of them was too large."""
        self._used_at = 0.0
        """The event loop's time when the block was made, or last used, seconds."""
        self._reading: asyncio.Task[None] | None = None
        """Owned here: it is cancelled when the phase is closed."""
        self._error: TailraceError | None = None
        self._wake: Callable[[], None] = _nobody

    @property
    def cursor(self) -> Cursor:
        """Goes on behind everything that was handed over."""
        self._note()
        if not isinstance(self._passed, StateCursor):
            self._passed = self._matcher.begin.behind(*self._passed)
        return self._passed

    async def find(self, at: StateCursor) -> None:
        """Go to the place of a cursor, and open the table there: what cannot be read is refused now.

        Raises:
            InvalidRequest: The cursor is in the state of other tables.
            PositionCompacted: The state at V cannot be read any more.
        """
        if at.tables and at.tables != self._matcher.begin.tables:
            raise InvalidRequest(
                "after: the cursor stands in the state of other tables than are asked for or granted now; "
                "resume with the criteria that it came with, or " + _ADVICE
            )
        # 1. The table that it stands in. Those before it have been read.
        row = at.row
        while row is not None and self._tables and type_mark(self._tables[-1]) != row.entity_type:
            self._tables.pop()
        if not self._tables:
            if row is not None:
                raise InvalidRequest(f"after: {str(at)[:200]!r} names no table of the state")
            return
        self._table = await self._opened(self._tables[-1])
        # 2. Its row. Captures of the row itself may be left, so the block begins before it.
        if row is not None:
            shown = partial(self._matcher.takes, self._table)
            place = await self._table.place_of(row, shown)
            self._passed = at
            self._place, self._last = before_hash(place.key_hash), (place, row.ordinal)

    def attach(self, wake: Callable[[], None]) -> None:
        """Say whom to wake when there is something to cut."""
        self._wake = wake
        self._log.states.add(self)
        self._log.reading.scans.followers.add(self)

    def whole_message(self, demand: int | None, bytes_max: int) -> Frames | None:
        """Return the next message as the block at hand has it, shared with all who are sent it.

        None: there is none, or it is the first of its block, or it must be made smaller; then ask ``cut``. As
        that, it takes nothing.
        """
        if self._block is None or not self._next:
            return None
        assert self._block.frames is not None
        message = self._block.frames.messages.get(self._next)
        if message is None or len(message.data) > bytes_max:
            return None
        return message if demand is None or message.count <= demand else None

    def cut(
        self, demand: int | None, last: LastMessage, taker: Wakeable
    ) -> Frames | StateComplete | None:
        """Return the next message, which ``take`` takes; None: the subscription is woken when there may be one.

        Nothing is taken: asked again, it returns the same. With no demand only the end can be returned.

        Args:
            demand: Captures that it may have; None: any number.
            last: Bounds the message, and knows whether there is room for a large one, …
            taker: … for whom.

        Raises:
            TailraceError: The rows cannot be read.
        """
        if self._error is not None:
            raise again(self._error)
        block = self._block
        if block is None or self._next == len(block):
            if not self._tables:
                return StateComplete(self.version, self._matcher.begin.behind_state())
            self._read(self._advance())
            return None
        room = len(block) - self._next
        if demand is not None:
            room = min(room, demand)
        if not room:
            return None
        if last.waits_for_room(taker):
            return None
        assert block.frames is not None
        frames = block.frames.fitting(self._next, room, last.bytes_max)
        if len(frames.data) <= self._options.max_message_bytes:
            return frames if last.admits(len(frames.data), taker) else None
        # A capture that is too large comes as its header, which is of a block of its own.
        if self._headers is None:
            self._read(self._advance_headers())
            return None
        assert self._headers.frames is not None
        header = self._headers.frames.frame(self._next)
        omitted = len(frames.data) - len(header)
        return Frames(self._options.codec.with_omitted(header, omitted), 1, frames.last)

    def take(self, frames: Frames, now: float) -> None:
        """Note a message that was cut as handed over; ``now`` is the event loop's time, seconds."""
        self._next += frames.count
        self._used_at = now
        if self._next == self._stop:
            assert self._block is not None
            self._leave(self._block)
            if not self._stepped():
                self._read(self._advance())

    def let_go_of_block(self, now: float) -> None:
        """Keep no block if its reader has not moved for a while: the next message may never be asked for."""
        if now - self._used_at >= _STALLED_S:
            self._forget_block()

    def close(self) -> None:
        """Read nothing more, and keep nothing but the cursor. Idempotent."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        self._wake = _nobody
        self._forget_block()
        self._log.states.remove(self)
        self._log.reading.scans.followers.discard(self)

    def _note(self) -> None:
        """Find the place of the last capture of the block that was handed over."""
        if self._block is not None and self._table is not None and self._next > self._noted:
            place, ordinal = self._last = self._block.place(self._next - 1)
            self._passed = self._table.entity_type, place.primary_key, ordinal
            self._noted = self._next

    def _forget_block(self) -> None:
        self._note()
        self._block = self._headers = None

    def _leave(self, block: MatchedBlock) -> None:
        """Move behind the current block, which is used up."""
        self._forget_block()
        self._place = block.end
        if block.end is None:
            self._tables.pop()
            self._table = self._last = None
        elif self._last is not None and self._last[0] <= block.end:
            self._last = None

    def _stepped(self) -> bool:
        """Go to the next block if others have made it, so that nothing is read; return whether it was there."""
        if self._table is None:
            return False
        block = self._table.ready(self._place, self._matcher.form)
        if block is None:
            return False
        self._begin(cast("MatchedBlock", block))
        return True

    def _begin(self, block: MatchedBlock) -> None:
        self._next = self._noted = 0 if self._last is None else block.first_behind(*self._last)
        self._block, self._stop = block, len(block)
        self._used_at = asyncio.get_running_loop().time()

    def _read(self, work: Coroutine[object, object, None]) -> None:
        """Read in a task, so that heartbeats come however long it takes; one at a time."""
        if self._reading is not None:
            work.close()
            return
        self._reading = asyncio.get_running_loop().create_task(work, name="state")
        self._reading.add_done_callback(self._has_read)

    def _has_read(self, task: asyncio.Task[None]) -> None:
        if task is self._reading:
            self._reading = None
            error = None if task.cancelled() else task.exception()
            if isinstance(error, Exception):
                self._error = kept(error)
            self._wake()

    async def _advance(self) -> None:
        """Go on to a block with a capture that was not handed over; behind the last table there is none."""
        while self._tables:
            # 1. The block at hand. One that was let go is made again, of the same place.
            table, block = self._table, self._block
            if block is not None and self._next < len(block):
                return
            if table is None:
                self._table = await self._opened(self._tables[-1])
                continue
            if block is None:
                await self._log.turns.turn(self._options.peer)  # those who are live come first
                block = await table.behind(self._place, self._matcher.form, self._matcher.block)
                self._begin(block)
                continue
            # 2. Behind it: the next block, or the next table.
            self._leave(block)

    async def _advance_headers(self) -> None:
        block, table = self._block, self._table
        if block is None or table is None:
            return
        matcher = self._matcher.headers()
        headers = await table.behind(self._place, matcher.form, matcher.block)
        # It may have been made of another part, as a block that was let go is.
        if self._block is block and len(headers) >= len(block):
            self._headers = headers
        else:
            self._forget_block()

    async def _opened(self, name: str) -> PinnedTable:
        table = PinnedTable(self._log, name, self.version, keys_of(self._predicate, name))
        try:
            await table.open()
        except PositionCompacted as gone:
            raise advised(gone) from gone
        return table


async def begun(
    log: FollowedLog, start: Beginning | None, predicate: Predicate, options: DeliveryOptions
) -> tuple[StatePhase | None, Start | None]:
    """Return the state that a subscription begins with, if any, and the start of the changes behind it.

    Raises:
        CatalogReplaced, CursorAhead, HistoryReplaced: As ``refuse_other_history``.
        PositionCompacted: The state, or the changes behind it, are no longer retained.
        InvalidRequest: As ``StatePhase.find``.
    """
    # 1. A cursor of a state says by itself that there is one. Any other is behind all of it.
    if isinstance(start, After) and isinstance(start.cursor, StateCursor):
        start = FromState(start.cursor)
    if not isinstance(start, FromState):
        return None, start
    at = start.after
    if at is not None and not isinstance(at, StateCursor):
        return None, After(at)
    # 2. The version: that of the cursor, if the changes behind it are still there, or the one of now.
    if at is not None:
        view = await log.view_with(at.version)
        refuse_other_history(view, at)
        if Position(at.version + 1) < view.oldest:
            raise PositionCompacted(Position(at.version + 1), view.oldest, log.newest, _ADVICE)
    else:
        view = log.view
        least = 0 if options.wait is None else options.wait.version
        now = view.cursor(log.states.version(view, least), END)
        at = StateCursor(view.uuid, now.version, END, commit_timestamp=now.commit_timestamp)
    # 3. The tables of that version, and the place in them.
    names = tables_of(predicate, log.view.schema_of(at.version))
    begin = StateCursor.begin(at.behind_state(), names)
    phase = StatePhase(log, predicate, options, begin, names)
    await phase.find(at)
    return phase, After(at.behind_state())


def advised(gone: PositionCompacted) -> PositionCompacted:
    """Return the error of a state that cannot be gone on with, with what to do."""
    return PositionCompacted(gone.wanted, gone.oldest, gone.newest, _ADVICE)


def _nobody() -> None:
    """Do nothing: there is no subscription yet, or no longer."""
