"""What a change stream says, and what a reader makes of it.

A stream is a sequence of messages in any order, repeated and cut anew at will, since each makes only
statements that are true of the finished history:

::

    update (data, time, diff)          the change of `data` at `time` is exactly `diff`
    progress (lower, upper, counts)    at the times from `lower` to `upper` there are these many distinct
                                       updates, and none at those that `counts` does not list

    time        0     1     2     3     4     5     6     7     8     9     10
    updates                             +1    ±2    -1
    progress    [ counts: none  )[ counts: 4 → 1, 5 → 2, 6 → 1            )

An interval is half-open: it holds the times that are at or after some element of ``lower`` and at or
after no element of ``upper``. An empty ``upper`` is the end of time: it closes the stream.

Source: the Materialize CDC format page, and "Change Data Capture (part 1)". The page calls ``upper``
the latest time; its own example is half-open, as the article says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

T = TypeVar("T")


class Update(NamedTuple, Generic[T]):
    """The change of one record at one time. A plain tuple of three does as well, at run time."""

    data: Hashable
    """The record: any hashable value; equal values are the same record."""
    time: T
    """When it changed."""
    diff: int
    """How its multiplicity changed: not zero, 64 bits with sign."""


@dataclass(frozen=True, slots=True)
class Progress(Generic[T]):
    """How many distinct updates there are in an interval of times."""

    lower: tuple[T, ...]
    """Where the interval begins, inclusive."""
    upper: tuple[T, ...]
    """Where it ends, exclusive; empty is the end of time."""
    counts: tuple[tuple[T, int], ...] = ()
    """Distinct updates by time; times that are not listed have none."""


Statement = Sequence[Update[T]] | Progress[T]
"""One message: a batch of updates, or one progress statement."""


class Finished(NamedTuple, Generic[T]):
    """What has become final since the reader last said so."""

    updates: list[Update[T]]
    """Each once, by time (partially ordered times by the lattice's linear extension); possibly none."""
    frontier: tuple[T, ...]
    """No update will come any more for times that are at or after none of these; empty: the end."""


@dataclass(frozen=True, slots=True)
class Waiting(Generic[T]):
    """One reason why a reader cannot go on: a time that misses updates, or a hole between intervals."""

    time: T
    """The time in question; of a hole, where it begins."""
    announced: int | None
    """How many updates it has; None where no progress statement has covered it yet."""
    received: int
    """How many distinct ones have come."""
    hole_until: tuple[T, ...] | None = None
    """Of a hole: where the next interval known begins; otherwise None."""

    @property
    def missing(self) -> int | None:
        """How many updates are still to come; None where that is not known."""
        return None if self.announced is None else self.announced - self.received

    def __str__(self) -> str:
        """Write one line for people."""
        if self.hole_until is not None:
            until = ", ".join(map(str, self.hole_until))
            return f"no progress statement covers time {self.time} up to {until}"
        if self.announced is None:
            return f"time {self.time}: {self.received} received, count not announced"
        return f"time {self.time}: {self.received} of {self.announced} received"


@dataclass(frozen=True, slots=True)
class ReaderStatistics:
    """Figures of a reader, since its stream began; they outlive a restart with the saved state."""

    messages: int
    """Messages received."""
    updates: int
    """Updates received, repeated ones included."""
    duplicates: int
    """Updates that repeated one at hand, of a time not yet finished."""
    dropped_finished: int
    """Updates and progress statements that concerned finished times only; dropped unread."""
    conflicts: int
    """Contradictions that were passed over, since the reader keeps what it heard first."""
    finished_updates: int
    """Updates handed out."""
    held_updates: int
    """Updates at hand, of times not yet finished."""
    held_times: int
    """Times not yet finished of which anything is known."""


JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
"""What a JSON document holds."""
