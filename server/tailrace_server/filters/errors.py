"""What is wrong with a condition, and where in its text."""

from __future__ import annotations

from tailrace.errors import InvalidRequest


class ConditionRefused(InvalidRequest):
    """A condition cannot be read, or asks for what is not there. Its text has names of the caller's."""


def refused(place: int, what: str) -> ConditionRefused:
    """Return that something is wrong at a place, counted from 0."""
    return ConditionRefused(f"where, at character {place + 1}: {what}")
