"""Keeps a process inside its memory budget, by measurement.

Where the process is above its budget, or a message waits for room, the policy is *disconnect*. Of the readers
that have not moved for a while, of live changes or of history, those that hold most end with
``SubscriberTooSlow`` and their resume cursor, just enough of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from tailrace.errors import SubscriberTooSlow
from tailrace_server.capture.delivery.memory_budget import COPIES
from tailrace_server.collector import CYCLES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.errors import TailraceError
    from tailrace_server.capture.delivery.last_message import LastMessage
    from tailrace_server.capture.delivery.memory_budget import LargeMessages
    from tailrace_server.capture.reading.batch_cache import BatchCache

PATIENCE_S: Final = 1.0
"""A reader that has moved within this time is slow, not stalled: no want of memory ends its subscription."""


class Stallable(Protocol):
    """A subscription or a read of history, as far as it is known here."""

    @property
    def last(self) -> LastMessage:
        """The message that its transport has."""

    def resume_cursor(self) -> object | None:
        """Return what goes on behind what was handed over, as text by ``str``."""

    def end(self, error: TailraceError) -> None:
        """End with an error, and keep nothing."""


class MemoryGovernor:
    """Measures the process, and takes memory from the cache and from stalled readers."""

    def __init__(self, memory_bytes: int, cache: BatchCache, large: LargeMessages) -> None:
        """Govern a process with this cache and these messages on their way."""
        self._memory_bytes = memory_bytes
        self._cache = cache
        self._large = large
        self.disconnected = 0
        """Readers ended for want of memory, since it began."""

    def measure(self) -> None:
        """Measure, and cut messages by the result."""
        self._large.measured(self._cache.measured())

    def relieve(self, readers: Iterable[Stallable], now: float) -> None:
        """Measure, and bring the process back below its budget if it is above.

        Args:
            readers: All subscriptions and reads of history that are open.
            now: The event loop's time, seconds.
        """
        # 1. The cache gives first: what it drops is only read again.
        process_bytes = self._cache.relieve()
        self._large.measured(process_bytes)
        # 2. Then whichever is more: what the process is above its budget, or what waits for room.
        excess = max(process_bytes - self._memory_bytes, self._large.wanted_bytes)
        # 3. Nobody is ended for what lies in cycles that only the collector finds.
        if process_bytes > self._memory_bytes and CYCLES.for_memory():
            excess = max(self._cache.relieve() - self._memory_bytes, self._large.wanted_bytes)
        if excess <= 0:
            return
        # 4. Only stalled readers pay, and the largest first: that ends the fewest.
        stalled = [each for each in readers if each.last.stalled_for(now) >= PATIENCE_S]
        stalled.sort(key=lambda each: each.last.nbytes, reverse=True)
        for reader in stalled:
            held = reader.last.nbytes
            if excess <= 0 or not held:
                return
            excess -= held * COPIES
            self.disconnected += 1
            cursor = str(reader.resume_cursor())
            reader.end(
                SubscriberTooSlow(
                    f"the server is short of memory and this subscriber has not read for {PATIENCE_S:g} s "
                    f"while {held} bytes wait for it; resume after {cursor}",
                    cursor,
                )
            )
