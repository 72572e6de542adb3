"""The grammar of JSON objects, and two loops: one checks that the rows of a column are valid, one checks names.

This code may call a valid body doubtful, but must never accept an invalid one: a doubtful body goes to a
parser, which decides. Texts are read eight bytes at a time, but never past the end of a row, because the bytes
after it may not be allocated.

The helpers take and return places, which are addresses of bytes. The place 0 means "doubtful".
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tailrace_server.machine_code.loops.primitives import (
    borders_of,
    called,
    inlined,
    int64_at,
    is_present,
    store,
    trailing_zeros,
    uint8_at,
    uint32_at,
    uint64_at,
)

_DEPTH_MAX: Final = 62
"""The deepest nesting of arrays and objects that is read; each level takes one bit of a 64-bit number."""
_ONES: Final = np.uint64(0x0101010101010101)
_HIGHS: Final = np.uint64(0x8080808080808080)
_QUOTES: Final = np.uint64(0x2222222222222222)
_BACKSLASHES: Final = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES: Final = np.uint64(0x2020202020202020)
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(29)
_TRUE: Final = np.uint32(int.from_bytes(b"true", "little"))
_NULL: Final = np.uint32(int.from_bytes(b"null", "little"))
_ALSE: Final = np.uint32(int.from_bytes(b"alse", "little"))
_QUOTE, _BACKSLASH, _SLASH, _COLON, _COMMA, _MINUS, _PLUS, _POINT = b'"\\/:,-+.'
_BRACE, _BRACE_END, _BRACKET, _BRACKET_END, _ZERO, _EIGHT, _NINE = b"{}[]089"
_A, _B, _D, _E, _F, _N, _R, _T, _U = b"abdefnrtu"
_TAB, _LF, _CR, _SPACE = b"\t\n\r "
_CASE: Final = 0x20
"""Bit that turns an upper-case letter into a lower-case one. It turns no other character into a letter used
here."""


@called
def next_stop(at: Any, end: Any) -> Any:
    """Return the place of the next stop in a text: a quote, backslash or control character; else ``end``."""
    while at + 8 <= end:
        word = uint64_at(at)
        quotes, slashes = word ^ _QUOTES, word ^ _BACKSLASHES
        # A quote or backslash has become a zero byte: subtracting 1 sets its high bit. Subtracting a space sets
        # the high bit of a control character. The borrow may wrongly mark bytes above a match, but never below
        # it. So the lowest mark is right, and only that one is used.
        marks = ((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes)
        marks = (marks | ((word - _SPACES) & ~word)) & _HIGHS
        if marks:
            return at + np.int64(trailing_zeros(marks) >> np.uint64(3))
        at += 8
    # Read the last bytes, fewer than eight, one by one: a whole word would be read past the end of the row.
    while at < end:
        byte = uint8_at(at)
        if byte in (_QUOTE, _BACKSLASH) or byte < _SPACE:
            return at
        at += 1
    return end


@inlined
def _is_hex(byte: Any) -> Any:
    return _ZERO <= byte <= _NINE or _A <= byte | _CASE <= _F


@called
def behind_text(at: Any, end: Any) -> Any:
    """Return the place after the quote that ends a text; 0 if that is doubtful."""
    while True:
        at = next_stop(at, end)
        if at >= end:
            return 0
        byte = uint8_at(at)
        if byte == _QUOTE:
            return at + 1
        # A control character is not allowed in a text, and a backslash needs a character after it.
        if byte != _BACKSLASH or at + 1 >= end:
            return 0
        byte = uint8_at(at + 1)
        at += 2
        if byte == _U:
            if at + 4 > end:
                return 0
            for place in range(at, at + 4):
                if not _is_hex(uint8_at(place)):
                    return 0
            # \uD800 to \uDFFF is one half of a surrogate pair. The parser checks for the other half; such texts
            # are rare.
            if uint8_at(at) | _CASE == _D and uint8_at(at + 1) >= _EIGHT:
                return 0
            at += 4
        elif byte not in (_QUOTE, _BACKSLASH, _SLASH, _B, _F, _N, _R, _T):
            return 0


@inlined
def _behind_digits(at: Any, end: Any) -> Any:
    """Return the place of the first byte that is no digit."""
    while at < end and _ZERO <= uint8_at(at) <= _NINE:
        at += 1
    return at


@called
def behind_number(at: Any, end: Any) -> Any:
    """Return the place after a number; 0 if it is not a valid JSON number."""
    begun = at + 1 if uint8_at(at) == _MINUS else at
    at = _behind_digits(begun, end)
    # There must be a digit, and no leading zero.
    if at == begun or (at > begun + 1 and uint8_at(begun) == _ZERO):
        return 0
    if at < end and uint8_at(at) == _POINT:
        begun = at + 1
        at = _behind_digits(begun, end)
        if at == begun:
            return 0
    if at < end and uint8_at(at) | _CASE == _E:
        at += 1
        if at < end and (uint8_at(at) == _PLUS or uint8_at(at) == _MINUS):
            at += 1
        begun = at
        at = _behind_digits(begun, end)
        if at == begun:
            return 0
    return at


@inlined
def behind_word(at: Any, end: Any) -> Any:
    """Return the place after ``true``, ``false`` or ``null``; 0 if none of these words is at ``at``."""
    if at + 4 <= end and (uint32_at(at) == _TRUE or uint32_at(at) == _NULL):
        return at + 4
    if at + 5 <= end and uint8_at(at) == _F and uint32_at(at + 1) == _ALSE:
        return at + 5
    return 0


@inlined
def behind_space(at: Any, end: Any) -> Any:
    """Return the place of the first byte that is no space, tab or line break."""
    while at < end and uint8_at(at) <= _SPACE:
        if uint8_at(at) not in (_SPACE, _LF, _CR, _TAB):
            break
        at += 1
    return at


@called
def behind_scalar(at: Any, end: Any) -> Any:
    """Return the place after a text, number, ``true``, ``false`` or ``null``; 0 if that is doubtful."""
    byte = uint8_at(at)
    if byte == _QUOTE:
        return behind_text(at + 1, end)
    if byte == _MINUS or _ZERO <= byte <= _NINE:
        return behind_number(at, end)
    return behind_word(at, end)


@called
def _behind_name(at: Any, end: Any) -> Any:
    """Return the place of the value after a name, which begins at ``at``, and its colon; 0 if doubtful."""
    if at >= end or uint8_at(at) != _QUOTE:
        return 0
    at = behind_text(at + 1, end)
    if at == 0:
        return 0
    at = behind_space(at, end)
    if at >= end or uint8_at(at) != _COLON:
        return 0
    return behind_space(at + 1, end)


@inlined
def _end_of(objects: Any) -> Any:
    """Return the bracket that closes the innermost value, whose kind is the lowest bit of ``objects``."""
    return _BRACE_END if objects & np.uint64(1) else _BRACKET_END


@called
def behind_nested(at: Any, end: Any) -> Any:
    """Return the place after an object or array, which begins at ``at``; 0 if that is doubtful.

    There is no recursion: ``objects`` is a stack of bits, one for each open bracket, 1 for an object.
    """
    depth = 0
    objects = np.uint64(0)
    while at != 0 and at < end:
        # 1. A value begins here. If it is an object or array, read only its bracket, and continue the loop with
        #    the first value inside.
        byte = uint8_at(at)
        if byte in (_BRACE, _BRACKET):
            if depth == _DEPTH_MAX:
                return 0
            depth += 1
            objects = (objects << np.uint64(1)) | np.uint64(byte == _BRACE)
            at = behind_space(at + 1, end)
            # If it is empty, step 2 closes it. At the end of the bytes the loop ends.
            if at < end and uint8_at(at) != _end_of(objects):
                if objects & np.uint64(1):
                    at = _behind_name(at, end)
                continue
        else:
            at = behind_scalar(at, end)
            if at == 0:
                return 0
            at = behind_space(at, end)
        # 2. A value has ended. Any number of the objects and arrays around it may end here as well.
        while at < end and uint8_at(at) == _end_of(objects):
            depth -= 1
            if depth == 0:
                return at + 1
            at = behind_space(at + 1, end)
            objects >>= np.uint64(1)
        # 3. An object or array is still open, so a comma and a further value must follow. A closing bracket
        #    after the comma is invalid: `_behind_name`, or `behind_word` in step 1, returns 0 for it.
        if at >= end or uint8_at(at) != _COMMA:
            return 0
        at = behind_space(at + 1, end)
        if objects & np.uint64(1):
            at = _behind_name(at, end)
    return 0


@called
def _is_object(at: Any, end: Any) -> Any:
    """Return True if bytes, known to be UTF-8, are exactly one JSON object; False if that is doubtful."""
    at = behind_space(at, end)
    if at >= end or uint8_at(at) != _BRACE:
        return False
    at = behind_nested(at, end)
    return at != 0 and behind_space(at, end) == end  # only space may follow the object


def first_doubtful(validity: Any, offsets: Any, values: Any, first: Any, stop: Any) -> Any:
    """Return the first row that may not be a JSON object; -1 if all rows are objects or null.

    Args:
        validity: Address of the bitmap; 0 if no row is null.
        offsets: Address of the offsets, int32.
        values: Address of the bytes, UTF-8.
        first: The first row to check.
        stop: The row after the last one to check.
    """
    for row in range(first, stop):
        if is_present(validity, row):
            start, end = borders_of(offsets, values, row)
            if not _is_object(start, end):
                return row
    return -1


@called
def _hash(group: Any, start: Any, end: Any) -> Any:
    """Return the hash of a name in a group; `known_names` computes the same hash."""
    value = (np.uint64(group) + np.uint64(1)) * _FACTOR
    # Words are read backwards from the end, since `known_names` finds names by their closing quote.
    at = end - 8
    while at >= start:
        product = (value ^ uint64_at(at)) * _FACTOR
        value = product ^ (product >> _SHIFT)
        at -= 8
    # The remaining bytes, at the start of the name, become the high bytes of a further word.
    word = np.uint64(0)
    for place in range(start, at + 8):
        word |= np.uint64(uint8_at(place)) << np.uint64(8 * (place - at))
    product = (value ^ word) * _FACTOR
    return product ^ (product >> _SHIFT)


@called
def _knows_names(at: Any, end: Any, group: Any, table: Any, shift: Any) -> Any:
    """Return True if the names of an object, not of nested objects, are all in the hash table of known names.

    The object is known to be valid, so quotes, commas and brackets are enough to find its names.
    """
    depth = 0
    expected = False
    while at < end:
        byte = uint8_at(at)
        at += 1
        if byte == _QUOTE:
            start = at
            at = next_stop(at, end)
            # Any other stop is a backslash: skip it and the character after it.
            while at < end and uint8_at(at) != _QUOTE:
                at = next_stop(at + 2, end)
            # A text is a name if it is the first one after the brace, or after a comma, of the outer object.
            if expected:
                value = _hash(group, start, at)
                if uint64_at(table + np.int64(8 * (value >> shift))) != value:
                    return False
                expected = False
            at += 1
        elif byte == _COMMA:
            expected = depth == 1
        elif byte in (_BRACE, _BRACKET):
            depth += 1
            expected = depth == 1
        elif byte in (_BRACE_END, _BRACKET_END):
            depth -= 1
            expected = False
    return True


def mark_unknown(
    validity: Any,
    offsets: Any,
    values: Any,
    first: Any,
    rows: Any,
    groups: Any,
    table: Any,
    bits: Any,
    marks: Any,
) -> Any:
    """Mark the rows whose object has a name that is not known in the row's group; return 0.

    Args:
        validity: Address of the bitmap; 0 if no row is null.
        offsets: Address of the offsets, int32.
        values: Address of the bytes: valid JSON objects.
        first: The first row, counted from the beginning of the buffers.
        rows: Number of rows.
        groups: Address of the group of each row, int64.
        table: Address of the hash table of known names, uint64.
        bits: Binary logarithm of the table's size.
        marks: Output: a byte for each row, set to 1 if a name is unknown, otherwise not changed.
    """
    shift = np.uint64(64 - bits)
    for row in range(rows):
        if is_present(validity, first + row):
            start, end = borders_of(offsets, values, first + row)
            if not _knows_names(start, end, int64_at(groups + 8 * row), table, shift):
                store(marks + row, np.uint8(1))
    return 0
