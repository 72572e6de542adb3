"""Parser for the metadata of Arrow IPC messages: it finds the places of a message's parts.

An encapsulated message (Arrow columnar format, "IPC")::

    0xFFFFFFFF | int32 size of the metadata, padded | metadata: flatbuffer Message | body, ``bodyLength`` bytes

The flatbuffer tables and the fields used here (number of the field in its table)::

    Message      1 header_type: uint8 (1 Schema, 2 DictionaryBatch, 3 RecordBatch)
                 2 header: table   3 bodyLength: int64
    RecordBatch  0 length: int64
                 1 nodes: vector of struct { int64 length; int64 null_count }, of each array
                 2 buffers: vector of struct { int64 offset; int64 length } into the body

pyarrow does not expose these places. The log needs them to read a head without the body after it.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, Final, NamedTuple

MAGIC: Final = b"ARROW1\0\0"
"""First eight bytes of an Arrow file."""

PREFIX_LENGTH: Final = 8
"""Number of bytes before a message's metadata."""

_CONTINUATION: Final = 0xFFFFFFFF
_uint16 = struct.Struct("<H").unpack_from
_uint32 = struct.Struct("<I").unpack_from
_int32 = struct.Struct("<i").unpack_from
_int64 = struct.Struct("<q").unpack_from
_prefix = struct.Struct("<Ii").unpack_from


class MessageKind(IntEnum):
    """The kind of a message."""

    SCHEMA = 1
    DICTIONARY = 2
    BATCH = 3


class Message(NamedTuple):
    """The kind, lengths and header of one message."""

    kind: MessageKind
    body_start: int
    """Offset of the body from the start of the message, in bytes."""
    length: int
    """Length of the whole message in bytes."""
    header: int
    """Offset of the header table in the parsed bytes."""


def metadata_length(data: Any) -> int:
    """Return the number of bytes before a message's body, given its first eight bytes."""
    continuation, size = _prefix(data, 0)
    if continuation != _CONTINUATION or size <= 0:
        raise ValueError("not an Arrow IPC message")
    return PREFIX_LENGTH + int(size)


def outline(data: Any) -> Message:
    """Return a message's outline; ``data`` must begin with the message and have all of its metadata."""
    body_start = metadata_length(data)
    table = PREFIX_LENGTH + _uint32(data, PREFIX_LENGTH)[0]
    kind = MessageKind(data[_field(data, table, 1)])
    header_at = _field(data, table, 2)
    body_length_at = _field(data, table, 3)
    body_length = _int64(data, body_length_at)[0] if body_length_at else 0
    header = header_at + _uint32(data, header_at)[0]
    return Message(kind, body_start, body_start + body_length, header)


def batch_rows(data: Any, message: Message) -> int:
    """Return the number of rows in a record batch message."""
    place = _field(data, message.header, 0)
    return int(_int64(data, place)[0]) if place else 0


def batch_buffers(data: Any, message: Message) -> list[tuple[int, int]]:
    """Return offset (from the start of the message) and length of each buffer."""
    vector = _vector(data, message.header, 2)
    count = _uint32(data, vector)[0]
    numbers = struct.unpack_from(f"<{2 * count}q", data, vector + 4)
    start = message.body_start
    return [(start + at, length) for at, length in zip(numbers[::2], numbers[1::2], strict=True)]


class NumberPlaces(NamedTuple):
    """The offsets of the numbers in a record batch message's metadata; all numbers are int64."""

    body_length: int
    rows: int
    nodes: int
    """Offset of the pairs of length and null count, one pair per array."""
    buffers: int
    """Offset of the pairs of offset in the body and length, one pair per buffer."""


def number_places(data: Any) -> NumberPlaces:
    """Return the offsets of the numbers in a record batch message that has rows and a body."""
    table = PREFIX_LENGTH + _uint32(data, PREFIX_LENGTH)[0]
    header = outline(data).header
    return NumberPlaces(
        body_length=_field(data, table, 3),
        rows=_field(data, header, 0),
        nodes=_vector(data, header, 1) + 4,
        buffers=_vector(data, header, 2) + 4,
    )


def _vector(data: Any, table: int, number: int) -> int:
    """Return the offset of a vector field of a table: the vector's count, followed by its elements."""
    place = _field(data, table, number)
    return int(place + _uint32(data, place)[0])


def _field(data: Any, table: int, number: int) -> int:
    """Return the offset of a table's field; 0 if the table omits the field."""
    # A flatbuffer table begins with the distance back to its vtable. The vtable has its own size, the table's
    # size, then for each field its offset in the table; trailing fields may be missing.
    vtable = table - _int32(data, table)[0]
    entry = 4 + 2 * number
    if entry >= _uint16(data, vtable)[0]:
        return 0
    offset = _uint16(data, vtable + entry)[0]
    return table + offset if offset else 0
