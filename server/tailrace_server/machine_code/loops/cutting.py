"""The loop that cuts members out of JSON objects; what is left is copied byte for byte.

An object with any doubt about it is left to the parser: one with escapes or other than ASCII in a name, with a
name twice, or that this cannot read to its end.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tailrace_server.machine_code.loops.codes import MEMBERS_AT_ONCE
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
    int32_at,
    int64_at,
    is_present,
    place_of,
    store,
    uint8_at,
)

_QUOTE, _COLON, _COMMA, _BRACE, _BRACE_END, _BRACKET = b'":,{}['
_ASCII_END: Final = 0x80


@called
def _came_before(start: Any, length: Any, seen: Any, members: Any) -> Any:
    """Return True if a name is one of those whose places were noted."""
    for each in range(members):
        is_as_long = int64_at(seen + 16 * each + 8) == length
        if is_as_long and are_equal(start, int64_at(seen + 16 * each), length):
            return True
    return False


@called
def _cut_object(
    at: Any, end: Any, to: Any, columns: Any, name_offsets: Any, name_bytes: Any, seen: Any
) -> Any:
    """Write an object without its hidden members; return the place after it, 0 if in doubt."""
    origin, begun = at, to
    at = behind_space(at, end)
    if at >= end or uint8_at(at) != _BRACE:
        return 0
    store(to, np.uint8(_BRACE))
    to += 1
    at = behind_space(at + 1, end)
    listed, first, behind_names = int64_at(columns), int64_at(columns + 8), int64_at(columns + 16)
    members, visible = 0, 0
    marks = np.uint64(0)
    while True:
        # 1. The end may come instead of the first member, and nowhere else.
        if at >= end:
            return 0
        if uint8_at(at) == _BRACE_END and members == 0:
            break
        # 2. The name. Its hash shows cheaply that it differs from the names before.
        if uint8_at(at) != _QUOTE or members == MEMBERS_AT_ONCE:
            return 0
        start = at + 1
        stop = next_stop(start, end)
        if stop >= end or uint8_at(stop) != _QUOTE:
            return 0
        length = stop - start
        number = np.uint64(length)
        for place in range(start, stop):
            byte = uint8_at(place)
            if byte >= _ASCII_END:
                return 0
            number = number * np.uint64(31) + np.uint64(byte)
        mark = np.uint64(1) << (number & np.uint64(63))
        if marks & mark and _came_before(start, length, seen, members):
            return 0
        marks |= mark
        store(seen + 16 * members, start)
        store(seen + 16 * members + 8, length)
        members += 1
        # 3. The value, which is only passed over.
        at = behind_space(stop + 1, end)
        if at >= end or uint8_at(at) != _COLON:
            return 0
        at = behind_space(at + 1, end)
        if at >= end:
            return 0
        value = at
        is_nested = uint8_at(at) in (_BRACE, _BRACKET)
        at = behind_nested(at, end) if is_nested else behind_scalar(at, end)
        if at == 0:
            return 0
        # 4. Both, if the column is visible. The output is never longer than the input.
        place = place_of(start, length, first, behind_names, name_offsets, name_bytes)
        if (listed != 0) == (place >= 0):
            if visible:
                store(to, np.uint8(_COMMA))
                to += 1
            copy(to, start - 1, length + 2)
            to += length + 2
            store(to, np.uint8(_COLON))
            copy(to + 1, value, at - value)
            to += 1 + at - value
            visible += 1
        at = behind_space(at, end)
        if at >= end:
            return 0
        if uint8_at(at) == _BRACE_END:
            break
        if uint8_at(at) != _COMMA:
            return 0
        at = behind_space(at + 1, end)
    if behind_space(at + 1, end) != end:
        return 0
    # 5. Where nothing is hidden the text stays as it is, spaces and all.
    if visible == members:
        copy(begun, origin, end - origin)
        return begun + (end - origin)
    store(to, np.uint8(_BRACE_END))
    return to + 1


def cut_members(
    rows: Any,
    validity: Any,
    offsets: Any,
    values: Any,
    rules: Any,
    sets: Any,
    name_offsets: Any,
    name_bytes: Any,
    cut_offsets: Any,
    cut_values: Any,
    doubts: Any,
    seen: Any,
) -> Any:
    """Write a column of JSON objects without hidden members; return how many rows are left to the parser.

    Args:
        rows: Number of rows.
        validity: Address of the column's bitmap; 0 if nothing is null.
        offsets: Address of its offsets, int32.
        values: Address of its bytes.
        rules: An int32 a row: -1 = left to the parser, 0 = copied as it is, n = cut to the set n - 1.
        sets: Three int64 a set of columns: 1 if those are visible, 0 if hidden; first name; after the last.
        name_offsets: Address of the offsets of the names, int32.
        name_bytes: Address of their bytes.
        cut_offsets: Written: an int32 a row, and one for the end.
        cut_values: Written: at most as many bytes as the column has.
        doubts: Written where it is 1: a byte a row, 1 where the row is left to the parser.
        seen: Two int64 for each of `MEMBERS_AT_ONCE`, for use meanwhile.
    """
    to = cut_values
    doubtful = 0
    for row in range(rows):
        store(cut_offsets + 4 * row, np.int32(to - cut_values))
        if not is_present(validity, row):
            continue
        start, end = borders_of(offsets, values, row)
        rule = np.int64(int32_at(rules + 4 * row))
        behind = np.int64(0)
        if rule == 0:
            copy(to, start, end - start)
            behind = to + (end - start)
        elif rule > 0:
            columns = sets + 24 * (rule - 1)
            behind = _cut_object(start, end, to, columns, name_offsets, name_bytes, seen)
        if behind == 0:
            store(doubts + row, np.uint8(1))
            doubtful += 1
        else:
            to = behind
    store(cut_offsets + 4 * rows, np.int32(to - cut_values))
    return doubtful
