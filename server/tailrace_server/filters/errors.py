"""The errors of a condition, with the place in its text or its tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from tailrace_server.filters.tree import Place


class ConditionRefused(InvalidRequest):
    """A condition cannot be read, or asks for what is not there. Its text has names of the caller's."""

    place: Place | None = None
    """The place; None: the whole condition."""
    what: str = ""
    """The fault there."""


class ChangeNotJudged(ConditionRefused):
    """It is unknown whether the row of a change was granted."""


class ValuesNotCarried(ConditionRefused):
    """A column that the condition compares has another type now, which need not hold its earlier values."""

    def __init__(self, column: str, now: str) -> None:
        """Keep the column and the type that it has now."""
        super().__init__(f"where: the column {column!r} is {now} now; ask anew")
        self.column, self.now = column, now


def refused(place: Place, what: str) -> ConditionRefused:
    """Return that something is wrong at a place."""
    at = f"character {place + 1}" if isinstance(place, int) else place
    error = ConditionRefused(f"where, at {at}: {what}")
    error.place, error.what = place, what
    return error
