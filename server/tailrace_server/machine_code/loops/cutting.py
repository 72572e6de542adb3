"""The loop that removes hidden members from JSON objects. The other members are copied byte for byte.

Objects that the loop is not sure about are left to the parser: with an escape or a character outside of ASCII
in a name, with a repeated name, or with any part that the loop cannot read.
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
    """Return True if a name equals one of the names before, whose starts and lengths are in ``seen``."""
    for each in range(members):
        is_as_long = int64_at(seen + 16 * each + 8) == length
        if is_as_long and are_equal(start, int64_at(seen + 16 * each), length):
            return True
    return False


@called
def _cut_object(
    at: Any, end: Any, to: Any, columns: Any, name_offsets: Any, name_bytes: Any, seen: Any
) -> Any:
    """Write an object without its hidden members; return the place after the output, 0 if in doubt.

    ``columns`` is the address of one of the sets of `cut_members`.
    """
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
        # 1. An empty object ends here. After a comma, the object must not end.
        if at >= end:
            return 0
        if uint8_at(at) == _BRACE_END and members == 0:
            break
        # 2. Read the name. A set of 64 bits, indexed by a hash, proves cheaply in most cases that the name was
        #    not repeated: only if its bit is set, the names before are compared.
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
        # 3. Find the end of the value, and check its grammar.
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
        # 4. Copy name and value if the column is visible. The output is never longer than the input.
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
    # 5. If no member is hidden, copy the text unchanged, with its spaces.
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
    """Write a column of JSON objects without hidden members; return the number of rows left to the parser.

    Args:
        rows: Number of rows.
        validity: Address of the column's bitmap; 0 if no row is null.
        offsets: Address of the column's offsets, int32.
        values: Address of the column's bytes.
        rules: Address of an int32 for each row: -1 = leave the row to the parser, 0 = copy the row unchanged,
            n = apply the set n - 1.
        sets: Address of three int64 for each set of columns: 1 if these are the visible columns, 0 if they are
            the hidden ones; the first name; the name after the last.
        name_offsets: Address of the offsets of the names, int32.
        name_bytes: Address of the bytes of the names.
        cut_offsets: Output: the offset of each row, and of the end, int32.
        cut_values: Output: the objects, at most as many bytes as the column has.
        doubts: Output: a byte for each row, set to 1 if the row is left to the parser, otherwise not changed.
        seen: Scratch memory: two int64 for each of `MEMBERS_AT_ONCE`.
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
