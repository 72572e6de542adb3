"""The clock as an object, so that tests can replace it and need not wait in real time."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """The source of time of the client and the server."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment, for intervals; the result never decreases."""

    def now(self) -> int:
        """Return microseconds since the Unix epoch, UTC; may step back."""

    async def sleep(self, seconds: float) -> None:
        """Wait. Cancelling the wait leaves nothing behind."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Return ``time.monotonic()``."""
        return time.monotonic()

    def now(self) -> int:
        """Return the system's time in microseconds."""
        return time.time_ns() // 1_000

    async def sleep(self, seconds: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(seconds)
