"""CDCv2 messages in Avro object container files.

::

    file    "Obj" 0x01   metadata: map of bytes   sync (16 bytes)   block*
    block   count: long   size: long   that many bytes, packed by the codec   sync

``avro.schema`` in the metadata is the schema as JSON text, ``avro.codec`` the packing ("null" where it
is missing). Each datum is one message. A file is whole if and only if it ends behind the sync of a
block, or of the header; where it was cut there the rest is missing without a trace, which the counts
of the stream then tell.

Source: Apache Avro specification 1.12, "Object Container Files".
"""

from __future__ import annotations

import os
from io import BytesIO
from typing import TYPE_CHECKING, BinaryIO, Final

from tailrace_server.cdcv2 import schema as schemas
from tailrace_server.cdcv2.codecs import READERS, WRITERS, unpack
from tailrace_server.cdcv2.errors import DataMisfit, MessageUnreadable
from tailrace_server.cdcv2.form import AvroForm
from tailrace_server.cdcv2.scalars import LONG, PRIMITIVES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace.cdcv2 import Statement

MAGIC: Final = b"Obj\x01"
SYNC_SIZE: Final = 16
BLOCK_BYTES: Final = 64 * 1024
"""A block is closed once its messages have so many bytes, before packing."""

BLOCK_BYTES_MAX: Final = 1 << 30
"""A longer block is taken for damage, so that a wrong length does not ask for all the memory."""

_BYTES: Final = PRIMITIVES["bytes"]
_STRING: Final = PRIMITIVES["string"]


class ContainerReader:
    """Reads one file, from its beginning; the file stays the caller's."""

    def __init__(self, file: BinaryIO, *, product_times: bool = False) -> None:
        """Read the header.

        Args:
            file: Where to read.
            product_times: Whether its times may be records of longs; see `AvroForm.of`.

        Raises:
            MessageUnreadable: Not a container file, cut off, or of a codec that is not known.
            SchemaDiffers: Its schema is not the documented one.
        """
        self._file = file
        self._offset = 0
        """Bytes read so far."""
        if self._take(len(MAGIC), "its magic") != MAGIC:
            raise MessageUnreadable(
                "not an Avro container file: it does not begin with Obj 01", "byte 0"
            )
        metadata = self._read_metadata()
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
        """Yield the messages that are left.

        Raises:
            MessageUnreadable: Damaged or cut off; says at which byte the block begins.
        """
        while True:
            begin = self._offset
            first = self._file.read(1)
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
            if len(raw) > 10:
                break
        try:
            return LONG.read(raw, 0)[0]
        except (DataMisfit, IndexError):
            raise MessageUnreadable(
                f"no number of 64 bits in {what}", f"byte {self._offset - len(raw)}"
            ) from None

    def _take(self, size: int, what: str) -> bytes:
        if not 0 <= size <= BLOCK_BYTES_MAX:
            raise MessageUnreadable(f"{size} bytes in {what}", f"byte {self._offset}")
        raw = self._file.read(size)
        self._offset += len(raw)
        if len(raw) < size:
            raise MessageUnreadable(f"the file ends inside {what}", f"byte {self._offset}")
        return raw


def read_container(form: AvroForm, file: BinaryIO) -> Iterator[Statement[int]]:
    """Return the messages of a file whose schema has to be that of ``form``, one after the other.

    Raises:
        SchemaDiffers: At once: another schema than the form's; says where.
        MessageUnreadable: At once or on the way: damaged, cut off, or no container file.
    """
    reader = ContainerReader(file, product_times=form.arity is not None)
    schemas.same(form.schema, reader.form.schema)
    return iter(reader)


def write_container(
    form: AvroForm, file: BinaryIO, statements: Iterable[Statement[int]], *, codec: str = "deflate"
) -> int:
    """Write a container file, a block whenever there are enough bytes for one.

    Args:
        form: The schema.
        file: Where to; it stays open and is not flushed.
        statements: The messages, read as they are written.
        codec: ``deflate`` or ``null``.

    Returns:
        The number of messages.

    Raises:
        DataMisfit: A value that the schema has no place for; the blocks before it are written.
        ValueError: Another codec.
    """
    if codec not in WRITERS:
        raise ValueError(f"codec {codec!r} is none of {', '.join(sorted(WRITERS))}")
    sync = os.urandom(SYNC_SIZE)
    file.write(_header(form, codec, sync))
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


def _header(form: AvroForm, codec: str, sync: bytes) -> bytes:
    out = bytearray(MAGIC)
    LONG.encode(2, out)
    for key, value in (("avro.schema", form.text.encode()), ("avro.codec", codec.encode())):
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
