"""Which times are known, announced and finished: what a reader asks, whatever its kind of time.

::

    time       0 ........ finished ........ announced ........ ........ ........
    intervals  [ dropped )[ kept           )          [ kept )          [ kept )
               no update will come          some times    hole    known    hole
                                            miss updates          already

Two frontiers move, each an antichain. ``announced``: every time before it is covered by progress
statements. ``finished``: besides, every update before it has come; it is the earliest of ``announced``
and of the times that still miss updates.

How ``announced`` is found: a time t at or after a frontier element f that lies in an interval
[lower, upper) is uncovered by that interval if and only if it is at or after an element of upper. So
f gives way to its joins with the elements of upper, and nothing uncovered is lost; once no element lies
in an interval, the elements are exactly the earliest uncovered times. The published algorithm grafts
an interval only once its lower is before the whole frontier, and so stalls for ever on two intervals
that are side by side and cover the frontier together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from tailrace.cdcv2.lattice import antichain, reaches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tailrace.cdcv2.errors import Origin
    from tailrace.cdcv2.lattice import Lattice

T = TypeVar("T")

Interval = tuple[tuple[T, ...], tuple[T, ...], "Origin"]
"""Lower, upper, and the message that announced it."""


class Timeline(Protocol[T]):
    """The times of one stream that are not finished, and the intervals that cover them."""

    @property
    def announced(self) -> tuple[T, ...]:
        """The earliest times that no interval covers."""

    @property
    def finished(self) -> tuple[T, ...]:
        """The earliest times of which something may still come."""

    def is_finished(self, time: T) -> bool:
        """Whether nothing of this time matters any more."""

    def is_past(self, lower: tuple[T, ...], upper: tuple[T, ...]) -> bool:
        """Whether an interval holds finished times only, or none."""

    def add(self, time: T) -> None:
        """Take note of a time that is not finished and not known yet."""

    def known_in(self, lower: tuple[T, ...], upper: tuple[T, ...]) -> Iterable[T]:
        """Return the known times in an interval; `add` may not be called while they are read."""

    def holder(self, lower: tuple[T, ...], upper: tuple[T, ...]) -> Callable[[T], bool]:
        """Return the question whether a time lies in an interval."""

    def covering(self, time: T) -> Interval[T] | None:
        """Return an interval that holds a time not yet finished."""

    def cover(self, lower: tuple[T, ...], upper: tuple[T, ...], message: Origin) -> None:
        """Add an interval that is not past, and move ``announced``."""

    def advance(self, is_complete: Callable[[T], bool]) -> list[T]:
        """Move ``finished`` as far as it goes.

        Args:
            is_complete: Whether a known, covered time has all its updates.

        Returns:
            The known times that it has passed, in linear order; they are known no more.
        """

    def holes(self) -> list[tuple[T, tuple[T, ...]]]:
        """Return where a hole begins and where the next interval does, for holes before an interval."""

    def intervals(self) -> list[Interval[T]]:
        """Return the intervals that still hold an unfinished time, in no particular order."""


class LatticeTimeline(Generic[T]):
    """Times of any lattice. A move costs the number of known times, or of intervals, at worst its square."""

    def __init__(self, lattice: Lattice[T], start: tuple[T, ...]) -> None:
        self._lattice = lattice
        self.announced: tuple[T, ...] = start
        self.finished: tuple[T, ...] = start
        self._known: dict[T, None] = {}
        """An ordered set; times leave it when they are finished."""
        self._intervals: list[Interval[T]] = []
        """None within another; they leave when all their times are finished."""

    def is_finished(self, time: T) -> bool:
        """Whether nothing of this time matters any more."""
        return not reaches(self._lattice, self.finished, time)

    def is_past(self, lower: tuple[T, ...], upper: tuple[T, ...]) -> bool:
        """Whether an interval holds finished times only, or none."""
        # The earliest times at or after both f and l are their join; if an upper has it, it has them all.
        lattice = self._lattice
        return all(
            reaches(lattice, upper, lattice.join(f, low)) for f in self.finished for low in lower
        )

    def add(self, time: T) -> None:
        """Take note of a time that is not finished and not known yet."""
        self._known[time] = None

    def known_in(self, lower: tuple[T, ...], upper: tuple[T, ...]) -> list[T]:
        """Return the known times in an interval, those first heard of first."""
        return [time for time in self._known if self._holds(lower, upper, time)]

    def holder(self, lower: tuple[T, ...], upper: tuple[T, ...]) -> Callable[[T], bool]:
        """Return the question whether a time lies in an interval."""
        return lambda time: self._holds(lower, upper, time)

    def covering(self, time: T) -> Interval[T] | None:
        """Return an interval that holds a time not yet finished."""
        for interval in self._intervals:
            if self._holds(interval[0], interval[1], time):
                return interval
        return None

    def cover(self, lower: tuple[T, ...], upper: tuple[T, ...], message: Origin) -> None:
        """Add an interval that is not past, and move ``announced``."""
        if any(self._within(lower, upper, interval) for interval in self._intervals):
            return
        new: Interval[T] = (lower, upper, message)
        self._intervals = [old for old in self._intervals if not self._within(old[0], old[1], new)]
        self._intervals.append(new)
        self._move_announced()

    def advance(self, is_complete: Callable[[T], bool]) -> list[T]:
        """Move ``finished``; every known time is looked at, unless what held it up still does."""
        lattice, announced = self._lattice, self.announced
        if all(
            time in announced or (time in self._known and not is_complete(time))
            for time in self.finished
        ):
            return []
        missing = [
            time
            for time in self._known
            if not reaches(lattice, announced, time) and not is_complete(time)
        ]
        finished = antichain(lattice, [*announced, *missing])
        if finished == self.finished:
            return []
        self.finished = finished
        passed = [time for time in self._known if not reaches(lattice, finished, time)]
        for time in passed:
            del self._known[time]
        self._intervals = [each for each in self._intervals if not self.is_past(each[0], each[1])]
        return sorted(passed, key=lattice.order)

    def holes(self) -> list[tuple[T, tuple[T, ...]]]:
        """Return the uncovered times that begin a hole before an interval."""
        found = []
        for element in self.announced:
            beyond = antichain(
                self._lattice,
                (
                    time
                    for lower, upper, _ in self._intervals
                    for time in (self._lattice.join(element, low) for low in lower)
                    if not reaches(self._lattice, upper, time)
                ),
            )
            if beyond:
                found.append((element, beyond))
        return found

    def intervals(self) -> list[Interval[T]]:
        """Return the intervals that still hold an unfinished time."""
        return list(self._intervals)

    def _holds(self, lower: tuple[T, ...], upper: tuple[T, ...], time: T) -> bool:
        return reaches(self._lattice, lower, time) and not reaches(self._lattice, upper, time)

    def _within(self, lower: tuple[T, ...], upper: tuple[T, ...], other: Interval[T]) -> bool:
        lattice = self._lattice
        return all(reaches(lattice, other[0], low) for low in lower) and all(
            reaches(lattice, upper, high) for high in other[1]
        )

    def _move_announced(self) -> None:
        pending, uncovered = list(self.announced), []
        while pending:
            element = pending.pop()
            interval = self.covering(element)
            if interval is None:
                uncovered.append(element)
            else:
                # Only the earliest are followed, else elements would multiply with every interval.
                joins = (self._lattice.join(element, high) for high in interval[1])
                pending = list(antichain(self._lattice, [*pending, *joins]))
        self.announced = antichain(self._lattice, uncovered)
