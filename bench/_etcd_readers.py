"""Raw readers of etcd: a ``Watch`` stream each, without decoding, that count events by their size.

See `bench._reading` for the arguments.
"""

from __future__ import annotations

from typing import Any

import grpc.aio

from bench._etcd import event_bytes_of, watch_request
from bench._reading import Order, Reader, run
from bench._subscribers import CHANNEL_OPTIONS


class EtcdReader(Reader):
    """One watch."""

    def __init__(self, order: Order, channel: grpc.aio.Channel) -> None:
        super().__init__(order)
        self._channel = channel  # it closes with its last reference
        watch: Any = channel.stream_stream("/etcdserverpb.Watch/Watch", None, None)
        self._call = watch()
        self._event_bytes = event_bytes_of(order.event_bytes)

    async def subscribe(self, start_revision: int) -> None:
        """Begin the watch and wait until the server has confirmed it."""
        await self._call.write(watch_request(start_revision))
        await self._call.read()

    async def run(self) -> None:
        """Read everything; the head of a message is smaller than an event."""
        while self.missing:
            self.got(len(await self._call.read()) // self._event_bytes)


async def subscribe(order: Order) -> list[EtcdReader]:
    """Return readers whose watches have begun."""
    options = [*CHANNEL_OPTIONS, ("grpc.max_receive_message_length", -1)]
    channel = grpc.aio.insecure_channel(order.address, options=options)
    readers = [EtcdReader(order, channel) for _ in range(order.readers)]
    for reader in readers:
        await reader.subscribe(0 if order.live else 1)
    return readers


if __name__ == "__main__":
    run(subscribe)
