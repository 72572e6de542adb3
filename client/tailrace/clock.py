"""Time as an object, so that tests can wait without waiting."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What the client asks of time."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary moment; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Wait; cancelling it has no effect on anything."""


class SystemClock:
    """The real one."""

    def monotonic(self) -> float:
        """Return ``time.monotonic()``."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(seconds)
