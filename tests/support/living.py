"""What lives of certain packages: to show that an end leaves nothing behind for the cycle collector.

With the collector off, an object goes with its last reference, or it is in a cycle and stays. So what is left
after an end, and was not there before, was left in cycles.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import types
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

_KINDS: Final = (asyncio.Task, types.CoroutineType, types.AsyncGeneratorType)
"""Counted beside the objects of the packages: in whatever they are caught, they hold frames."""


class Living:
    """Counts of what lives, by the names of types."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = tuple(f"{each}." for each in packages)
        self._before = self._count()

    def _count(self) -> Counter[str]:
        found: Counter[str] = Counter()
        with _no_other_thread():
            for each in gc.get_objects():
                kind = type(each)
                module = str(kind.__module__)
                if f"{module}.".startswith(self._packages) or issubclass(kind, _KINDS):
                    found[f"{module}.{kind.__qualname__}"] += 1
            del each
        return found

    def more(self, at_least: int) -> dict[str, int]:
        """Return what lives now beyond the beginning, as far as it is so many of a type."""
        now = self._count()
        now.subtract(self._before)
        return {name: count for name, count in sorted(now.items()) if count >= at_least}

    async def back(self, at_least: int) -> None:
        """Wait until nothing of a type lives so often beyond the beginning; fail with what does."""
        try:
            async with asyncio.timeout(PATIENCE_S / 4):
                while self.more(at_least):  # noqa: ASYNC110 - a last reference that goes tells nobody
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"left for the collector: {self.more(at_least)}") from None


@contextmanager
def _no_other_thread() -> Iterator[None]:
    """Let no other thread run Python in a block that neither waits nor calls the system.

    A list of all objects refers to tuples that other threads are building. If such a thread runs while the list
    exists, its tuple cannot get its final size, and the thread fails with a SystemError.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(PATIENCE_S)
    try:
        # Threads that wait for the lock ask for it by the former interval once more. Let them have it before.
        time.sleep(2 * interval)
        yield
    finally:
        sys.setswitchinterval(interval)


@contextmanager
def without_collector(*packages: str) -> Iterator[Living]:
    """Switch the collector off, and tell what lives of packages beyond what lives now."""
    gc.collect()
    gc.disable()
    try:
        yield Living(packages)
    finally:
        gc.enable()
        gc.collect()
