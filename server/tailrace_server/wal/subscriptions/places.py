"""The places where a named subscription may begin, in words.

``earliest``, ``latest``, ``41``, ``41:3``, or a time with its zone: ``2026-05-04T10:30:00Z``.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Final

from tailrace.arguments import micros
from tailrace.errors import InvalidRequest, PositionCompacted
from tailrace.position import END, Position

if TYPE_CHECKING:
    from tailrace.cursor import Cursor
    from tailrace_server.wal.state.view import LogView

_POSITION: Final = re.compile(r"([0-9]{1,18})(?::([0-9]{1,9}))?", re.ASCII)


def cursor_at(view: LogView, place: str) -> Cursor:
    """Return the cursor behind which a place is the first that comes; version 0 is the earliest one.

    Raises:
        InvalidRequest: It is no place, a time without a zone, or above the published versions.
        PositionCompacted: It is no longer retained.
    """
    if place == "latest":
        return view.cursor(view.published, END)
    if place == "earliest":
        return view.cursor(*view.oldest.preceding())
    match = _POSITION.fullmatch(place)
    if match is None:
        return view.cursor(*_at_time(view, place).preceding())
    if not int(match[1]):  # as for a subscribe since 0
        return view.cursor(*view.oldest.preceding())
    wanted = Position(int(match[1]), int(match[2] or 0))
    if wanted < view.oldest:
        raise PositionCompacted(wanted, view.oldest, Position(view.published, END))
    if wanted > Position(view.published + 1, 0):
        raise InvalidRequest(
            f"{place}: the newest published version is {view.published}; {view.published + 1}, or latest, "
            "begins with what comes next"
        )
    return view.cursor(*wanted.preceding())


def _at_time(view: LogView, place: str) -> Position:
    """Return the first position that was committed at or after a time."""
    try:
        at = micros(datetime.fromisoformat(place))
    except ValueError:
        raise InvalidRequest(
            f"{place[:80]!r} is no place: write earliest, latest, VERSION, VERSION:INDEX, or a time with its "
            "zone, as 2026-05-04T10:30:00Z"
        ) from None
    if view.is_trimmed_at(at):
        raise PositionCompacted(view.oldest.preceding(), view.oldest, Position(view.published, END))
    return Position(min(view.version_at(at), view.published + 1), 0)
