"""The writer of a change stream, which readers read back unchanged in whatever order its messages arrive.

::

    write(a, 3, +1)  write(b, 3, +1)  write(a, 3, -1)     held, summed by (data, time)
    advance((5,))  ->  [(b, 3, +1)]                       batches of the sums that are not zero
                       progress [0] to [5], 3 → 1         from the end of the last interval

The updates of a time are written when the time is final, so every message stays true. Several writers of one
history may start at different times and use different batch sizes; their messages agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from tailrace.cdcv2.errors import InvalidWrite
from tailrace.cdcv2.lattice import INTEGERS, antichain, reaches
from tailrace.cdcv2.statements import LONG_LIMIT, Progress, Update

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from tailrace.cdcv2.lattice import Lattice
    from tailrace.cdcv2.statements import Statement

T = TypeVar("T")

BATCH_SIZE: Final = 1000
"""Default of the maximum number of updates in a message."""


class Writer(Generic[T]):
    """Writer of one stream. It holds the summed updates of the times that are still open.

    After a restart, begin at or before a frontier that an earlier writer reached, and write the history from
    there again. Readers drop repeated statements as duplicates.
    """

    @overload
    def __init__(
        self: Writer[int], *, batch_size: int = ..., start: Iterable[int] | None = ...
    ) -> None: ...

    @overload
    def __init__(
        self, lattice: Lattice[T], *, batch_size: int = ..., start: Iterable[T] | None = ...
    ) -> None: ...

    def __init__(
        self,
        lattice: Any = INTEGERS,
        *,
        batch_size: int = BATCH_SIZE,
        start: Iterable[Any] | None = None,
    ) -> None:
        """Begin a stream.

        Args:
            lattice: The kind of time.
            batch_size: Maximum number of updates in a message; at least one.
            start: The beginning of the first interval; None for the earliest time.

        Raises:
            InvalidStatement: ``start`` has a value that is not a time of this kind.
            ValueError: ``batch_size`` is less than one.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size}: must be at least 1")
        self.lattice = lattice
        self.batch_size = batch_size
        times = (lattice.minimum,) if start is None else tuple(map(lattice.check, start))
        self.frontier = antichain(lattice, times)
        """The beginning of the next interval. All times that are not at or after one of these were written."""
        self._sums: dict[T, dict[Hashable, int]] = {}

    def write(self, updates: Iterable[Update[T]]) -> None:
        """Add updates, in any order; updates with equal (data, time) are summed.

        Raises:
            InvalidWrite: The time of an update was already written; the updates before this one were added.
            InvalidStatement: An update has a value that is not a time of this kind.
        """
        sums = self._sums
        for data, time, diff in updates:
            at = sums.get(time)
            if at is None:
                at = self._open(time)
            at[data] = at.get(data, 0) + diff

    def advance(self, upper: Iterable[T]) -> list[Statement[T]]:
        """Write all times that are not at or after an element of ``upper``.

        Args:
            upper: The new frontier, at or after the current one. Empty closes the stream.

        Returns:
            Batches of updates, sorted by time, and one progress statement from the old frontier to the new one;
            an empty list if the two are equal.

        Raises:
            InvalidWrite: ``upper`` is before the current frontier, or a sum exceeds 64 bits; nothing was
                written.
        """
        # 1. Check the new frontier.
        lattice, lower = self.lattice, self.frontier
        new = antichain(lattice, map(lattice.check, upper))
        if new == lower:
            return []
        for time in new:
            if not reaches(lattice, lower, time):
                raise InvalidWrite(f"frontier {list(lower)} cannot move back to {list(new)}")
        # 2. Collect the sums of all times that are complete now. `_long` may raise, so nothing changes before.
        times = sorted(
            (time for time in self._sums if not reaches(lattice, new, time)), key=lattice.order
        )
        updates = [
            Update(data, time, _long(diff, data, time))
            for time in times
            for data, diff in self._sums[time].items()
            if diff
        ]
        counts: dict[T, int] = {}
        for update in updates:
            counts[update.time] = counts.get(update.time, 0) + 1
        # 3. Move the frontier, and return batches with the progress statement last.
        for time in times:
            del self._sums[time]
        self.frontier = new
        size = self.batch_size
        statements: list[Statement[T]] = [
            updates[i : i + size] for i in range(0, len(updates), size)
        ]
        statements.append(Progress(lower, new, tuple(counts.items())))
        return statements

    def close(self) -> list[Statement[T]]:
        """Write all open times and close the stream; return an empty list if it is closed already."""
        return self.advance(())

    def _open(self, time: T) -> dict[Hashable, int]:
        if not reaches(self.lattice, self.frontier, self.lattice.check(time)):
            raise InvalidWrite(f"time {time} is before the frontier {list(self.frontier)}")
        at: dict[Hashable, int] = {}
        self._sums[time] = at
        return at


def _long(diff: int, data: object, time: object) -> int:
    if not -LONG_LIMIT <= diff < LONG_LIMIT:
        raise InvalidWrite(f"{data!r} at time {time}: the sum {diff} exceeds 64 bits")
    return diff
