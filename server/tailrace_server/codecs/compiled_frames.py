"""Protobuf frames written by compiled code, without the GIL, right into their messages.

It is Python that numba compiles, and only that build imports it: servers load the object
(``machine_code/``), and ``frame_writer.py`` calls it. Arrow takes 120 to 360 ns a capture, this 20 to 30.

Compiled code gets columns as addresses of their buffers, all in one table of 64-bit numbers: numba counts
references wherever a loop touches several arrays, which costs more than the copying. No place is checked
against the bounds of a column. The checksum of the batch has been checked, and the columns of a batch have
equal lengths.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types

from tailrace_server.codecs import fields
from tailrace_server.codecs.frame_table import FrameTable
from tailrace_server.numba_tools import copy, inlined, is_present, number_at, store

_CAPTURE, _CHANGED = fields.CAPTURE, fields.CHANGED
_NUMBERS_BYTES: Final = fields.NUMBERS.itemsize
_VERSION, _INDEX, _ORDINAL = fields.VERSION, fields.INDEX, fields.ORDINAL
_TIMESTAMP, _AREA, _OPERATION = fields.TIMESTAMP, fields.AREA, fields.OPERATION

# numba takes numbers of the module as they are now, and knows no enumeration.
_COUNT, _MESSAGE_BYTES = int(FrameTable.COUNT), int(FrameTable.MESSAGE_BYTES)
_SIZES, _OFFSETS = int(FrameTable.SIZES), int(FrameTable.OFFSETS)
_STARTS, _ORIGINS, _MESSAGES = (
    int(FrameTable.STARTS),
    int(FrameTable.ORIGINS),
    int(FrameTable.MESSAGES),
)
_ROWS, _TYPE_CODES = int(FrameTable.ROWS), int(FrameTable.TYPE_CODES)
_TYPE_OFFSETS, _TYPE_BYTES = int(FrameTable.TYPE_OFFSETS), int(FrameTable.TYPE_BYTES)
_LISTS_VALID, _LISTS, _LIST_NAMES = (
    int(FrameTable.LISTS_VALID),
    int(FrameTable.LISTS),
    int(FrameTable.LIST_NAMES),
)
_NAME_OFFSETS, _NAME_BYTES = int(FrameTable.NAME_OFFSETS), int(FrameTable.NAME_BYTES)
_VERSIONS, _INDEXES, _ORDINALS = (
    int(FrameTable.VERSIONS),
    int(FrameTable.INDEXES),
    int(FrameTable.ORDINALS),
)
_TIMESTAMPS, _AREAS, _OPERATIONS = (
    int(FrameTable.TIMESTAMPS),
    int(FrameTable.AREAS),
    int(FrameTable.OPERATIONS),
)
_TEXTS = int(FrameTable.TEXTS)

# All functions below are compiled, but for the decorators.


_int64_at = number_at(types.int64)
_int32_at = number_at(types.int32)
_uint8_at = number_at(types.uint8)


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
        store(at, np.uint8((number & 0x7F) | 0x80))
        number >>= 7
        at += 1
    store(at, np.uint8(number))
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
def _names_bytes(codes: Any, name_offsets: Any, first: Any, behind: Any) -> Any:
    """Return the size of the names of a list as fields; ``behind`` is exclusive."""
    length = np.int64(0)
    for each in range(first, behind):
        name_at = name_offsets + 4 * np.int64(_int32_at(codes + 4 * each))
        length += np.int64(_int32_at(name_at + 4)) - _int32_at(name_at)
    return length


@inlined
def _put_text(at: Any, column: Any, row: Any) -> Any:
    tag, validity, offsets, values = column
    if tag != 0 and is_present(validity, row):
        start = np.int64(_int32_at(offsets + 4 * row))
        length = np.int64(_int32_at(offsets + 4 * row + 4)) - start
        store(at, np.uint8(tag))
        at = _put_varint(at + 1, length)
        copy(at, values + start, length)
        at += length
    return at


@inlined
def _slot(table: Any, place: Any) -> Any:
    """Return a number of the table."""
    return _int64_at(table + 8 * place)


@inlined
def _column(table: Any, place: Any) -> Any:
    """Return a text column as four locals: the compiler would read the table again after each store."""
    at = table + 8 * (_TEXTS + 4 * place)
    return _int64_at(at), _int64_at(at + 8), _int64_at(at + 16), _int64_at(at + 24)


def measure(table: Any) -> Any:
    """Write sizes of captures, places of frames and first frames of messages; return the number of messages."""
    key, change = _column(table, 0), _column(table, 1)
    before, after = _column(table, 2), _column(table, 3)
    rows, type_codes = _slot(table, _ROWS), _slot(table, _TYPE_CODES)
    type_offsets = _slot(table, _TYPE_OFFSETS) + 4  # place 0 is of code -1, a lead
    lists_valid, lists, codes = (
        _slot(table, _LISTS_VALID),
        _slot(table, _LISTS),
        _slot(table, _LIST_NAMES),
    )
    name_offsets = _slot(table, _NAME_OFFSETS)
    sizes, offsets, starts = _slot(table, _SIZES), _slot(table, _OFFSETS), _slot(table, _STARTS)
    message_bytes = _slot(table, _MESSAGE_BYTES)
    end = np.int64(0)
    message = np.int64(0)
    cut = np.int64(0)
    store(offsets, end)
    for place in range(_slot(table, _COUNT)):
        row = np.int64(_int32_at(rows + 4 * place))
        type_at = type_offsets + 4 * np.int64(_int32_at(type_codes + 4 * row))
        size = np.int64(_NUMBERS_BYTES) + _int32_at(type_at + 4) - _int32_at(type_at)
        size += _text_bytes(key, row)
        if lists and is_present(lists_valid, row):
            at = lists + 4 * row
            length = _names_bytes(codes, name_offsets, _int32_at(at), _int32_at(at + 4))
            size += 1 + _varint_bytes(length) + length
        size += _text_bytes(change, row) + _text_bytes(before, row) + _text_bytes(after, row)
        # A frame that would take the message past its size begins the next one. The first of a message
        # stays whatever its size, so a message is never empty.
        store(sizes + 4 * place, np.int32(size))
        start = end
        end += 1 + _varint_bytes(size) + size
        if end - message > message_bytes or place == 0:
            store(starts + 8 * cut, np.int64(place))
            message = start
            cut += 1
        store(offsets + 8 * (place + 1), end)
    return cut


def write(table: Any) -> Any:
    """Write captures into the messages, whose contents would begin at ``ORIGINS`` if they held all before."""
    key, change = _column(table, 0), _column(table, 1)
    before, after = _column(table, 2), _column(table, 3)
    rows, type_codes = _slot(table, _ROWS), _slot(table, _TYPE_CODES)
    type_offsets, type_bytes = _slot(table, _TYPE_OFFSETS) + 4, _slot(table, _TYPE_BYTES)
    lists_valid, lists, codes = (
        _slot(table, _LISTS_VALID),
        _slot(table, _LISTS),
        _slot(table, _LIST_NAMES),
    )
    name_offsets, name_bytes = _slot(table, _NAME_OFFSETS), _slot(table, _NAME_BYTES)
    sizes, offsets, starts = _slot(table, _SIZES), _slot(table, _OFFSETS), _slot(table, _STARTS)
    origins = _slot(table, _ORIGINS)
    versions, indexes, ordinals = (
        _slot(table, _VERSIONS),
        _slot(table, _INDEXES),
        _slot(table, _ORDINALS),
    )
    timestamps, areas, operations = (
        _slot(table, _TIMESTAMPS),
        _slot(table, _AREAS),
        _slot(table, _OPERATIONS),
    )
    # `at` is the address of the next byte. Every part below writes as many bytes as `measure` counted
    # for it, in the same order, so each message is filled to its last byte.
    for message in range(_slot(table, _MESSAGES)):
        first_place, behind_place = _slot(starts, message), _slot(starts, message + 1)
        at = _slot(origins, message) + _slot(offsets, first_place)
        for place in range(first_place, behind_place):
            row = np.int64(_int32_at(rows + 4 * place))
            store(at, np.uint8(_CAPTURE))
            at = _put_varint(at + 1, np.int64(_int32_at(sizes + 4 * place)))
            store(at, np.uint8(_VERSION))
            store(at + 1, _int64_at(versions + 8 * place))
            store(at + 9, np.uint8(_INDEX))
            store(at + 10, _int32_at(indexes + 4 * place))
            store(at + 14, np.uint8(_ORDINAL))
            ordinal = np.int32(0)
            if ordinals:
                ordinal = _int32_at(ordinals + 4 * place)
            store(at + 15, ordinal)
            store(at + 19, np.uint8(_TIMESTAMP))
            store(at + 20, _int64_at(timestamps + 8 * place))
            store(at + 28, np.uint8(_AREA))
            store(at + 29, _uint8_at(areas + row))
            store(at + 30, np.uint8(_OPERATION))
            store(at + 31, _uint8_at(operations + row))
            at += _NUMBERS_BYTES
            type_at = type_offsets + 4 * np.int64(_int32_at(type_codes + 4 * row))
            start = np.int64(_int32_at(type_at))
            length = np.int64(_int32_at(type_at + 4)) - start
            copy(at, type_bytes + start, length)
            at = _put_text(at + length, key, row)
            if lists and is_present(lists_valid, row):
                first = _int32_at(lists + 4 * row)
                behind = _int32_at(lists + 4 * row + 4)
                length = _names_bytes(codes, name_offsets, first, behind)
                store(at, np.uint8(_CHANGED))
                at = _put_varint(at + 1, length)
                for each in range(first, behind):
                    name_at = name_offsets + 4 * np.int64(_int32_at(codes + 4 * each))
                    start = np.int64(_int32_at(name_at))
                    length = np.int64(_int32_at(name_at + 4)) - start
                    copy(at, name_bytes + start, length)
                    at += length
            at = _put_text(_put_text(_put_text(at, change, row), before, row), after, row)
    return 0
