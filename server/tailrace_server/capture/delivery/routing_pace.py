"""The pace of routing: no further ahead than somebody is there to take it.

A subscription is *hungry* when it has queued all that is routed and is sending the last of it. While
anybody is, the observer routes on, so the fastest never waits; while nobody is, it goes no further than a small
part of a ring: what nobody takes yet would only push out of the rings what others still need, and send them to
the log for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace_server.capture.delivery.subscription import Subscription


class Pace:
    """Who of one catalog is hungry. Lives on the event loop; one task waits."""

    __slots__ = ("_changed", "_hungry")

    def __init__(self) -> None:
        """Begin with nobody."""
        self._hungry: set[Subscription] = set()
        self._changed = asyncio.Event()

    def __bool__(self) -> bool:
        """Return whether anybody is hungry."""
        return bool(self._hungry)

    def hungry(self, subscription: Subscription) -> None:
        """Note that a subscription could take more."""
        self._hungry.add(subscription)
        self._changed.set()

    def fed(self, subscriptions: Iterable[Subscription]) -> None:
        """Note that there is something for these now."""
        self._hungry.difference_update(subscriptions)

    def look(self) -> None:
        """Let the one that waits look again: there is more to route, or fewer to route it for."""
        self._changed.set()

    async def change(self) -> None:
        """Wait until somebody is hungry, or is to look."""
        await self._changed.wait()
        self._changed.clear()
