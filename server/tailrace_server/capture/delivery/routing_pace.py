"""The pace of routing: a batch ahead of the fastest subscription, and no further.

A subscription is *hungry* when it has queued all that is routed and is sending the last of it. While one is,
the observer continues to route, so the fastest never waits. While none is, it routes a small part of a ring at
most: more would only push out of the rings what others still need, and send them to the log for it.

A subscription whose overrun policy is LATEST or DISCONNECT is *impatient*: while one is attached, routing waits
for no subscription. Its policy applies once the ring has overtaken it, so a ring that waited for it would
never apply the policy to a reader that is alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class RoutingPace:
    """The hungry and the impatient subscriptions of a catalog. Lives on the event loop; one task waits."""

    __slots__ = ("_changed", "_hungry", "_impatient")

    def __init__(self) -> None:
        """Begin with none."""
        self._hungry: set[object] = set()
        self._impatient: set[object] = set()
        self._changed = asyncio.Event()

    def __bool__(self) -> bool:
        """Return whether the observer may route on: a subscription is hungry or impatient."""
        return bool(self._hungry or self._impatient)

    def impatient(self, subscription: object) -> None:
        """Note that routing must not wait for anyone until this subscription is ``gone``."""
        self._impatient.add(subscription)
        self._changed.set()

    def gone(self, subscription: object) -> None:
        """Forget a subscription that has ended."""
        self._hungry.discard(subscription)
        self._impatient.discard(subscription)

    def hungry(self, subscription: object) -> None:
        """Note that a subscription could take more."""
        self._hungry.add(subscription)
        self._changed.set()

    def fed(self, subscriptions: Iterable[object]) -> None:
        """Note that there is something routed for these now."""
        self._hungry.difference_update(subscriptions)

    def notify(self) -> None:
        """Wake the waiting task: there is more to route, or fewer subscriptions to route it for."""
        self._changed.set()

    async def change(self) -> None:
        """Wait until a subscription is hungry or ``notify`` is called."""
        await self._changed.wait()
        self._changed.clear()
