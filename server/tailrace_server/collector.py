"""Python's collector of cycles, run by hand: bounded, at intervals, and before a reader is cut for memory.

Whatever has a life is freed by its last reference (docs/adr/0033). The collector is a net for the rest: what
libraries leave in cycles, and what we overlook. The young are few and are collected every second. The old are
looked through only while they are few, since everybody waits meanwhile.
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
"""Between two collections of everything, and between two for want of memory."""

_OLD_OBJECTS_MAX: Final = 200_000
"""Objects up to which everything is collected: some 20 ms on a free processor."""

_YOUNG: Final = 1
_OLD: Final = 2


class CycleCollector:
    """The collections of one process."""

    def __init__(self) -> None:
        """Begin with none."""
        self._old_at = self._for_memory_at = float("-inf")
        self.longest_s = 0.0
        """Of all collections so far, how long the longest took, seconds."""

    async def run(self) -> None:
        """Collect at intervals, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            self._collect(_YOUNG)
            if time.monotonic() >= self._old_at + _OLD_EVERY_S:
                self._collect_old()

    def for_memory(self) -> bool:
        """Collect because memory is short; return whether it was done. It is not, soon after the last time."""
        if time.monotonic() < self._for_memory_at + _FOR_MEMORY_EVERY_S:
            return False
        self._for_memory_at = time.monotonic()
        self._collect(_YOUNG)
        self._collect_old()
        return True

    def _collect_old(self) -> None:
        self._old_at = time.monotonic()
        if len(gc.get_objects(_OLD)) <= _OLD_OBJECTS_MAX:
            self._collect(_OLD)

    def _collect(self, generation: int) -> None:
        begun = time.monotonic()
        gc.collect(generation)
        self.longest_s = max(self.longest_s, time.monotonic() - begun)


CYCLES: Final = CycleCollector()
"""Of this process, which has one collector."""
