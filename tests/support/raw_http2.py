"""A gRPC call by hand, over a bare socket: the reader decides every byte of flow control.

Just enough of RFC 9113: one connection, one stream, literal header fields without Huffman coding.

    frame = length:3 type:1 flags:1 stream:4 payload
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
SETTINGS: Final = 4
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8

END_STREAM: Final = 1
END_HEADERS: Final = 4

_ACK: Final = 1
_INITIAL_WINDOW_SIZE: Final = 4
_FRAME_MAX: Final = 1 << 14
_WINDOW_MAX: Final = 2**31 - 1


class RawCall:
    """One call with one request; nothing is read unless a test reads it."""

    def __init__(
        self,
        port: int,
        method: str | bytes,
        request: bytes,
        *,
        window: int,
        connection_window: int = 0,
        whole: bool = True,
    ) -> None:
        """With ``whole`` the request is a message, else the first bytes of the stream as they are."""
        self._whole = whole
        self._port = port
        self._method = method
        self._request = request
        self._window = window
        self._connection_window = connection_window
        self._buffer = b""
        self.ended = False
        """Whether the server has ended the stream."""

    async def __aenter__(self) -> Self:
        # The reader's own buffer is small, so that what is not read stays in the kernel.
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._port, limit=1024
        )
        self._writer.write(hello(self._window, self._connection_window))
        begin = request if self._whole else unfinished_request
        self._writer.write(begin(self._method, self._request))
        await self._writer.drain()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.transport.abort()

    def open_window(self, size: int = 2**30) -> None:
        """Let the server send so many bytes more, on the stream and on the connection."""
        update = struct.pack(">I", size)
        self._writer.write(frame(WINDOW_UPDATE, 0, 1, update) + frame(WINDOW_UPDATE, 0, 0, update))

    async def frame(self) -> tuple[int, bytes]:
        """Return type and payload of the next frame; settings and pings are answered."""
        header = await self._reader.readexactly(9)
        length, kind, flags = int.from_bytes(header[:3], "big"), header[3], header[4]
        payload = await self._reader.readexactly(length)
        if kind in (SETTINGS, PING) and not flags & _ACK:
            self._writer.write(frame(kind, _ACK, 0, payload if kind == PING else b""))
        on_stream = header[5:] == struct.pack(">I", 1)
        self.ended |= on_stream and (
            kind == RST_STREAM or (kind in (DATA, HEADERS) and bool(flags & END_STREAM))
        )
        return kind, payload

    async def message(self) -> bytes:
        """Return the next gRPC message."""
        while len(self._buffer) < 5 or len(self._buffer) < 5 + self._length():
            assert not self.ended, "the server ended the stream"
            kind, payload = await self.frame()
            if kind == DATA:
                self._buffer += payload
        end = 5 + self._length()
        message, self._buffer = self._buffer[5:end], self._buffer[end:]
        return message

    async def until_ended(self) -> bytes:
        """Read to the end of the stream and return the last header block: the trailers, as sent."""
        block = b""
        while not self.ended:
            kind, payload = await self.frame()
            block = payload if kind == HEADERS else block
        return block

    def _length(self) -> int:
        return int.from_bytes(self._buffer[1:5], "big")


def hello(window: int, connection_window: int = 0) -> bytes:
    """Return how a connection begins, with the windows of each stream and of all together."""
    settings = frame(SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, window))
    data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings
    if connection_window:
        data += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", connection_window))
    return data


def request(method: str | bytes, message: bytes, stream: int = 1, *, more: bool = False) -> bytes:
    """Return a call with one request; with ``more`` others may follow."""
    body = b"\0" + struct.pack(">I", len(message)) + message
    head = frame(HEADERS, END_HEADERS, stream, fields(call_fields(method)))
    return head + frame(DATA, 0 if more else END_STREAM, stream, body)


def unfinished_request(method: str | bytes, data: bytes, stream: int = 1) -> bytes:
    """Return the beginning of a call, of whose request there may be more to come."""
    return frame(HEADERS, END_HEADERS, stream, fields(call_fields(method))) + data_frames(
        data, stream
    )


def data_frames(data: bytes, stream: int = 1) -> bytes:
    """Return data as frames of the usual largest size."""
    return b"".join(
        frame(DATA, 0, stream, data[begin : begin + _FRAME_MAX])
        for begin in range(0, len(data), _FRAME_MAX)
    )


def call_fields(method: str | bytes) -> tuple[tuple[str, str | bytes], ...]:
    """Return the header fields of a call as they should be."""
    return (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )


def fields(pairs: Iterable[tuple[str | bytes, str | bytes]]) -> bytes:
    """Return a header block of literal fields that are not indexed (RFC 7541, 6.2.2)."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in pairs)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame."""
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload
    )


def _text(text: str | bytes) -> bytes:
    """Return a string literal without Huffman coding, its length as an integer of 7 bits (RFC 7541, 5.1)."""
    data = text.encode() if isinstance(text, str) else text
    length = len(data)
    if length < 127:
        return bytes([length]) + data
    length -= 127
    head = b"\x7f"
    while length >= 128:
        head += bytes([length % 128 + 128])
        length //= 128
    return head + bytes([length]) + data
