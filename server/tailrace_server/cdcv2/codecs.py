"""How the blocks of an object container file are compressed.

Reading knows every codec of the Avro specification 1.12; writing those that need no library.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable


def _inflate(block: bytes) -> bytes:
    return zlib.decompress(block, wbits=-15)


def _deflate(block: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(block) + packer.flush()


def _unsnap(block: bytes) -> bytes:
    """Unpack snappy, behind which stands the checksum of what was packed, big end first."""
    size = shift = at = 0
    while True:  # the length stands in front, seven bits a byte
        size |= (block[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if block[at - 1] < 128:
            break
    raw: bytes = pa.decompress(block[:-4], decompressed_size=size, codec="snappy", asbytes=True)
    if zlib.crc32(raw) != int.from_bytes(block[-4:], "big"):
        raise ValueError("checksum of a snappy block differs")
    return raw


def _unzstd(block: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(block), "zstd") as stream:
        raw: bytes = stream.read()
    return raw


def _same(block: bytes) -> bytes:
    return block


READERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "null": _same,
    "deflate": _inflate,
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
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
"""What unpacking raises over damaged blocks."""


def unpack(codec: str, block: bytes) -> bytes:
    """Return the contents of a block.

    Raises:
        ValueError: The block is damaged.
    """
    try:
        return READERS[codec](block)
    except FAULTS as error:
        raise ValueError(f"block does not unpack as {codec}: {error}") from error
