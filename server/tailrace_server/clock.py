"""Time, as an object that tests can replace."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Where the server's parts get the time from."""

    def monotonic(self) -> float:
        """Return seconds that never fall, for intervals."""

    def now(self) -> int:
        """Return microseconds since the Unix epoch, UTC; may step back."""

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellation leaves nothing behind."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Return seconds that never fall, for intervals."""
        return time.monotonic()

    def now(self) -> int:
        """Return microseconds since the Unix epoch, UTC; may step back."""
        return time.time_ns() // 1_000

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellation leaves nothing behind."""
        await asyncio.sleep(seconds)
