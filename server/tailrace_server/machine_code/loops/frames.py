"""The loops that write protobuf frames right into their messages.

`codecs/fields.py` describes a frame. `measure_frames` and `write_frames` get the same columns and visit the
captures in the same order, and the second writes exactly as many bytes as the first has counted.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tailrace_server.machine_code.loops.primitives import (
    copy,
    inlined,
    int32_at,
    int64_at,
    is_present,
    store,
    uint8_at,
)

_NUMBERS_BYTES: Final = 32


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
        length = np.int64(int32_at(at + 4)) - int32_at(at)
        size = 1 + _varint_bytes(length) + length
    return size


@inlined
def _put_text(at: Any, column: Any, row: Any) -> Any:
    tag, validity, offsets, values = column
    if tag != 0 and is_present(validity, row):
        start = np.int64(int32_at(offsets + 4 * row))
        length = np.int64(int32_at(offsets + 4 * row + 4)) - start
        store(at, np.uint8(tag))
        at = _put_varint(at + 1, length)
        copy(at, values + start, length)
        at += length
    return at


@inlined
def _field_bytes(offsets: Any, code: Any) -> Any:
    """Return the size of an item of a table of fields."""
    at = offsets + 4 * np.int64(code)
    return np.int64(int32_at(at + 4)) - int32_at(at)


@inlined
def _put_field(at: Any, offsets: Any, values: Any, code: Any) -> Any:
    length = _field_bytes(offsets, code)
    copy(at, values + np.int64(int32_at(offsets + 4 * np.int64(code))), length)
    return at + length


@inlined
def _names_bytes(names: Any, offsets: Any, first: Any, behind: Any) -> Any:
    """Return the size of the names of a list as fields; ``behind`` is exclusive."""
    length = np.int64(0)
    for each in range(first, behind):
        length += _field_bytes(offsets, int32_at(names + 4 * each))
    return length


@inlined
def _column(columns: Any, place: Any) -> Any:
    """Return a text column as four locals: the compiler would read them again after each store."""
    at = columns + 32 * place
    return int64_at(at), int64_at(at + 8), int64_at(at + 16), int64_at(at + 24)


def measure_frames(
    captures: Any,
    rows: Any,
    type_codes: Any,
    type_offsets: Any,
    lists_valid: Any,
    lists: Any,
    list_names: Any,
    name_offsets: Any,
    container_codes: Any,
    container_offsets: Any,
    columns: Any,
    message_bytes: Any,
    sizes: Any,
    offsets: Any,
    starts: Any,
) -> Any:
    """Write sizes of captures, places of frames and first frames of messages; return the number of messages.

    Args:
        captures: Their number.
        rows: The record of each capture, int32.
        type_codes: The entity type of each record, int32, -1 for leads.
        type_offsets: Offsets of the entity types as fields, int32; the first is of code -1.
        lists_valid: Bitmap of the records that have a list of changed columns; 0 if all have one.
        lists: Offsets of these lists, int32; 0 if no record has one.
        list_names: The items of the lists, codes of names, int32.
        name_offsets: Offsets of the names as fields, int32.
        container_codes: The column of each capture, int32; 0 if all are at entity level.
        container_offsets: Offsets of these columns as fields, int32.
        columns: Key, change, before and after: four int64 each, tag, bitmap, offsets and bytes. Tag 0 leaves a
            column out.
        message_bytes: The largest size of a message.
        sizes: Written: the size of each capture without tag and length, int32.
        offsets: Written: where each frame begins among all, int64, and the end of the last.
        starts: Written: the first frame of each message, int64.
    """
    key, change = _column(columns, 0), _column(columns, 1)
    before, after = _column(columns, 2), _column(columns, 3)
    end, message, messages = np.int64(0), np.int64(0), np.int64(0)
    store(offsets, end)
    for place in range(captures):
        row = np.int64(int32_at(rows + 4 * place))
        size = _NUMBERS_BYTES + _field_bytes(type_offsets, int32_at(type_codes + 4 * row) + 1)
        size += _text_bytes(key, row)
        if lists and is_present(lists_valid, row):
            at = lists + 4 * row
            length = _names_bytes(list_names, name_offsets, int32_at(at), int32_at(at + 4))
            size += 1 + _varint_bytes(length) + length
        if container_codes:
            size += _field_bytes(container_offsets, int32_at(container_codes + 4 * place))
        size += _text_bytes(change, row) + _text_bytes(before, row) + _text_bytes(after, row)
        # A frame that would take the message past its size begins the next one. The first of a message
        # stays whatever its size, so a message is never empty.
        store(sizes + 4 * place, np.int32(size))
        start = end
        end += 1 + _varint_bytes(size) + size
        if end - message > message_bytes or place == 0:
            store(starts + 8 * messages, np.int64(place))
            message = start
            messages += 1
        store(offsets + 8 * (place + 1), end)
    return messages


def write_frames(
    captures: Any,
    rows: Any,
    type_codes: Any,
    type_offsets: Any,
    lists_valid: Any,
    lists: Any,
    list_names: Any,
    name_offsets: Any,
    container_codes: Any,
    container_offsets: Any,
    columns: Any,
    type_bytes: Any,
    name_bytes: Any,
    container_bytes: Any,
    versions: Any,
    indexes: Any,
    ordinals: Any,
    timestamps: Any,
    areas: Any,
    operations: Any,
    blank: Any,
    capture_tag: Any,
    changed_tag: Any,
    sizes: Any,
    offsets: Any,
    starts: Any,
    origins: Any,
    messages: Any,
) -> Any:
    """Write captures into the messages; return 0.

    Args:
        captures: The arguments up to ``columns`` are those of `measure_frames`.
        rows: The same.
        type_codes: The same.
        type_offsets: The same.
        lists_valid: The same.
        lists: The same.
        list_names: The same.
        name_offsets: The same.
        container_codes: The same.
        container_offsets: The same.
        columns: The same.
        type_bytes: The entity types as fields.
        name_bytes: The names as fields.
        container_bytes: The columns of captures as fields.
        versions: The version of each capture, int64.
        indexes: The index of each capture, int32.
        ordinals: The ordinal of each capture, int32; 0 if all are 0.
        timestamps: The timestamp of each capture, int64.
        areas: The area of each record, uint8.
        operations: The operation of each record, uint8.
        blank: The numbers of a capture with their tags, each number 0.
        capture_tag: The tag of a frame.
        changed_tag: The tag of a list of changed columns.
        sizes: As `measure_frames` wrote it.
        offsets: The same.
        starts: The same, and after the last message the number of captures.
        origins: Where each message's contents begin, less the bytes of the messages before it, int64.
        messages: The number of messages.
    """
    key, change = _column(columns, 0), _column(columns, 1)
    before, after = _column(columns, 2), _column(columns, 3)
    # `at` is the address of the next byte. Every part below writes as many bytes as `measure_frames` counted
    # for it, in the same order, so each message is filled to its last byte.
    for message in range(messages):
        first_place = int64_at(starts + 8 * message)
        at = int64_at(origins + 8 * message) + int64_at(offsets + 8 * first_place)
        for place in range(first_place, int64_at(starts + 8 * message + 8)):
            row = np.int64(int32_at(rows + 4 * place))
            store(at, np.uint8(capture_tag))
            at = _put_varint(at + 1, np.int64(int32_at(sizes + 4 * place)))
            # 1. The tags of the numbers, and the numbers between them.
            copy(at, blank, _NUMBERS_BYTES)
            store(at + 1, int64_at(versions + 8 * place))
            store(at + 10, int32_at(indexes + 4 * place))
            if ordinals:
                store(at + 15, int32_at(ordinals + 4 * place))
            store(at + 20, int64_at(timestamps + 8 * place))
            store(at + 29, uint8_at(areas + row))
            store(at + 31, uint8_at(operations + row))
            at += _NUMBERS_BYTES
            # 2. The fields of varying size, in the order of their numbers.
            at = _put_field(at, type_offsets, type_bytes, int32_at(type_codes + 4 * row) + 1)
            at = _put_text(at, key, row)
            if lists and is_present(lists_valid, row):
                first, behind = int32_at(lists + 4 * row), int32_at(lists + 4 * row + 4)
                store(at, np.uint8(changed_tag))
                at = _put_varint(at + 1, _names_bytes(list_names, name_offsets, first, behind))
                for each in range(first, behind):
                    at = _put_field(at, name_offsets, name_bytes, int32_at(list_names + 4 * each))
            if container_codes:
                code = int32_at(container_codes + 4 * place)
                at = _put_field(at, container_offsets, container_bytes, code)
            at = _put_text(_put_text(_put_text(at, change, row), before, row), after, row)
    return 0
