"""Fair shares of the event loop, and waits on it.

In one turn the event loop runs all that is ready. If thousands of streams begin at once, all of them are ready,
and every other stream waits for all of them, several times with each change. So the steps of such work are
queued, one queue for each connection, and each turn takes as many steps as fit into some milliseconds::

    steps in line    a1 a2 a3 a4 … (connection a)      b1 (b)      c1 c2 (c)
    they run         a1 b1 c1 │ a2 c2 a3 │ a4 …                    │ between them: all live streams

The policy at this bound is *wait*. While no queue exists and the turn is young, a step runs at once. Long work
gives way after a time, as a number of steps that suits cheap steps is too large for expensive ones.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from concurrent.futures import ThreadPoolExecutor

TURN_S: Final = 0.005
"""Well above the time of a step, and below what a subscriber with a few milliseconds of latency notices."""


class Turn:
    """The time for which one task may keep the loop. Use: ``if turn.is_over(): await turn.give_way()``."""

    __slots__ = ("_ends_at", "_loop")

    def __init__(self) -> None:
        """Begin a turn now."""
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + TURN_S

    def is_over(self) -> bool:
        """Return whether others should have their turn."""
        return self._loop.time() >= self._ends_at

    async def give_way(self) -> None:
        """Let others have their turn, then begin a new one."""
        await asyncio.sleep(0)
        self._ends_at = self._loop.time() + TURN_S


_SHARE: Final = 4
"""If all else takes long, steps may take this fraction of that time: live readers do not shut them out."""
_FIRST_STEP_S: Final = 0.001
"""How long a step is taken to last before one was measured."""
_SMOOTHING: Final = 4
"""One part in so many of what a step is taken to last comes from the last turn."""


class LoopTurns:
    """The steps that wait for their turn; for one event loop."""

    __slots__ = (
        "_began",
        "_clock",
        "_lines",
        "_loop",
        "_step_s",
        "_steps",
        "_steps_began",
        "_until",
        "many_keys",
    )

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """Begin with empty queues; the clock is in seconds."""
        self._clock = clock
        self._lines: dict[Hashable, deque[asyncio.Future[None]]] = {}
        """Steps in line by connection, the one whose turn is next first."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until = 0.0
        """Until when a step runs at once; 0 while no turn is under way."""
        self._began = 0.0
        """When the turn began."""
        self._steps = 0
        """Steps that this turn has released."""
        self._steps_began = 0.0
        """When the first of them began."""
        self._step_s = _FIRST_STEP_S
        """How long one lasts, as measured."""
        self.many_keys = asyncio.Lock()
        """Held by the one request with many keys that is read and opened (api/requests.py)."""

    @property
    def waiting(self) -> int:
        """Steps in line, those that were cancelled among them."""
        return sum(map(len, self._lines.values()))

    @property
    def under_way(self) -> bool:
        """True if a turn is measured; it is not while nothing happens."""
        return bool(self._until)

    async def turn(self, whose: Hashable) -> None:
        """Return when the next step of a connection may run: at once, or in its turn. Cancelling is safe."""
        now = self._clock()
        # 1. The first one in this turn of the event loop. Whatever follows until `_next` is in the same turn.
        if not self._until:
            self._began, self._until = now, now + TURN_S
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._next)
            return
        if not self._lines and now < self._until:
            return
        # 2. In line. A step that is cancelled meanwhile stays there, and is passed over in its turn.
        assert self._loop is not None
        waiter = self._loop.create_future()
        self._lines.setdefault(whose, deque()).append(waiter)
        await waiter

    def _next(self) -> None:
        """End a turn, and begin the next one if somebody is in line."""
        now = self._clock()
        # 1. What the steps of this turn took, and what all else did. They ran one after the other just now.
        took = 0.0
        if self._steps:
            took = now - self._steps_began
            self._step_s += (took / self._steps - self._step_s) / _SMOOTHING
        others = now - self._began - took
        if not self._lines:
            self._steps, self._until = 0, 0.0
            return
        # 2. As many as fit, and one at least. The event loop runs what is made ready here in this order.
        assert self._loop is not None
        self._began, self._until = now, now + TURN_S
        fitting = max(1, int(max(TURN_S, others / _SHARE) / self._step_s))
        self._loop.call_soon(self._mark)
        self._steps = 0
        while self._lines and self._steps < fitting:
            self._steps += self._release()
        self._loop.call_soon(self._next)

    def _mark(self) -> None:
        self._steps_began = self._clock()

    def _release(self) -> bool:
        """Release the next step, one of each connection after the other; False if it was cancelled."""
        whose = next(iter(self._lines))
        line = self._lines.pop(whose)
        waiter = line.popleft()
        if line:
            self._lines[whose] = line
        if waiter.done():
            return False
        waiter.set_result(None)
        return True


class TimedWait:
    """One task at a time may wait. Lives on the event loop."""

    __slots__ = ("_timer", "_waiter")

    def __init__(self) -> None:
        """Begin without a waiting task."""
        self._waiter: asyncio.Future[None] | None = None
        """The future that the task waits on; None while it does not wait."""
        self._timer: asyncio.TimerHandle | None = None
        """Wakes it when the time has come; one for many waits."""

    async def until(self, due: float) -> None:
        """Wait for a wake-up, or until a time of the event loop that does not fall. The caller judges anew."""
        loop = asyncio.get_running_loop()
        # The timer outlives the wait: one for each heartbeat interval, not one for each message.
        if self._timer is None:
            self._timer = loop.call_at(due, self._is_due)
        self._waiter = loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Wake the task; nothing if it does not wait."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Wake the task, and never again by time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.wake()

    def _is_due(self) -> None:
        self._timer = None
        self.wake()


async def shut_down(threads: ThreadPoolExecutor) -> None:
    """Wait until threads have ended, off the loop: a second signal must get through while one of them hangs."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait() -> None:
        threads.shutdown(wait=True)
        loop.call_soon_threadsafe(ended.set)

    waiting = threading.Thread(target=wait, name="tailrace-shutdown", daemon=True)
    waiting.start()
    await ended.wait()
    waiting.join()
