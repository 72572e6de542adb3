"""The memory governor: measures a process, and keeps it within its memory budget.

If the process is above its budget, or a message waits for room, the policy is *disconnect*. The largest
stalled readers, of live changes or of history, are ended with ``SubscriberTooSlow`` and their resume cursor:
only as many as needed.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from tailrace.errors import SubscriberTooSlow
from tailrace_server.collector import CYCLES
from tailrace_server.resources.memory import COPIES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.errors import TailraceError
    from tailrace_server.log_cache.batch_cache import BatchCache
    from tailrace_server.log_cache.last_message import LastMessage
    from tailrace_server.resources.memory import LargeMessages

PATIENCE_S: Final = 1.0
"""Seconds without progress after which a reader is stalled. A reader that is only slow is never ended."""
_WORTH_BYTES: Final = 4 << 10
"""The least bytes that a stalled reader must hold to be ended. Ending one with less frees nearly nothing."""
_LOOK_S: Final = PATIENCE_S / 4
"""The most seconds between two measurements that count towards PATIENCE_S. If the event loop is late, it has
not noted yet how much a reader has taken."""

_LOOKS_KEPT: Final = 64
"""Number of measurements whose times are retained. There are ten a second, so this covers more than
PATIENCE_S."""


class Stallable(Protocol):
    """A subscription or a history read, as the governor sees it."""

    @property
    def last(self) -> LastMessage:
        """The message that the reader's transport is sending."""

    def resume_cursor(self) -> object | None:
        """Return the cursor after the last message that the transport got; ``str`` makes it text."""

    def end(self, error: TailraceError) -> None:
        """End the reader with an error, and release its memory."""


class MemoryGovernor:
    """Measures the process, and frees memory of the cache and of stalled readers."""

    def __init__(self, memory_bytes: int, cache: BatchCache, large: LargeMessages) -> None:
        """Bind to the memory budget, the cache and the large messages of the process."""
        self._memory_bytes = memory_bytes
        self._cache = cache
        self._large = large
        self._looks: deque[float] = deque(maxlen=_LOOKS_KEPT)
        """Times of the last measurements; the event loop's time, in seconds."""
        self.disconnected = 0
        """Number of readers that were ended for lack of memory, since the process started."""

    def measure(self, now: float) -> None:
        """Measure the process, and limit the size of messages by the result.

        Call this about ten times a second, with the event loop's time.
        """
        self._looks.append(now)
        self._large.measured(self._cache.measured())

    def relieve(self, readers: Iterable[Stallable], now: float) -> None:
        """Measure the process, and bring it back below its budget if it is above.

        Args:
            readers: All open subscriptions and history reads.
            now: The event loop's time, in seconds.
        """
        # 1. Free memory of the cache first: evicted values only have to be read again.
        process_bytes = self._cache.relieve()
        self._large.measured(process_bytes)
        # 2. Then collect reference cycles. No reader may be ended because of garbage.
        if process_bytes > self._memory_bytes and CYCLES.for_memory():
            process_bytes = self._cache.relieve()
        # 3. Compute what is missing: bytes above the budget, and room for large messages that wait.
        excess, wanted = process_bytes - self._memory_bytes, self._large.wanted_bytes
        if excess <= 0 and wanted <= 0:
            return
        # 4. End stalled readers, the largest first, so that the fewest are ended. Readers that hold nearly
        #    nothing stay: even the connection of an idle reader holds that much.
        patience_s = self._patience_s(now)
        stalled = [
            each
            for each in readers
            if each.last.nbytes >= _WORTH_BYTES and each.last.stalled_for(now) >= patience_s
        ]
        stalled.sort(key=lambda each: each.last.nbytes, reverse=True)
        for reader in stalled:
            held = reader.last.nbytes
            has_room = reader.last.has_room
            # Above the budget, every reader helps. For waiting messages, only one that occupies shared room
            # does.
            if excess <= 0 and (wanted <= 0 or not has_room):
                continue
            excess -= held * COPIES
            wanted -= held * COPIES * has_room
            self.disconnected += 1
            cursor = str(reader.resume_cursor())
            reader.end(
                SubscriberTooSlow(
                    f"the server is short of memory and this subscriber has not read for {PATIENCE_S:g} s "
                    f"while {held} bytes wait for it; resume after {cursor}",
                    cursor,
                )
            )

    def _patience_s(self, now: float) -> float:
        """Return the seconds without progress after which a reader is stalled now.

        These are PATIENCE_S, and more if measurements came late: of each interval between two of them, at most
        _LOOK_S count. Infinite if the measurements do not cover that time.
        """
        missing, later = PATIENCE_S, now
        for look in reversed(self._looks):
            counts = min(later - look, _LOOK_S)
            if counts >= missing:
                return now - later + missing
            missing -= counts
            later = look
        return inf  # the process has not been measured for long enough
