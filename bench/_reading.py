"""What raw readers of other servers have in common: their arguments, and how they report what they measured.

Arguments: address, readers, events that each must get, options as JSON (``event_bytes``: size of an event,
``live``: only events that are still to come, ``timed``: report when each event arrived). A reader program
prints "subscribed" once every reader has subscribed, then one JSON line when every reader has everything.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvloop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


@dataclass(frozen=True, slots=True)
class Order:
    """The arguments of a reader program."""

    address: str
    readers: int
    events: int
    event_bytes: int
    live: bool
    timed: bool = False


class Reader:
    """One reader: how many events it still misses, and its times by ``time.perf_counter``."""

    def __init__(self, order: Order) -> None:
        self.missing = order.events
        self.done_at = 0.0
        self.arrivals: list[float] = []
        """When each event arrived; empty unless the times are asked for."""
        self._timed = order.timed
        self._done = asyncio.Event()

    def got(self, events: int) -> None:
        """Count events that have arrived whole."""
        now = time.perf_counter()
        if self._timed:
            self.arrivals += [now] * events
        self.missing -= events
        assert self.missing >= 0
        if not self.missing:
            self.done_at = now
            self._done.set()

    async def run(self) -> None:
        """Return once everything has arrived."""
        await self._done.wait()


def run(subscribe: Callable[[Order], Awaitable[Sequence[Reader]]]) -> None:
    """Run a reader program.

    Args:
        subscribe: Returns the readers once all have subscribed.
    """
    _, address, readers, events, options = sys.argv
    uvloop.run(_report(subscribe, Order(address, int(readers), int(events), **json.loads(options))))


async def _report(subscribe: Callable[[Order], Awaitable[Sequence[Reader]]], order: Order) -> None:
    readers = await subscribe(order)
    print("subscribed", flush=True)
    started = time.perf_counter()
    await asyncio.gather(*(reader.run() for reader in readers))
    done_at = max(reader.done_at for reader in readers)
    measured = {
        "seconds": done_at - started,
        "done_at": done_at,
        "captures": order.events * order.readers,
        "arrivals": [reader.arrivals for reader in readers],
    }
    print(json.dumps(measured), flush=True)
