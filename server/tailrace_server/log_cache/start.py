"""The start of a subscription or a history read: from a position, a cursor or a time to a mark in the log.

A start may lie above what is published. It is then resolved as far as it can be, and again once it is
published: a start by time moves on past versions that turn out to be older.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.criteria import After, FromTime, Since
from tailrace.errors import CatalogReplaced, CursorAhead, HistoryReplaced, PositionCompacted
from tailrace.position import END, FIRST, Position
from tailrace_server.log_cache.catalog_reader import position_after
from tailrace_server.rows.run import Mark, SafePoint
from tailrace_server.wal.segment.reader import SegmentMissing

if TYPE_CHECKING:
    from tailrace.criteria import Start
    from tailrace.cursor import Cursor
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.wal.state.view import LogView


@dataclass(frozen=True, slots=True)
class ResolvedStart:
    """The start of a subscription, as far as it is known now."""

    mark: Mark
    """First capture to deliver; of no use while ``published`` is False."""
    before: SafePoint
    """The safe point just before the start."""
    position: Position
    """First record to deliver."""
    ordinal: int = 0
    """First capture of that record to deliver."""
    published: bool = True
    """False while ``position`` lies above what is published."""
    timestamp: int | None = None
    """Commit timestamp, µs, of a start by time that is not published; None for any other."""


async def resolve(log: FollowedLog, start: Start | None) -> ResolvedStart:
    """Find the place of a start in the published log; None starts behind the published version.

    Raises:
        PositionCompacted: It lies below the oldest retained position.
        CatalogReplaced, CursorAhead, HistoryReplaced: As ``refuse_other_history``.
    """
    # 1. From whatever names the start to a position and an ordinal. All of it is one view's.
    view, ordinal = log.view, 0
    timestamp: int | None = None
    match start:
        case None:
            before = SafePoint(view.end_row, *log.newest)
            return ResolvedStart(Mark(view.end_row), before, Position(view.published + 1))
        case Since(position):
            # Version 0 has no records: it asks for the oldest that is retained, whatever that is.
            position = max(position, FIRST) if position.version else view.oldest
        case FromTime(timestamp):
            position = _at_time(log, view, timestamp)
        case After(cursor, timestamp):
            view = await log.view_with(cursor.version)
            refuse_other_history(view, cursor)
            # A cursor is exclusive. Behind the last capture of a record comes the next record.
            ordinal = 0 if cursor.ordinal == END else cursor.ordinal + 1
            position = cursor.position if ordinal else position_after(cursor.position)
            # With a time, the later of the two. A trimmed time is before the cursor, which is judged below.
            if timestamp is not None and not view.is_trimmed_at(timestamp):
                position, ordinal = _later(position, ordinal, view.version_at(timestamp))
    # 2. Never begin later than asked: what was trimmed is refused, not skipped.
    if position < view.oldest:
        raise PositionCompacted(position, view.oldest, log.newest)
    # 3. From the position to a row. This reads the log, so a newer view may be published meanwhile.
    found = await locate(log, position, ordinal)
    # 4. A time above everything published is only a lower bound: ``renewed`` moves it on.
    if timestamp is not None and view.version_at(timestamp) > view.published:
        found = replace(found, published=False, timestamp=timestamp)
    return found


async def locate(log: FollowedLog, position: Position, ordinal: int) -> ResolvedStart:
    """Find the first capture at or after a retained position and an ordinal of its record.

    Raises:
        PositionCompacted: The position has been trimmed meanwhile.
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
    """Return the error of a start that was published and trimmed while it waited; None for any other."""
    view = log.view
    if waiting.position >= view.oldest:
        return None
    # A start by time was only a lower bound: it is lost only if its time was trimmed.
    if waiting.timestamp is not None and not view.is_trimmed_at(waiting.timestamp):
        return None
    return PositionCompacted(waiting.position, view.oldest, log.newest)


def compacted_row(
    log: FollowedLog, row: int, floor: int, safe: SafePoint
) -> PositionCompacted | None:
    """Return the error of a reader whose next row neither the ring, from ``floor`` on, nor the log has."""
    if row >= log.view.first_row or floor <= row < log.routed:
        return None
    return PositionCompacted(Position(safe.version, safe.index), log.view.oldest, log.newest)


def is_early(log: FollowedLog, waiting: ResolvedStart) -> bool:
    """Return whether a start that waits is still above what is published: nothing is behind it then."""
    return renewed(log, waiting).position.version > log.view.published


async def awaited(log: FollowedLog, waiting: ResolvedStart) -> ResolvedStart:
    """Return a waiting start as of now: its place in the log, once that is published.

    Raises:
        PositionCompacted: As ``locate``.
    """
    start = renewed(log, waiting)
    return start if is_early(log, start) else await locate(log, start.position, start.ordinal)


def renewed(log: FollowedLog, waiting: ResolvedStart) -> ResolvedStart:
    """Return a waiting start as it is now: a start by time moves past records that are too early."""
    if waiting.timestamp is None:
        return waiting
    view = log.view
    version = view.version_at(waiting.timestamp)
    position, ordinal = _later(waiting.position, waiting.ordinal, version)
    before = waiting.before
    # Everything published is older than the time, so it is safe to resume behind all of it. Not so if a
    # cursor put the start further on: then the cursor stays the safe point.
    if version > view.published and position.version == version:
        before = SafePoint(view.end_row, *log.newest)
    return replace(waiting, position=position, ordinal=ordinal, before=before)


def refuse_other_history(view: LogView, cursor: Cursor, *, upper: bool = False) -> None:
    """Refuse a cursor that has passed versions which this log lacks: to continue from it would lose changes.

    Args:
        view: What is published, read after the cursor came.
        cursor: The reader's.
        upper: Whether it ends a range. One made by hand may then lie above all that there is.

    Raises:
        CatalogReplaced: The cursor belongs to another log.
        CursorAhead: Its version is not published in this log.
        HistoryReplaced: This log's version of that number is another commit's.
    """
    if cursor.catalog_uuid != view.uuid:
        raise CatalogReplaced(view.name, cursor.catalog_uuid, view.uuid)
    passed, found = cursor.commit_timestamp, view.known_timestamp_of(cursor.version)
    # 0 is the cursor of a start that waits, which has passed nothing above what was published.
    if passed == 0 or (passed is None and upper):
        return
    if cursor.version > view.published:
        raise CursorAhead(view.name, str(cursor), Position(view.published, END))
    # Commit timestamps rise strictly, so a version that was written anew has another one. A cursor that was
    # made by hand may have none, and those of trimmed versions are forgotten.
    if passed and found and passed != found:
        raise HistoryReplaced(view.name, str(cursor), found)


async def _locate_in(
    log: FollowedLog, view: LogView, position: Position, ordinal: int
) -> ResolvedStart:
    row = await log.reading.row_of(view, position)
    before = SafePoint(row, *position.preceding())
    if ordinal:
        before = SafePoint(row, position.version, position.index, ordinal - 1)
    # Without a record at the position the row is the next record's, whose captures all follow the start.
    exact = row < view.end_row and await log.reading.position_of(view, row) == position
    mark = Mark(row, ordinal if exact else 0)
    return ResolvedStart(mark, before, position, ordinal, position.version <= view.published)


def _at_time(log: FollowedLog, view: LogView, timestamp: int) -> Position:
    """Return the first position at or after a time; trimmed time is refused, not skipped."""
    if view.is_trimmed_at(timestamp):
        raise PositionCompacted(view.oldest.preceding(), view.oldest, log.newest)
    return Position(view.version_at(timestamp), 0)


def _later(position: Position, ordinal: int, version: int) -> tuple[Position, int]:
    """Return position and ordinal of a start, or the first of a version if that comes behind it."""
    return (Position(version), 0) if position < Position(version) else (position, ordinal)
