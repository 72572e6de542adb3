"""A peer that sends requests but for their last byte, as much of them as flow control lets it."""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from tests.support.raw_http2 import (
    DATA,
    END_HEADERS,
    HEADERS,
    SETTINGS,
    WINDOW_UPDATE,
    call_fields,
    fields,
    frame,
    hello,
)

if TYPE_CHECKING:
    from types import TracebackType

_FRAME: Final = 1 << 14
_INITIAL: Final = 65_535
_ACK: Final = 1


class UnfinishedRequests:
    """One connection with so many calls, none of whose requests ever ends."""

    def __init__(self, port: int, method: str, *, streams: int, size: int) -> None:
        self._port = port
        self._method = method
        self._numbers = range(1, 2 * streams, 2)
        self._size = size
        self._initial = _INITIAL
        self._more: dict[int, int] = defaultdict(int)
        """What the server has allowed each stream beyond its initial window; 0 is the connection."""
        self.sent: dict[int, int] = dict.fromkeys(self._numbers, 0)
        """Bytes of each request that have gone out."""
        self.ended = False
        """Whether the server has closed the connection."""

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(hello(_INITIAL))
        block = fields(call_fields(self._method))
        for number in self._numbers:
            self._writer.write(frame(HEADERS, END_HEADERS, number, block))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.abort()

    def abort(self) -> None:
        """Drop the connection."""
        self._writer.transport.abort()

    @property
    def first_window(self) -> int:
        """Bytes that the server takes of each stream before it has read any of them."""
        return self._initial

    async def run(self) -> None:
        """Send until everything but the last bytes has gone, or the server has closed the connection."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while not self._writer.is_closing():
                self._fill()
                await self._writer.drain()
                await self._take()
        self.ended = True

    def _fill(self) -> None:
        """Write what the windows allow."""
        for number, sent in self.sent.items():
            total = sum(self.sent.values())
            room = min(
                self._initial + self._more[number] - sent,
                _INITIAL + self._more[0] - total,
                self._size - 1 - sent,
            )
            while room > 0 and (sent or room >= 5):  # the head of a message stays in one piece
                piece = min(room, _FRAME)
                head = b"\0" + struct.pack(">I", self._size - 5) if not sent else b""
                self._writer.write(frame(DATA, 0, number, head + bytes(piece - len(head))))
                sent += piece
                room -= piece
            self.sent[number] = sent

    async def _take(self) -> None:
        """Read one frame, and the ones that are there with it."""
        header = await self._reader.readexactly(9)
        payload = await self._reader.readexactly(int.from_bytes(header[:3], "big"))
        kind, flags, number = header[3], header[4], int.from_bytes(header[5:], "big")
        if kind == WINDOW_UPDATE:
            self._more[number] += int.from_bytes(payload, "big")
        elif kind == SETTINGS and not flags & _ACK:
            for place in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, place)
                if name == 4:
                    self._initial = value
            self._writer.write(frame(SETTINGS, _ACK, 0, b""))
