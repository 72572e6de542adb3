"""Members cut out of JSON objects by compiled code: what is kept stays as it is, byte for byte.

As `compiled_frames.py`, it is Python that numba compiles into an object, and gets columns as addresses of their
buffers in one table; `member_cutter.py` calls it. An object that it has any doubt about is left to the parser:
one with escapes or other than ASCII in a name, with a name twice, or that it cannot read to its end.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types

from tailrace_server.codecs.cut_table import MEMBERS_AT_ONCE, CutTable
from tailrace_server.numba_tools import called, copy, inlined, is_present, number_at, store
from tailrace_server.wal.record.json_check_compiled import (
    behind_nested,
    behind_scalar,
    behind_space,
    borders_of,
    next_stop,
    uint8_at,
)

_int64_at, _int32_at = number_at(types.int64), number_at(types.int32)

# numba takes numbers of the module as they are now, and knows no enumeration.
_ROWS, _VALIDITY, _OFFSETS, _VALUES = (
    int(CutTable.ROWS),
    int(CutTable.VALIDITY),
    int(CutTable.OFFSETS),
    int(CutTable.VALUES),
)
_RULES, _SETS = int(CutTable.RULES), int(CutTable.SETS)
_NAME_OFFSETS, _NAME_BYTES = int(CutTable.NAME_OFFSETS), int(CutTable.NAME_BYTES)
_CUT_OFFSETS, _CUT_VALUES = int(CutTable.CUT_OFFSETS), int(CutTable.CUT_VALUES)
_DOUBTS, _PLACES = int(CutTable.DOUBTS), int(CutTable.PLACES)
_MEMBERS_AT_ONCE = MEMBERS_AT_ONCE
_QUOTE, _COLON, _COMMA, _BRACE, _BRACE_END, _BRACKET = b'":,{}['
_ASCII_END: Final = 0x80


@inlined
def _are_equal(one: Any, other: Any, length: Any) -> Any:
    """Return whether bytes at two addresses are the same."""
    place = 0
    while place < length and uint8_at(one + place) == uint8_at(other + place):
        place += 1
    return place == length


@called
def _is_in(start: Any, length: Any, columns: Any, name_offsets: Any, name_bytes: Any) -> Any:
    """Return whether a name is one of a set's."""
    for each in range(_int64_at(columns + 8), _int64_at(columns + 16)):
        at = np.int64(_int32_at(name_offsets + 4 * each))
        is_as_long = np.int64(_int32_at(name_offsets + 4 * each + 4)) - at == length
        if is_as_long and _are_equal(start, name_bytes + at, length):
            return True
    return False


@called
def _came_before(start: Any, length: Any, places: Any, members: Any) -> Any:
    """Return whether a name is one of those at places that were noted."""
    for each in range(members):
        is_as_long = _int64_at(places + 16 * each + 8) == length
        if is_as_long and _are_equal(start, _int64_at(places + 16 * each), length):
            return True
    return False


@called
def _cut_object(
    at: Any, end: Any, to: Any, columns: Any, name_offsets: Any, name_bytes: Any, places: Any
) -> Any:
    """Write an object without the members that are not shown; return the place behind it, 0 if in doubt."""
    origin, begun = at, to
    at = behind_space(at, end)
    if at >= end or uint8_at(at) != _BRACE:
        return 0
    store(to, np.uint8(_BRACE))
    to += 1
    at = behind_space(at + 1, end)
    listed = _int64_at(columns)
    members, kept = 0, 0
    seen = np.uint64(0)
    while True:
        # 1. The end may come instead of the first member, and nowhere else.
        if at >= end:
            return 0
        if uint8_at(at) == _BRACE_END and members == 0:
            break
        # 2. The name. Its hash tells cheaply that it is another one than those before.
        if uint8_at(at) != _QUOTE or members == _MEMBERS_AT_ONCE:
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
        if seen & mark and _came_before(start, length, places, members):
            return 0
        seen |= mark
        store(places + 16 * members, start)
        store(places + 16 * members + 8, length)
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
        # 4. Both, if the column is shown. What is written is never longer than what was read.
        if (listed != 0) == _is_in(start, length, columns, name_offsets, name_bytes):
            if kept:
                store(to, np.uint8(_COMMA))
                to += 1
            copy(to, start - 1, length + 2)
            to += length + 2
            store(to, np.uint8(_COLON))
            copy(to + 1, value, at - value)
            to += 1 + at - value
            kept += 1
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
    if kept == members:
        copy(begun, origin, end - origin)
        return begun + (end - origin)
    store(to, np.uint8(_BRACE_END))
    return to + 1


def cut(table: Any) -> Any:
    """Write the column without what is not shown; return how many rows are left to the parser."""
    validity, offsets = _int64_at(table + 8 * _VALIDITY), _int64_at(table + 8 * _OFFSETS)
    values, rules = _int64_at(table + 8 * _VALUES), _int64_at(table + 8 * _RULES)
    sets, places = _int64_at(table + 8 * _SETS), _int64_at(table + 8 * _PLACES)
    name_offsets, name_bytes = (
        _int64_at(table + 8 * _NAME_OFFSETS),
        _int64_at(table + 8 * _NAME_BYTES),
    )
    cut_offsets, cut_values = (
        _int64_at(table + 8 * _CUT_OFFSETS),
        _int64_at(table + 8 * _CUT_VALUES),
    )
    doubts = _int64_at(table + 8 * _DOUBTS)
    to = cut_values
    doubtful = 0
    for row in range(_int64_at(table + 8 * _ROWS)):
        store(cut_offsets + 4 * row, np.int32(to - cut_values))
        if not is_present(validity, row):
            continue
        start, end = borders_of(offsets, values, row)
        rule = np.int64(_int32_at(rules + 4 * row))
        behind = np.int64(0)
        if rule == 0:
            copy(to, start, end - start)
            behind = to + (end - start)
        elif rule > 0:
            columns = sets + 24 * (rule - 1)
            behind = _cut_object(start, end, to, columns, name_offsets, name_bytes, places)
        if behind == 0:
            store(doubts + row, np.uint8(1))
            doubtful += 1
        else:
            to = behind
    store(cut_offsets + 4 * _int64_at(table + 8 * _ROWS), np.int32(to - cut_values))
    return doubtful
