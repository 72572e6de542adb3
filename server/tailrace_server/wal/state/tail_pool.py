"""A pool of a few threads that follow all logs of a process.

One thread at a time, the leader, waits for reports of changes. It takes the first log that has changed, makes
another thread the leader, and reads the log itself. So no second thread has to wake before a commit is read.

::

    thread 1   waits for reports ─▶ turn of log a ────────────────▶ free
    thread 2   free               ─▶ waits for reports ─▶ turn of b
    thread 3                                            ─▶ waits for reports

A turn is one read of what is new in a log. A log has one turn at a time; a change that is reported during the
turn gives the log another turn. A turn that hangs in its storage keeps its thread, and the pool starts another
thread, so a lost mount does not delay the other logs. Logs without reports are read periodically as a
safeguard; the more logs there are, the longer the period.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, cast

from tailrace_server.wal.files.local_watch import FileWait, LocalWatcher

if TYPE_CHECKING:
    from tailrace_server.wal.files.object_store import ChangeWatcher

THREADS: Final = 4
"""The most threads, and so the most logs that are read at once, not counting threads whose turn hangs."""
_HANGS_S: Final = 0.5
"""Seconds after which a turn hangs, by assumption: its storage may not answer. From then on, ``THREADS`` does
not include its thread."""
CHECK_S: Final = 1.0
"""The least seconds between two full reads of a log without reports."""
CHECKS_PER_S: Final = 10
"""The most full reads per second of all logs without reports together; one takes 0.25 ms."""
LOOKS_PER_S: Final = 150
"""The most checks per second, for all quiet logs together, that the log's folder still exists."""
POLLS_PER_S: Final = 200
"""The most reads per second of all polled logs without changes together; they take about 5 % of a core."""


class Followed(Protocol):
    """The follower of one log, to which the pool gives turns."""

    def turn(self, waits: FileWait) -> float | None:
        """Read what is new in the log; must not raise.

        Args:
            waits: Waits for changes of files; for this thread only.

        Returns:
            The longest time until the next turn, in seconds. None if the log leaves the pool.
        """


@dataclass(slots=True, eq=False)
class _Place:
    """The pool's notes on one log."""

    followed: Followed
    state: Literal["quiet", "ready", "in turn", "again"] = "quiet"
    """ "ready": the log waits for a thread. "again": the log has its turn, and gets another one after that."""
    due: float = 0.0
    """Monotonic time of the log's next turn, if no report comes before."""
    queued: float | None = None
    """Time of the log's valid entry in the heap, at or before ``due``; None if the heap has no such entry."""
    began: float = 0.0
    """Monotonic time at which the log's turn began."""


class TailPool:
    """The threads, and the watcher that reports changes to them. Thread-safe; end it with ``close``."""

    def __init__(self, *, notified: bool = True) -> None:
        """Create a pool without threads; with ``notified`` False it polls all logs."""
        self.watcher: ChangeWatcher = LocalWatcher(notified=notified)
        self.polled: dict[Followed, str] = {}
        """Maps each polled log to the limit of the kernel that is used up; "" if that is not the reason."""
        self._changed = threading.Condition()
        """Lock of all attributes below, on which threads without a turn also wait."""
        self._places: dict[Followed, _Place] = {}
        self._ready: deque[_Place] = deque()
        self._in_turn: set[_Place] = set()
        self._heap: list[tuple[float, int, _Place]] = []
        """Times of the next turns. An entry is valid only if ``queued`` of its log is the same time."""
        self._order = itertools.count()
        """Running numbers, which order heap entries that have the same time."""
        self._threads: set[threading.Thread] = set()
        self._numbers = itertools.count(1)
        self._free = 0
        """Number of threads without a turn, including the leader."""
        self._leads_until: float | None = None
        """Monotonic time at which the leader's wait ends, if no report comes before; None without a leader."""
        self._closing = False

    @property
    def check_s(self) -> float:
        """Seconds between two full reads of a log without reports."""
        return max(CHECK_S, len(self._places) / CHECKS_PER_S)

    @property
    def look_s(self) -> float:
        """Seconds between two checks that the folder of a quiet log still exists."""
        return max(CHECK_S, len(self._places) / LOOKS_PER_S)

    def longest_poll_s(self, longest_s: float) -> float:
        """Return the most seconds between two reads of a polled log: ``longest_s``, or more for many logs."""
        return max(longest_s, len(self.polled) / POLLS_PER_S)

    def add(self, followed: Followed) -> None:
        """Add a log to the pool; it gets its first turn at once."""
        with self._changed:
            self._places[followed] = _Place(followed)
            if not self._threads:
                self._start_thread()
            self.call(followed)

    def call(self, followed: Followed) -> None:
        """Give a log a turn as soon as possible, even if it has not changed."""
        with self._changed:
            self._want(followed)
            # The leader waits outside of the condition, so only the watcher can wake it.
            if self._leads_until is not None:
                self.watcher.wake()
            else:
                self._changed.notify()

    def close(self) -> None:
        """End the threads and wait for them; call it after all logs have left the pool."""
        with self._changed:
            self._closing = True
            self.watcher.wake()
            self._changed.notify_all()
            threads = tuple(self._threads)
        for each in threads:
            each.join()
        self.watcher.close()

    # The methods below run in the pool's threads, or with the lock ``_changed`` held.

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=f"tail {next(self._numbers)}")
        self._threads.add(thread)
        self._free += 1
        thread.start()

    def _run(self) -> None:
        with closing(FileWait()) as waits:
            while (place := self._next()) is not None:
                self._end_turn(place, place.followed.turn(waits))

    def _next(self) -> _Place | None:
        """Wait for a turn and return its log; return None if the thread has to end."""
        with self._changed:
            while True:
                now = time.monotonic()
                self._want_due(now)
                # 1. End the thread if the pool closes, or if there are too many: further threads were started
                #    while turns hung, and the turns have ended since.
                if self._closing or self._free > THREADS:
                    self._free -= 1
                    self._threads.discard(threading.current_thread())
                    self._changed.notify()  # this thread may have been woken to lead: another one has to
                    return None
                # 2. Take a turn, but only if another thread can lead meanwhile: a turn may hang.
                if self._ready and (self._free > 1 or self._may_start(now)):
                    return self._take(now)
                # 3. Without a leader, become the leader and wait for reports. Else wait until it hands over.
                if self._leads_until is None:
                    self._lead(now)
                else:
                    self._changed.wait()

    def _may_start(self, now: float) -> bool:
        """Return True if another thread may start: not counting those whose turn hangs, there are too few."""
        hanging = sum(now - each.began >= _HANGS_S for each in self._in_turn)
        return len(self._threads) - hanging < THREADS

    def _take(self, now: float) -> _Place:
        place = self._ready.popleft()
        place.state, place.began = "in turn", now
        self._in_turn.add(place)
        self._free -= 1
        # Some thread has to lead during this turn: start one, or wake one that is free.
        if not self._free:
            self._start_thread()
        elif self._leads_until is None:
            self._changed.notify()
        return place

    def _lead(self, now: float) -> None:
        """Wait for reports, without the lock, and give turns to the logs that have changed."""
        # If logs are ready, all other threads have turns. So look again when one of those may count as hanging.
        wait_s = CHECK_S if not self._ready else _HANGS_S
        if self._heap:
            wait_s = min(wait_s, max(self._heap[0][0] - now, 0.0))
        self._leads_until = now + wait_s
        self._changed.release()
        try:
            changed = self.watcher.wait(wait_s)
        finally:
            self._changed.acquire()
            self._leads_until = None
        for each in changed:
            self._want(each)

    def _want_due(self, now: float) -> None:
        """Give a turn to each log whose next turn is due."""
        while self._heap and self._heap[0][0] <= now:
            at, _, place = heapq.heappop(self._heap)
            if place.queued != at:
                continue  # the log has left the pool, or has an earlier entry
            place.queued = None
            # A log that had turns since has a later ``due``: only now does the heap get that time.
            if place.due <= now:
                self._want(place.followed)
            else:
                self._queue(place)

    def _want(self, owner: object) -> None:
        place = self._places.get(cast("Followed", owner))
        if place is None:
            return  # the log has left the pool
        if place.state == "quiet":
            place.state = "ready"
            self._ready.append(place)
        elif place.state == "in turn":
            place.state = "again"

    def _end_turn(self, place: _Place, seconds: float | None) -> None:
        """End a log's turn. The next one is due after ``seconds``; if that is None, the log leaves the pool."""
        with self._changed:
            self._free += 1
            self._in_turn.discard(place)
            wanted, place.state = place.state == "again", "quiet"
            if seconds is None:
                del self._places[place.followed]
                place.queued = None
                return
            place.due = time.monotonic() + seconds
            if seconds >= CHECK_S:
                # Whole seconds: quiet logs have their turns together, and the process sleeps in between.
                place.due = math.floor(place.due)
            # A later time needs no new entry: the existing one is replaced when it comes up. So the heap does
            # not grow with each commit of a busy log.
            if place.queued is None or place.due < place.queued:
                self._queue(place)
            if wanted:
                self._want(place.followed)
            # The leader must not sleep past the new time.
            if self._leads_until is not None and place.due < self._leads_until:
                self.watcher.wake()

    def _queue(self, place: _Place) -> None:
        place.queued = place.due
        heapq.heappush(self._heap, (place.due, next(self._order), place))
