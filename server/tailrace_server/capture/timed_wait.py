"""The waits of one task, for a wake-up or until a time, whichever comes first."""

from __future__ import annotations

import asyncio


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
