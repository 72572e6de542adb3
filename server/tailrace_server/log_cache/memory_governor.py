"""Keeps a process inside its memory budget, by measurement.

If the process is above its budget, or a message waits for room, the policy is *disconnect*. Of the readers
that have not moved for a while, of live changes or of history, those that hold most end with
``SubscriberTooSlow`` and their resume cursor, just enough of them.
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
"""A reader that has moved within this time is slow, not stalled: no want of memory ends its subscription."""
_WORTH_BYTES: Final = 4 << 10
"""A stalled reader that holds less is not ended: that would free no more than to end one that has read all."""
_LOOK_S: Final = PATIENCE_S / 4
"""The longest time between two looks that counts, seconds. A late event loop has not noted yet how much a
reader has taken."""

_LOOKS_KEPT: Final = 64
"""More than there are while patience lasts: the engine looks ten times a second."""


class Stallable(Protocol):
    """A subscription or a read of history, as far as it is known here."""

    @property
    def last(self) -> LastMessage:
        """The message that its transport has."""

    def resume_cursor(self) -> object | None:
        """Return the cursor behind the last message that was handed over, as text by ``str``."""

    def end(self, error: TailraceError) -> None:
        """End with an error, and keep nothing."""


class MemoryGovernor:
    """Measures the process, and takes memory from the cache and from stalled readers."""

    def __init__(self, memory_bytes: int, cache: BatchCache, large: LargeMessages) -> None:
        """Govern a process with this cache and these messages on their way."""
        self._memory_bytes = memory_bytes
        self._cache = cache
        self._large = large
        self._looks: deque[float] = deque(maxlen=_LOOKS_KEPT)
        """When it was measured last; the event loop's time, seconds."""
        self.disconnected = 0
        """Readers ended for want of memory, since it began."""

    def measure(self, now: float) -> None:
        """Measure, and cut messages by the result; to be called often, with the event loop's time."""
        self._looks.append(now)
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
        # 2. Nobody is ended for what lies in cycles that only the collector finds.
        if process_bytes > self._memory_bytes and CYCLES.for_memory():
            process_bytes = self._cache.relieve()
        # 3. Then what the process is above its budget has to go, and large messages that others wait to follow.
        excess, wanted = process_bytes - self._memory_bytes, self._large.wanted_bytes
        if excess <= 0 and wanted <= 0:
            return
        # 4. Only stalled readers pay, and the largest first: that ends the fewest. Those who hold nearly
        #    nothing stay: the connection of one that waits for its next change holds as much.
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
        """Return how long ago a reader must have moved last to be stalled: more where looks came late."""
        missing, later = PATIENCE_S, now
        for look in reversed(self._looks):
            counts = min(later - look, _LOOK_S)
            if counts >= missing:
                return now - later + missing
            missing -= counts
            later = look
        return inf  # it has not looked for long enough
