"""The timelines of a reader: which times are known, announced and finished; for integers and for any lattice.

::

    time       0 ........ finished ........ announced ........ ........ ........
    intervals  [ dropped )[ kept           )          [ kept )          [ kept )
               no update will come          some times    hole    known    hole
                                            miss updates          already

Two frontiers move, each an antichain. Every time before ``announced`` is covered by progress statements.
Every time before ``finished`` is covered and has all its updates: ``finished`` is the minimum of ``announced``
and of the times that still lack updates.

How ``announced`` is found: take a frontier element f that lies in an interval [lower, upper). A time t at or
after f is outside of the interval if and only if it is at or after an element of upper. So f is replaced by
its joins with the elements of upper, and no uncovered time is lost. Once no element lies in an interval, the
elements are exactly the minimal uncovered times.

The published algorithm adds an interval only if its lower is before the whole frontier. It stalls for ever if
two intervals cover the frontier only together.

The timeline of integer times keeps sorted lists, so that the cost of a message depends on its changes alone. It
keeps only the uncovered parts of a new interval, so intervals never overlap. The end of time is the number
behind the largest time; as a frontier it is the empty antichain.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from tailrace.cdcv2.lattice import TIME_MAX, antichain, reaches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tailrace.cdcv2.errors import Origin
    from tailrace.cdcv2.lattice import Lattice

T = TypeVar("T")

Interval = tuple[tuple[T, ...], tuple[T, ...], "Origin"]
"""Lower and upper bound, and the message that announced the interval."""


class Timeline(Protocol[T]):
    """The unfinished times of one stream, and the intervals that cover them."""

    @property
    def announced(self) -> tuple[T, ...]:
        """The earliest times that no interval covers."""

    @property
    def finished(self) -> tuple[T, ...]:
        """The earliest times for which updates may still come."""

    def is_finished(self, time: T) -> bool:
        """Return True if a time is finished: statements about it are dropped."""

    def is_past(self, lower: tuple[T, ...], upper: tuple[T, ...]) -> bool:
        """Return True if an interval contains no unfinished time."""

    def add(self, time: T) -> None:
        """Add a time that is not finished and not known yet."""

    def known_in(self, lower: tuple[T, ...], upper: tuple[T, ...]) -> Iterable[T]:
        """Return the known times in an interval. `add` must not be called while they are iterated."""

    def holder(self, lower: tuple[T, ...], upper: tuple[T, ...]) -> Callable[[T], bool]:
        """Return a function that returns True for a time in the interval."""

    def covering(self, time: T) -> Interval[T] | None:
        """Return an interval that contains the unfinished time; None if there is none."""

    def cover(self, lower: tuple[T, ...], upper: tuple[T, ...], message: Origin) -> None:
        """Add an interval that has unfinished times, and move ``announced``."""

    def advance(self, is_complete: Callable[[T], bool]) -> list[T]:
        """Move ``finished`` as far as possible.

        Args:
            is_complete: Function that returns True for a known and covered time that has all its updates.

        Returns:
            The known times that ``finished`` has passed, sorted by `Lattice.order`. They are no longer known.
        """

    def holes(self) -> list[tuple[T, tuple[T, ...]]]:
        """Return the beginning of each hole, with the lower bound of the next interval after it."""

    def intervals(self) -> list[Interval[T]]:
        """Return the intervals that still contain an unfinished time, in no particular order."""


class LatticeTimeline(Generic[T]):
    """The timeline of any lattice. A call costs O(known times + intervals), at worst the square of that."""

    def __init__(self, lattice: Lattice[T], start: tuple[T, ...]) -> None:
        self._lattice = lattice
        self.announced: tuple[T, ...] = start
        self.finished: tuple[T, ...] = start
        self._known: dict[T, None] = {}
        """Known times, an ordered set; a time leaves when it is finished."""
        self._intervals: list[Interval[T]] = []
        """No interval lies within another. An interval leaves when all its times are finished."""

    def is_finished(self, time: T) -> bool:
        """Return True if a time is finished: statements about it are dropped."""
        return not reaches(self._lattice, self.finished, time)

    def is_past(self, lower: tuple[T, ...], upper: tuple[T, ...]) -> bool:
        """Return True if an interval contains no unfinished time."""
        # The unfinished times of the interval are at or after a join of an f and a low. If ``upper`` reaches
        # every join, all of them lie after the interval.
        lattice = self._lattice
        return all(
            reaches(lattice, upper, lattice.join(f, low)) for f in self.finished for low in lower
        )

    def add(self, time: T) -> None:
        """Add a time that is not finished and not known yet."""
        self._known[time] = None

    def known_in(self, lower: tuple[T, ...], upper: tuple[T, ...]) -> list[T]:
        """Return the known times in an interval, in the order in which they became known."""
        return [time for time in self._known if self._holds(lower, upper, time)]

    def holder(self, lower: tuple[T, ...], upper: tuple[T, ...]) -> Callable[[T], bool]:
        """Return a function that returns True for a time in the interval."""
        return lambda time: self._holds(lower, upper, time)

    def covering(self, time: T) -> Interval[T] | None:
        """Return an interval that contains the unfinished time; None if there is none."""
        for interval in self._intervals:
            if self._holds(interval[0], interval[1], time):
                return interval
        return None

    def cover(self, lower: tuple[T, ...], upper: tuple[T, ...], message: Origin) -> None:
        """Add an interval that has unfinished times, and move ``announced``."""
        if any(self._within(lower, upper, interval) for interval in self._intervals):
            return
        # Intervals within the new one add nothing any more. Those that only overlap stay as they are: in a
        # partial order their difference may be no interval.
        new: Interval[T] = (lower, upper, message)
        self._intervals = [old for old in self._intervals if not self._within(old[0], old[1], new)]
        self._intervals.append(new)
        self._move_announced()

    def advance(self, is_complete: Callable[[T], bool]) -> list[T]:
        """Move ``finished`` as far as possible."""
        # 1. If each element is still blocked, by coverage or by a time that lacks updates, nothing can move.
        #    This answers most calls without a look at all known times.
        lattice, announced = self._lattice, self.announced
        if all(
            time in announced or (time in self._known and not is_complete(time))
            for time in self.finished
        ):
            return []
        # 2. Only covered times matter here: an uncovered one is at or after ``announced`` in any case.
        missing = [
            time
            for time in self._known
            if not reaches(lattice, announced, time) and not is_complete(time)
        ]
        finished = antichain(lattice, [*announced, *missing])
        if finished == self.finished:
            return []
        # 3. Remove the times and intervals that ``finished`` has passed.
        self.finished = finished
        passed = [time for time in self._known if not reaches(lattice, finished, time)]
        for time in passed:
            del self._known[time]
        self._intervals = [each for each in self._intervals if not self.is_past(each[0], each[1])]
        return sorted(passed, key=lattice.order)

    def holes(self) -> list[tuple[T, tuple[T, ...]]]:
        """Return the elements of ``announced`` that have intervals after them, each with their lower bound."""
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
        """Return the intervals that still contain an unfinished time."""
        return list(self._intervals)

    def _holds(self, lower: tuple[T, ...], upper: tuple[T, ...], time: T) -> bool:
        return reaches(self._lattice, lower, time) and not reaches(self._lattice, upper, time)

    def _within(self, lower: tuple[T, ...], upper: tuple[T, ...], other: Interval[T]) -> bool:
        lattice = self._lattice
        return all(reaches(lattice, other[0], low) for low in lower) and all(
            reaches(lattice, upper, high) for high in other[1]
        )

    def _move_announced(self) -> None:
        """Replace covered elements of ``announced`` by later ones until none is covered; see above."""
        pending, uncovered = list(self.announced), []
        while pending:
            element = pending.pop()
            interval = self.covering(element)
            if interval is None:
                uncovered.append(element)
            else:
                # Only minimal elements are followed; otherwise their number would multiply with every interval.
                joins = (self._lattice.join(element, high) for high in interval[1])
                pending = list(antichain(self._lattice, [*pending, *joins]))
        self.announced = antichain(self._lattice, uncovered)


END: Final = TIME_MAX + 1
"""The end of time, as a number."""

INTERVALS_MAX: Final = 4096
"""Number of intervals above which touching intervals are joined; a joined interval forgets its messages.

A stream that waits for one time while progress continues then needs no memory for the empty times after it.
"""


class IntegerTimeline:
    """The timeline of integers. To advance costs O(times that become finished)."""

    def __init__(self, start: tuple[int, ...]) -> None:
        self._finished = self._announced = _bound(start)
        self._known: list[int] = []
        """Known times, rising; a time leaves when it is finished."""
        self._lowers: list[int] = []
        """Lower bounds of the intervals, rising. Interval i is from ``_lowers[i]`` to ``_uppers[i]``, and
        ``_messages[i]`` announced it."""
        self._uppers: list[int] = []
        self._messages: list[Origin] = []
        self._join_above = INTERVALS_MAX
        """Number of intervals above which touching ones are joined."""

    @property
    def announced(self) -> tuple[int, ...]:
        """The earliest time that no interval covers."""
        return _antichain(self._announced)

    @property
    def finished(self) -> tuple[int, ...]:
        """The earliest time for which updates may still come."""
        return _antichain(self._finished)

    def is_finished(self, time: int) -> bool:
        """Return True if a time is finished: statements about it are dropped."""
        return time < self._finished

    def is_past(self, lower: tuple[int, ...], upper: tuple[int, ...]) -> bool:
        """Return True if an interval contains no unfinished time."""
        return _bound(upper) <= max(self._finished, _bound(lower))

    def add(self, time: int) -> None:
        """Add a time that is not finished and not known yet."""
        insort(self._known, time)

    def known_in(self, lower: tuple[int, ...], upper: tuple[int, ...]) -> list[int]:
        """Return the known times in an interval, rising."""
        known = self._known
        return known[bisect_left(known, _bound(lower)) : bisect_left(known, _bound(upper))]

    def holder(self, lower: tuple[int, ...], upper: tuple[int, ...]) -> Callable[[int], bool]:
        """Return a function that returns True for a time in the interval."""
        return range(_bound(lower), _bound(upper)).__contains__

    def covering(self, time: int) -> Interval[int] | None:
        """Return the interval that contains an unfinished time; None if there is none."""
        i = bisect_right(self._lowers, time) - 1
        if i < 0 or time >= self._uppers[i]:
            return None
        return _antichain(self._lowers[i]), _antichain(self._uppers[i]), self._messages[i]

    def cover(self, lower: tuple[int, ...], upper: tuple[int, ...], message: Origin) -> None:
        """Add the uncovered parts of an interval, and move ``announced``."""
        # 1. Fill the gaps from ``at`` to ``end``; ``i`` is the first interval that can end after ``at``.
        at, end = max(_bound(lower), self._finished), _bound(upper)
        i = max(bisect_right(self._lowers, at) - 1, 0)
        while at < end:
            if (
                i < len(self._lowers) and self._lowers[i] <= at
            ):  # covered: continue after the interval
                at = max(at, self._uppers[i])
            else:
                until = min(end, self._lowers[i]) if i < len(self._lowers) else end
                self._lowers.insert(i, at)
                self._uppers.insert(i, until)
                self._messages.insert(i, message)
                at = until
            i += 1
        # 2. ``announced`` moves over every interval that follows without a gap.
        i = bisect_left(self._lowers, self._announced)
        while i < len(self._lowers) and self._lowers[i] == self._announced:
            self._announced = self._uppers[i]
            i += 1
        if len(self._lowers) > self._join_above:
            self._join_touching()

    def advance(self, is_complete: Callable[[int], bool]) -> list[int]:
        """Move ``finished`` to the first known time that lacks updates, or else to ``announced``."""
        known, announced = self._known, self._announced
        finished, passed = announced, 0
        for time in known:
            if time >= announced:
                break
            if not is_complete(time):
                finished = time
                break
            passed += 1
        released = known[:passed]
        del known[:passed]
        self._finished = finished
        # An interval leaves with its last time. Until then it answers `covering` for new times in it.
        past = bisect_right(self._uppers, finished)
        if past:
            del self._lowers[:past], self._uppers[:past], self._messages[:past]
        return released

    def holes(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return the beginning and the end of each hole before an interval."""
        at, found = self._announced, list[tuple[int, tuple[int, ...]]]()
        for low, high in zip(self._lowers, self._uppers, strict=True):
            if low > at:
                found.append((at, (low,)))
            at = max(at, high)
        return found

    def intervals(self) -> list[Interval[int]]:
        """Return the intervals that still contain an unfinished time, in rising order."""
        every = zip(self._lowers, self._uppers, self._messages, strict=True)
        return [(_antichain(low), _antichain(high), message) for low, high, message in every]

    def _join_touching(self) -> None:
        lowers, uppers, messages = self._lowers[:1], self._uppers[:1], self._messages[:1]
        every = zip(self._lowers[1:], self._uppers[1:], self._messages[1:], strict=True)
        for low, high, message in every:
            if low == uppers[-1]:
                uppers[-1], messages[-1] = high, None
            else:
                lowers.append(low)
                uppers.append(high)
                messages.append(message)
        self._lowers, self._uppers, self._messages = lowers, uppers, messages
        # If holes separate most of them, joining gains little: the next attempt waits for twice as many.
        self._join_above = max(INTERVALS_MAX, 2 * len(lowers))


def _bound(antichain: tuple[int, ...]) -> int:
    return antichain[0] if antichain else END


def _antichain(bound: int) -> tuple[int, ...]:
    return () if bound == END else (bound,)
