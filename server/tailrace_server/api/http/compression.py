"""Compression of streamed responses with zstd or gzip, as the client accepts.

The encoder is flushed after each message, so that the client gets every message at once. Compression runs in a
thread. An encoder uses memory until its response ends. When the encoders have used up their part of the memory
budget, further responses are sent uncompressed.
"""

from __future__ import annotations

import asyncio
import io
import weakref
import zlib
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from tailrace_server.api.http.requests import name_and_quality
from tailrace_server.resources.memory import ENCODERS_SHARE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tailrace_server.resources.memory import MemoryBook

CODINGS: Final = ("zstd", "gzip")
"""Supported codings, the preferred one first."""

_ENCODER_BYTES: Final = 1 << 20
"""Memory that is reserved for one encoder: about what zstd level 1 uses; gzip uses a quarter of it."""
_GZIP: Final = 16 + zlib.MAX_WBITS
"""``wbits`` of a stream with gzip header and trailer."""
_GZIP_LEVEL: Final = 1


class Encoder(Protocol):
    """The compressor of one response."""

    def encode(self, data: bytes) -> bytes:
        """Return the compressed data, flushed, so that the client can decode all of it."""

    def end(self) -> bytes:
        """Return the last bytes of the compressed stream."""


class Encoders:
    """The encoders of a server; their number is bounded by their part of the memory budget."""

    def __init__(self, book: MemoryBook) -> None:
        """Compute the limit from the memory budget, and open an account for the encoders in it."""
        bytes_max = book.memory_bytes // ENCODERS_SHARE
        self._room = bytes_max // _ENCODER_BYTES
        self.open = 0
        book.open("encoders", bytes_max, lambda: self.open * _ENCODER_BYTES)

    def make(self, coding: str) -> Encoder | None:
        """Return an encoder, which is counted until it is garbage-collected; None if the limit is reached."""
        if self.open >= self._room:
            return None
        encoder: Encoder = _Zstd() if coding == "zstd" else _Gzip()
        self.open += 1
        # No caller has to give an encoder back: an answer may end in many ways.
        weakref.finalize(encoder, self._leave)
        return encoder

    def _leave(self) -> None:
        self.open -= 1


class _Gzip:
    def __init__(self) -> None:
        self._deflate = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP)

    def encode(self, data: bytes) -> bytes:
        return self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def end(self) -> bytes:
        return self._deflate.flush()


class _Zstd:
    def __init__(self) -> None:
        self._sink = _TakenSink()
        self._stream = pa.CompressedOutputStream(pa.PythonFile(self._sink, "w"), "zstd")

    def encode(self, data: bytes) -> bytes:
        self._stream.write(data)
        self._stream.flush()
        return self._sink.taken()

    def end(self) -> bytes:
        self._stream.close()
        return self._sink.taken()


class _TakenSink(io.RawIOBase):
    """Collects written bytes until ``taken`` returns and clears them."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:  # type: ignore[override]  # pyarrow writes bytes
        self._parts.append(bytes(data))
        return len(data)

    def writable(self) -> bool:
        return True

    def taken(self) -> bytes:
        found = b"".join(self._parts)
        self._parts.clear()
        return found


def accepted_coding(text: str) -> str | None:
    """Return the supported coding that an ``Accept-Encoding`` header prefers; None if it accepts none."""
    qualities = dict(map(name_and_quality, text.split(",")))
    any_other = qualities.get("*", 0.0)
    best = max(CODINGS, key=lambda name: qualities.get(name, any_other))
    return best if qualities.get(best, any_other) > 0 else None


async def compressed(
    chunks: AsyncGenerator[bytes, None], encoder: Encoder
) -> AsyncGenerator[bytes, None]:
    """Compress a stream chunk by chunk."""
    async with aclosing(chunks):
        async for chunk in chunks:
            data = await asyncio.to_thread(encoder.encode, chunk)
            # Free the chunk before waiting: the next chunk may wait for memory that this one holds.
            del chunk
            yield data
            del data
        yield await asyncio.to_thread(encoder.end)
