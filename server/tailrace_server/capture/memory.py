"""The memory governor: what happens when the process is above its budget and the cache is empty.

What a transport has been handed and has not finished sending is not the cache's to shed. It is bounded for each
subscription (one message here, one more in the transport), and a thousand stalled readers of rows of
1 MiB may still be too much together. Then the policy is *disconnect*: of the subscriptions whose reader
has not moved for a while, those that hold most end with ``SubscriberTooSlow`` and their resume cursor,
just enough of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.errors import SubscriberTooSlow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace_server.capture.cache import BatchCache
    from tailrace_server.capture.subscription import Subscription

PATIENCE_S: Final = 1.0
"""A reader that has moved within this time is slow, not stalled: no want of memory ends its subscription."""

_COPIES: Final = 2
"""A transport keeps its own copy of what it was handed."""


class MemoryGovernor:
    """Keeps a process inside its budget, by measurement."""

    def __init__(self, memory_bytes: int, cache: BatchCache) -> None:
        """Govern a process whose cache is ``cache``."""
        self._memory_bytes = memory_bytes
        self._cache = cache
        self.disconnected = 0
        """Subscriptions ended for want of memory, since it began."""

    def relieve(self, subscriptions: Iterable[Subscription], now: float) -> None:
        """Measure, and bring the process back below its budget if it is above.

        Args:
            subscriptions: All that are open.
            now: The event loop's time, seconds.
        """
        excess = self._cache.relieve() - self._memory_bytes
        if excess <= 0:
            return
        stalled = [each for each in subscriptions if each.stalled_for(now) >= PATIENCE_S]
        stalled.sort(key=lambda each: each.held_bytes, reverse=True)
        for subscription in stalled:
            if excess <= 0 or not subscription.held_bytes:
                return
            excess -= subscription.held_bytes * _COPIES
            self.disconnected += 1
            cursor = str(subscription.resume_cursor())
            subscription.end(
                SubscriberTooSlow(
                    f"the server is short of memory and this subscriber has not read for {PATIENCE_S:g} s "
                    f"while {subscription.held_bytes} bytes wait for it; resume after {cursor}",
                    cursor,
                )
            )
