"""Python's cycle collector, run explicitly: at intervals, and before a reader is disconnected for memory.

The server's objects are freed with their last reference (docs/adr/0033). The collector frees the rest: cycles
of libraries, and cycles that were overlooked. Young objects are few and are collected every second. A
collection of the old objects takes longer and stops the whole process. The pause after it grows with its
length, so collections of old objects take a bounded fraction of the time, however many objects there are.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Final

_EVERY_S: Final = 1.0
"""Seconds between two collections of young objects; cycles hold request bodies, above all, no longer than
this."""

_OLD_EVERY_S: Final = 30.0
_FOR_MEMORY_EVERY_S: Final = 2.0
"""The shortest time in seconds between two collections of all objects, and between two for lack of memory."""

_OLD_PAUSE: Final = 500
_FOR_MEMORY_PAUSE: Final = 20
"""The pause after a collection of old objects, as a multiple of its length. So collections take at most 0.2 %
of the time, and 5 % while memory is short."""

_YOUNG: Final = 1
_OLD: Final = 2


class CycleCollector:
    """The cycle collections of one process, and their durations."""

    def __init__(self) -> None:
        """Begin without collections."""
        self._old_at = self._for_memory_at = float("-inf")
        self._old_s = 0.0
        """Duration of the last collection of old objects, in seconds."""
        self.longest_s = 0.0
        """Duration of the longest collection so far, in seconds."""

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
