"""Raw readers of a Redis stream: ``XREAD`` without decoding, that count entries by their size.

Arguments: port, readers, entries that each must get, options as JSON (``entry_bytes``: payload of an entry,
``live``: count the time from the first entry, not from the beginning). The ids of the entries are all of one
length, so bytes tell the count, and the count tells the id to read behind. Prints "subscribed" once every
reader has asked, then one JSON line when every reader has everything.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any, Final

import uvloop

from bench._reading import report

STREAM: Final = b"s"
FIRST_ID: Final = 10**12
"""Ids count from here, so that all have the same digits."""
ENTRIES_A_READ: Final = 1_000


def entry_id(number: int) -> bytes:
    """Return the id of an entry, which counts from 0."""
    return b"%d-0" % (FIRST_ID + number)


def command(*words: bytes) -> bytes:
    """Return a command as Redis takes it."""
    return b"*%d\r\n" % len(words) + b"".join(
        b"$%d\r\n%s\r\n" % (len(word), word) for word in words
    )


class Reader(asyncio.Protocol):
    """One connection that reads the stream from its beginning, a thousand entries at a time."""

    def __init__(self, wanted: int, payload_bytes: int) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self.first_at = 0.0
        self.done_at = 0.0
        fields = command(b"d", b"x" * payload_bytes)
        self._entry_bytes = len(b"*2\r\n$15\r\n" + entry_id(0) + b"\r\n" + fields)
        self._wanted = wanted
        self._got = 0
        self._left = 0
        """Bytes of the answer under way that are still to come."""
        self._head = b""

    def connection_made(self, transport: Any) -> None:
        """Ask for the first entries."""
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        """Count; ask for more behind a whole answer."""
        if not self._left:
            if not self.first_at:
                self.first_at = time.perf_counter()
            self._head += data
            lines = self._head.split(b"\r\n", 5)
            if len(lines) < 6:  # *1, *2, $1, the stream's name, *entries
                return
            entries = int(lines[4][1:])
            self._got += entries
            self._left = entries * self._entry_bytes
            data, self._head = lines[5], b""
        self._left -= len(data)
        assert self._left >= 0
        if self._left:
            return
        if self._got < self._wanted:
            self._ask()
        else:
            self.done_at = time.perf_counter()
            self.done.set_result(None)

    def _ask(self) -> None:
        behind = entry_id(self._got - 1)
        count = b"%d" % min(ENTRIES_A_READ, self._wanted - self._got)
        self._transport.write(
            command(b"XREAD", b"COUNT", count, b"BLOCK", b"0", b"STREAMS", STREAM, behind)
        )


async def main(port: int, count: int, wanted: int, options: dict[str, Any]) -> None:
    """Connect, read, report."""
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    readers = [
        (
            await loop.create_connection(
                lambda: Reader(wanted, options["entry_bytes"]), "127.0.0.1", port
            )
        )[1]
        for _ in range(count)
    ]
    await report(readers, wanted, None if options["live"] else started)


if __name__ == "__main__":
    _, _port, _count, _wanted, _options = sys.argv
    uvloop.run(main(int(_port), int(_count), int(_wanted), json.loads(_options)))
