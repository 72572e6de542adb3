"""Protobuf frames written by compiled code, without the GIL, right into their messages.

It is Python that numba compiles. Arrow takes 120 to 360 ns a capture, this 20 to 30. But loading it takes
a second, and compiling it the first time five, so ``compiled_encoder_loader.py`` loads it only for large
batches and large logs.

There are two passes. The first adds up the size of each capture and decides where messages are cut. Then
each message is made as a ``bytes`` object of its size, without content, and the second pass writes the
captures into it. So no byte is copied twice.

Compiled code gets columns as addresses of their buffers: numba counts references wherever a loop touches
several arrays, which costs more than the copying. No place is checked against the bounds of a column. The
checksum of the batch has been checked, and the columns of a batch have equal lengths.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tailrace_server.capture.codecs import fields
from tailrace_server.capture.codecs.columns import EncodedMessages
from tailrace_server.numba_tools import compiled, inlined, is_present, number_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from tailrace_server.capture.codecs.columns import CaptureColumns
    from tailrace_server.wal.record.text_columns import NameLists

    Bytes = NDArray[np.uint8]
    Ints = NDArray[np.int32]
    Longs = NDArray[np.int64]

_F = TypeVar("_F", bound="Callable[..., Any]")

_CAPTURE, _CHANGED = fields.CAPTURE, fields.CHANGED
_NUMBERS_BYTES: Final = fields.NUMBERS.itemsize
_VERSION, _INDEX, _ORDINAL = fields.VERSION, fields.INDEX, fields.ORDINAL
_TIMESTAMP, _AREA, _OPERATION = fields.TIMESTAMP, fields.AREA, fields.OPERATION

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, (ctypes.c_char_p, ctypes.c_ssize_t)
_CONTENTS: Final = bytes.__basicsize__ - 1
"""Bytes from the address of a ``bytes`` object to its content. Its size without content counts a final zero."""


def write_messages(columns: CaptureColumns, message_bytes: int) -> EncodedMessages:
    """Return the frames of captures in messages of up to ``message_bytes``; entity level only."""
    # 1. Gather what the loops read, as addresses and small tables. `columns` keeps the memory alive
    # behind the addresses until this function returns.
    count = len(columns)
    rows = np.arange(count, dtype=np.int32) if columns.rows is None else columns.rows
    type_offsets, type_bytes = _entity_type_table(columns.entity_types)
    lists, name_bytes = _lists_of(columns.names)
    texts = _texts_of(columns)
    # 2. Measure: sizes of captures, places of frames, first frames of messages. The arrays are as long
    # as they can get: a message of each frame.
    sizes = np.empty(count, np.int32)
    offsets = np.empty(count + 1, np.int64)
    starts = np.empty(count + 1, np.int64)
    cuts = np.zeros(1, np.int64)
    entries = rows, columns.type_codes, type_offsets
    _measure(sizes, offsets, starts, cuts, message_bytes, *entries, texts, *lists)

    # 3. Make each message at its size. Nobody else has seen these objects, so their content may still
    # be written; a moment later they are immutable like any other.
    cut = int(cuts[0])
    starts[cut] = count
    borders = offsets[starts[: cut + 1]]
    data = [*map(_new_bytes, repeat(None), np.diff(borders).tolist())]
    # 4. From each address take off the bytes of the messages before. Then origin + offset is the place
    # of a frame, and the loop needs no offset within a message.
    origins = np.fromiter(map(id, data), np.int64, cut) + (_CONTENTS - borders[:-1])
    # 5. Write. Sizes and places are those of step 2: columns that changed in between would be written
    # beyond a message, and nothing would notice. Columns are immutable.
    ordinals = _NO_INTS if columns.ordinals is None else columns.ordinals
    numbers = columns.versions, columns.indexes, ordinals, columns.timestamps
    flags = columns.areas, columns.operations
    tables = type_bytes, name_bytes
    _write(origins, starts, offsets, sizes, *numbers, *flags, *tables, *entries, texts, *lists)
    return EncodedMessages(offsets, starts[: cut + 1].tolist(), data)


def _texts_of(columns: CaptureColumns) -> Longs:
    """Return tag and addresses of the key and of each body; tag 0 for one that is all null or left out."""
    found = np.zeros((1 + len(fields.BODIES), 4), np.int64)
    if not columns.keys.all_null:
        found[0] = fields.PRIMARY_KEY, *columns.keys.addresses
    for place, (name, tag) in enumerate(fields.BODIES.items(), 1):
        texts = columns.texts.get(name)
        if texts is not None and not texts.all_null:
            found[place] = tag, *texts.addresses
    return found


def _lists_of(names: NameLists) -> tuple[tuple[Longs, Ints], Bytes]:
    """Return the addresses of the lists and the table of their names as fields; empty if all are null."""
    if names.all_null:
        return (_NO_LISTS, _NO_INTS), _NO_BYTES
    offsets, data = _name_table(names.names)
    return (np.array(names.addresses, np.int64), offsets), data


@lru_cache(maxsize=64)
def _name_table(names: tuple[str, ...]) -> tuple[Ints, Bytes]:
    return _table(map(fields.changed_name, names))


@lru_cache(maxsize=64)
def _entity_type_table(entity_types: tuple[str, ...]) -> tuple[Ints, Bytes]:
    """Return the table of entity types as fields; the first, of code -1, is empty."""
    return _table([b"", *map(fields.entity_type, entity_types)])


def _table(texts: Iterable[bytes]) -> tuple[Ints, Bytes]:
    listed = list(texts)
    offsets = np.zeros(len(listed) + 1, np.int32)
    np.cumsum([len(text) for text in listed], out=offsets[1:])
    return offsets, np.frombuffer(b"".join(listed), np.uint8)


_NO_BYTES: Final = np.empty(0, np.uint8)
_NO_INTS: Final = np.empty(0, np.int32)
_NO_LISTS: Final = np.empty(0, np.int64)

# All functions below are compiled, but for the decorators.

_READ_BYTES: Final = types.Array(types.uint8, 1, "C", readonly=True)
_READ_INTS: Final = types.Array(types.int32, 1, "C", readonly=True)
_READ_LONGS: Final = types.Array(types.int64, 1, "C", readonly=True)
_TEXTS: Final = types.Array(types.int64, 2, "C", readonly=True)
_READ: Final = (_READ_INTS, _READ_INTS, _READ_INTS, _TEXTS, _READ_LONGS, _READ_INTS)
"""Of both loops: rows, codes of entity types, offsets of their table, texts, lists, offsets of names."""


def _compiled(*arguments: Any) -> Callable[[_F], _F]:
    """Compile for one signature when the module is loaded, or take the code from the cache."""
    return compiled(types.void(*arguments))


@intrinsic  # type: ignore[untyped-decorator]
def _copy_many(context: Any, to: Any, origin: Any, length: Any) -> Any:
    """Copy bytes from address to address by the C library."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, origin = (builder.inttoptr(each, ir.IntType(8).as_pointer()) for each in arguments[:2])
        cgutils.raw_memcpy(builder, to, origin, arguments[2], itemsize=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _move(bits: int) -> Any:
    """Return a copy of so many bits from address to address, in one register."""

    @intrinsic  # type: ignore[untyped-decorator]
    def move(context: Any, to: Any, origin: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = ir.VectorType(ir.IntType(8), bits // 8).as_pointer()
            to, origin = (builder.inttoptr(each, pointer) for each in arguments)
            loaded = builder.load(origin)
            loaded.align = 1
            builder.store(loaded, to).align = 1
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return move


_move4, _move8, _move16 = _move(32), _move(64), _move(128)


@intrinsic  # type: ignore[untyped-decorator]
def _store(context: Any, at: Any, number: Any) -> Any:
    """Store a number in its own width, little-endian, at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at, number = arguments
        builder.store(number, builder.inttoptr(at, number.type.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, number), generate


_int64_at = number_at(types.int64)
_int32_at = number_at(types.int32)
_uint8_at = number_at(types.uint8)


@inlined
def _copy(to: Any, origin: Any, length: Any) -> None:
    """Copy bytes from address to address: up to 512 by moves, as a call takes longer than those."""
    # The last move ends with the last byte and may overlap the one before, so that no byte beyond the
    # text is read or written: behind it another column's memory may begin, or none.
    if length > 512:
        _copy_many(to, origin, length)
    elif length >= 16:
        last = length - 16
        at = 0
        while at < last:
            _move16(to + at, origin + at)
            at += 16
        _move16(to + last, origin + last)
    elif length >= 8:
        _move8(to, origin)
        _move8(to + length - 8, origin + length - 8)
    elif length >= 4:
        _move4(to, origin)
        _move4(to + length - 4, origin + length - 4)
    else:
        for at in range(length):
            _store(to + at, _uint8_at(origin + at))


@inlined
def _varint_bytes(number: Any) -> Any:
    size = 1
    while number >= 0x80:
        number >>= 7
        size += 1
    return size


@inlined
def _put_varint(at: Any, number: Any) -> Any:
    while number >= 0x80:
        _store(at, np.uint8((number & 0x7F) | 0x80))
        number >>= 7
        at += 1
    _store(at, np.uint8(number))
    return at + 1


@inlined
def _text_bytes(column: Any, row: Any) -> Any:
    """Return the size of a record's text as a field; 0 where it is null or left out."""
    tag, validity, offsets, _ = column
    size = np.int64(0)
    if tag != 0 and is_present(validity, row):
        at = offsets + 4 * row
        length = np.int64(_int32_at(at + 4)) - _int32_at(at)
        size = 1 + _varint_bytes(length) + length
    return size


@inlined
def _names_bytes(lists: Any, name_offsets: Any, first: Any, behind: Any) -> Any:
    """Return the size of the names of a list as fields; ``behind`` is exclusive."""
    length = np.int64(0)
    for each in range(first, behind):
        name = _int32_at(lists[2] + 4 * each)
        length += name_offsets[name + 1] - name_offsets[name]
    return length


@inlined
def _put_text(at: Any, column: Any, row: Any) -> Any:
    tag, validity, offsets, values = column
    if tag != 0 and is_present(validity, row):
        start = np.int64(_int32_at(offsets + 4 * row))
        length = np.int64(_int32_at(offsets + 4 * row + 4)) - start
        _store(at, np.uint8(tag))
        at = _put_varint(at + 1, length)
        _copy(at, values + start, length)
        at += length
    return at


@inlined
def _column(texts: Any, place: Any) -> Any:
    """Return a row of ``texts`` as four locals: the compiler would read it again after each store."""
    return texts[place, 0], texts[place, 1], texts[place, 2], texts[place, 3]


@_compiled(
    *(types.int32[::1], types.int64[::1], types.int64[::1], types.int64[::1], types.int64), *_READ
)
def _measure(
    sizes: Ints,
    offsets: Longs,
    starts: Longs,
    cuts: Longs,
    message_bytes: int,
    rows: Ints,
    type_codes: Ints,
    type_offsets: Ints,
    texts: Longs,
    lists: Longs,
    name_offsets: Ints,
) -> None:
    key, change, before, after = (
        _column(texts, 0),
        _column(texts, 1),
        _column(texts, 2),
        _column(texts, 3),
    )
    row_address, type_code_address = np.int64(rows.ctypes.data), np.int64(type_codes.ctypes.data)
    type_offset_address = np.int64(type_offsets.ctypes.data) + 4  # place 0 is of code -1, a lead
    end = 0
    message = 0
    cut = 0
    offsets[0] = 0
    for place in range(len(rows)):
        row = np.int64(_int32_at(row_address + 4 * place))
        type_at = type_offset_address + 4 * np.int64(_int32_at(type_code_address + 4 * row))
        size = np.int64(_NUMBERS_BYTES) + _int32_at(type_at + 4) - _int32_at(type_at)
        size += _text_bytes(key, row)
        if len(lists) and is_present(lists[0], row):
            at = lists[1] + 4 * row
            length = _names_bytes(lists, name_offsets, _int32_at(at), _int32_at(at + 4))
            size += 1 + _varint_bytes(length) + length
        size += _text_bytes(change, row) + _text_bytes(before, row) + _text_bytes(after, row)
        # A frame that would take the message past its size begins the next one. The first of a message
        # stays whatever its size, so a message is never empty.
        sizes[place] = size
        start = end
        end += 1 + _varint_bytes(size) + size
        if end - message > message_bytes or place == 0:
            starts[cut] = place
            message = start
            cut += 1
        offsets[place + 1] = end
    cuts[0] = cut


@_compiled(
    *(_READ_LONGS, _READ_LONGS, _READ_LONGS, _READ_INTS),
    *(_READ_LONGS, _READ_INTS, _READ_INTS, _READ_LONGS, _READ_BYTES, _READ_BYTES),
    *(_READ_BYTES, _READ_BYTES, *_READ),
)
def _write(
    origins: Longs,
    starts: Longs,
    offsets: Longs,
    sizes: Ints,
    versions: Longs,
    indexes: Ints,
    ordinals: Ints,
    timestamps: Longs,
    areas: Bytes,
    operations: Bytes,
    type_bytes: Bytes,
    name_bytes: Bytes,
    rows: Ints,
    type_codes: Ints,
    type_offsets: Ints,
    texts: Longs,
    lists: Longs,
    name_offsets: Ints,
) -> None:
    key, change, before, after = (
        _column(texts, 0),
        _column(texts, 1),
        _column(texts, 2),
        _column(texts, 3),
    )
    row_address, type_code_address = np.int64(rows.ctypes.data), np.int64(type_codes.ctypes.data)
    type_offset_address = np.int64(type_offsets.ctypes.data) + 4
    type_text_address = np.int64(type_bytes.ctypes.data)
    name_address = np.int64(name_bytes.ctypes.data)
    size_address = np.int64(sizes.ctypes.data)
    version_address, index_address = np.int64(versions.ctypes.data), np.int64(indexes.ctypes.data)
    timestamp_address = np.int64(timestamps.ctypes.data)
    ordinal_address = np.int64(ordinals.ctypes.data) if len(ordinals) else np.int64(0)
    area_address = np.int64(areas.ctypes.data)
    operation_address = np.int64(operations.ctypes.data)
    # `at` is the address of the next byte. Every part below writes as many bytes as `_measure` counted
    # for it, in the same order, so each message is filled to its last byte.
    for message in range(len(origins)):
        at = origins[message] + offsets[starts[message]]
        for place in range(starts[message], starts[message + 1]):
            row = np.int64(_int32_at(row_address + 4 * place))
            _store(at, np.uint8(_CAPTURE))
            at = _put_varint(at + 1, np.int64(_int32_at(size_address + 4 * place)))
            _store(at, np.uint8(_VERSION))
            _store(at + 1, _int64_at(version_address + 8 * place))
            _store(at + 9, np.uint8(_INDEX))
            _store(at + 10, _int32_at(index_address + 4 * place))
            _store(at + 14, np.uint8(_ORDINAL))
            ordinal = np.int32(0)
            if ordinal_address:
                ordinal = _int32_at(ordinal_address + 4 * place)
            _store(at + 15, ordinal)
            _store(at + 19, np.uint8(_TIMESTAMP))
            _store(at + 20, _int64_at(timestamp_address + 8 * place))
            _store(at + 28, np.uint8(_AREA))
            _store(at + 29, _uint8_at(area_address + row))
            _store(at + 30, np.uint8(_OPERATION))
            _store(at + 31, _uint8_at(operation_address + row))
            at += _NUMBERS_BYTES
            type_at = type_offset_address + 4 * np.int64(_int32_at(type_code_address + 4 * row))
            start = np.int64(_int32_at(type_at))
            length = np.int64(_int32_at(type_at + 4)) - start
            _copy(at, type_text_address + start, length)
            at = _put_text(at + length, key, row)
            if len(lists) and is_present(lists[0], row):
                first = _int32_at(lists[1] + 4 * row)
                behind = _int32_at(lists[1] + 4 * row + 4)
                length = _names_bytes(lists, name_offsets, first, behind)
                _store(at, np.uint8(_CHANGED))
                at = _put_varint(at + 1, length)
                for each in range(first, behind):
                    name = _int32_at(lists[2] + 4 * each)
                    length = np.int64(name_offsets[name + 1]) - name_offsets[name]
                    _copy(at, name_address + name_offsets[name], length)
                    at += length
            at = _put_text(_put_text(_put_text(at, change, row), before, row), after, row)
