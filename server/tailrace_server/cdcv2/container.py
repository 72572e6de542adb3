"""CDCv2 messages in Avro object container files.

::

    file    "Obj" 0x01   metadata: map of bytes   sync (16 bytes)   block*
    block   count: long   size: long   that many bytes, packed by the codec   sync

``avro.schema`` in the metadata is the schema as JSON text. ``avro.codec`` is the codec, by default "null". Each
datum is one message. A complete file ends after the sync marker of the header or of a block. A file that was
cut off exactly there looks complete; only the counts in the stream's progress statements show that messages are
missing.

Every codec of the specification can be read; ``null`` and ``deflate`` can be written. A block of a kilobyte may
unpack to gigabytes, so a block that unpacks to more than `UNPACKED_BYTES_MAX` is treated as damaged.

Source: Apache Avro specification 1.12, "Object Container Files".
"""

from __future__ import annotations

import bz2
import lzma
import os
import zlib
from io import BytesIO
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

import pyarrow as pa

from tailrace_server.cdcv2 import schema as schemas
from tailrace_server.cdcv2.errors import DataMisfit, MessageUnreadable
from tailrace_server.cdcv2.form import AvroForm
from tailrace_server.cdcv2.scalars import LONG, PRIMITIVES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tailrace.cdcv2 import Statement

MAGIC: Final = b"Obj\x01"
"""First bytes of every container file."""
SYNC_SIZE: Final = 16
BLOCK_BYTES: Final = 64 * 1024
"""Bytes of messages, before packing, after which a block is closed."""

BLOCK_BYTES_MAX: Final = 1 << 30
"""The most bytes of a block. A longer block is treated as damaged, so that a wrong length cannot exhaust
memory.
"""

_BYTES: Final = PRIMITIVES["bytes"]
_STRING: Final = PRIMITIVES["string"]


class ContainerReader:
    """Reads one container file from its beginning. The caller opens and closes the file."""

    def __init__(self, file: BinaryIO, *, product_times: bool = False) -> None:
        """Read the header.

        Args:
            file: The file, at its beginning.
            product_times: True to accept times that are records of longs; see `AvroForm.of`.

        Raises:
            MessageUnreadable: The file is not a container file, is cut off, or has an unknown codec.
            SchemaDiffers: The file's schema is not the documented one.
        """
        self._file = file
        self._offset = 0
        """Number of bytes read so far."""
        if self._take(len(MAGIC), "its magic") != MAGIC:
            raise MessageUnreadable(
                "not an Avro container file: it does not begin with Obj 01", "byte 0"
            )
        self.metadata = metadata = self._read_metadata()
        self.codec = str(metadata.get("avro.codec", b"null"), "utf-8", "replace")
        if self.codec not in READERS:
            raise MessageUnreadable(
                f"codec {self.codec!r} is none of {', '.join(sorted(READERS))}", "header"
            )
        if "avro.schema" not in metadata:
            raise MessageUnreadable("no avro.schema", "header")
        self.form = AvroForm.of(metadata["avro.schema"], product_times=product_times)
        self._sync = self._take(SYNC_SIZE, "the header")

    def __iter__(self) -> Iterator[Statement[int]]:
        """Yield the remaining messages.

        Raises:
            MessageUnreadable: A block is damaged or cut off; the message has the offset of the block.
        """
        while True:
            begin = self._offset
            first = self._file.read(1)
            # A file that ends after a sync marker is complete.
            if not first:
                return
            self._offset += 1
            count = self._long("a block", first)
            size = self._long("a block")
            if count < 0 or not 0 <= size <= BLOCK_BYTES_MAX:
                raise MessageUnreadable(f"block of {count} messages, {size} bytes", f"byte {begin}")
            block = self._take(size, "a block")
            if self._take(SYNC_SIZE, "a block") != self._sync:
                raise MessageUnreadable(
                    "the block does not end in the sync marker", f"byte {begin}"
                )
            try:
                yield from self._messages(unpack(self.codec, block), count)
            except (ValueError, MessageUnreadable) as error:
                reason = error.reason if isinstance(error, MessageUnreadable) else str(error)
                raise MessageUnreadable(reason, f"block at byte {begin}") from error

    def _messages(self, raw: bytes, count: int) -> list[Statement[int]]:
        stream = BytesIO(raw)
        statements = [self.form.read(stream) for _ in range(count)]
        if stream.tell() != len(raw):
            raise MessageUnreadable(f"{len(raw) - stream.tell()} bytes behind the last message")
        self.form.check_numbers(raw, count)
        return statements

    def _read_metadata(self) -> dict[str, bytes]:
        metadata: dict[str, bytes] = {}
        while True:
            count = self._long("the header")
            if count == 0:
                return metadata
            # A negative count is followed by the size of the block in bytes.
            if count < 0:
                self._long("the header")
            for _ in range(abs(count)):
                key = self._take(self._long("the header"), "the header")
                metadata[str(key, "utf-8", "replace")] = self._take(
                    self._long("the header"), "the header"
                )

    def _long(self, what: str, begun: bytes = b"") -> int:
        raw = begun or self._take(1, what)
        while raw[-1] >= 128:
            raw += self._take(1, what)
            # A number of 64 bits has at most ten bytes.
            if len(raw) > 10:
                break
        try:
            return LONG.read(raw, 0)[0]
        except (DataMisfit, IndexError):
            raise MessageUnreadable(
                f"no number of 64 bits in {what}", f"byte {self._offset - len(raw)}"
            ) from None

    def _take(self, size: int, what: str) -> bytes:
        # Check before reading: a damaged length must not allocate memory.
        if not 0 <= size <= BLOCK_BYTES_MAX:
            raise MessageUnreadable(f"{size} bytes in {what}", f"byte {self._offset}")
        raw = self._file.read(size)
        self._offset += len(raw)
        if len(raw) < size:
            raise MessageUnreadable(f"the file ends inside {what}", f"byte {self._offset}")
        return raw


def read_container(form: AvroForm, file: BinaryIO) -> Iterator[Statement[int]]:
    """Return an iterator over the messages of a file, which must have the schema of ``form``.

    Raises:
        SchemaDiffers: The file has another schema; raised by this call.
        MessageUnreadable: The file is not a container file, or is damaged; raised by this call or while
            iterating.
    """
    reader = ContainerReader(file, product_times=form.arity is not None)
    schemas.same(form.schema, reader.form.schema)
    return iter(reader)


def write_container(
    form: AvroForm,
    file: BinaryIO,
    statements: Iterable[Statement[int]],
    *,
    codec: str = "deflate",
    metadata: Mapping[str, bytes] | None = None,
) -> int:
    """Write a container file.

    Args:
        form: The schema.
        file: The file to write to; it is neither flushed nor closed.
        statements: The messages; each is taken from the iterable when it is written.
        codec: ``deflate`` or ``null``.
        metadata: Entries for the header in addition to schema and codec.

    Returns:
        The number of messages.

    Raises:
        DataMisfit: A value does not fit the schema; the blocks before it have been written.
        ValueError: The codec is another one.
    """
    if codec not in WRITERS:
        raise ValueError(f"codec {codec!r} is none of {', '.join(sorted(WRITERS))}")
    # Random bytes, so that the marker does not occur in the content of a block.
    sync = os.urandom(SYNC_SIZE)
    file.write(_header(form, codec, sync, metadata or {}))
    block, count, total = bytearray(), 0, 0
    for statement in statements:
        form.write(statement, block)
        count += 1
        total += 1
        if len(block) >= BLOCK_BYTES:
            file.write(_block(block, count, codec, sync))
            block, count = bytearray(), 0
    if count:
        file.write(_block(block, count, codec, sync))
    return total


def _header(form: AvroForm, codec: str, sync: bytes, more: Mapping[str, bytes]) -> bytes:
    out = bytearray(MAGIC)
    metadata = {"avro.schema": form.text.encode(), "avro.codec": codec.encode(), **more}
    LONG.encode(len(metadata), out)
    for key, value in metadata.items():
        _STRING.encode(key, out)
        _BYTES.encode(value, out)
    out.append(0)
    return bytes(out) + sync


def _block(messages: bytearray, count: int, codec: str, sync: bytes) -> bytes:
    packed = WRITERS[codec](bytes(messages))
    out = bytearray()
    LONG.encode(count, out)
    LONG.encode(len(packed), out)
    return bytes(out) + packed + sync


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
