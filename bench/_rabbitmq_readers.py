"""Raw readers of a RabbitMQ stream: chunks without decoding, whose heads say how many records they hold.

Arguments: port, readers, records that each must get, options as JSON (``live``: only what comes, with the time
counted from the first record, not from the beginning). Prints "subscribed" once every reader has been
accepted, then one JSON line when every reader has everything.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from typing import Any, Final

import uvloop

from bench._rabbitmq import (
    CREDIT,
    DELIVER,
    DELIVER_HEAD,
    SUBSCRIBED,
    Connection,
    subscribe,
)
from bench._reading import report

_CHUNKS_AHEAD: Final = 10
"""What RabbitMQ's own clients ask for."""


class Reader(asyncio.Protocol):
    """One connection that counts the records of what it is sent."""

    def __init__(self, wanted: int, *, from_first: bool) -> None:
        loop = asyncio.get_running_loop()
        self.accepted = loop.create_future()
        self.done = loop.create_future()
        self.first_at = 0.0
        self.done_at = 0.0
        self._from_first = from_first
        self._wanted = wanted
        self._left = 0
        """Bytes of the frame under way that are still to come."""
        self._head = b""

    def connection_made(self, transport: Any) -> None:
        """Subscribe."""
        self._transport = transport
        transport.write(subscribe(from_first=self._from_first, credit=_CHUNKS_AHEAD))

    def data_received(self, data: bytes) -> None:
        """Count by the heads, pass over the rest."""
        at = 0
        if self._head:
            data, self._head = self._head + data, b""
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                if not self._left and not self._wanted:
                    self.done_at = time.perf_counter()
                    self.done.set_result(None)
            elif (taken := self._frame(data, at)) is None:
                self._head = data[at:]
                return
            else:
                at += taken

    def _frame(self, data: bytes, at: int) -> int | None:
        """Begin with the frame that starts there; return how many bytes of it are dealt with, None: too few."""
        if len(data) - at < 8:
            return None
        length, key = struct.unpack_from(">IH", data, at)
        if key != DELIVER:
            if len(data) - at < 4 + length:
                return None
            if key == SUBSCRIBED:
                _, status = struct.unpack_from(">IH", data, at + 8)
                assert status == 1, f"subscribe: status {status}"
                self.accepted.set_result(None)
            return int(4 + length)
        if len(data) - at < DELIVER_HEAD.size:
            return None
        if not self.first_at:
            self.first_at = time.perf_counter()
        self._wanted -= DELIVER_HEAD.unpack_from(data, at)[-1]
        assert self._wanted >= 0
        self._left = 4 + length - DELIVER_HEAD.size
        self._transport.write(CREDIT)
        return DELIVER_HEAD.size


async def main(port: int, count: int, wanted: int, options: dict[str, Any]) -> None:
    """Connect, read, report."""
    loop = asyncio.get_running_loop()
    connections = [Connection(port) for _ in range(count)]
    started = time.perf_counter()
    readers = [
        (
            await loop.create_connection(
                lambda: Reader(wanted, from_first=not options["live"]), sock=connection.socket
            )
        )[1]
        for connection in connections
    ]
    await asyncio.gather(*(reader.accepted for reader in readers))
    await report(readers, wanted, None if options["live"] else started)


if __name__ == "__main__":
    _, _port, _count, _wanted, _options = sys.argv
    uvloop.run(main(int(_port), int(_count), int(_wanted), json.loads(_options)))
