"""A pool of a few threads that follow all logs of a process.

One thread at a time, the leader, waits for reports of changes. It takes the first log that has changed, lets
another thread lead, and gives the log its turn itself: no second thread has to wake before a commit is read.

::

    thread 1   waits for reports ─▶ turn of log a ────────────────▶ free
    thread 2   free               ─▶ waits for reports ─▶ turn of b
    thread 3                                            ─▶ waits for reports

A log has one turn at a time. Whatever is reported during that turn gives it another one. A turn that hangs in
its storage keeps its thread, and the pool starts another one, so a lost mount does not delay the other logs.
Logs without reports are read once in a while as a safeguard, less often the more logs there are.
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
"""The largest number of threads, and so of logs read at once; threads whose turn hangs do not count."""
_HANGS_S: Final = 0.5
"""A turn that takes longer hangs in its storage or reads much; `THREADS` does not count its thread."""
CHECK_S: Final = 1.0
"""Seconds between two reads of a log without reports; more if there are many logs."""
CHECKS_PER_S: Final = 10
"""Full reads of logs without reports, all logs together; one takes a quarter of a millisecond."""
LOOKS_PER_S: Final = 150
"""Checks that the folder of a quiet log still exists, all logs together."""
POLLS_PER_S: Final = 200
"""Reads of polled logs without news, all logs together; they take about 5 % of a core."""


class Followed(Protocol):
    """A log in the pool."""

    def turn(self, waits: FileWait) -> float | None:
        """Read what is new; return the longest wait until the next turn, in seconds; None leaves the pool.

        A turn must not raise.
        """


@dataclass(slots=True, eq=False)
class _Place:
    """A log in the pool."""

    followed: Followed
    state: Literal["quiet", "ready", "in turn", "again"] = "quiet"
    """"again": the log has its turn, and gets another one after that."""
    due: float = 0.0
    """Monotonic time at which the log gets its next turn, unless a report gives it one earlier."""
    queued: float | None = None
    """Time of the log's entry in the heap, at or before ``due``; None if the heap has no entry."""
    began: float = 0.0
    """Monotonic time at which the log's turn began."""


class TailPool:
    """The threads, and the one watcher that reports changes to them. Thread-safe; end it with ``close``."""

    def __init__(self, *, notified: bool = True) -> None:
        """Start nothing yet; with ``notified`` False all logs are polled."""
        self.watcher: ChangeWatcher = LocalWatcher(notified=notified)
        self.polled: dict[Followed, str] = {}
        """The logs that are polled, each with the limit of the kernel that is used up; "" for other reasons."""
        self._changed = threading.Condition()
        """Guards all attributes below. Free threads wait for it."""
        self._places: dict[Followed, _Place] = {}
        self._ready: deque[_Place] = deque()
        self._in_turn: set[_Place] = set()
        self._heap: list[tuple[float, int, _Place]] = []
        """The times of the next turns; an entry counts only if ``queued`` of its log is the same time."""
        self._order = itertools.count()
        """Numbers that order entries of the same time in the heap."""
        self._threads: set[threading.Thread] = set()
        self._numbers = itertools.count(1)
        self._free = 0
        """Threads without a turn, the leader among them."""
        self._leads_until: float | None = None
        """Monotonic time at which the leader's wait ends; a report ends it earlier. None without a leader."""
        self._closing = False

    @property
    def check_s(self) -> float:
        """Seconds between two full reads of a log without reports."""
        return max(CHECK_S, len(self._places) / CHECKS_PER_S)

    @property
    def look_s(self) -> float:
        """Seconds between two looks at the folder of a quiet log."""
        return max(CHECK_S, len(self._places) / LOOKS_PER_S)

    def longest_poll_s(self, longest_s: float) -> float:
        """Return the longest wait between two reads of a polled log: ``longest_s``, or more for many logs."""
        return max(longest_s, len(self.polled) / POLLS_PER_S)

    def add(self, followed: Followed) -> None:
        """Follow a log; its first turn comes at once."""
        with self._changed:
            self._places[followed] = _Place(followed)
            if not self._threads:
                self._start_thread()
            self.call(followed)

    def call(self, followed: Followed) -> None:
        """Give a log a turn as soon as possible, whether or not it has changed."""
        with self._changed:
            self._want(followed)
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

    # All below runs in the pool's threads or with ``_changed`` held.

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
        """Wait for a turn and return its log; None ends the thread."""
        with self._changed:
            while True:
                now = time.monotonic()
                self._want_due(now)
                # 1. A thread ends with the pool, and where turns that hung have left more than are needed.
                if self._closing or self._free > THREADS:
                    self._free -= 1
                    self._threads.discard(threading.current_thread())
                    self._changed.notify()
                    return None
                # 2. Take a turn, but only if another thread can lead meanwhile: a turn may hang.
                if self._ready and (self._free > 1 or self._may_start(now)):
                    return self._take(now)
                # 3. Wait: for reports as the leader, else for the leader.
                if self._leads_until is None:
                    self._lead(now)
                else:
                    self._changed.wait()

    def _may_start(self, now: float) -> bool:
        """Return True if another thread may start."""
        hanging = sum(now - each.began >= _HANGS_S for each in self._in_turn)
        return len(self._threads) - hanging < THREADS

    def _take(self, now: float) -> _Place:
        place = self._ready.popleft()
        place.state, place.began = "in turn", now
        self._in_turn.add(place)
        self._free -= 1
        if not self._free:
            self._start_thread()
        elif self._leads_until is None:
            self._changed.notify()
        return place

    def _lead(self, now: float) -> None:
        """Wait for reports, without the lock, and note which logs have changed."""
        wait_s = CHECK_S if not self._ready else _HANGS_S  # all threads have turns, which may hang
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
        """Give a turn to the logs whose time has come."""
        while self._heap and self._heap[0][0] <= now:
            at, _, place = heapq.heappop(self._heap)
            if place.queued != at:
                continue  # it has left, or an earlier time took the place of this one
            place.queued = None
            if place.due <= now:
                self._want(place.followed)
            else:
                self._queue(place)

    def _want(self, owner: object) -> None:
        place = self._places.get(cast("Followed", owner))
        if place is None:
            return  # it has left
        if place.state == "quiet":
            place.state = "ready"
            self._ready.append(place)
        elif place.state == "in turn":
            place.state = "again"

    def _end_turn(self, place: _Place, seconds: float | None) -> None:
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
                # Quiet logs together: the process sleeps in between.
                place.due = math.floor(place.due)
            # A busy log moves its time on and leaves the heap as it is.
            if place.queued is None or place.due < place.queued:
                self._queue(place)
            if wanted:
                self._want(place.followed)
            if self._leads_until is not None and place.due < self._leads_until:
                self.watcher.wake()

    def _queue(self, place: _Place) -> None:
        place.queued = place.due
        heapq.heappush(self._heap, (place.due, next(self._order), place))
