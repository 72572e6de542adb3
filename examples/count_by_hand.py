"""Ask for one capture at a time: the Reactive Streams form.

    python examples/count_by_hand.py --server 127.0.0.1:7411

A subscriber that asks for one more only when it is done with the last is never sent more than it can take.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import tailrace

if TYPE_CHECKING:
    from tailrace.reactive import Subscription


class Counting:
    """Counts captures by entity type and operation, up to a number of them."""

    def __init__(self, most: int) -> None:
        """Keep how many captures to take."""
        self.counts: Counter[str] = Counter()
        self.ended = asyncio.Event()
        self.error: tailrace.TailraceError | None = None
        self._left = most

    def on_subscribe(self, subscription: Subscription) -> None:
        """Ask for the first one."""
        self._subscription = subscription
        subscription.request(1)

    def on_next(self, capture: tailrace.Capture) -> None:
        """Count it and ask for one more."""
        self.counts[f"{capture.entity_type or 'transaction'} {capture.operation.name}"] += 1
        self._left -= 1
        if self._left:
            self._subscription.request(1)
        else:
            self._subscription.cancel()
            self.ended.set()

    def on_error(self, error: tailrace.TailraceError) -> None:
        """Keep why there is no more."""
        self.error = error
        self.ended.set()

    def on_complete(self) -> None:
        """Do nothing: change streams have no end."""


async def count(server: str, catalog: str, most: int) -> Counter[str]:
    """Count the oldest captures of a catalog.

    Raises:
        TailraceError: Why counting ended early.
    """
    counting = Counting(most)
    async with tailrace.connect(server) as client:
        client.publisher(catalog, since=0).subscribe(counting)
        await counting.ended.wait()
    if counting.error is not None:
        raise counting.error
    return counting.counts


def main() -> None:
    """Read the arguments, count and print."""
    arguments = argparse.ArgumentParser(description="Count changes, one at a time.")
    arguments.add_argument("catalog", nargs="?", default="shop")
    arguments.add_argument("--most", type=int, default=1000)
    arguments.add_argument("--server", default="127.0.0.1:7411")
    given = arguments.parse_args()
    try:
        counts = asyncio.run(count(given.server, given.catalog, given.most))
    except KeyboardInterrupt:
        return
    except tailrace.TailraceError as error:
        raise SystemExit(str(error)) from None
    for name, number in counts.most_common():
        print(f"{number:8,}  {name}")


if __name__ == "__main__":
    main()
