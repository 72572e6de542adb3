"""Raw readers of a RabbitMQ stream: chunks without decoding, whose heads say how many records they hold.

See `bench._reading` for the arguments.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Final

from bench._rabbitmq import (
    CREDIT,
    DELIVER,
    DELIVER_HEAD,
    SUBSCRIBED,
    Connection,
)
from bench._rabbitmq import subscribe as subscription
from bench._reading import Order, Reader, run

_CHUNKS_AHEAD: Final = 10
"""What RabbitMQ's own clients ask for."""


class RabbitmqReader(Reader, asyncio.Protocol):
    """One connection that counts the records of what it is sent."""

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        self.accepted = asyncio.get_running_loop().create_future()
        self._from_first = not order.live
        self._records = 0
        """Records of the chunk under way,"""
        self._left = 0
        """and its bytes that are still to come."""
        self._head = b""

    def connection_made(self, transport: Any) -> None:
        """Subscribe."""
        self._transport = transport
        transport.write(subscription(from_first=self._from_first, credit=_CHUNKS_AHEAD))

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
                if not self._left:
                    self.got(self._records)
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
        self._records = DELIVER_HEAD.unpack_from(data, at)[-1]
        self._left = 4 + length - DELIVER_HEAD.size
        self._transport.write(CREDIT)
        return DELIVER_HEAD.size


async def subscribe(order: Order) -> list[RabbitmqReader]:
    """Return readers that have been accepted."""
    connect = asyncio.get_running_loop().create_connection
    readers = [
        (await connect(lambda: RabbitmqReader(order), sock=connection.socket))[1]
        for connection in [Connection(order.address) for _ in range(order.readers)]
    ]
    await asyncio.gather(*(reader.accepted for reader in readers))
    return readers


if __name__ == "__main__":
    run(subscribe)
