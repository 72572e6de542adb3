"""What a statement may say at all, whatever else was heard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from tailrace.cdcv2.errors import InvalidStatement
from tailrace.cdcv2.lattice import antichain, reaches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tailrace.cdcv2.errors import Origin
    from tailrace.cdcv2.lattice import Lattice
    from tailrace.cdcv2.statements import Progress

T = TypeVar("T")

LONG_LIMIT: Final = 2**63
"""Diffs and counts are Avro longs, below this."""


def checked_time(lattice: Lattice[T], time: object, message: Origin) -> T:
    """Return a time of this kind.

    Raises:
        InvalidStatement: It is none; names the message.
    """
    try:
        return lattice.check(time)
    except InvalidStatement as error:
        raise InvalidStatement(error.reason, message) from None


def checked_diff(diff: int, data: object, time: object, message: Origin) -> int:
    """Return a diff that is a 64-bit integer other than zero.

    Raises:
        InvalidStatement: It is not.
    """
    if type(diff) is not int or not -LONG_LIMIT <= diff < LONG_LIMIT:
        raise InvalidStatement(
            f"{data!r} at time {time}: diff {diff!r} is no 64-bit integer", message
        )
    if diff == 0:
        raise InvalidStatement(
            f"{data!r} at time {time}: a diff of zero is not a change; leave it out", message
        )
    return diff


def checked_interval(
    lattice: Lattice[T], progress: Progress[T], message: Origin
) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """Return lower and upper as antichains; they may be equal, and then hold no time.

    Raises:
        InvalidStatement: Not times, or ``lower`` is not at or before ``upper``.
    """
    lower = antichain(lattice, (checked_time(lattice, time, message) for time in progress.lower))
    upper = antichain(lattice, (checked_time(lattice, time, message) for time in progress.upper))
    for time in upper:
        if not reaches(lattice, lower, time):
            raise InvalidStatement(
                f"upper {_text(upper)} is not at or after lower {_text(lower)}", message
            )
    return lower, upper


def checked_counts(
    lattice: Lattice[T],
    counts: Iterable[tuple[T, int]],
    lower: tuple[T, ...],
    upper: tuple[T, ...],
    is_finished: Callable[[T], bool],
    message: Origin,
) -> dict[T, int]:
    """Return the counts above zero of an interval's times that are not finished.

    Raises:
        InvalidStatement: A time outside the interval, a count below zero or beyond 64 bits, or two
            different counts of one time.
    """
    found: dict[T, int] = {}
    for value, count in counts:
        time = checked_time(lattice, value, message)
        if not reaches(lattice, lower, time) or reaches(lattice, upper, time):
            raise InvalidStatement(
                f"count {count} of time {time} lies outside {_text(lower)} to {_text(upper)}",
                message,
            )
        if type(count) is not int or not 0 <= count < LONG_LIMIT:
            raise InvalidStatement(
                f"count {count!r} of time {time} is outside 0 to 2**63 - 1", message
            )
        if found.setdefault(time, count) != count:
            raise InvalidStatement(f"counts {found[time]} and {count} of one time {time}", message)
    return {time: count for time, count in found.items() if count and not is_finished(time)}


def _text(times: tuple[T, ...]) -> str:
    return "[" + ", ".join(map(str, times)) + "]"
