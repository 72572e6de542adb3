"""Fair shares of the event loop, and waits on the event loop.

In one turn the event loop runs everything that is ready. If thousands of streams begin at once, all of them are
ready, and every other stream waits for all of them, several times with each change. So the steps of such work
are queued, with one queue per connection, and each turn takes as many steps as fit into some milliseconds::

    steps in line    a1 a2 a3 a4 … (connection a)      b1 (b)      c1 c2 (c)
    they run         a1 b1 c1 │ a2 c2 a3 │ a4 …                    │ between them: all live streams

The policy at this bound is *wait*. While no queue exists and the turn is young, a step runs at once. Long work
yields after a time, not after a number of steps: a number that suits cheap steps is too large for expensive
ones.
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
"""Length of a turn, in seconds: well above the time of one step, and too short for a subscriber with a few
milliseconds of latency to notice."""


class Turn:
    """The time for which one task may occupy the loop. Use: ``if turn.is_over(): await turn.give_way()``."""

    __slots__ = ("_ends_at", "_loop")

    def __init__(self) -> None:
        """Begin a turn now."""
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + TURN_S

    def is_over(self) -> bool:
        """Return True if the task should let other tasks run."""
        return self._loop.time() >= self._ends_at

    async def give_way(self) -> None:
        """Let other tasks run, then begin a new turn."""
        await asyncio.sleep(0)
        self._ends_at = self._loop.time() + TURN_S


_SHARE: Final = 4
"""If other work takes long, steps may take 1/4 of that work's time: live readers then do not shut them out."""
_FIRST_STEP_S: Final = 0.001
"""Assumed duration of a step before the first measurement."""
_SMOOTHING: Final = 4
"""The newest measurement has a weight of 1/4 in the assumed duration of a step."""


class LoopTurns:
    """Queues of the steps that wait for their turn, for one event loop."""

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
        """Begin with empty queues; the clock counts in seconds."""
        self._clock = clock
        self._lines: dict[Hashable, deque[asyncio.Future[None]]] = {}
        """Connection → its waiting steps; the connection whose step is next comes first."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until = 0.0
        """Time until which a step runs at once; 0 while no turn is measured."""
        self._began = 0.0
        """Start of the turn."""
        self._steps = 0
        """Number of steps that this turn has released."""
        self._steps_began = 0.0
        """Start of the first released step."""
        self._step_s = _FIRST_STEP_S
        """Assumed duration of a step, from measurements."""
        self.many_keys = asyncio.Lock()
        """Lock for requests with many keys: one at a time is read and opened (api/requests.py)."""

    @property
    def waiting(self) -> int:
        """Number of waiting steps, including cancelled ones."""
        return sum(map(len, self._lines.values()))

    @property
    def under_way(self) -> bool:
        """True while a turn is measured; False while the loop is idle."""
        return bool(self._until)

    async def turn(self, whose: Hashable) -> None:
        """Return when the next step of a connection may run: at once, or in its turn. Cancellation is safe."""
        now = self._clock()
        # 1. The first step of a turn of the event loop runs at once. Everything until `_next` is in the same
        #    turn.
        if not self._until:
            self._began, self._until = now, now + TURN_S
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._next)
            return
        if not self._lines and now < self._until:
            return
        # 2. Otherwise the step queues. A cancelled step stays in its queue and is skipped in its turn.
        assert self._loop is not None
        waiter = self._loop.create_future()
        self._lines.setdefault(whose, deque()).append(waiter)
        await waiter

    def _next(self) -> None:
        """End a turn; begin the next one if steps are waiting."""
        now = self._clock()
        # 1. Measure how long the steps of this turn took, and how long all other work took. The steps ran one
        #    after the other just before this call.
        took = 0.0
        if self._steps:
            took = now - self._steps_began
            self._step_s += (took / self._steps - self._step_s) / _SMOOTHING
        others = now - self._began - took
        if not self._lines:
            self._steps, self._until = 0, 0.0
            return
        # 2. Release as many steps as fit, at least one. The event loop runs in this order: `_mark`, the steps,
        #    `_next`.
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
        """Release the next step, in turns between connections; return False if the step was cancelled."""
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
    """A wait for a wake-up or a time, for one task at a time. Lives on the event loop."""

    __slots__ = ("_timer", "_waiter")

    def __init__(self) -> None:
        """Begin without a waiting task."""
        self._waiter: asyncio.Future[None] | None = None
        """The future that the task waits on; None while it does not wait."""
        self._timer: asyncio.TimerHandle | None = None
        """Timer that wakes the task; it is reused by many waits."""

    async def until(self, due: float) -> None:
        """Wait for a wake-up, or until a time of the event loop; the caller then checks its condition again.

        ``due`` must never be lower than in the wait before.
        """
        loop = asyncio.get_running_loop()
        # The timer outlives the wait: this needs one timer per heartbeat interval instead of one per message.
        if self._timer is None:
            self._timer = loop.call_at(due, self._is_due)
        self._waiter = loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Wake the task, if it waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Wake the task and cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.wake()

    def _is_due(self) -> None:
        self._timer = None
        self.wake()


async def shut_down(threads: ThreadPoolExecutor) -> None:
    """Wait until threads have ended, without blocking the loop.

    A second signal must get through while one of the threads hangs.
    """
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait() -> None:
        threads.shutdown(wait=True)
        loop.call_soon_threadsafe(ended.set)

    waiting = threading.Thread(target=wait, name="tailrace-shutdown", daemon=True)
    waiting.start()
    await ended.wait()
    waiting.join()
