"""The range of a read: the positions that its bounds mean in a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest, PositionCompacted
from tailrace.position import END, Position
from tailrace_server.sql.version_bounds import first_version, last_version
from tailrace_server.wal.state.view import refuse_other_history

if TYPE_CHECKING:
    from tailrace_server.log_read.request import Bound, ReadRequest
    from tailrace_server.wal.state.view import LogView


class RecordRange(NamedTuple):
    """A range of records: the positions just before the first and just after the last one."""

    begin: Position
    end: Position


def span_of(view: LogView, request: ReadRequest) -> RecordRange:
    """Return the range of a request.

    Raises:
        InvalidRequest: The start is after the end, or after the newest version.
        PositionCompacted: The start is before the oldest retained position.
        CatalogReplaced, HistoryReplaced, CursorAhead: A cursor is of another log or history.
    """
    newest = Position(view.published, END)
    begin, end = _begin_of(view, request.starting), _end_of(view, request.ending)
    if begin < view.oldest.preceding():
        raise PositionCompacted(following(begin), view.oldest, newest)
    if following(begin).version > view.published + 1:
        raise InvalidRequest(
            f"the read begins with version {following(begin).version}, but the newest version of catalog "
            f"{view.name!r} is {view.published}"
        )
    if request.ending is not None and following(begin) > end:
        raise InvalidRequest(
            f"the start {following(begin)} is after the end {end.preceding()}: give the earlier bound first"
        )
    return RecordRange(begin, max(end, following(begin)))


def _begin_of(view: LogView, bound: Bound | None) -> Position:
    """Return the position just before the first record of a range."""
    match bound:
        case None | 0:
            return view.oldest.preceding()
        case Cursor():
            refuse_other_history(view, bound)
            return bound.position
        case _:
            return Position(first_version(view, bound) - 1, END)


def _end_of(view: LogView, bound: Bound | None) -> Position:
    """Return the position just after the last record of a range."""
    match bound:
        case None:
            return Position(view.published + 1, 0)
        case Cursor():
            refuse_other_history(view, bound)
            return following(bound.position)
        case _:
            return Position(last_version(view, bound) + 1, 0)


def following(position: Position) -> Position:
    """Return the position just after another; after the end of a version, the next version."""
    if position.index == END:
        return Position(position.version + 1, 0)
    return Position(position.version, position.index + 1)
