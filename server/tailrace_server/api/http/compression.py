"""History with ``Content-Encoding``: zstd or gzip, as the client accepts, while it is read.

Each message is flushed, so a slow read still flows. Compression runs in a thread. An encoder takes memory
for as long as its answer lasts; where the encoders' share of the memory is taken, an answer comes as it is.
"""

from __future__ import annotations

import asyncio
import io
import weakref
import zlib
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from tailrace_server.resources.memory import ENCODERS_SHARE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tailrace_server.resources.memory import MemoryBook

CODINGS: Final = ("zstd", "gzip")
"""In the order of our liking."""
_ENCODER_BYTES: Final = 1 << 20
"""Of one encoder, about: zstd of level 1 takes most of it, gzip a quarter."""
_GZIP: Final = 16 + zlib.MAX_WBITS
_GZIP_LEVEL: Final = 1


class Encoder(Protocol):
    """The compressor of one answer."""

    def encode(self, data: bytes) -> bytes:
        """Return what can be sent now: all of the data, flushed."""

    def end(self) -> bytes:
        """Return the end of the stream."""


class Encoders:
    """The encoders of a server; as many as their share of the memory has room for."""

    def __init__(self, book: MemoryBook) -> None:
        """Open an account in the memory budget."""
        bytes_max = book.memory_bytes // ENCODERS_SHARE
        self._room = bytes_max // _ENCODER_BYTES
        self.open = 0
        book.open("encoders", bytes_max, lambda: self.open * _ENCODER_BYTES)

    def make(self, coding: str) -> Encoder | None:
        """Return an encoder, which counts until it is gone; None if there is no room for one."""
        if self.open >= self._room:
            return None
        encoder: Encoder = _Zstd() if coding == "zstd" else _Gzip()
        self.open += 1
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
    """Keeps what is written until it is taken."""

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
    """Return the coding that an ``Accept-Encoding`` likes best; None where it names none of ours."""
    qualities: dict[str, float] = {}
    for part in text.lower().split(","):
        name, _, parameter = part.partition(";")
        key, _, value = parameter.strip().partition("=")
        try:
            qualities[name.strip()] = float(value) if key.strip() == "q" else 1.0
        except ValueError:
            qualities[name.strip()] = 1.0
    any_other = qualities.get("*", 0.0)
    best = max(CODINGS, key=lambda name: qualities.get(name, any_other))
    return best if qualities.get(best, any_other) > 0 else None


async def compressed(
    chunks: AsyncGenerator[bytes, None], encoder: Encoder
) -> AsyncGenerator[bytes, None]:
    """Compress chunks, each as it comes."""
    async with aclosing(chunks):
        async for chunk in chunks:
            data = await asyncio.to_thread(encoder.encode, chunk)
            del chunk  # the next one may wait for its turn, which this one would delay
            yield data
            del data
        yield await asyncio.to_thread(encoder.end)
