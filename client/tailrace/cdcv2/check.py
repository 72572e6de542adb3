"""Checks of a single statement, without regard to what else was received."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from tailrace.cdcv2.errors import InvalidStatement
from tailrace.cdcv2.lattice import antichain, reaches

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.cdcv2.lattice import Lattice
    from tailrace.cdcv2.statements import Progress

T = TypeVar("T")

LONG_LIMIT: Final = 2**63
"""Diffs and counts are Avro longs: below this number."""


def checked_diff(diff: int, data: object, time: object) -> int:
    """Return a diff that is a 64-bit integer other than zero.

    Raises:
        InvalidStatement: It is zero, or no 64-bit integer.
    """
    if type(diff) is not int or not -LONG_LIMIT <= diff < LONG_LIMIT:
        raise InvalidStatement(f"{data!r} at time {time}: diff {diff!r} is no 64-bit integer")
    if diff == 0:
        raise InvalidStatement(
            f"{data!r} at time {time}: a diff of zero is not a change; leave it out"
        )
    return diff


def checked_interval(
    lattice: Lattice[T], progress: Progress[T]
) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """Return the lower and upper bound of an interval as antichains. Equal bounds hold no time.

    Raises:
        InvalidStatement: A bound holds what is no time, or ``upper`` is not at or after ``lower``.
    """
    lower = antichain(lattice, map(lattice.check, progress.lower))
    upper = antichain(lattice, map(lattice.check, progress.upper))
    for time in upper:
        if not reaches(lattice, lower, time):
            raise InvalidStatement(f"upper {_text(upper)} is not at or after lower {_text(lower)}")
    return lower, upper


def checked_counts(
    lattice: Lattice[T], progress: Progress[T], holds: Callable[[T], bool]
) -> dict[T, int]:
    """Return the counts of a progress statement by time, without zeros.

    Args:
        lattice: The kind of time.
        progress: The statement; its interval has been checked.
        holds: Whether a time lies in the interval.

    Raises:
        InvalidStatement: A time lies outside the interval, a count is negative or beyond 64 bits, or a
            time has two different counts.
    """
    check, found = lattice.check, dict[T, int]()
    for value, count in progress.counts:
        time = check(value)
        if not holds(time):
            raise InvalidStatement(
                f"count {count} of time {time} lies outside "
                f"{_text(progress.lower)} to {_text(progress.upper)}"
            )
        if type(count) is not int or not 0 <= count < LONG_LIMIT:
            raise InvalidStatement(f"count {count!r} of time {time} is outside 0 to 2**63 - 1")
        if found.setdefault(time, count) != count:
            raise InvalidStatement(f"counts {found[time]} and {count} of one time {time}")
    return {time: count for time, count in found.items() if count}


def _text(times: tuple[T, ...]) -> str:
    return "[" + ", ".join(map(str, times)) + "]"
