"""The bytes that peers send or leave unread: one budget for all, and a share of each turn of the event loop.

Every bound of one message leaves open how many peers send one. So all that is unfinished, or waits to be
looked at, shares a part of the budget: connections without a request, bodies, fragments, messages in line.
When it is spent, the policy is *refuse*: the sender that has held most for the longest goes, and as many as
needed. Readers have no part in it. A sender that finishes in time is hardly ever refused: senders that do not
finish have been there for longer.

In one turn the event loop reads all that has arrived, up to 8 MB of each connection. A hundred connections that
send as fast as they can would fill the turn, and all others would wait for its end several times with each
change. So `ReadTurns` gives a turn a share of bytes: the connections that used it up are read again in later
turns, first come, first read. The policy at this bound is *wait*: TCP passes it on to the senders, and none is
refused.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


INBOUND: Final = "inbound_memory"
"""Name of the guard that refuses senders when the budget is spent."""

CONNECTION_BYTES: Final = 16 << 10
"""The charge for a connection before its first request."""


_TURN_BYTES: Final = 1 << 20
"""Bytes that one turn reads, about; each read and its processing take a quarter of a millisecond."""
_LARGE_BYTES: Final = 16 << 10
"""Less than this is not counted: the usual request, however many there are."""
_READ_AT_ONCE: Final = 4
"""Connections that are read again in one turn; one read brings up to 256 KiB."""


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


class Sender(Protocol):
    """A connection, as far as it is known here."""

    def refuse(self) -> None:
        """Refuse what it sends, and keep nothing of it: others need the room."""


class UnreadAnswer:
    """An answer that is kept until it is read; as such it is known here."""

    def __init__(self, drop: Callable[[], None]) -> None:
        """Keep what ends it, if it is not being read; one that is read needs its room only for a moment."""
        self.refuse = drop


class Readable(Protocol):
    """A connection, as far as it is known here."""

    @property
    def held(self) -> bool:
        """True if it is not read until its turn."""

    def hold_reading(self) -> None:
        """Read no more; sets ``held``."""

    def release_reading(self) -> None:
        """Read again, unless that waits for something else, too; clears ``held``."""


class ReadTurns:
    """The bytes of this turn, and the connections that wait for the next ones; for one event loop."""

    def __init__(self) -> None:
        """Begin with an empty turn."""
        self._left = _TURN_BYTES
        self._waiting: deque[Readable] = deque()
        self._running = False

    def took(self, connection: Readable, nbytes: int) -> None:
        """Count what one read of a connection has brought; above the turn's share it waits."""
        if nbytes < _LARGE_BYTES:
            return
        self._left -= nbytes
        if self._left < 0 and not connection.held:
            connection.hold_reading()
            self._waiting.append(connection)
        if not self._running:
            self._running = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Begin the next turn: uvloop runs this before it reads again."""
        self._left = _TURN_BYTES
        for _ in range(min(_READ_AT_ONCE, len(self._waiting))):
            self._waiting.popleft().release_reading()
        self._running = bool(self._waiting)
        if self._running:
            asyncio.get_running_loop().call_soon(self._turn)
