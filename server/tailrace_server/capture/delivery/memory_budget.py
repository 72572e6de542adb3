"""What has been handed to transports, inside the memory budget: it is not the cache's to shed.

It is bounded for each subscription (one message here, one more in the transport), and a thousand readers of
rows of 1 MiB are still too much together. So large messages have a share of the budget: who is due one
while the share is spent waits for its turn. Where memory gets short, messages are cut smaller, and so hold
less while nobody reads them. And where somebody waits, or the process is found above its budget, the policy is
*disconnect*: of the subscriptions whose reader has not moved for a while, those that hold most end with
``SubscriberTooSlow`` and their resume cursor, just enough of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.errors import SubscriberTooSlow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace_server.capture.delivery.subscription import Subscription
    from tailrace_server.capture.reading.batch_cache import BatchCache

PATIENCE_S: Final = 1.0
"""A reader that has moved within this time is slow, not stalled: no want of memory ends its subscription."""

_COPIES: Final = 2
"""A transport keeps its own copy of what it was handed."""

_LARGE_SHARE: Final = 4
"""Large messages that are on their way may come to one part in so many of the budget."""

SHORT_MESSAGE_BYTES: Final = 16 << 10
"""What messages are cut to while memory is short. A stalled stream over gRPC takes some 60 KiB beside them."""

_SHORT_FROM: Final = 5 / 8
"""Memory is short where the process holds so much of its budget."""


class _Line:
    """Those that are due large messages: who has one on its way, and who waits, in the order of asking."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken: dict[Subscription, int] = {}
        self.waiting: dict[Subscription, int] = {}

    @property
    def taken_bytes(self) -> int:
        return sum(self.taken.values())


class LargeMessages:
    """Which messages are large, and the share of the budget that these have while they are on their way.

    Who has not taken one yet may be about to stall, so all those together have half of it; who has comes first.
    A crowd that stalls keeps newcomers waiting, and nobody that reads.
    """

    def __init__(self, memory_bytes: int, message_bytes: int) -> None:
        """Make the share of a budget; all of it is free, and messages are cut as they usually are."""
        self._message_bytes = self.message_bytes_max = message_bytes
        """What a message of any subscription is cut to at most, and above which it is large."""
        self._short_from = memory_bytes * _SHORT_FROM
        self._bytes_max = memory_bytes // _LARGE_SHARE
        self._readers, self._newcomers = _Line(self._bytes_max), _Line(self._bytes_max // 2)
        self._lines = self._readers, self._newcomers

    def measured(self, process_bytes: int) -> None:
        """Cut messages smaller from now on where memory is short, and where it is not any more, as usual."""
        self.message_bytes_max = self._message_bytes
        if process_bytes >= self._short_from:
            self.message_bytes_max = min(self._message_bytes, SHORT_MESSAGE_BYTES)

    def admit(self, subscription: Subscription, size: int, *, reads: bool) -> bool:
        """Return whether a message may be handed over now; if not, the subscription is woken when it may.

        It stays admitted until ``release``. A message larger than there ever is room for has its turn when
        nothing else is on its way.

        Args:
            subscription: Whose message it is.
            size: Its bytes.
            reads: Whether it has taken such a message before.
        """
        line = self._readers if reads else self._newcomers
        if subscription not in line.taken:
            line.waiting.setdefault(subscription, size * _COPIES)
            self._let_in()
        return subscription in line.taken

    def keeps_waiting(self, subscription: Subscription) -> bool:
        """Return whether a subscription was not admitted and still is not."""
        return any(subscription in line.waiting for line in self._lines)

    def release(self, subscription: Subscription) -> None:
        """Give back what a subscription has taken, or its place in the line."""
        for line in self._lines:
            line.waiting.pop(subscription, None)
            line.taken.pop(subscription, None)
        self._let_in()

    @property
    def waiting(self) -> int:
        """Subscriptions that wait for their turn."""
        return sum(len(line.waiting) for line in self._lines)

    @property
    def wanted_bytes(self) -> int:
        """What those that wait are due; 0 while nobody does."""
        return sum(sum(line.waiting.values()) for line in self._lines)

    def _let_in(self) -> None:
        """Let in who waits, as far as there is room."""
        taken = sum(line.taken_bytes for line in self._lines)
        for line in self._lines:
            room = min(self._bytes_max - taken, line.bytes_max - line.taken_bytes)
            while line.waiting:
                subscription, size = next(iter(line.waiting.items()))
                if size > room and taken:
                    return
                del line.waiting[subscription]
                line.taken[subscription] = size
                room -= size
                taken += size
                subscription.wake()


class MemoryGovernor:
    """Keeps a process inside its budget, by measurement."""

    def __init__(self, memory_bytes: int, cache: BatchCache, large: LargeMessages) -> None:
        """Govern a process with this cache and these messages on their way."""
        self._memory_bytes = memory_bytes
        self._cache = cache
        self._large = large
        self.disconnected = 0
        """Subscriptions ended for want of memory, since it began."""

    def look(self) -> None:
        """Measure, and cut messages as it is found."""
        self._large.measured(self._cache.measured())

    def relieve(self, subscriptions: Iterable[Subscription], now: float) -> None:
        """Measure, and bring the process back below its budget if it is above.

        Where somebody waits for room, those that stall make it, too.

        Args:
            subscriptions: All that are open.
            now: The event loop's time, seconds.
        """
        process_bytes = self._cache.relieve()
        self._large.measured(process_bytes)
        excess = max(process_bytes - self._memory_bytes, self._large.wanted_bytes)
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
