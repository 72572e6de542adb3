"""History: a closed range of the log, forward or reverse, in pages of whole records.

Both directions visit the same records with the same numbers. A read is pinned to the newest version that was
published when it began, its *anchor*. A client that sends the anchor back pins later pages to the same range.

A range that begins below the oldest retained position is never shortened silently. If its lower bound is a
time, the read begins at the oldest position and is marked as *truncated*. Any other such bound raises
``PositionCompacted``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrace.criteria import After, FromTime, Since
from tailrace.cursor import StateCursor
from tailrace.errors import BodiesExpired, InvalidRequest, PositionCompacted
from tailrace.position import FIRST, Position
from tailrace_server.filters.tree import ChangeNotJudged
from tailrace_server.log_cache.catalog_reader import position_after
from tailrace_server.log_cache.frames import Frames
from tailrace_server.log_cache.start import resolve
from tailrace_server.reads.log_read import LogRead
from tailrace_server.rows.run import Mark
from tailrace_server.rows.unknown_names import unknown_changes
from tailrace_server.wal.segment.reader import SegmentMissing
from tailrace_server.wal.state.view import refuse_other_history

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from uuid import UUID

    from tailrace.criteria import Content, Start
    from tailrace.cursor import Cursor
    from tailrace_server.codecs import Codec
    from tailrace_server.log_cache.catalog_reader import Scan
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.log_cache.frames import FrameBlock
    from tailrace_server.reads.log_read import ReadTerms
    from tailrace_server.resources.version_waits import VersionWait
    from tailrace_server.rows.predicate import Predicate
    from tailrace_server.rows.run import Run
    from tailrace_server.wal.state.view import LogView


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryBounds:
    """The part of the log to read; it is open at an end without bounds."""

    lower: Start | None = None
    """Lower bound: an inclusive position or time, or an exclusive cursor; None: the oldest position."""
    until: Position | None = None
    """Upper bound: the first position after the range."""
    until_time: int | None = None
    """Upper bound: the first commit timestamp after the range, in microseconds."""
    before: Cursor | None = None
    """Exclusive upper bound, for pages of a reverse read."""
    anchor: int | None = None
    """The version that an earlier page was pinned to; None: pin the read to the newest published version."""
    wait: VersionWait | None = None
    """A version to wait for before the read begins; None: no wait."""

    @property
    def behind(self) -> After | None:
        """The cursor from which this read continues an earlier one, forwards or backwards; None: a new read."""
        if isinstance(self.lower, After):
            return self.lower
        return None if self.before is None else After(self.before)

    def __post_init__(self) -> None:
        """Refuse a cursor in the initial state of a subscription: it is no place in the log."""
        lower = self.lower.cursor if isinstance(self.lower, After) else None
        for name, cursor in (("after", lower), ("before", self.before)):
            if isinstance(cursor, StateCursor):
                raise InvalidRequest(
                    f"{name}: the cursor is a position in the initial state of a subscription, which "
                    "history does not have. Resume a subscription with it"
                )


@dataclass(frozen=True, slots=True)
class _Range:
    low: Mark
    high: Mark


class HistoryRead(LogRead):
    """One read of history. Call ``begin`` first, then iterate over it once."""

    def __init__(
        self,
        log: FollowedLog,
        predicate: Predicate,
        bounds: HistoryBounds,
        terms: ReadTerms,
        *,
        reverse: bool,
        content: Content,
        codec: Codec,
        limit: int | None,
        keeps: Callable[[int], bool],
    ) -> None:
        """Pin the read to the newest published version, or to an earlier page's anchor.

        Args:
            log: The log.
            predicate: The criteria, compiled.
            bounds: The range to read.
            terms: The terms on which the read was admitted.
            reverse: True to read from the end to the beginning.
            content: The bodies that captures carry.
            codec: The wire form of the frames.
            limit: The most records to deliver; None: all.
            keeps: Function that returns True if the read may hold a block of so many bytes until its next
                message is requested.
        """
        super().__init__(terms)
        view = log.view
        if bounds.anchor is not None and not 0 <= bounds.anchor <= view.published:
            raise InvalidRequest(
                f"anchor {bounds.anchor} is above the newest published version, {view.published}"
            )
        if limit is not None and limit <= 0:
            raise InvalidRequest(f"limit {limit}: must be a positive number of records")
        self.anchor = view.published if bounds.anchor is None else bounds.anchor
        """The highest version that this read can deliver."""
        self.closed_until = view.timestamp_of(self.anchor) + 1 if self.anchor else 0
        """Commit timestamp in microseconds below which no more records can appear; 0 for an empty log."""
        self.has_next = False
        """True, after the last message, if the limit ended the read before the end of the range."""
        self.truncated = False
        """True, after ``begin``, if a bound by time is below the oldest retained position."""
        self._log = log
        self._view = view
        self._predicate = predicate
        self._bounds = bounds
        self._reverse = reverse
        self._content = content
        self._codec = codec
        self._left = limit
        """Number of records that may still be delivered; None: no limit."""
        self._keeps = keeps
        self._block: tuple[Run, FrameBlock] | None = None
        """A run, and the encoded block that its next message is cut from; None: only the cache may have it."""
        self._last: tuple[int, int, int] | None = None
        """Version, index and ordinal of the last delivered capture; None before the first."""

    @property
    def catalog_uuid(self) -> UUID:
        """The UUID of the log that is read."""
        return self._view.uuid

    def cursor_of(self, version: int, index: int, ordinal: int) -> Cursor:
        """Return the cursor of a capture, given by its version, index and ordinal."""
        return self._view.cursor(version, index, ordinal)

    @property
    def unknown_changes(self) -> tuple[str, ...]:
        """The entity types whose updates all match, whichever columns they changed."""
        return unknown_changes(self._view, self._predicate.criteria)

    @property
    def oldest(self) -> Position:
        """The oldest position that is retained."""
        return self._view.oldest

    def resume_cursor(self) -> Cursor | None:
        """Return the cursor of the last delivered capture; None before the first."""
        return None if self._last is None else self.cursor_of(*self._last)

    def _let_go(self) -> None:
        self._block = None

    async def begin(self) -> None:
        """Look up the rows of the range, so that an impossible read fails before its first message.

        Raises:
            CatalogReplaced, CursorAhead, HistoryReplaced: A cursor belongs to another history than this log's.
            PositionCompacted: The range begins below the oldest retained position, or all of it is below.
        """
        if self._bounds.before is not None:
            # The cursor may come from another server that has read more of the log.
            self._view = await self._log.view_with(self._bounds.before.version)
            refuse_other_history(self._view, self._bounds.before, upper=True)
        while True:
            try:
                self._rows = await self._rows_in(self._view)
            except SegmentMissing as missing:
                await self._see_newer(missing, self._view.first_row)
            else:
                return

    async def __aiter__(self) -> AsyncIterator[Frames]:
        """Yield messages in the direction of the read. The limit never splits the captures of a record.

        A read with a limit, after at least one capture, does not raise ``BodiesExpired`` or ``ChangeNotJudged``
        but ends before the record. The next page then begins with this record and raises the error.

        Raises:
            BodiesExpired: Bodies are requested, and those of the next matching record are no longer retained.
            ChangeNotJudged: It is unknown whether the row of the next record is granted.
            SubscriberTooSlow: The reader stalled, and other readers needed the memory of its message.
            ServerFull: There was no room for a large message within the send deadline.
        """
        while (row := self._next_row()) is not None:
            scan = await self._scan(row)
            for run in reversed(scan.runs) if self._reverse else scan.runs:
                # 1. Cut the run to the range and to the limit.
                start, stop = run.place_of(self._rows.low), run.place_of(self._rows.high)
                if start >= stop:
                    continue
                if self._left == 0:
                    self.has_next = True
                    return
                start, stop, left = self._limited(run, start, stop)
                # 2. Yield the messages of the run one by one. Compaction may delete the run's file meanwhile:
                #    then the rest of the run is scanned again in a newer view.
                while start < stop:
                    try:
                        found = await self._message(run, start, stop)
                    except (BodiesExpired, ChangeNotJudged):
                        # End the page before this record; the next page begins with it and raises the error.
                        if self._left is None or self._last is None:
                            raise
                        self.has_next = True
                        return
                    if found is None:
                        break
                    frames, start, stop = found
                    del found  # keeps no reference to a message that the reader may hold for long
                    self._last = frames.last
                    yield self._handed(frames)
                    del frames
                    await self._taken()
                if start < stop:
                    self._resume_in(run, start, stop, left)
                    break
                if self.has_next:
                    return
                self._left = left
            else:
                self._pass(scan)
            await asyncio.sleep(0)

    def _next_row(self) -> int | None:
        """Return the row at which to continue; None at the end of the range."""
        low, high = self._rows.low, self._rows.high
        if low >= high:
            return None
        return high.row - (not high.ordinal) if self._reverse else low.row

    def _pass(self, scan: Scan) -> None:
        """Remove the rows of a finished scan from the range."""
        low, high = self._rows.low, self._rows.high
        if self._reverse:
            self._rows = _Range(low, min(high, Mark(scan.first_row)))
        else:
            self._rows = _Range(max(low, Mark(scan.end_row)), high)

    def _resume_in(self, run: Run, start: int, stop: int, left: int | None) -> None:
        """Shorten the range, to continue within a run with its captures ``start`` to ``stop``."""
        low, high = self._rows.low, self._rows.high
        if self._reverse:
            row, ordinal = run.mark(stop - 1)
            self._rows = _Range(low, Mark(row, ordinal + 1))
        else:
            self._rows = _Range(run.mark(start), high)
        self._left = None if left is None else left + run.selection.records(start, stop)
        self.has_next = False

    async def _scan(self, row: int) -> Scan:
        while True:
            try:
                return await self._log.reading.scan(self._view, row, self._predicate)
            except SegmentMissing as missing:
                await self._see_newer(missing, row)

    async def _see_newer(self, missing: SegmentMissing, row: int) -> None:
        """Continue in the newest view after a segment was deleted.

        Rows keep their numbers in all views, and the anchor still bounds the read.

        Raises:
            LogCorrupted, PositionCompacted: ``FollowedLog.recover`` raises them.
        """
        await self._log.recover(missing, row)
        self._view = self._log.view

    def _limited(self, run: Run, start: int, stop: int) -> tuple[int, int, int | None]:
        """Cut captures ``start`` to ``stop`` of a run to the limit.

        Returns:
            The new start and stop, and the number of records that may be delivered after them (None: no limit).
        """
        left = self._left
        if left is None:
            return start, stop, None
        rows = run.selection.rows[start:stop]
        # The limit counts records, of which each may have several captures.
        records, firsts = np.unique(rows, return_index=True)
        if len(records) <= left:
            return start, stop, left - len(records)
        self.has_next = True
        if self._reverse:
            return start + int(firsts[len(records) - left]), stop, 0
        return start, start + int(firsts[left]), 0

    async def _message(self, run: Run, start: int, stop: int) -> tuple[Frames, int, int] | None:
        """Return the next message of captures ``start`` to ``stop``, and the start and stop of the rest.

        None: the run's file has been deleted. A large message waits until the server has room for it; while it
        waits, this read holds neither the message nor its block.
        """
        while True:
            await self._log.turns.turn(self)
            try:
                block = await self._frames(run)
            except SegmentMissing as missing:
                await self._see_newer(missing, run.mark(start).row)
                return None
            except BodiesExpired:
                if self._reverse:  # the error is about the record that this direction reaches first
                    grouped = await self._log.reading.grouped(run.batch)
                    self._view.bodies.refuse(grouped.head, run.selection.rows[::-1])
                raise
            frames, start_of_rest, stop_of_rest = self._cut(block, start, stop)
            if self.last.admits(len(frames.data), self):
                return frames, start_of_rest, stop_of_rest
            self._block = None
            # Other readers wait for this memory, so drop the references before the wait.
            del block, frames
            await self._turn()

    def _cut(self, block: FrameBlock, start: int, stop: int) -> tuple[Frames, int, int]:
        """Cut the next message from captures ``start`` to ``stop``; also return start and stop of the rest."""
        if not self._reverse:
            frames = block.fitting(start, stop - start, self.last.bytes_max)
            return frames, start + frames.count, stop
        # Backwards: take frames from the end while they fit, but at least one.
        parts: list[bytes] = []
        size, end, size_max = 0, stop, self.last.bytes_max
        while end > start and (not parts or size + block.size(end - 1) <= size_max):
            end -= 1
            parts.append(block.frame(end))
            size += len(parts[-1])
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return Frames(data, stop - end, block.coordinates(end)), start, end

    async def _frames(self, run: Run) -> FrameBlock:
        """Return a run's frames: held by this read, from the cache, or newly encoded."""
        kept = self._block
        if kept is not None and kept[0] is run:
            return kept[1]
        self._block = None
        block = await self._log.reading.frames(run, self._view, self._codec, self._content)
        if self._keeps(block.nbytes):
            self._block = run, block
        return block

    async def _rows_in(self, view: LogView) -> _Range:
        """Return the first mark of the range and the first mark after it."""
        bounds, reading = self._bounds, self._log.reading
        low, from_oldest = await self._low(view)
        high_position = self._high(view)
        if from_oldest:
            self._refuse_compacted(view)
            # The range begins at the oldest retained position, so retention may have removed a part of it.
            timed = bounds.until_time is not None and high_position <= view.oldest > FIRST
            self.truncated = timed or isinstance(bounds.lower, FromTime)
        high = Mark(await reading.row_of(view, high_position))
        if bounds.before is not None:
            position, ordinal = bounds.before.position, bounds.before.ordinal
            row = await reading.row_of(view, position)
            # Without a record at the position, the row is that of
            # the next record, of which the ordinal says nothing.
            exact = row < view.end_row and await reading.position_of(view, row) == position
            high = min(high, Mark(row, ordinal if exact else 0))
        return _Range(low, max(low, high))

    async def _low(self, view: LogView) -> tuple[Mark, bool]:
        """Return the first mark, and True if it is that of the oldest retained position."""
        start = self._bounds.lower
        match start:
            case None | Since(Position(version=0)):
                from_oldest = True
            case FromTime(timestamp):
                from_oldest = view.is_trimmed_at(timestamp)
            case _:
                from_oldest = False
        if from_oldest or start is None:
            return Mark(await self._log.reading.row_of(view, view.oldest)), True
        return (await resolve(self._log, start)).mark, False

    def _high(self, view: LogView) -> Position:
        """Return the first position after the range by all upper bounds except ``before``."""
        bounds = self._bounds
        high = Position(self.anchor + 1, 0)
        if bounds.until is not None:
            high = min(high, bounds.until)
        if bounds.until_time is not None:
            high = min(high, Position(view.version_at(bounds.until_time), 0))
        return high

    def _refuse_compacted(self, view: LogView) -> None:
        """Check that an upper bound is above the oldest retained position; bounds by time are not checked.

        Raises:
            PositionCompacted: The whole range is below; the error has the last position of the range.
        """
        bounds = self._bounds
        uppers = [] if bounds.until is None else [bounds.until]
        if bounds.anchor is not None:
            uppers.append(Position(bounds.anchor + 1, 0))
        if bounds.before is not None:
            record = bounds.before.position
            uppers.append(position_after(record) if bounds.before.ordinal else record)
        if view.oldest > FIRST and uppers and min(uppers) <= view.oldest:
            raise PositionCompacted(min(uppers).preceding(), view.oldest, self._log.newest)
