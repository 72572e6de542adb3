"""What is wrong with a condition, and where in its text or its tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from tailrace_server.filters.tree import Place


class ConditionRefused(InvalidRequest):
    """A condition cannot be read, or asks for what is not there. Its text has names of the caller's."""

    place: Place | None = None
    """Where it is wrong; None: as a whole."""
    what: str = ""
    """What is wrong there."""


class ChangeNotJudged(ConditionRefused):
    """Nobody can say whether the row of a change was granted."""


def refused(place: Place, what: str) -> ConditionRefused:
    """Return that something is wrong at a place."""
    at = f"character {place + 1}" if isinstance(place, int) else place
    error = ConditionRefused(f"where, at {at}: {what}")
    error.place, error.what = place, what
    return error
