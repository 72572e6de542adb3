"""Reads a change stream whose messages come in any order, repeated and cut anew at will.

The reader keeps what it heard of times that are not finished: the distinct updates, the counts, and
the intervals of progress statements. Once an interval's counts have all been met, and nothing before
it is open, its updates leave in one piece and are forgotten; whatever is heard of those times later is
dropped unread. What is held is therefore what messages are out of order by, not what has passed.

Source: "Change Data Capture (part 1)", section "An Iterator". Different here: contradictions are
errors rather than stalls; duplicates inside one message are told; intervals need no order to join.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast, overload

from tailrace.cdcv2.check import checked_counts, checked_diff, checked_interval
from tailrace.cdcv2.errors import (
    CdcError,
    CountExceeded,
    CountsDisagree,
    DiffsDisagree,
    InvalidStatement,
)
from tailrace.cdcv2.integers import IntegerTimeline
from tailrace.cdcv2.lattice import INTEGERS, Integers, antichain
from tailrace.cdcv2.state import (
    ReaderState,
    data_of_text,
    data_to_text,
    decode_state,
    encode_state,
)
from tailrace.cdcv2.statements import Finished, Progress, ReaderStatistics, Update, Waiting
from tailrace.cdcv2.timeline import LatticeTimeline

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from tailrace.cdcv2.errors import Conflict, Origin, Side
    from tailrace.cdcv2.lattice import Lattice
    from tailrace.cdcv2.statements import Statement
    from tailrace.cdcv2.timeline import Timeline

T = TypeVar("T")

OnConflict = Literal["error", "first"]
"""What a contradiction does: end the stream until told, or pass, so that what was heard first stands."""

_FIGURES: Final = (
    "messages",
    "updates",
    "new",
    "dropped_updates",
    "dropped_progress",
    "conflicts",
    "finished_updates",
)
"""Counters of a reader that are saved, each in the attribute of that name."""


class Reader(Generic[T]):
    """One stream's reader. It is pushed: `receive` takes a message and gives what it finished.

    Not safe to share between threads. Cost is O(1) an update, and for each message besides the times
    that it finishes; partially ordered times also cost the number of times held.
    """

    @overload
    def __init__(
        self: Reader[int], *, on_conflict: OnConflict = ..., start: Iterable[int] | None = ...
    ) -> None: ...

    @overload
    def __init__(
        self, lattice: Lattice[T], *, on_conflict: OnConflict = ..., start: Iterable[T] | None = ...
    ) -> None: ...

    def __init__(
        self,
        lattice: Any = INTEGERS,
        *,
        on_conflict: OnConflict = "error",
        start: Iterable[Any] | None = None,
    ) -> None:
        """Begin with nothing heard.

        Args:
            lattice: The kind of time.
            on_conflict: What a contradiction does.
            start: Where to begin, inclusive; earlier times count as finished. None is the earliest time.

        Raises:
            InvalidStatement: ``start`` holds what is no time of this kind.
        """
        self.lattice = lattice
        self.on_conflict: OnConflict = on_conflict
        times = (lattice.minimum,) if start is None else tuple(map(lattice.check, start))
        self._timeline = _timeline_of(lattice, antichain(lattice, times))
        self._held: dict[T, dict[Hashable, Side]] = {}
        """For each known time its distinct updates, with the message that brought each first; one pair
        serves all equal diffs of a message. A time leaves when it is finished."""
        self._counts: dict[T, Side] = {}
        """For each known time that is covered, its count; zero where its statement lists none."""
        self._stopped: CdcError | None = None
        """What has ended the stream, until told."""
        self._moved = False
        """Whether a time may have become complete, or an interval covered, since the frontier moved."""
        self._messages = 0
        self._updates = 0
        self._new = 0
        self._dropped_updates = 0
        self._dropped_progress = 0
        self._conflicts = 0
        self._finished_updates = 0

    @property
    def frontier(self) -> tuple[T, ...]:
        """Times that are at or after none of these are finished; empty when all time is."""
        return self._timeline.finished

    @property
    def closed(self) -> bool:
        """Whether the stream is complete: nothing will come any more."""
        return not self._timeline.finished

    def receive(self, message: Statement[T], name: Origin = None) -> list[Finished[T]]:
        """Take one message, and return what it finished: nothing, or one piece.

        Args:
            message: Updates (any tuples of three), or one progress statement.
            name: What to call the message in errors; None is its number, from 1.

        Returns:
            An empty list while the frontier stays; otherwise one element, maybe without updates.

        Raises:
            InvalidStatement: It says what no statement may say.
            Conflict: It contradicts what was heard of an unfinished time.

        After an error the reader is stopped and each call raises it again, until `resume`. Of updates,
        those before the fault are kept, of a progress statement nothing; receiving it again is safe.
        """
        if self._stopped is not None:
            raise self._stopped.with_traceback(None)  # else it would grow with every call
        self._messages += 1
        origin = self._messages if name is None else name
        try:
            if isinstance(message, Progress):
                self._take_progress(message, origin)
            else:
                self._take_updates(message, origin)
        except InvalidStatement as error:
            self._stopped = InvalidStatement(error.reason, origin)
            raise self._stopped from None
        except CdcError as error:
            self._stopped = error
            raise
        return self._finish() if self._moved else []

    def resume(self, on_conflict: OnConflict | None = None) -> None:
        """Go on after an error, without what was refused; receive the message again to have its rest.

        Args:
            on_conflict: ``first`` to let what was heard first stand, here and from now on; None
                leaves the policy as it is.
        """
        self._stopped = None
        if on_conflict is not None:
            self.on_conflict = on_conflict

    def why_waiting(self, limit: int | None = None) -> list[Waiting[T]]:
        """Return what the frontier waits for: holes first, then times by the linear extension.

        A time whose updates have all come, and that only waits for earlier ones, is not listed, nor is
        the open end of a stream.

        Args:
            limit: How many reasons to return at most; None for all.
        """
        reasons = [Waiting(time, None, 0, until) for time, until in self._timeline.holes()]
        for time in sorted(self._held, key=self.lattice.order):
            if limit is not None and len(reasons) >= limit:
                break
            received, count = len(self._held[time]), self._counts.get(time)
            if count is None:
                reasons.append(Waiting(time, None, received))
            elif received < count[0]:
                reasons.append(Waiting(time, count[0], received))
        return reasons[:limit]

    def statistics(self) -> ReaderStatistics:
        """Return figures; the cost is the number of times held."""
        return ReaderStatistics(
            messages=self._messages,
            updates=self._updates,
            duplicates=self._updates - self._new - self._dropped_updates,
            dropped_finished=self._dropped_updates + self._dropped_progress,
            conflicts=self._conflicts,
            finished_updates=self._finished_updates,
            held_updates=sum(map(len, self._held.values())),
            held_times=len(self._held),
        )

    def save(self, encode: Callable[[Hashable], str] = data_to_text) -> bytes:
        """Return all that the reader knows, for `restore`; what it handed out is not in it.

        Args:
            encode: Writes the data of an update as text; unless given, JSON scalars and tuples of such.

        Raises:
            CdcError: The reader is stopped; what it was saved as before is the state to go back to.
        """
        if self._stopped is not None:
            raise self._stopped.with_traceback(None)  # else it would grow with every call
        state = ReaderState(
            on_conflict=self.on_conflict,
            finished=self._timeline.finished,
            intervals=self._timeline.intervals(),
            held=self._held,
            counts=self._counts,
            figures={name: getattr(self, f"_{name}") for name in _FIGURES},
        )
        return encode_state(state, self.lattice, encode)

    @overload
    @classmethod
    def restore(cls, saved: bytes, *, decode: Callable[[str], Hashable] = ...) -> Reader[int]: ...

    @overload
    @classmethod
    def restore(
        cls, saved: bytes, lattice: Lattice[T], *, decode: Callable[[str], Hashable] = ...
    ) -> Reader[T]: ...

    @classmethod
    def restore(
        cls,
        saved: bytes,
        lattice: Any = INTEGERS,
        *,
        decode: Callable[[str], Hashable] = data_of_text,
    ) -> Reader[Any]:
        """Return a reader that goes on where one was saved, under the same policy for conflicts.

        Args:
            saved: What `save` returned.
            lattice: The kind of time that it was saved with.
            decode: The inverse of the ``encode`` that it was saved with.

        Raises:
            StateUnreadable: Not such bytes, or of another kind of time.
        """
        state = decode_state(saved, lattice, decode)
        on_conflict: OnConflict = "first" if state.on_conflict == "first" else "error"
        reader: Reader[Any] = cls(lattice, on_conflict=on_conflict, start=state.finished)
        for lower, upper, message in state.intervals:
            reader._timeline.cover(lower, upper, message)
        for time in state.held:
            reader._timeline.add(time)
        reader._held, reader._counts = state.held, state.counts
        # A time that was completed by a message refused in its middle is still to leave.
        reader._moved = True
        for name, value in state.figures.items():
            if name in _FIGURES:
                setattr(reader, f"_{name}", value)
        return reader

    def _take_updates(self, message: Sequence[Update[T]], origin: Origin) -> None:
        touched: set[T] = set()
        try:
            self._hold(message, origin, touched)
        finally:
            # After an error too: what was taken before it stands like anything else.
            excess = self._settle(touched, origin)
        for conflict in excess:
            self._refuse(conflict)

    def _hold(self, message: Sequence[Update[T]], origin: Origin, touched: set[T]) -> None:
        """Keep the updates that are new, and note their times."""
        held = self._held
        sides: dict[int, Side] = {}
        dropped = new = 0
        for data, time, diff in message:
            at = held.get(time)
            if at is None:
                at = self._open(time)
                if at is None:
                    dropped += 1
                    continue
            known = at.get(data)
            if known is None:
                side = sides.get(diff)
                if side is None:
                    side = sides[diff] = (checked_diff(diff, data, time), origin)
                at[data] = side
                touched.add(time)
                new += 1
            elif known[0] != diff:
                self._refuse(DiffsDisagree(data, time, known, (diff, origin)))
        self._updates += len(message)
        self._dropped_updates += dropped
        self._new += new

    def _open(self, time: T) -> dict[Hashable, Side] | None:
        """Return a place for the updates of a time not heard of before; None if it is finished."""
        self.lattice.check(time)
        timeline = self._timeline
        if timeline.is_finished(time):
            return None
        interval = timeline.covering(time)
        if interval is not None:
            self._counts[time] = (0, interval[2])
        timeline.add(time)
        at: dict[Hashable, Side] = {}
        self._held[time] = at
        return at

    def _settle(self, touched: set[T], origin: Origin) -> list[Conflict]:
        """Compare the times that got updates with their counts, and take away what is too many."""
        excess: list[Conflict] = []
        for time in touched:
            count, at = self._counts.get(time), self._held[time]
            if count is None:
                continue
            received = len(at)
            if received > count[0]:
                while len(at) > count[0]:  # the last to come leave first
                    data, _ = at.popitem()
                excess.append(CountExceeded(time, count, (received, origin), data))
            if len(at) == count[0]:
                self._moved = True
        return excess

    def _take_progress(self, progress: Progress[T], origin: Origin) -> None:
        """Compare with all that is known of the interval's times, then take the counts that are new."""
        lower, upper = checked_interval(self.lattice, progress)
        timeline, held = self._timeline, self._held
        if timeline.is_past(lower, upper):
            self._dropped_progress += 1
            return
        listed = checked_counts(self.lattice, progress, timeline.holder(lower, upper))
        taken: dict[T, Side] = {}
        for time in timeline.known_in(lower, upper):
            now = self._compare(time, (listed.pop(time, 0), origin))
            if now is not None:
                taken[time] = now
        fresh: dict[T, Side] = {}
        for time, count in listed.items():
            if timeline.is_finished(time):
                continue
            interval = timeline.covering(time)
            if interval is None:
                fresh[time] = (count, origin)
            else:
                self._refuse(CountsDisagree(time, (0, interval[2]), (count, origin)))
        # Nothing was taken up to here, so that a statement is refused whole.
        for time in fresh:
            timeline.add(time)
            held[time] = {}
        self._counts.update(taken)
        self._counts.update(fresh)
        timeline.cover(lower, upper, origin)
        self._moved = True

    def _compare(self, time: T, now: Side) -> Side | None:
        """Return the count that a known time gets by a statement; None if it has one already."""
        at, before = self._held[time], self._counts.get(time)
        if before is not None:
            if before[0] != now[0]:
                self._refuse(CountsDisagree(time, before, now))
            return None
        received = len(at)
        if received > now[0]:
            data, (_, message) = next(reversed(at.items()))
            self._refuse(CountExceeded(time, (received, message), now, data))
            return (received, now[1])  # what was heard first stands
        return now

    def _refuse(self, conflict: Conflict) -> None:
        """Raise a contradiction, or count it where what was heard first stands."""
        if self.on_conflict == "error":
            raise conflict
        self._conflicts += 1

    def _is_complete(self, time: T) -> bool:
        return len(self._held[time]) == self._counts[time][0]

    def _finish(self) -> list[Finished[T]]:
        """Move the frontier, and let go of what it passes."""
        self._moved = False
        before = self._timeline.finished
        times = self._timeline.advance(self._is_complete)
        frontier = self._timeline.finished
        if frontier == before:
            return []
        updates: list[Update[T]] = []
        for time in times:
            at = self._held.pop(time)
            del self._counts[time]
            updates += [Update(data, time, diff) for data, (diff, _) in at.items()]
        self._finished_updates += len(updates)
        return [Finished(updates, frontier)]


def _timeline_of(lattice: Lattice[T], start: tuple[T, ...]) -> Timeline[T]:
    """Return an empty timeline for a kind of time: sorted lists for integers, sets for any other."""
    kind: object = lattice
    if isinstance(kind, Integers):
        return cast("Timeline[T]", IntegerTimeline(cast("tuple[int, ...]", start)))
    return LatticeTimeline(lattice, start)
