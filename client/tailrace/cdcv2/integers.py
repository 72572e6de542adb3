"""The timeline of integer times. It keeps sorted lists, so that a message costs what it changes.

Of a new interval only the uncovered parts are kept, so intervals never overlap. The end of time is the
number behind the largest time; as a frontier it is the empty antichain.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Final

from tailrace.cdcv2.lattice import TIME_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.cdcv2.errors import Origin
    from tailrace.cdcv2.timeline import Interval

END: Final = TIME_MAX + 1
"""The end of time, as a number."""

INTERVALS_MAX: Final = 4096
"""Intervals that are kept apart. With more, touching ones are joined and forget their messages. A stream that
waits for one time while progress continues then needs no memory for the empty times behind it."""


class IntegerTimeline:
    """The timeline of integers. To advance costs O(times that become finished)."""

    def __init__(self, start: tuple[int, ...]) -> None:
        self._finished = self._announced = _bound(start)
        self._known: list[int] = []
        """Known times, rising; a time leaves when it is finished."""
        self._lowers: list[int] = []
        """Rising. Interval i is from ``_lowers[i]`` to ``_uppers[i]`` and was announced by ``_messages[i]``."""
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
        """Whether a time is finished: statements about it are dropped."""
        return time < self._finished

    def is_past(self, lower: tuple[int, ...], upper: tuple[int, ...]) -> bool:
        """Whether an interval holds no unfinished time."""
        return _bound(upper) <= max(self._finished, _bound(lower))

    def add(self, time: int) -> None:
        """Add a time that is not finished and not known yet."""
        insort(self._known, time)

    def known_in(self, lower: tuple[int, ...], upper: tuple[int, ...]) -> list[int]:
        """Return the known times in an interval, rising."""
        known = self._known
        return known[bisect_left(known, _bound(lower)) : bisect_left(known, _bound(upper))]

    def holder(self, lower: tuple[int, ...], upper: tuple[int, ...]) -> Callable[[int], bool]:
        """Return a function that says whether a time lies in an interval."""
        return range(_bound(lower), _bound(upper)).__contains__

    def covering(self, time: int) -> Interval[int] | None:
        """Return the interval that holds a time not yet finished."""
        i = bisect_right(self._lowers, time) - 1
        if i < 0 or time >= self._uppers[i]:
            return None
        return _antichain(self._lowers[i]), _antichain(self._uppers[i]), self._messages[i]

    def cover(self, lower: tuple[int, ...], upper: tuple[int, ...], message: Origin) -> None:
        """Add the uncovered parts of an interval, and move ``announced``."""
        # 1. Fill the gaps from ``at`` to ``end``; ``i`` is the first interval that can lie at or behind ``at``.
        at, end = max(_bound(lower), self._finished), _bound(upper)
        i = max(bisect_right(self._lowers, at) - 1, 0)
        while at < end:
            if i < len(self._lowers) and self._lowers[i] <= at:  # covered: go on behind it
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
        """Return where each hole before an interval begins and ends."""
        at, found = self._announced, list[tuple[int, tuple[int, ...]]]()
        for low, high in zip(self._lowers, self._uppers, strict=True):
            if low > at:
                found.append((at, (low,)))
            at = max(at, high)
        return found

    def intervals(self) -> list[Interval[int]]:
        """Return the intervals that still hold an unfinished time, rising."""
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
