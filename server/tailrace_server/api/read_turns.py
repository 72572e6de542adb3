"""How much is read of all connections in one turn of the event loop.

The event loop hands over, in one turn, all that has come: of each connection up to 8 MB. A hundred that send as
fast as they can would be the whole turn, which everybody else waits for several times with each change. So when
a turn has brought its share, the connections that brought it are not read until they have had their turn, first
come, first read. The policy at this bound is *wait*: TCP passes it on to the senders, and none is refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

_TURN_BYTES: Final = 1 << 20
"""Bytes that one turn reads, about; each read and its processing take a quarter of a millisecond."""
_LARGE_BYTES: Final = 16 << 10
"""Less than this is not counted: the usual request, however many there are."""
_READ_AT_ONCE: Final = 4
"""Connections that are read again in one turn; one read brings up to 256 KiB."""


class Readable(Protocol):
    """A connection, as far as it is known here."""

    @property
    def held(self) -> bool:
        """Whether it is not read until its turn."""

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
