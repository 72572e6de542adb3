"""Codecs of the blocks of an Avro object container file.

Every codec of the Avro specification 1.12 can be read; ``null`` and ``deflate`` can be written. A block of a
kilobyte may unpack to gigabytes, so a block that unpacks to more than `UNPACKED_BYTES_MAX` is treated as
damaged.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable


UNPACKED_BYTES_MAX: Final = 1 << 30
"""The most bytes of an unpacked block."""

_PART: Final = 1 << 20
"""Bytes that are unpacked at a time by a codec that takes no limit."""


class _Unpacker(Protocol):
    """The common interface of the three unpackers in the standard library."""

    @property
    def eof(self) -> bool:
        """True if the end of the packed data has been reached."""

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Return at most ``max_length`` bytes."""


def _whole(unpacker: _Unpacker, block: bytes) -> bytes:
    raw = unpacker.decompress(block, UNPACKED_BYTES_MAX)
    if not unpacker.eof:
        raise ValueError(f"it is cut off, or holds more than {UNPACKED_BYTES_MAX} bytes")
    return raw


def _inflate(block: bytes) -> bytes:
    # Avro uses raw deflate, without the header and checksum of zlib.
    return _whole(zlib.decompressobj(wbits=-15), block)


def _deflate(block: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(block) + packer.flush()


def _unsnap(block: bytes) -> bytes:
    """Unpack snappy data. The last four bytes are the CRC-32 of the unpacked bytes, big-endian."""
    size = shift = at = 0
    while True:  # the length comes first, seven bits a byte, the lowest first
        size |= (block[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if block[at - 1] < 128:
            break
    if size > UNPACKED_BYTES_MAX:
        raise ValueError(f"it holds more than {UNPACKED_BYTES_MAX} bytes")
    raw: bytes = pa.decompress(block[:-4], decompressed_size=size, codec="snappy", asbytes=True)
    if zlib.crc32(raw) != int.from_bytes(block[-4:], "big"):
        raise ValueError("checksum of a snappy block differs")
    return raw


def _unzstd(block: bytes) -> bytes:
    raw = bytearray()
    with pa.CompressedInputStream(pa.BufferReader(block), "zstd") as stream:
        while part := stream.read(_PART):
            raw += part
            if len(raw) > UNPACKED_BYTES_MAX:
                raise ValueError(f"it holds more than {UNPACKED_BYTES_MAX} bytes")
    return bytes(raw)


def _unbzip(block: bytes) -> bytes:
    return _whole(bz2.BZ2Decompressor(), block)


def _unxz(block: bytes) -> bytes:
    return _whole(lzma.LZMADecompressor(), block)


def _same(block: bytes) -> bytes:
    return block


READERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "null": _same,
    "deflate": _inflate,
    "bzip2": _unbzip,
    "xz": _unxz,
    "snappy": _unsnap,
    "zstandard": _unzstd,
}

WRITERS: Final[dict[str, Callable[[bytes], bytes]]] = {"null": _same, "deflate": _deflate}

FAULTS: Final[tuple[type[Exception], ...]] = (
    zlib.error,
    lzma.LZMAError,
    pa.ArrowException,
    EOFError,
    IndexError,
    OSError,
    ValueError,
)
"""Errors that the libraries raise for damaged blocks."""


def unpack(codec: str, block: bytes) -> bytes:
    """Return the contents of a block.

    Raises:
        ValueError: The block is damaged.
    """
    try:
        return READERS[codec](block)
    except FAULTS as error:
        raise ValueError(f"block does not unpack as {codec}: {error}") from error
