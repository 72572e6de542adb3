"""The loops that write protobuf frames directly into their messages.

`codecs/fields.py` describes a frame. `measure_frames` and `write_frames` get the same columns and visit the
captures in the same order. The second must write exactly as many bytes as the first has counted.
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
    """Return the size of a varint, which has seven bits of the number in each byte."""
    size = 1
    while number >= 0x80:
        number >>= 7
        size += 1
    return size


@inlined
def _put_varint(at: Any, number: Any) -> Any:
    """Write a varint; return the place after it."""
    while number >= 0x80:
        store(at, np.uint8((number & 0x7F) | 0x80))
        number >>= 7
        at += 1
    store(at, np.uint8(number))
    return at + 1


@inlined
def _text_bytes(column: Any, row: Any) -> Any:
    """Return the size of a record's text as a field; 0 if the text is null or the column is left out."""
    tag, validity, offsets, _ = column
    size = np.int64(0)
    if tag != 0 and is_present(validity, row):
        at = offsets + 4 * row
        length = np.int64(int32_at(at + 4)) - int32_at(at)
        size = 1 + _varint_bytes(length) + length
    return size


@inlined
def _put_text(at: Any, column: Any, row: Any) -> Any:
    """Write a record's text as a field, if `_text_bytes` is not 0; return the place after it."""
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
    """Return the size of one item in a table of encoded fields."""
    at = offsets + 4 * np.int64(code)
    return np.int64(int32_at(at + 4)) - int32_at(at)


@inlined
def _put_field(at: Any, offsets: Any, values: Any, code: Any) -> Any:
    """Copy one item of a table of encoded fields; return the place after it."""
    length = _field_bytes(offsets, code)
    copy(at, values + np.int64(int32_at(offsets + 4 * np.int64(code))), length)
    return at + length


@inlined
def _names_bytes(names: Any, offsets: Any, first: Any, behind: Any) -> Any:
    """Return the size of the names in a list from ``first`` up to ``behind``, exclusive, as fields."""
    length = np.int64(0)
    for each in range(first, behind):
        length += _field_bytes(offsets, int32_at(names + 4 * each))
    return length


@inlined
def _column(columns: Any, place: Any) -> Any:
    """Return a text column as four local values: tag, bitmap, offsets and bytes.

    The compiler keeps local values in registers. It would read memory again after each store, since it cannot
    know that the store does not change it.
    """
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
    """Compute the sizes of captures, and divide their frames into messages; return the number of messages.

    Args:
        captures: Number of captures.
        rows: Address of the row of each capture's record, int32.
        type_codes: Address of the entity type of each record, int32; -1 for lead records.
        type_offsets: Address of the offsets of the entity types as fields, int32; the first is that of code -1.
        lists_valid: Address of the bitmap of the records that have a list of changed columns; 0 if all have
            one.
        lists: Address of the offsets of these lists, int32; 0 if no record has one.
        list_names: Address of the items of the lists, codes of names, int32.
        name_offsets: Address of the offsets of the names as fields, int32.
        container_codes: Address of the column of each capture, int32; 0 if all captures are whole records.
        container_offsets: Address of the offsets of these columns as fields, int32.
        columns: Address of the columns key, change, before and after. Each has four int64: tag, and the
            addresses of bitmap, offsets and bytes. With tag 0 a column is left out.
        message_bytes: The largest size of a message that has more than one frame.
        sizes: Output: the size of each capture without tag and length, int32.
        offsets: Output: the place of each frame among all frames, and the end of the last, int64.
        starts: Output: the first frame of each message, int64.
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
        # A frame that does not fit into the message begins the next one. The first frame of a message is not
        # checked, so a message always has a frame.
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
    """Write the frames of captures into their messages; return 0.

    Args:
        captures: As in `measure_frames`.
        rows: As in `measure_frames`.
        type_codes: As in `measure_frames`.
        type_offsets: As in `measure_frames`.
        lists_valid: As in `measure_frames`.
        lists: As in `measure_frames`.
        list_names: As in `measure_frames`.
        name_offsets: As in `measure_frames`.
        container_codes: As in `measure_frames`.
        container_offsets: As in `measure_frames`.
        columns: As in `measure_frames`.
        type_bytes: Address of the entity types as fields.
        name_bytes: Address of the names as fields.
        container_bytes: Address of the columns of captures as fields.
        versions: Address of the version of each capture, int64.
        indexes: Address of the index of each capture, int32.
        ordinals: Address of the ordinal of each capture, int32; 0 if all ordinals are 0.
        timestamps: Address of the commit timestamp of each capture, int64.
        areas: Address of the area of each record, uint8.
        operations: Address of the operation of each record, uint8.
        blank: Address of the number fields of a capture: all tags, and 0 for each number.
        capture_tag: The tag of a frame.
        changed_tag: The tag of a list of changed columns.
        sizes: The output of `measure_frames`.
        offsets: The output of `measure_frames`.
        starts: The output of `measure_frames`, followed by the number of captures.
        origins: Address of an int64 for each message: the address of its contents minus the place of its first
            frame among all frames.
        messages: Number of messages.
    """
    key, change = _column(columns, 0), _column(columns, 1)
    before, after = _column(columns, 2), _column(columns, 3)
    # `at` is the address of the next byte. Each step writes as many bytes as `measure_frames` has counted for
    # it, so each message is filled exactly to its last byte.
    for message in range(messages):
        first_place = int64_at(starts + 8 * message)
        at = int64_at(origins + 8 * message) + int64_at(offsets + 8 * first_place)
        for place in range(first_place, int64_at(starts + 8 * message + 8)):
            row = np.int64(int32_at(rows + 4 * place))
            store(at, np.uint8(capture_tag))
            at = _put_varint(at + 1, np.int64(int32_at(sizes + 4 * place)))
            # 1. Copy the number fields with zeros, then store the numbers at their fixed places.
            copy(at, blank, _NUMBERS_BYTES)
            store(at + 1, int64_at(versions + 8 * place))
            store(at + 10, int32_at(indexes + 4 * place))
            if ordinals:
                store(at + 15, int32_at(ordinals + 4 * place))
            store(at + 20, int64_at(timestamps + 8 * place))
            store(at + 29, uint8_at(areas + row))
            store(at + 31, uint8_at(operations + row))
            at += _NUMBERS_BYTES
            # 2. Write the fields of variable size, in the order of their field numbers.
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
