"""Python's collector of cycles, run by hand: bounded, at intervals, and before a reader is cut for memory.

Our objects are freed with their last reference (docs/adr/0033). The collector frees the rest: cycles that
libraries leave, and cycles that we overlook. Young objects are few and are collected every second. A collection
of the old objects takes longer and stops the whole process. The pause after it grows with its length, so old
collections take a bounded fraction of the time, however many objects there are.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Final

_EVERY_S: Final = 1.0
"""Between two collections of the young: what they hold, request bodies above all, is held no longer."""

_OLD_EVERY_S: Final = 30.0
_FOR_MEMORY_EVERY_S: Final = 2.0
"""The shortest time between two collections of everything, and between two for want of memory."""

_OLD_PAUSE: Final = 500
_FOR_MEMORY_PAUSE: Final = 20
"""The time between two walks of the old as a multiple of the last one: 0.2 % of it, and 5 % for memory."""

_YOUNG: Final = 1
_OLD: Final = 2


class CycleCollector:
    """Runs and times the cycle collections of one process."""

    def __init__(self) -> None:
        """Begin without collections."""
        self._old_at = self._for_memory_at = float("-inf")
        self._old_s = 0.0
        """Seconds that the last walk of the old took."""
        self.longest_s = 0.0
        """Seconds that the longest collection so far took."""

    async def run(self) -> None:
        """Collect at intervals, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            self._collect(_YOUNG)
            if time.monotonic() >= self._old_at + max(_OLD_EVERY_S, _OLD_PAUSE * self._old_s):
                self._collect_old()

    def for_memory(self) -> bool:
        """Collect because memory is short; return False, without a collection, if the last one was recent."""
        pause_s = max(_FOR_MEMORY_EVERY_S, _FOR_MEMORY_PAUSE * self._old_s)
        if time.monotonic() < self._for_memory_at + pause_s:
            return False
        self._collect(_YOUNG)
        self._collect_old()
        self._for_memory_at = self._old_at
        return True

    def _collect_old(self) -> None:
        self._old_s = self._collect(_OLD)
        self._old_at = time.monotonic()

    def _collect(self, generation: int) -> float:
        """Collect a generation and all younger ones; return the seconds it took."""
        begun = time.monotonic()
        gc.collect(generation)
        took_s = time.monotonic() - begun
        self.longest_s = max(self.longest_s, took_s)
        return took_s


CYCLES: Final = CycleCollector()
"""The collector of this process."""
