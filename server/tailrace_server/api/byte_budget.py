"""The memory for single peers, inside the memory budget: inbound bytes, and whole answers.

Every bound of one message leaves open how many peers send one. So all that is unfinished, or waits to be
looked at, shares a part of the budget: connections without a request, bodies, fragments, messages in line.
When it is spent, the policy is *refuse*: the sender that has held most for the longest goes, and as many as it
takes. Readers have no part in it. A sender that finishes in its time is hardly ever the one: others, who
do not, have been there for longer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

INBOUND_SHARE: Final = 8
"""Received bytes may take 1/N of the memory budget."""

INBOUND: Final = "inbound_memory"
"""Name of the guard that refuses senders when the budget is spent."""

ANSWERS_SHARE: Final = 8
"""Whole answers that wait to be read may come to one part in so many of the memory budget."""

CONNECTION_BYTES: Final = 16 << 10
"""The charge for a connection before its first request."""


class Sender(Protocol):
    """A connection, as far as it is known here."""

    def refuse(self) -> None:
        """Refuse what it sends, and keep nothing of it: others need the room."""


class UnreadAnswer:
    """An answer that is kept until it is read; as such it is known here."""

    def __init__(self, drop: Callable[[], None]) -> None:
        """Keep what ends it, if it is not being read; one that is read needs its room only for a moment."""
        self.refuse = drop


class ByteBudget:
    """How many bytes each sender has on their way in; for the event loop."""

    def __init__(self, bytes_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing."""
        self.bytes_max = bytes_max
        self.bytes = 0
        """The bytes of all peers now."""
        self.refused = 0
        """Senders refused, since it began."""
        self._clock = clock
        self._held: dict[Sender, tuple[int, float]] = {}
        """Bytes of each, and since when it has any."""
        self._by_size: dict[int, dict[Sender, None]] = {}
        """The same by the number of binary digits of their bytes, each in the order of coming."""

    def hold(self, sender: Sender, nbytes: int) -> bool:
        """Note the bytes of a sender, 0 for none; return True if it may send more.

        Others, or this one, may be refused meanwhile: ``refuse`` is called, and they are forgotten.
        """
        # 1. Its new place. It keeps its time, as it has not finished.
        before, since = self._held.pop(sender, (0, 0.0))
        self.bytes += nbytes - before
        if before:
            del self._by_size[before.bit_length()][sender]
        if nbytes:
            self._held[sender] = nbytes, since if before else self._clock()
            self._by_size.setdefault(nbytes.bit_length(), {})[sender] = None
        # 2. Room for it: at the cost of those that have held most for the longest.
        while self.bytes > self.bytes_max:
            worst = self._worst()
            self.hold(worst, 0)
            self.refused += 1
            worst.refuse()
        return not nbytes or sender in self._held

    def _worst(self) -> Sender:
        """Return who has held most for the longest, near enough: of each size the first is looked at."""
        now = self._clock()

        def cost(sender: Sender) -> float:
            nbytes, since = self._held[sender]
            return nbytes * (now - since + 0.001)

        return max((next(iter(each)) for each in self._by_size.values() if each), key=cost)
