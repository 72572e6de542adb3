"""Raw readers of a Redis stream: ``XREAD`` without decoding, that count entries by their size.

The ids of the entries are all of one length, so bytes tell the count, and the count tells the id to read
behind. See `bench._reading` for the arguments.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from bench._reading import Order, Reader, run
from bench._redis import STREAM, command, entry_id

_ENTRIES_A_READ: Final = 1_000


class RedisReader(Reader, asyncio.Protocol):
    """One connection that reads the stream from its beginning, a thousand entries at a time."""

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        fields = command(b"d", b"x" * order.event_bytes)
        self._entry_bytes = len(b"*2\r\n$15\r\n" + entry_id(0) + b"\r\n" + fields)
        self._wanted = order.events
        self._entries = 0
        """Entries of the answer under way,"""
        self._left = 0
        """and its bytes that are still to come."""
        self._head = b""

    def connection_made(self, transport: Any) -> None:
        """Ask for the first entries."""
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        """Count; ask for more behind a whole answer."""
        if not self._left:
            self._head += data
            lines = self._head.split(b"\r\n", 5)
            if len(lines) < 6:  # *1, *2, $1, the stream's name, *entries
                return
            self._entries = int(lines[4][1:])
            self._left = self._entries * self._entry_bytes
            data, self._head = lines[5], b""
        self._left -= len(data)
        assert self._left >= 0
        if self._left:
            return
        self.got(self._entries)
        if self.missing:
            self._ask()

    def _ask(self) -> None:
        behind = entry_id(self._wanted - self.missing - 1)
        count = b"%d" % min(_ENTRIES_A_READ, self.missing)
        self._transport.write(
            command(b"XREAD", b"COUNT", count, b"BLOCK", b"0", b"STREAMS", STREAM, behind)
        )


async def subscribe(order: Order) -> list[RedisReader]:
    """Return readers that have asked."""
    connect = asyncio.get_running_loop().create_connection
    return [
        (await connect(lambda: RedisReader(order), "127.0.0.1", int(order.address)))[1]
        for _ in range(order.readers)
    ]


if __name__ == "__main__":
    run(subscribe)
