"""Bounds of the bytes that peers send or leave unread: a budget for all, and a limit for each loop turn.

A bound on one message does not bound the number of peers that send one. So all input that is unfinished or
waits for processing shares one budget: connections without a request, bodies, fragments, queued messages. When
the budget is spent, the policy is *refuse*: the sender that has held most for the longest is refused, then the
next, until there is room. Readers are not affected. A sender that finishes in time is hardly ever refused,
because senders that do not finish have held their bytes for longer.

In one turn the event loop reads everything that has arrived, up to 8 MB of each connection. A hundred
connections that send as fast as they can would make each turn long, and every change waits for several turns.
So `ReadTurns` bounds the bytes of a turn: the connections that exceed it are read again in later turns, in
order. The policy at this bound is *wait*: TCP slows the senders down, and none is refused.
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
"""About the most bytes that one turn reads; each read and its processing take a quarter of a millisecond."""
_LARGE_BYTES: Final = 16 << 10
"""Smaller reads are not counted, so usual requests are never delayed."""
_READ_AT_ONCE: Final = 4
"""Waiting connections that are read again in one turn; one read brings up to 256 KiB."""


class ByteBudget:
    """The bytes of unfinished input of each sender. It lives on the event loop."""

    def __init__(self, bytes_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Make an unused budget."""
        self.bytes_max = bytes_max
        self.bytes = 0
        """The bytes that all senders hold now."""
        self.refused = 0
        """Number of senders refused since the budget was made."""
        self._clock = clock
        self._held: dict[Sender, tuple[int, float]] = {}
        """The bytes of each sender, and the time since which it holds any."""
        self._by_size: dict[int, dict[Sender, None]] = {}
        """The senders by the bit length of their bytes, each group in the order of arrival. So the search for
        the worst sender compares one sender of each group, however many there are."""

    def hold(self, sender: Sender, nbytes: int) -> bool:
        """Set the bytes that a sender holds, 0 for none; return True if it may send more.

        Senders may be refused to make room, including this one: their ``refuse`` is called and they are
        dropped.
        """
        # 1. Move the sender to its new group. Its time remains, since its input is still unfinished.
        before, since = self._held.pop(sender, (0, 0.0))
        self.bytes += nbytes - before
        if before:
            del self._by_size[before.bit_length()][sender]
        if nbytes:
            self._held[sender] = nbytes, since if before else self._clock()
            self._by_size.setdefault(nbytes.bit_length(), {})[sender] = None
        # 2. Make room: refuse the senders that have held most for the longest.
        while self.bytes > self.bytes_max:
            worst = self._worst()
            self.hold(worst, 0)
            self.refused += 1
            worst.refuse()
        return not nbytes or sender in self._held

    def _worst(self) -> Sender:
        """Return roughly the sender that has held most for the longest: one of each group is compared."""
        now = self._clock()

        def cost(sender: Sender) -> float:
            nbytes, since = self._held[sender]
            return nbytes * (now - since + 0.001)

        return max((next(iter(each)) for each in self._by_size.values() if each), key=cost)


class Sender(Protocol):
    """A connection that sends input, as the budget uses it."""

    def refuse(self) -> None:
        """Refuse the input of this sender and release its bytes, because others need the room."""


class UnreadAnswer:
    """An answer that is retained until its client reads it; it takes part in the budget like a sender."""

    def __init__(self, drop: Callable[[], None]) -> None:
        """Set the function that drops the answer unless it is being read just now."""
        self.refuse = drop


class Readable(Protocol):
    """A connection whose reading can be paused, as `ReadTurns` uses it."""

    @property
    def held(self) -> bool:
        """True if reading is paused until the connection's turn."""

    def hold_reading(self) -> None:
        """Pause reading; this sets ``held``."""

    def release_reading(self) -> None:
        """Clear ``held`` and resume reading, unless reading is also paused for another reason."""


class ReadTurns:
    """The bytes read in this turn of an event loop, and the connections that wait for later turns."""

    def __init__(self) -> None:
        """Begin with an empty turn."""
        self._left = _TURN_BYTES
        self._waiting: deque[Readable] = deque()
        self._running = False

    def took(self, connection: Readable, nbytes: int) -> None:
        """Count the bytes of one read; pause the connection if the turn has read enough."""
        # The first large read of a turn schedules the end of the turn; without load there is no callback.
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
        """Begin the next turn: uvloop runs this callback before it reads sockets again."""
        self._left = _TURN_BYTES
        # Only a few at once: each brings up to 256 KiB, and the turn must stay short.
        for _ in range(min(_READ_AT_ONCE, len(self._waiting))):
            self._waiting.popleft().release_reading()
        self._running = bool(self._waiting)
        if self._running:
            asyncio.get_running_loop().call_soon(self._turn)
