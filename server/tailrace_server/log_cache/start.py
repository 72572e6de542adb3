"""Resolution of the start of a subscription or a history read: from a position, cursor or time to a log record.

A start may be above the newest published version. Then it is resolved as far as possible, and again when that
version is published. A start by time then moves forward past versions whose commit turns out to be earlier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.criteria import After, FromTime, Since
from tailrace.errors import PositionCompacted
from tailrace.position import END, FIRST, Position
from tailrace_server.log_cache.catalog_reader import position_after
from tailrace_server.rows.run import Mark, SafePoint
from tailrace_server.wal.segment.reader import SegmentMissing
from tailrace_server.wal.state.view import refuse_other_history

if TYPE_CHECKING:
    from tailrace.criteria import Start
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.wal.state.view import LogView


@dataclass(frozen=True, slots=True)
class ResolvedStart:
    """The start of a subscription, as far as it can be resolved now."""

    mark: Mark
    """The first capture to deliver, as a row and an ordinal; invalid while ``published`` is False."""
    before: SafePoint
    """The safe point just before the start, from which a reader could resume."""
    position: Position
    """Position of the first record to deliver."""
    ordinal: int = 0
    """Ordinal of the first capture to deliver in that record."""
    published: bool = True
    """False while ``position`` is above the newest published version."""
    timestamp: int | None = None
    """The requested time, µs, of a start by time that is not published yet; None for any other start."""


async def resolve(log: FollowedLog, start: Start | None) -> ResolvedStart:
    """Resolve a start in the published log; None starts after the newest published version.

    Raises:
        PositionCompacted: The start is below the oldest retained position.
        CatalogReplaced: The cursor belongs to another log.
        CursorAhead: The cursor's version is not published in this log.
        HistoryReplaced: The cursor's version is another commit in this log.
    """
    # 1. Compute position and ordinal from the kind of start, all by one view.
    view, ordinal = log.view, 0
    timestamp: int | None = None
    match start:
        case None:
            before = SafePoint(view.end_row, *log.newest)
            return ResolvedStart(Mark(view.end_row), before, Position(view.published + 1))
        case Since(position):
            # Version 0 has no records: as a start it means the oldest retained position.
            position = max(position, FIRST) if position.version else view.oldest
        case FromTime(timestamp):
            position = _at_time(log, view, timestamp)
        case After(cursor, timestamp):
            view = await log.view_with(cursor.version)
            refuse_other_history(view, cursor)
            # A cursor is exclusive. After the last capture of a record (END), continue with the next record.
            ordinal = 0 if cursor.ordinal == END else cursor.ordinal + 1
            position = cursor.position if ordinal else position_after(cursor.position)
            # With a time as well, take the later of the two. A trimmed time is earlier than any retained
            # cursor.
            if timestamp is not None and not view.is_trimmed_at(timestamp):
                position, ordinal = _later(position, ordinal, view.version_at(timestamp))
    # 2. Never begin later than requested: raise an error for trimmed records instead of skipping them.
    if position < view.oldest:
        raise PositionCompacted(position, view.oldest, log.newest)
    # 3. Look up the row of the position. This reads the log, so a newer view may be published meanwhile.
    found = await locate(log, position, ordinal)
    # 4. If no published version is as late as the time, the position is only a lower bound: ``renewed`` moves
    #    it.
    if timestamp is not None and view.version_at(timestamp) > view.published:
        found = replace(found, published=False, timestamp=timestamp)
    return found


async def locate(log: FollowedLog, position: Position, ordinal: int) -> ResolvedStart:
    """Resolve a retained position, and an ordinal in its record, to the first capture at or after them.

    Raises:
        PositionCompacted: The position was trimmed meanwhile.
    """
    while True:
        view = log.view
        try:
            return await _locate_in(log, view, position, ordinal)
        except SegmentMissing as missing:
            try:
                await log.recover(missing, view.batch(view.find(position)).first_row)
            except PositionCompacted as gone:
                raise PositionCompacted(position, gone.oldest, gone.newest) from gone


def compacted_start(log: FollowedLog, waiting: ResolvedStart) -> PositionCompacted | None:
    """Return the error if a waiting start was published and then trimmed; else None."""
    view = log.view
    if waiting.position >= view.oldest:
        return None
    # The position of a start by time is only a lower bound: records are lost only if its time was trimmed.
    if waiting.timestamp is not None and not view.is_trimmed_at(waiting.timestamp):
        return None
    return PositionCompacted(waiting.position, view.oldest, log.newest)


def compacted_row(
    log: FollowedLog, row: int, floor: int, safe: SafePoint
) -> PositionCompacted | None:
    """Return the error if neither the log nor the ring has a reader's next row; else None.

    Args:
        log: The log.
        row: The reader's next row.
        floor: The first row of the ring, which ends with the routed rows.
        safe: The safe point of the reader, which the error names.
    """
    if row >= log.view.first_row or floor <= row < log.routed:
        return None
    return PositionCompacted(Position(safe.version, safe.index), log.view.oldest, log.newest)


def is_early(log: FollowedLog, waiting: ResolvedStart) -> bool:
    """Return True if a waiting start is still above the newest published version."""
    return renewed(log, waiting).position.version > log.view.published


async def awaited(log: FollowedLog, waiting: ResolvedStart) -> ResolvedStart:
    """Return a waiting start as it is now, and resolve it if it is published.

    Raises:
        PositionCompacted: The position was trimmed meanwhile.
    """
    start = renewed(log, waiting)
    return start if is_early(log, start) else await locate(log, start.position, start.ordinal)


def renewed(log: FollowedLog, waiting: ResolvedStart) -> ResolvedStart:
    """Return a waiting start as it is now: move a start by time past new versions that are too early."""
    if waiting.timestamp is None:
        return waiting
    view = log.view
    version = view.version_at(waiting.timestamp)
    position, ordinal = _later(waiting.position, waiting.ordinal, version)
    before = waiting.before
    # If all published versions are earlier than the time, a reader can resume after all of them. But if a
    # cursor has put the start further forward, the cursor remains the safe point.
    if version > view.published and position.version == version:
        before = SafePoint(view.end_row, *log.newest)
    return replace(waiting, position=position, ordinal=ordinal, before=before)


async def _locate_in(
    log: FollowedLog, view: LogView, position: Position, ordinal: int
) -> ResolvedStart:
    row = await log.reading.row_of(view, position)
    before = SafePoint(row, *position.preceding())
    if ordinal:
        before = SafePoint(row, position.version, position.index, ordinal - 1)
    # If there is no record at the position, the row is that of the next record, all of whose captures come
    # after the start: then the ordinal does not apply.
    exact = row < view.end_row and await log.reading.position_of(view, row) == position
    mark = Mark(row, ordinal if exact else 0)
    return ResolvedStart(mark, before, position, ordinal, position.version <= view.published)


def _at_time(log: FollowedLog, view: LogView, timestamp: int) -> Position:
    """Return the first position of the first version at or after a time.

    Raises:
        PositionCompacted: Versions at or after the time were trimmed.
    """
    if view.is_trimmed_at(timestamp):
        raise PositionCompacted(view.oldest.preceding(), view.oldest, log.newest)
    return Position(view.version_at(timestamp), 0)


def _later(position: Position, ordinal: int, version: int) -> tuple[Position, int]:
    """Return the later of two starts: a position with an ordinal, or the beginning of a version."""
    return (Position(version), 0) if position < Position(version) else (position, ordinal)
