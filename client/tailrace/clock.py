"""Time as an object, so that tests can wait without waiting."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """The source of time of the client and the server."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary moment that never fall, for intervals."""

    def now(self) -> int:
        """Return microseconds since the Unix epoch, UTC; may step back."""

    async def sleep(self, seconds: float) -> None:
        """Wait; cancelling it leaves nothing behind."""


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
