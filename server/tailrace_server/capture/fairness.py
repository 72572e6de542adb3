"""Turns on the event loop: long work gives way to others after a time, not after a number of steps.

A number that suits cheap steps is too large for expensive ones. A step must take far less than a turn.
"""

from __future__ import annotations

import asyncio
from typing import Final

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
