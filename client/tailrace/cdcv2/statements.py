"""Statements of a change stream, checks of single statements, and the results of a reader.

The messages of a stream may come in any order, repeated or re-batched. This is possible since every statement
in them is true of the complete history, whenever it is made::

    update (data, time, diff)          the change of `data` at `time` is exactly `diff`
    progress (lower, upper, counts)    at the times from `lower` to `upper` there are these many distinct
                                       updates, and none at those that `counts` does not list

    time        0     1     2     3     4     5     6     7     8     9     10
    updates                             +1    ±2    -1
    progress    [ counts: none  )[ counts: 4 → 1, 5 → 2, 6 → 1            )

An interval is half-open: it contains the times that are at or after some element of ``lower``, but not at or
after any element of ``upper``. An empty ``upper`` is the end of time, and closes the stream.

Source: the Materialize CDC format page, and "Change Data Capture (part 1)". The page calls ``upper`` the latest
time, but the interval in its own example is half-open, as in the article.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from tailrace.cdcv2.errors import InvalidStatement
from tailrace.cdcv2.lattice import antichain, reaches

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from tailrace.cdcv2.lattice import Lattice

T = TypeVar("T")


class Update(NamedTuple, Generic[T]):
    """The change of one record at one time. At run time a plain tuple of three also works."""

    data: Hashable
    """The record: any hashable value; equal values are the same record."""
    time: T
    """Time of the change."""
    diff: int
    """Change of the record's multiplicity: a signed 64-bit integer other than 0."""


@dataclass(frozen=True, slots=True)
class Progress(Generic[T]):
    """The number of distinct updates at each time of an interval."""

    lower: tuple[T, ...]
    """The beginning of the interval, inclusive."""
    upper: tuple[T, ...]
    """The end of the interval, exclusive; empty is the end of time."""
    counts: tuple[tuple[T, int], ...] = ()
    """Pairs of a time and its number of distinct updates; times that are not listed have none."""


Statement = Sequence[Update[T]] | Progress[T]
"""One message: a batch of updates, or one progress statement."""


class Finished(NamedTuple, Generic[T]):
    """Updates of times that have become complete, and the new frontier."""

    updates: list[Update[T]]
    """The updates, each once, sorted by `Lattice.order` of their times; possibly empty."""
    frontier: tuple[T, ...]
    """The new frontier: all times that are not at or after one of these are complete. Empty at the end of the
    stream."""


@dataclass(frozen=True, slots=True)
class Waiting(Generic[T]):
    """One reason why the frontier waits: a time that lacks updates, or a hole between intervals."""

    time: T
    """The time that lacks updates, or the beginning of the hole."""
    announced: int | None
    """Announced number of updates of the time; None if no progress statement has covered it yet."""
    received: int
    """Number of distinct updates received for the time."""
    hole_until: tuple[T, ...] | None = None
    """For a hole, the beginning of the next known interval; otherwise None."""

    @property
    def missing(self) -> int | None:
        """Number of updates that are still missing; None if the announced number is unknown."""
        return None if self.announced is None else self.announced - self.received

    def __str__(self) -> str:
        """Return one line for people."""
        if self.hole_until is not None:
            until = ", ".join(map(str, self.hole_until))
            return f"no progress statement covers time {self.time} up to {until}"
        if self.announced is None:
            return f"time {self.time}: {self.received} received, count not announced"
        return f"time {self.time}: {self.received} of {self.announced} received"


@dataclass(frozen=True, slots=True)
class ReaderStatistics:
    """Figures of a reader since its stream began. They are part of the saved state."""

    messages: int
    """Number of messages received."""
    updates: int
    """Number of updates received, repeated ones included."""
    duplicates: int
    """Number of updates that repeated an earlier update of an unfinished time."""
    dropped_finished: int
    """Number of updates and progress statements that were dropped because their times were finished."""
    conflicts: int
    """Number of contradictions that were ignored under the policy ``first``."""
    finished_updates: int
    """Number of updates returned in `Finished`."""
    held_updates: int
    """Number of updates of unfinished times that the reader holds."""
    held_times: int
    """Number of unfinished times with updates or counts."""


LONG_LIMIT: Final = 2**63
"""Upper bound of diffs and counts, exclusive; both are Avro longs."""


def checked_diff(diff: int, data: object, time: object) -> int:
    """Return a diff after checking that it is a 64-bit integer other than zero.

    Raises:
        InvalidStatement: ``diff`` is zero, or not a 64-bit integer.
    """
    if type(diff) is not int or not -LONG_LIMIT <= diff < LONG_LIMIT:
        raise InvalidStatement(f"{data!r} at time {time}: diff {diff!r} is not a 64-bit integer")
    if diff == 0:
        raise InvalidStatement(
            f"{data!r} at time {time}: a diff of zero is not a change; leave the update out"
        )
    return diff


def checked_interval(
    lattice: Lattice[T], progress: Progress[T]
) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """Return the lower and upper bound of a statement's interval as antichains; equal bounds are allowed.

    Raises:
        InvalidStatement: A bound has a value that is not a time, or ``upper`` is not at or after ``lower``.
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
        holds: Function that returns True for a time in the interval.

    Raises:
        InvalidStatement: A time is outside the interval, a count is negative or exceeds 64 bits, or a time has
            two different counts.
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
            raise InvalidStatement(f"time {time} has two counts, {found[time]} and {count}")
    return {time: count for time, count in found.items() if count}


def _text(times: tuple[T, ...]) -> str:
    return "[" + ", ".join(map(str, times)) + "]"
