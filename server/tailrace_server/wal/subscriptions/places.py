"""The places where a named subscription may begin, in words: ``earliest``, ``latest``, ``41`` or ``41:3``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest, PositionCompacted
from tailrace.position import END, Position

if TYPE_CHECKING:
    from tailrace.cursor import Cursor
    from tailrace_server.wal.state.view import LogView

_POSITION: Final = re.compile(r"([0-9]{1,18})(?::([0-9]{1,9}))?", re.ASCII)


def cursor_at(view: LogView, place: str) -> Cursor:
    """Return the cursor behind which a place is the first that comes; version 0 is the earliest one.

    Raises:
        InvalidRequest: It is no place, or lies above what is published.
        PositionCompacted: It is no longer retained.
    """
    if place == "latest":
        return view.cursor(view.published, END)
    if place == "earliest":
        return view.cursor(*view.oldest.preceding())
    match = _POSITION.fullmatch(place)
    if match is None:
        raise InvalidRequest(
            f"{place[:80]!r} is no place: write earliest, latest, VERSION, or VERSION:INDEX"
        )
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
