"""History: a closed range of the log, forward or reverse, in pages of whole records.

Both directions visit the same records with the same numbers. A read is pinned to the version
published when it began (its *anchor*); handing the anchor back pins later pages to the same range.

What retention has taken is never left out in silence. A bound by time begins at the oldest instead and the
read says that it is *truncated*; every other bound below the oldest is ``PositionCompacted``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tailrace.criteria import FromTime, Since
from tailrace.errors import InvalidRequest, PositionCompacted
from tailrace.position import FIRST, Position
from tailrace_server.capture.delivery.start import is_trimmed, refuse_other_history, resolve
from tailrace_server.capture.matching.run import Mark
from tailrace_server.capture.reading.catalog_reader import position_after
from tailrace_server.capture.reading.frames import Frames
from tailrace_server.wal.segment.reader import SegmentMissing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from uuid import UUID

    from tailrace.criteria import Content, Start
    from tailrace.cursor import Cursor
    from tailrace_server.capture.codecs import Codec
    from tailrace_server.capture.delivery.followed_log import FollowedLog
    from tailrace_server.capture.matching.predicate import Predicate
    from tailrace_server.capture.matching.run import Run
    from tailrace_server.capture.reading.catalog_reader import Scan
    from tailrace_server.capture.reading.frames import FrameBlock
    from tailrace_server.wal.state.view import LogView


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryBounds:
    """What part of the log to read. Unset ends are open."""

    lower: Start | None = None
    """Inclusive position or time, or exclusive cursor; None: the oldest retained."""
    until: Position | None = None
    """First position behind the range."""
    until_time: int | None = None
    """First commit timestamp behind the range, µs."""
    before: Cursor | None = None
    """Reverse pages: only captures strictly before it."""
    anchor: int | None = None
    """Version that an earlier page was pinned to."""


@dataclass(frozen=True, slots=True)
class _Range:
    low: Mark
    high: Mark


class HistoryRead:
    """One read of history; ``begin`` it, then iterate it once."""

    def __init__(
        self,
        log: FollowedLog,
        predicate: Predicate,
        bounds: HistoryBounds,
        *,
        reverse: bool,
        content: Content,
        codec: Codec,
        limit: int | None,
        message_bytes: int,
    ) -> None:
        """Pin the read to what is published now, or to an earlier page's anchor."""
        view = log.view
        if bounds.anchor is not None and not 0 <= bounds.anchor <= view.published:
            raise InvalidRequest(f"anchor {bounds.anchor} is above the published {view.published}")
        if limit is not None and limit <= 0:
            raise InvalidRequest(f"limit {limit}: it counts records and must be positive")
        self.anchor = view.published if bounds.anchor is None else bounds.anchor
        """Highest version that this read can show."""
        self.closed_until = view.timestamp_of(self.anchor) + 1 if self.anchor else 0
        """Commit timestamp, µs: nothing below it can still appear."""
        self.has_next = False
        """After the last message: whether the limit cut the range short."""
        self.truncated = False
        """After ``begin``: whether a bound by time lies below what is retained."""
        self._log = log
        self._view = view
        self._predicate = predicate
        self._bounds = bounds
        self._reverse = reverse
        self._content = content
        self._codec = codec
        self._limit = limit
        self._message_bytes = message_bytes

    @property
    def catalog_uuid(self) -> UUID:
        """The log that is read."""
        return self._view.uuid

    def cursor_of(self, version: int, index: int, ordinal: int) -> Cursor:
        """Return the cursor of a place in the log."""
        return self._view.cursor(version, index, ordinal)

    @property
    def oldest(self) -> Position:
        """The oldest position that is retained."""
        return self._view.oldest

    async def begin(self) -> None:
        """Find the range: a read that cannot be answered is refused before its first message.

        Raises:
            CatalogReplaced, CursorAhead, HistoryReplaced: A cursor's history is not this log's.
            PositionCompacted: The range begins, or all of it lies, below what is retained.
        """
        if self._bounds.before is not None:
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
        """Yield messages in order of the direction; whole records, never split by the limit."""
        rows, left = self._rows, self._limit
        last_row = rows.high.row - (0 if rows.high.ordinal else 1)
        row = last_row if self._reverse else rows.low.row
        while rows.low.row <= row <= last_row:
            scan = await self._scan(row)
            for run in reversed(scan.runs) if self._reverse else scan.runs:
                start, stop = self._within(run, rows, row)
                if start >= stop:
                    continue
                if left == 0:
                    self.has_next = True
                    return
                row = min(row, run.last_row) if self._reverse else max(row, run.first_row)
                block = await self._block(run, row)
                if block is None:
                    break  # scan again in the newer view, from this row on
                start, stop, left = self._limited(run, start, stop, left)
                for frames in self._messages(block, start, stop):
                    yield frames
                if self.has_next:
                    return
            else:
                row = scan.first_row - 1 if self._reverse else scan.end_row
            await asyncio.sleep(0)

    async def _scan(self, row: int) -> Scan:
        while True:
            try:
                return await self._log.reading.scan(self._view, row, self._predicate)
            except SegmentMissing as missing:
                await self._see_newer(missing, row)

    async def _see_newer(self, missing: SegmentMissing, row: int) -> None:
        """Go on in the newest view, in which rows have the same numbers; the anchor still bounds the read.

        Raises:
            LogCorrupted, PositionCompacted: As ``FollowedLog.recover``.
        """
        await self._log.recover(missing, row)
        self._view = self._log.view

    def _within(self, run: Run, rows: _Range, row: int) -> tuple[int, int]:
        """Return the places of a run that lie in the range and in this step's part of the window."""
        low, high = rows.low, rows.high
        if self._reverse:
            high = min(high, Mark(row + 1))
        else:
            low = max(low, Mark(row))
        return run.place_of(low), run.place_of(high)

    def _limited(
        self, run: Run, start: int, stop: int, left: int | None
    ) -> tuple[int, int, int | None]:
        """Cut a stretch to the records that the limit leaves."""
        if left is None:
            return start, stop, None
        rows = run.selection.rows[start:stop]
        records, firsts = np.unique(rows, return_index=True)
        if len(records) <= left:
            return start, stop, left - len(records)
        self.has_next = True
        if self._reverse:
            return start + int(firsts[len(records) - left]), stop, 0
        return start, start + int(firsts[left]), 0

    async def _block(self, run: Run, row: int) -> FrameBlock | None:
        """Return a run's frames; None if its file has been deleted since the scan."""
        reading = self._log.reading
        try:
            return await reading.frames(run, self._view, self._codec, self._content)
        except SegmentMissing as missing:
            await self._see_newer(missing, row)
            return None

    def _messages(self, block: FrameBlock, start: int, stop: int) -> Iterator[Frames]:
        while start < stop:
            if self._reverse:
                frames, stop = self._backwards(block, start, stop)
                yield frames
            else:
                frames = block.fitting(start, stop - start, self._message_bytes)
                yield frames
                start += frames.count

    def _backwards(self, block: FrameBlock, start: int, stop: int) -> tuple[Frames, int]:
        parts: list[bytes] = []
        size = 0
        while stop > start and (not parts or size + block.size(stop - 1) <= self._message_bytes):
            stop -= 1
            parts.append(block.frame(stop))
            size += len(parts[-1])
        return Frames(b"".join(parts), len(parts), block.coordinates(stop)), stop

    async def _rows_in(self, view: LogView) -> _Range:
        """Return the first mark of the range and the first behind it."""
        bounds, reading = self._bounds, self._log.reading
        low, from_oldest = await self._low(view)
        high_position = self._high(view)
        if from_oldest:
            self._refuse_compacted(view)
            timed = bounds.until_time is not None and high_position <= view.oldest > FIRST
            self.truncated = timed or isinstance(bounds.lower, FromTime)
        high = Mark(await reading.row_of(view, high_position))
        if bounds.before is not None:
            position, ordinal = bounds.before.position, bounds.before.ordinal
            row = await reading.row_of(view, position)
            exact = row < view.end_row and await reading.position_of(view, row) == position
            high = min(high, Mark(row, ordinal if exact else 0))
        return _Range(low, max(low, high))

    async def _low(self, view: LogView) -> tuple[Mark, bool]:
        """Return the first mark, and whether what is retained decided where it stands."""
        start = self._bounds.lower
        match start:
            case None | Since(Position(version=0)):
                from_oldest = True
            case FromTime(timestamp):
                from_oldest = is_trimmed(view, timestamp)
            case _:
                from_oldest = False
        if from_oldest or start is None:
            return Mark(await self._log.reading.row_of(view, view.oldest)), True
        return (await resolve(self._log, start)).mark, False

    def _high(self, view: LogView) -> Position:
        """Return the first position behind every upper bound, except for ``before``."""
        bounds = self._bounds
        high = Position(self.anchor + 1, 0)
        if bounds.until is not None:
            high = min(high, bounds.until)
        if bounds.until_time is not None:
            high = min(high, Position(view.version_at(bounds.until_time), 0))
        return high

    def _refuse_compacted(self, view: LogView) -> None:
        """Refuse a range whose upper bound, a position, leaves nothing of what is retained.

        Raises:
            PositionCompacted: With the last record that the range could have held.
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
