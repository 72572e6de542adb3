"""The first phase of a subscription with an initial state: the rows of its tables as of one version V.

::

    tables by name ─▶ blocks of a table ─▶ messages, then the changes from V + 1 on
                      read in a task       cut when they are requested

The log after V is not read during this phase. The subscription's intake is at V + 1 from the beginning. So the
subscription notices when retention removes V + 1, and ends at once: the remaining rows would be of no use.

The next capture is identified by its place (row and ordinal), never by its number in a block. A block that was
released is made again, perhaps from another base, and may then begin and end at other rows.
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
from tailrace_server.reads.pinned_table import PinnedTable, before_hash
from tailrace_server.wal.state.view import refuse_other_history

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
"""Seconds without progress after which a phase releases its block; only the cache may retain it then."""
_ADVICE: Final = (
    "subscribe again with initial STATE and no cursor; its rows replace the ones received"
)
"""The advice in errors that say that a state cannot be continued."""


class StatePhase:
    """The phase in which one subscription receives the rows of a state. It lives on the event loop.

    ``begun`` makes it.
    """

    def __init__(
        self,
        log: FollowedLog,
        predicate: Predicate,
        options: DeliveryOptions,
        begin: StateCursor,
        tables: Sequence[str],
    ) -> None:
        """Begin before the first row of the first table; ``begin`` is the cursor of that place."""
        self.version = begin.version
        self._log = log
        self._options = options
        self._predicate = predicate
        self._matcher = RowMatcher(
            predicate, options.codec, options.content, options.message_bytes, begin
        )
        self._passed: StateCursor | tuple[str, str, int] = begin
        """The cursor after the last delivered row, or the parts to make that cursor of."""
        self._tables = [*reversed(tables)]
        """Names of the tables that are not read to their end, the next table last."""
        self._table: PinnedTable | None = None
        self._place: StatePlace | None = None
        """The block begins after this place; None: at the begin of the table."""
        self._last: tuple[StatePlace, int] | None = None
        """Row and ordinal of the last delivered capture after ``_place``, as of ``_noted``; None: there is
        none."""
        self._block: MatchedBlock | None = None
        self._next = 0
        """Number of the next capture in the block."""
        self._stop = 0
        """Number of captures in the block."""
        self._noted = 0
        """The value of ``_next`` when ``_last`` and ``_passed`` were set. They are set only when they are
        needed, since setting them for each message would cost more than the message."""
        self._headers: MatchedBlock | None = None
        """The captures of the block without bodies; None until a capture of the block is too large."""
        self._used_at = 0.0
        """Event loop's time when the block was made or last used, in seconds."""
        self._reading: asyncio.Task[None] | None = None
        """The task that reads the next block; the phase owns it and cancels it in ``close``."""
        self._error: TailraceError | None = None
        self._wake: Callable[[], None] = _nobody

    @property
    def cursor(self) -> Cursor:
        """The cursor after everything that was delivered."""
        self._note()
        if not isinstance(self._passed, StateCursor):
            self._passed = self._matcher.begin.behind(*self._passed)
        return self._passed

    async def find(self, at: StateCursor) -> None:
        """Move to the place of a cursor and open its table, so that an unreadable state is refused now.

        Raises:
            InvalidRequest: The cursor is of a state with other tables.
            PositionCompacted: The state at V cannot be read any more.
        """
        if at.tables and at.tables != self._matcher.begin.tables:
            raise InvalidRequest(
                "after: the cursor is in the state of other tables than are requested or granted now; "
                "resume with the criteria of that subscription, or " + _ADVICE
            )
        # 1. Drop the tables before that of the cursor: they have been read.
        row = at.row
        while row is not None and self._tables and type_mark(self._tables[-1]) != row.entity_type:
            self._tables.pop()
        if not self._tables:
            if row is not None:
                raise InvalidRequest(f"after: {str(at)[:200]!r} is not a table of the state")
            return
        self._table = await self._opened(self._tables[-1])
        # 2. Find the row of the cursor. Captures of that row may be left, so the block begins before the row.
        if row is not None:
            shown = partial(self._matcher.takes, self._table)
            place = await self._table.place_of(row, shown)
            self._passed = at
            self._place, self._last = before_hash(place.key_hash), (place, row.ordinal)

    def attach(self, wake: Callable[[], None]) -> None:
        """Set the callback that wakes the subscription when there is something to cut."""
        self._wake = wake
        self._log.states.add(self)
        self._log.reading.scans.followers.add(self)

    def whole_message(self, demand: int | None, bytes_max: int) -> Frames | None:
        """Return the next message as the current block has it; subscriptions share these bytes.

        The message is not consumed; ``take`` does that.

        Returns:
            The message. None if there is none, if it is the first of its block, or if it is too large for
            the bounds; then call ``cut``.
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
        """Return the next message or `StateComplete`; None if there is none yet.

        After None the subscription is woken when there may be a message. Nothing is consumed: another call
        returns the same message until ``take`` is called. Without demand only `StateComplete` can be returned.

        Args:
            demand: Most captures of the message; None: any number.
            last: The subscription's last message, which bounds the next one and reserves room for a large one.
            taker: The subscription that waits for this room.

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
        # A capture that is too large is sent as its header, which comes from a block without bodies.
        if self._headers is None:
            self._read(self._advance_headers())
            return None
        assert self._headers.frames is not None
        header = self._headers.frames.frame(self._next)
        omitted = len(frames.data) - len(header)
        return Frames(self._options.codec.with_omitted(header, omitted), 1, frames.last)

    def take(self, frames: Frames, now: float) -> None:
        """Mark a message as delivered; ``now`` is the event loop's time in seconds."""
        self._next += frames.count
        self._used_at = now
        if self._next == self._stop:
            assert self._block is not None
            self._leave(self._block)
            if not self._stepped():
                self._read(self._advance())

    def let_go_of_block(self, now: float) -> None:
        """Release the block if the reader has not moved for a while; it may never request the next message."""
        if now - self._used_at >= _STALLED_S:
            self._forget_block()

    def close(self) -> None:
        """Stop reading, and release everything but the cursor. Idempotent."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        self._wake = _nobody
        self._forget_block()
        self._log.states.remove(self)
        self._log.reading.scans.followers.discard(self)

    def _note(self) -> None:
        """Set ``_last`` and ``_passed`` to the last delivered capture of the block."""
        if self._block is not None and self._table is not None and self._next > self._noted:
            place, ordinal = self._last = self._block.place(self._next - 1)
            self._passed = self._table.entity_type, place.primary_key, ordinal
            self._noted = self._next

    def _forget_block(self) -> None:
        self._note()
        self._block = self._headers = None

    def _leave(self, block: MatchedBlock) -> None:
        """Move past the current block after all its captures were delivered."""
        self._forget_block()
        self._place = block.end
        # No end means that the table has no further rows: drop the table.
        if block.end is None:
            self._tables.pop()
            self._table = self._last = None
        elif self._last is not None and self._last[0] <= block.end:
            self._last = None

    def _stepped(self) -> bool:
        """Move to the next block if the cache has it. Return True if it has."""
        if self._table is None:
            return False
        # Another subscription with the same form may have read this block; then no task is needed.
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
        """Start a task that reads, unless one is running. Heartbeats continue while it runs."""
        if self._reading is not None:
            work.close()
            return
        self._reading = asyncio.get_running_loop().create_task(work, name="state")
        self._reading.add_done_callback(self._has_read)

    def _has_read(self, task: asyncio.Task[None]) -> None:
        # After ``close`` another task, or none, is current: then ignore the result.
        if task is self._reading:
            self._reading = None
            error = None if task.cancelled() else task.exception()
            if isinstance(error, Exception):
                self._error = kept(error)
            self._wake()

    async def _advance(self) -> None:
        """Read on to a block with an undelivered capture, or to the end of the last table."""
        while self._tables:
            # 1. The current block. A block that was released is made again, from the same place on.
            table, block = self._table, self._block
            if block is not None and self._next < len(block):
                return
            if table is None:
                self._table = await self._opened(self._tables[-1])
                continue
            if block is None:
                await self._log.turns.turn(self._options.peer)  # live subscriptions come first
                block = await table.behind(self._place, self._matcher.form, self._matcher.block)
                self._begin(block)
                continue
            # 2. The block has nothing left: move to the next block or the next table.
            self._leave(block)

    async def _advance_headers(self) -> None:
        # The block may have been released since the headers were requested; then there is nothing to do.
        block, table = self._block, self._table
        if block is None or table is None:
            return
        matcher = self._matcher.headers()
        headers = await table.behind(self._place, matcher.form, matcher.block)
        # The headers may come from another part of the table than the block, if the block was made again.
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
    """Return the state phase of a subscription, or None, and the start of the changes after it.

    Raises:
        CatalogReplaced, CursorAhead, HistoryReplaced: The cursor belongs to another log or history.
        PositionCompacted: The state, or the changes after it, are no longer retained.
        InvalidRequest: The cursor is of a state with other tables.
    """
    # 1. A state cursor is inside of a state, so it implies the phase. Any other cursor is after the state.
    if isinstance(start, After) and isinstance(start.cursor, StateCursor):
        start = FromState(start.cursor)
    if not isinstance(start, FromState):
        return None, start
    at = start.after
    if at is not None and not isinstance(at, StateCursor):
        return None, After(at)
    # 2. The version: that of the cursor, if the changes after it are retained, or else the newest one.
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
    """Return the same error with the advice to begin a new state."""
    return PositionCompacted(gone.wanted, gone.oldest, gone.newest, _ADVICE)


def _nobody() -> None:
    """Do nothing. This is the callback before a subscription is attached and after the phase is closed."""
