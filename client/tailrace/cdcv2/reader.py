"""The reader of a change stream whose messages come in any order, repeated or re-batched.

The reader stores what it has received about unfinished times: the distinct updates, the counts, and the
intervals of progress statements. When all updates of an interval have come and no earlier time is open, the
reader returns these updates together and forgets them. It drops later statements about finished times. Memory
therefore depends on how far messages are out of order, not on the length of the stream.

Source: "Change Data Capture (part 1)", section "An Iterator". Differences: contradictions are errors instead of
stalling the reader, duplicates within one message are detected, and intervals may come in any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast, overload

from tailrace.cdcv2.errors import (
    CdcError,
    CountExceeded,
    CountsDisagree,
    DiffsDisagree,
    InvalidStatement,
)
from tailrace.cdcv2.lattice import INTEGERS, Integers, antichain
from tailrace.cdcv2.state import ReaderState, data_of_text, data_to_text, decode_state, encode_state
from tailrace.cdcv2.statements import (
    Finished,
    Progress,
    ReaderStatistics,
    Update,
    Waiting,
    checked_counts,
    checked_diff,
    checked_interval,
)
from tailrace.cdcv2.timeline import IntegerTimeline, LatticeTimeline

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from tailrace.cdcv2.errors import Conflict, Origin, Side
    from tailrace.cdcv2.lattice import Lattice
    from tailrace.cdcv2.statements import Statement
    from tailrace.cdcv2.timeline import Timeline

T = TypeVar("T")

OnConflict = Literal["error", "first"]
"""The effect of a contradiction: raise an error and stop, or keep what was received first and continue."""

_FIGURES: Final = (
    "messages",
    "updates",
    "new",
    "dropped_updates",
    "dropped_progress",
    "conflicts",
    "finished_updates",
)
"""Counters of a reader that are saved; each is an attribute of this name with an underscore."""


class Reader(Generic[T]):
    """Reader of one stream: `receive` takes a message and returns the updates of times that became complete.

    Not thread-safe. An update costs O(1), and a message costs in addition O(times that it finishes). With
    partially ordered times a message also costs O(times held).
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
        """Begin a stream.

        Args:
            lattice: The kind of time.
            on_conflict: The effect of a contradiction.
            start: First times to read, inclusive; the reader treats earlier times as finished. None for the
                earliest time.

        Raises:
            InvalidStatement: ``start`` has a value that is not a time of this kind.
        """
        self.lattice = lattice
        self.on_conflict: OnConflict = on_conflict
        times = (lattice.minimum,) if start is None else tuple(map(lattice.check, start))
        self._timeline = _timeline_of(lattice, antichain(lattice, times))
        self._held: dict[T, dict[Hashable, Side]] = {}
        """Known time → distinct update → its diff, and the message that brought it first. Equal diffs of a
        message share one pair. A time leaves when it is finished."""
        self._counts: dict[T, Side] = {}
        """Known and covered time → announced count; 0 if the progress statement does not list the time."""
        self._stopped: CdcError | None = None
        """The error that has stopped the reader; None while it is not stopped."""
        self._moved = False
        """True if the frontier may have to move: a time became complete, or an interval was covered."""
        self._messages = 0
        self._updates = 0
        self._new = 0
        self._dropped_updates = 0
        self._dropped_progress = 0
        self._conflicts = 0
        self._finished_updates = 0

    @property
    def frontier(self) -> tuple[T, ...]:
        """The frontier: all times that are not at or after one of these are finished. Empty at the end."""
        return self._timeline.finished

    @property
    def closed(self) -> bool:
        """True if the stream is complete: no more updates will come."""
        return not self._timeline.finished

    def receive(self, message: Statement[T], name: Origin = None) -> list[Finished[T]]:
        """Process one message, and return the updates of the times that it completes.

        Args:
            message: Updates (any tuples of three), or one progress statement.
            name: Name of the message in errors; None for its number, from 1.

        Returns:
            An empty list if the frontier did not move; otherwise one element, possibly without updates.

        Raises:
            InvalidStatement: The message is invalid by itself.
            Conflict: The message contradicts what was received about an unfinished time.

        After an error the reader is stopped, and each call raises the error again until `resume`. The updates
        before the fault stay in the reader; a faulty progress statement has no effect. It is safe to receive
        the message again.
        """
        if self._stopped is not None:
            raise self._stopped.with_traceback(None)  # or the traceback would grow with every call
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
        """Resume after an error, without the refused statement. Receive the message again for the rest of it.

        Args:
            on_conflict: New policy for conflicts; None keeps the current one. With ``first`` the reader ignores
                the contradiction when the message is received again.
        """
        self._stopped = None
        if on_conflict is not None:
            self.on_conflict = on_conflict

    def why_waiting(self, limit: int | None = None) -> list[Waiting[T]]:
        """Return the reasons why the frontier does not move: first holes, then times sorted by `Lattice.order`.

        The list has neither complete times that only wait for earlier ones nor the open end of the stream.

        Args:
            limit: Maximum number of reasons; None for all.
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
        """Return the figures of the reader. The cost is O(times held)."""
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
        """Return the state of the reader for `restore`, without updates that were returned already.

        Args:
            encode: Function that converts the data of an update to text. The default accepts JSON scalars and
                tuples of them.

        Raises:
            CdcError: The reader is stopped by this error. Restore the state that was saved before it.
        """
        if self._stopped is not None:
            raise self._stopped.with_traceback(None)  # or the traceback would grow with every call
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
        """Return a reader in a saved state, with the saved policy for conflicts.

        Args:
            saved: The result of `save`.
            lattice: The kind of time of the saved reader.
            decode: The inverse of the ``encode`` that was used.

        Raises:
            StateUnreadable: The bytes are not a saved state, or have another kind of time.
        """
        state = decode_state(saved, lattice, decode)
        on_conflict: OnConflict = "first" if state.on_conflict == "first" else "error"
        reader: Reader[Any] = cls(lattice, on_conflict=on_conflict, start=state.finished)
        for lower, upper, message in state.intervals:
            reader._timeline.cover(lower, upper, message)
        for time in state.held:
            reader._timeline.add(time)
        reader._held, reader._counts = state.held, state.counts
        # A message that was refused halfway may have completed a time, which has not been returned.
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
            # Also after an error: the updates before it are kept, so their times must be compared too.
            excess = self._compare_with_counts(touched, origin)
        # Raised only now, so that an excess at one time does not leave other times uncompared.
        for conflict in excess:
            self._refuse(conflict)

    def _hold(self, message: Sequence[Update[T]], origin: Origin, touched: set[T]) -> None:
        """Store the new updates of a message, and add their times to ``touched``."""
        # The hot loop: one look-up of the time and one of the data for each update. ``sides`` shares one pair
        # (diff, message) among equal diffs.
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
                if side is None:  # a diff is checked once a message
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
        """Add an unknown time and return its updates, an empty dict; None if the time is finished."""
        self.lattice.check(time)
        timeline = self._timeline
        if timeline.is_finished(time):
            return None
        # Progress that covers the time has come before, and did not list it: its count is 0, and any update
        # exceeds it.
        interval = timeline.covering(time)
        if interval is not None:
            self._counts[time] = (0, interval[2])
        timeline.add(time)
        at: dict[Hashable, Side] = {}
        self._held[time] = at
        return at

    def _compare_with_counts(self, touched: set[T], origin: Origin) -> list[Conflict]:
        """Compare the times that got updates with their counts, and remove updates in excess of a count.

        Returns:
            One conflict for each time with too many updates.
        """
        excess: list[Conflict] = []
        for time in touched:
            count, at = self._counts.get(time), self._held[time]
            if count is None:
                continue
            received = len(at)
            if received > count[0]:
                while len(at) > count[0]:  # in reverse order of arrival
                    data, _ = at.popitem()
                excess.append(CountExceeded(time, count, (received, origin), data))
            if len(at) == count[0]:
                self._moved = True
        return excess

    def _take_progress(self, progress: Progress[T], origin: Origin) -> None:
        """Compare a progress statement with what is known of its times, then store the new counts."""
        # 1. Is the statement valid, and does it concern unfinished times?
        lower, upper = checked_interval(self.lattice, progress)
        timeline, held = self._timeline, self._held
        if timeline.is_past(lower, upper):
            self._dropped_progress += 1
            return
        listed = checked_counts(self.lattice, progress, timeline.holder(lower, upper))
        # 2. The known times of the interval get their counts. A time that is not listed has a count of 0.
        taken: dict[T, Side] = {}
        for time in timeline.known_in(lower, upper):
            now = self._compare(time, (listed.pop(time, 0), origin))
            if now is not None:
                taken[time] = now
        # 3. Listed times that are not known become known, unless another statement covers them already: it
        #    did not list them, so it contradicts this one.
        fresh: dict[T, Side] = {}
        for time, count in listed.items():
            if timeline.is_finished(time):
                continue
            interval = timeline.covering(time)
            if interval is None:
                fresh[time] = (count, origin)
            else:
                self._refuse(CountsDisagree(time, (0, interval[2]), (count, origin)))
        # 4. Nothing has changed up to here, so that a contradiction refuses the statement as a whole.
        for time in fresh:
            timeline.add(time)
            held[time] = {}
        self._counts.update(taken)
        self._counts.update(fresh)
        timeline.cover(lower, upper, origin)
        self._moved = True

    def _compare(self, time: T, now: Side) -> Side | None:
        """Return the count that a statement gives to a known time; None if the time has one already."""
        at, before = self._held[time], self._counts.get(time)
        if before is not None:
            if before[0] != now[0]:
                self._refuse(CountsDisagree(time, before, now))
            return None
        received = len(at)
        if received > now[0]:
            data, (_, message) = next(reversed(at.items()))
            self._refuse(CountExceeded(time, (received, message), now, data))
            return (
                received,
                now[1],
            )  # policy ``first``: the updates came first, so the count is adjusted
        return now

    def _refuse(self, conflict: Conflict) -> None:
        """Raise a contradiction; under the policy ``first``, only count it."""
        if self.on_conflict == "error":
            raise conflict
        self._conflicts += 1

    def _is_complete(self, time: T) -> bool:
        return len(self._held[time]) == self._counts[time][0]

    def _finish(self) -> list[Finished[T]]:
        """Move the frontier as far as possible, and return the updates of the times that it passes."""
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
    """Return an empty timeline: of sorted lists for integers, of sets for any other kind of time."""
    kind: object = lattice
    if isinstance(kind, Integers):
        return cast("Timeline[T]", IntegerTimeline(cast("tuple[int, ...]", start)))
    return LatticeTimeline(lattice, start)


def read(
    messages: Iterable[Statement[T]],
    lattice: Lattice[T] = cast("Lattice[Any]", INTEGERS),  # noqa: B008 - a constant
    *,
    on_conflict: OnConflict = "error",
    start: Iterable[T] | None = None,
    reader: Reader[T] | None = None,
) -> Iterator[Finished[T]]:
    """Read messages and yield updates of complete times, until the stream is closed or the messages end.

    Once the stream is closed, no more messages are taken from the iterator. To distinguish the two ends, pass a
    reader and check `Reader.closed` and `Reader.why_waiting` afterwards.

    Args:
        messages: The messages, in any order.
        lattice: The kind of time.
        on_conflict: The effect of a contradiction, as for `Reader`.
        start: First times to read, as for `Reader`.
        reader: A reader to continue with; the other arguments except ``messages`` are then ignored.

    Raises:
        CdcError: A message is invalid or contradicts another, as for `Reader.receive`.
    """
    if reader is None:
        reader = Reader(lattice, on_conflict=on_conflict, start=start)
    source = iter(messages)
    while not reader.closed:
        message = next(source, None)
        if message is None:
            return
        yield from reader.receive(message)
