"""The Protobuf codec: captures as ``tailrace.v1.SubscribeResponse.captures``; ``fields.py`` defines the bytes.

Compiled loops write the captures directly into messages, in two passes. The first pass computes the size of
each capture and the borders between messages. Then each message is created as an uninitialized ``bytes`` object
of its size, and the second pass writes the captures into it. So each byte is copied only once.

A few captures are encoded one by one, because it would take longer to gather the arguments of the loops.
Without compiled loops all captures are. docs/adr/0129 has the costs of each way.
"""

from __future__ import annotations

import ctypes
import struct
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace_server.codecs import fields
from tailrace_server.codecs.columns import Codec, EncodedMessages, join_into_messages
from tailrace_server.machine_code.loader import BYTE, INT, LONG, address, loops

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from tailrace.criteria import CaptureKind
    from tailrace_server.codecs.columns import CaptureColumns
    from tailrace_server.machine_code.loader import Loops

_ONE_BY_ONE_MAX: Final = 4
"""The most captures that are encoded one by one even if there are compiled loops."""
_numbers: Final = struct.Struct("<BqBiBiBqBBBB")
"""Format of ``fields.NUMBERS`` for a single capture."""
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, (ctypes.c_char_p, ctypes.c_ssize_t)
_CONTENTS: Final = bytes.__basicsize__ - 1
"""Offset of the content in a ``bytes`` object. Its basic size includes the final zero byte, hence the 1."""


class ProtobufCodec(Codec):
    """The wire form of the gRPC face."""

    name = "protobuf"

    def messages(self, columns: CaptureColumns, message_bytes: int) -> EncodedMessages:
        """Return the frames of captures in messages."""
        if len(columns) <= _ONE_BY_ONE_MAX:
            return join_into_messages(encode_one_by_one(columns), message_bytes)
        found = loops(len(columns))
        if found is None:
            return join_into_messages(encode_one_by_one(columns), message_bytes)
        return write_messages(found, columns, message_bytes)

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return the element of ``SubscribeResponse.captures`` for each capture."""
        return pa.array(encode_one_by_one(columns), pa.binary())

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return the frame of a capture without bodies with ``omitted_bytes`` set."""
        capture = header_frame[message_start(header_frame) :]
        capture += bytes([fields.OMITTED_BYTES]) + fields.varint(omitted_bytes)
        return bytes([fields.CAPTURE]) + fields.varint(len(capture)) + capture


def encode_one_by_one(columns: CaptureColumns) -> list[bytes]:
    """Return the frame of each capture. This is the reference implementation of the wire form."""
    rows = list(range(len(columns))) if columns.rows is None else columns.rows.tolist()
    ordinals = [0] * len(rows) if columns.ordinals is None else columns.ordinals.tolist()
    versions, indexes = columns.versions.tolist(), columns.indexes.tolist()
    timestamps = columns.timestamps.tolist()
    types, codes = _types(columns)
    keys, changed = columns.keys.values(rows), columns.names.values(rows)
    bodies = [
        (tag, columns.texts[name].values(rows))
        for name, tag in fields.BODIES.items()
        if name in columns.texts
    ]
    frames = []
    for place, row in enumerate(rows):
        parts = [
            _numbers.pack(
                *(fields.VERSION, versions[place], fields.INDEX, indexes[place]),
                *(fields.ORDINAL, ordinals[place], fields.TIMESTAMP, timestamps[place]),
                *(fields.AREA, columns.areas[row], fields.OPERATION, columns.operations[row]),
            )
        ]
        # The first item of the table is for code -1, no entity type.
        parts.append(types[codes[row] + 1])
        if (key := keys[place]) is not None:
            parts.append(fields.field(fields.PRIMARY_KEY, key))
        parts.append(_changed(changed[place]))
        if columns.container_types is not None:
            assert columns.container_names is not None
            parts.append(
                _container(int(columns.container_types[place]), columns.container_names[place])
            )
        for tag, values in bodies:
            if (body := values[place]) is not None:
                parts.append(fields.field(tag, body))
        frames.append(fields.field(fields.CAPTURE, b"".join(parts)))
    return frames


def _types(columns: CaptureColumns) -> tuple[list[bytes], NDArray[np.int32]]:
    """Return the encoded entity types with kind and transition, and each record's code, its index minus 1."""
    if columns.transitions is None:
        return fields.entity_types(columns.entity_types, columns.kind), columns.type_codes
    count = len(columns.entity_types)
    return (
        fields.judged_entity_types(columns.entity_types, columns.kind),
        fields.judged_codes(columns.type_codes, columns.transitions, count),
    )


def write_messages(loops: Loops, columns: CaptureColumns, message_bytes: int) -> EncodedMessages:
    """Return the frames of captures, written by compiled loops, in messages of up to ``message_bytes``."""
    # 1. Gather the arrays that the loops read. The loops get addresses only: `columns` and the locals here keep
    # the memory alive until this function returns.
    count = len(columns)
    rows = np.arange(count, dtype=np.int32) if columns.rows is None else columns.rows
    # Transitions are part of the table of entity types, so the loops need no argument for them.
    codes, is_judged = columns.type_codes, columns.transitions is not None
    if columns.transitions is not None:
        codes = fields.judged_codes(codes, columns.transitions, len(columns.entity_types))
    types = _entity_type_table(columns.entity_types, columns.kind, is_judged)
    names = _NONE if columns.names.all_null else _name_table(columns.names.names)
    containers, container_codes = _container_table(columns)
    texts = _texts(columns)
    assert len(container_codes) in (0, count)
    captures = (
        *(count, address(rows, INT), address(codes, INT), types.offsets_at),
        *((0, 0, 0) if columns.names.all_null else columns.names.addresses),
        *(names.offsets_at, address(container_codes, INT) if len(container_codes) else 0),
        *(containers.offsets_at, address(texts, LONG)),
    )
    # 2. Compute sizes of captures, offsets of frames and first frames of messages. The arrays are allocated for
    # the worst case, one message for each frame.
    sizes = np.empty(count, np.int32)
    offsets, starts = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    places = address(sizes, INT), address(offsets, LONG), address(starts, LONG)
    messages = loops.measure_frames(*captures, message_bytes, *places)
    # 3. Allocate each message. No other code has seen these `bytes` objects yet, so it is safe to write their
    # content here; afterwards they are immutable like all others.
    starts[messages] = count
    borders = offsets[starts[: messages + 1]]
    data = [*map(_new_bytes, repeat(None), np.diff(borders).tolist())]
    # 4. Subtract the bytes of all earlier messages from each message's address. Then origin + offset is the
    # address of a frame, and the loop needs no offset within a message.
    origins = np.fromiter(map(id, data), np.int64, messages) + (_CONTENTS - borders[:-1])
    # 5. Write, with the sizes and offsets of step 2. This is safe only because columns are immutable: if one
    # changed in between, the loop would write beyond a message, and no check would find that.
    loops.write_frames(
        *captures,
        *(types.bytes_at, names.bytes_at, containers.bytes_at),
        *(address(columns.versions, LONG), address(columns.indexes, INT)),
        0 if columns.ordinals is None else address(columns.ordinals, INT),
        address(columns.timestamps, LONG),
        *(address(columns.areas, BYTE), address(columns.operations, BYTE)),
        *(_BLANK_AT, fields.CAPTURE, fields.CHANGED),
        *(*places, address(origins, LONG), messages),
    )
    return EncodedMessages(offsets, starts[: messages + 1].tolist(), data)


class _Fields(NamedTuple):
    """Table of encoded fields, contiguous in memory, that captures refer to by index."""

    offsets: NDArray[np.int32]
    data: NDArray[np.uint8]
    offsets_at: int
    bytes_at: int


def _table(encoded: Iterable[bytes]) -> _Fields:
    listed = list(encoded)
    offsets = np.zeros(len(listed) + 1, np.int32)
    np.cumsum([*map(len, listed)], out=offsets[1:])
    data = np.frombuffer(b"".join(listed), np.uint8)
    return _Fields(offsets, data, address(offsets, INT), address(data, BYTE))


_NONE: Final = _table([])
_NO_CODES: Final = np.zeros(0, np.int32)
_BLANK_AT: Final = address(fields.BLANK.view(np.uint8), BYTE)


@lru_cache(maxsize=64)
def _name_table(names: tuple[str, ...]) -> _Fields:
    """Return the table of encoded names of changed columns."""
    return _table(map(fields.changed_name, names))


@lru_cache(maxsize=64)
def _entity_type_table(names: tuple[str, ...], kind: CaptureKind, is_judged: bool) -> _Fields:
    """Return the table of encoded entity types with kind and transition; the first item has code -1."""
    found = fields.judged_entity_types if is_judged else fields.entity_types
    return _table(found(names, kind))


def _container_table(columns: CaptureColumns) -> tuple[_Fields, NDArray[np.int32]]:
    """Return the table of encoded columns, and each capture's index in it; both empty for whole records."""
    if columns.container_types is None:
        return _NONE, _NO_CODES
    assert columns.container_names is not None
    codes: dict[tuple[int, str], int] = {}
    pairs = zip(columns.container_types.tolist(), columns.container_names, strict=True)
    places = [codes.setdefault(pair, len(codes)) for pair in pairs]
    return _table(_container(*pair) for pair in codes), np.array(places, np.int32)


def _texts(columns: CaptureColumns) -> NDArray[np.int64]:
    """Return tag and addresses of the key and of each body; tag 0 if it is all null or was not requested."""
    found = np.zeros((4, 4), np.int64)
    if not columns.keys.all_null:
        found[0] = fields.PRIMARY_KEY, *columns.keys.addresses
    for place, (name, tag) in enumerate(fields.BODIES.items(), 1):
        texts = columns.texts.get(name)
        if texts is not None and not texts.all_null:
            found[place] = tag, *texts.addresses
    return found


def _changed(names: Iterable[str] | None) -> bytes:
    """Return the encoded ``changed`` field; empty for None."""
    if names is None:
        return b""
    return fields.field(fields.CHANGED, b"".join(fields.changed_name(name) for name in names))


def _container(kind: int, name: str) -> bytes:
    """Return the encoded role and name of a column; empty for a whole record."""
    if not kind:
        return b""
    return bytes([fields.CONTAINER_TYPE, kind]) + fields.field(fields.CONTAINER_NAME, name.encode())


def message_start(frame: bytes) -> int:
    """Return the offset after tag and length of an element, where its message begins."""
    place = 1
    while frame[place] & 0x80:
        place += 1
    return place + 1


PROTOBUF: Final = ProtobufCodec()
