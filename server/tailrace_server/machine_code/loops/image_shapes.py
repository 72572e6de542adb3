"""Loops over whole columns of images: the shapes of images, the changes of updates, the hashes of keys.

The *shape* of an image is its names in their order, with the kind of value after each (see
`schema.column_types.TypeInference`). A hash identifies a shape. An image that this code is not sure about is
*doubtful* and goes to a parser. Doubtful are all images that json_objects.py, whose grammar is used here, calls
doubtful; also those with an escape in a name, or with a whole number that needs more than 64 bits.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tailrace_server.machine_code.loops.json_objects import (
    behind_nested,
    behind_scalar,
    behind_space,
    next_stop,
)
from tailrace_server.machine_code.loops.primitives import (
    are_equal,
    borders_of,
    called,
    copy,
    inlined,
    int32_at,
    int64_at,
    is_present,
    store,
    uint8_at,
    uint64_at,
)

_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_LENGTH_FACTOR: Final = np.uint64(0xD6E8FEB86659FD93)
_SHIFT: Final = np.uint64(32)
_QUOTE, _COLON, _COMMA, _BRACE, _BRACE_END, _BRACKET, _MINUS, _POINT = b'":,{}[-.'
_ZERO, _NINE, _E, _F, _N, _T = b"09efnt"
_CASE: Final = 0x20
_TEXT, _WHOLE, _FRACTION, _TRUTH, _NULL, _NESTED, _DOUBTFUL = 1, 2, 3, 4, 5, 6, 0
_DIGITS_MAX: Final = 19
"""Number of digits of the largest signed integer of 64 bits."""
_LIMIT: Final = np.uint64(1 << 63)


@inlined
def _mixed(value: Any, word: Any) -> Any:
    """Return a hash that is continued with one word of 64 bits."""
    product = (value ^ word) * _FACTOR
    return product ^ (product >> _SHIFT)


@called
def _last_word(at: Any, end: Any) -> Any:
    """Return fewer than eight bytes as the low bytes of a word of 64 bits."""
    word = np.uint64(0)
    for place in range(at, end):
        word |= np.uint64(uint8_at(place)) << np.uint64(8 * (place - at))
    return word


@called
def _with_name(value: Any, start: Any, end: Any) -> Any:
    """Return a hash that is continued with the bytes of a name and its length."""
    at = start
    while at + 8 <= end:
        value = _mixed(value, uint64_at(at))
        at += 8
    return _mixed(_mixed(value, _last_word(at, end)), np.uint64(end - start))


@called
def _kind_of_number(at: Any, end: Any) -> Any:
    """Return the kind of the number from ``at`` up to ``end``; it is known to be valid."""
    negative = uint8_at(at) == _MINUS
    begun = at + 1 if negative else at
    for place in range(begun, end):
        byte = uint8_at(place)
        if byte == _POINT or byte | _CASE == _E:
            return _FRACTION
    if end - begun < _DIGITS_MAX:
        # Parsers differ about -0: some do not read it as a whole number.
        return _DOUBTFUL if negative and uint8_at(begun) == _ZERO else _WHOLE
    if end - begun > _DIGITS_MAX:
        return _DOUBTFUL
    number = np.uint64(0)
    for place in range(begun, end):
        number = number * np.uint64(10) + np.uint64(uint8_at(place) - _ZERO)
    return _WHOLE if number < _LIMIT or (negative and number == _LIMIT) else _DOUBTFUL


@called
def _behind_value(at: Any, end: Any) -> Any:
    """Return the place after a value of any kind; 0 if that is doubtful."""
    if uint8_at(at) in (_BRACE, _BRACKET):
        return behind_nested(at, end)
    return behind_scalar(at, end)


@called
def _kind_of(at: Any, end: Any) -> Any:
    """Return the kind of the value from ``at`` up to ``end``; it is known to be valid."""
    byte = uint8_at(at)
    if byte == _QUOTE:
        return _TEXT
    if byte == _MINUS or _ZERO <= byte <= _NINE:
        return _kind_of_number(at, end)
    if byte == _N:
        return _NULL
    if byte in (_T, _F):
        return _TRUTH
    return _NESTED


@called
def _behind_colon(at: Any, end: Any) -> Any:
    """Return the place of the value after a name, whose closing quote is at ``at``; 0 if there is no colon."""
    at = behind_space(at + 1, end)
    if at >= end or uint8_at(at) != _COLON:
        return 0
    at = behind_space(at + 1, end)
    return at if at < end else 0


@called
def _shape_of(at: Any, end: Any, group: Any) -> Any:
    """Return a hash of the names of an object, a hash of its shape, and its number of members.

    All three are 0 if the object is doubtful.
    """
    zero = np.uint64(0)
    names = _mixed(zero, np.uint64(group) + np.uint64(1))
    kinds = names
    members = np.int64(0)
    at = behind_space(at, end)
    if at >= end or uint8_at(at) != _BRACE:
        return zero, zero, np.int64(0)
    at = behind_space(at + 1, end)
    if at < end and uint8_at(at) == _BRACE_END:
        if behind_space(at + 1, end) != end:
            return zero, zero, np.int64(0)
        return names | np.uint64(1), kinds | np.uint64(1), members
    while at < end and uint8_at(at) == _QUOTE:
        # 1. Read the name. If its first stop is not the closing quote, it has an escape: its text is not its
        #    name.
        start = at + 1
        at = next_stop(start, end)
        if at >= end or uint8_at(at) != _QUOTE:
            break
        names = _with_name(names, start, at)
        # 2. Find the end of the value, which also checks its grammar.
        at = _behind_colon(at, end)
        if at == 0:
            break
        value = at
        at = _behind_value(at, end)
        if at == 0:
            break
        kind = _kind_of(value, at)
        if kind == _DOUBTFUL:
            break
        kinds = _mixed(kinds, np.uint64(kind))
        members += 1
        # 3. After the value there is a comma and a further name, or the end of the object.
        at = behind_space(at, end)
        if at >= end:
            break
        if uint8_at(at) == _BRACE_END:
            if behind_space(at + 1, end) != end:
                break
            # The lowest bit is set, because 0 means doubtful.
            return names | np.uint64(1), _mixed(names, kinds) | np.uint64(1), members
        if uint8_at(at) != _COMMA:
            break
        at = behind_space(at + 1, end)
    return zero, zero, np.int64(0)


def find_shapes(
    validity: Any,
    offsets: Any,
    values: Any,
    first: Any,
    rows: Any,
    groups: Any,
    names: Any,
    shapes: Any,
    members: Any,
) -> Any:
    """Compute the shape of each image in a column; return 0.

    Args:
        validity: Address of the bitmap; 0 if no row is null.
        offsets: Address of the offsets, int32.
        values: Address of the bytes, UTF-8.
        first: The first row, counted from the beginning of the buffers.
        rows: Number of rows.
        groups: Address of the group of each row, int64. Images of different groups have different hashes.
        names: Output: a hash of each image's names in their order, uint64; 0 for a null or doubtful image.
        shapes: Output: a hash of each image's shape, uint64; 0 for a null or doubtful image.
        members: Output: the number of each image's members, int64.
    """
    for row in range(rows):
        name, shape, count = np.uint64(0), np.uint64(0), np.int64(0)
        if is_present(validity, first + row):
            start, end = borders_of(offsets, values, first + row)
            name, shape, count = _shape_of(start, end, int64_at(groups + 8 * row))
        store(names + 8 * row, name)
        store(shapes + 8 * row, shape)
        store(members + 8 * row, count)
    return 0


def differences(
    before_offsets: Any,
    before_values: Any,
    before_first: Any,
    after_offsets: Any,
    after_values: Any,
    after_first: Any,
    count: Any,
    rows: Any,
    counts: Any,
    positions: Any,
    ends: Any,
    out: Any,
) -> Any:
    """Find the members in which before-images and after-images differ, by the texts of their values.

    Both images of a row must have the same names in the same order, each name once.

    Args:
        before_offsets: Address of the offsets of the before-images, int32.
        before_values: Address of the bytes of the before-images.
        before_first: The first row of the before-images, counted from the beginning of the buffers.
        after_offsets: Address of the offsets of the after-images, int32.
        after_values: Address of the bytes of the after-images.
        after_first: The first row of the after-images, counted from the beginning of the buffers.
        count: Number of rows to compare.
        rows: Address of these rows, int64. Neither image is null, and both have a shape.
        counts: Output: the number of members that differ in each row, int32.
        positions: Output: the places of these members in their images, one row after the other, int32.
        ends: Output: the end of each row's text in ``out``, int32.
        out: Output: for each row a JSON object with the members that differ, as in the after-image.

    Returns:
        The total number of members that differ.
    """
    total, to = 0, out
    for each in range(count):
        row = int64_at(rows + 8 * each)
        at, end = borders_of(before_offsets, before_values, before_first + row)
        other, other_end = borders_of(after_offsets, after_values, after_first + row)
        at, other = behind_space(at, end) + 1, behind_space(other, other_end) + 1
        found, member = 0, 0
        store(to, np.uint8(_BRACE))
        to += 1
        while True:
            # 1. Both objects have the same name here, or both end. Their grammar is known to be valid.
            at, other = behind_space(at, end), behind_space(other, other_end)
            if uint8_at(at) == _BRACE_END:
                break
            name = other
            name_end = next_stop(other + 1, other_end)
            value = _behind_colon(next_stop(at + 1, end), end)
            other_value = _behind_colon(name_end, other_end)
            at, other = _behind_value(value, end), _behind_value(other_value, other_end)
            # 2. If the values differ, copy name and value from the after-image, without the space around them.
            length = other - other_value
            if at - value != length or not are_equal(value, other_value, length):
                if found:
                    store(to, np.uint8(_COMMA))
                    to += 1
                copy(to, name, name_end + 1 - name)
                to += name_end + 1 - name
                store(to, np.uint8(_COLON))
                copy(to + 1, other_value, length)
                to += 1 + length
                store(positions + 4 * total, np.int32(member))
                total += 1
                found += 1
            member += 1
            # 3. Continue after the comma.
            at, other = behind_space(at, end), behind_space(other, other_end)
            if uint8_at(at) == _COMMA:
                at, other = at + 1, other + 1
        store(to, np.uint8(_BRACE_END))
        to += 1
        store(counts + 4 * each, np.int32(found))
        store(ends + 4 * each, np.int32(to - out))
    return total


def hash_texts(
    validity: Any, offsets: Any, values: Any, first: Any, rows: Any, is_large: Any, hashes: Any
) -> Any:
    """Compute the hashes of texts, as record/keys.py defines them; return 0.

    Args:
        validity: Address of the bitmap; 0 if no row is null.
        offsets: Address of the offsets: int64 if ``is_large``, else int32.
        values: Address of the bytes.
        first: The first row, counted from the beginning of the buffers.
        rows: Number of rows.
        is_large: 1 for the layout of Arrow's large types, else 0.
        hashes: Input: the seed of each row, uint64. Output: the hash of each row; 0 for a null.
    """
    for row in range(rows):
        place = first + row
        value = np.uint64(0)
        if is_present(validity, place):
            if is_large:
                at = values + int64_at(offsets + 8 * place)
                end = values + int64_at(offsets + 8 * place + 8)
            else:
                at = values + np.int64(int32_at(offsets + 4 * place))
                end = values + np.int64(int32_at(offsets + 4 * place + 4))
            length = np.uint64(end - at)
            value = uint64_at(hashes + 8 * row)
            while at + 8 <= end:
                value = _mixed(value, uint64_at(at))
                at += 8
            if at < end:
                value = _mixed(value, _last_word(at, end))
            product = (value ^ length) * _LENGTH_FACTOR
            value = product ^ (product >> _SHIFT)
            if value == np.uint64(0):
                value = np.uint64(1)
        store(hashes + 8 * row, value)
    return 0
