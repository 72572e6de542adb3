"""Finds members in a column of JSON objects: compiled code, which `members.py` calls.

As `wal/record/json_check_compiled.py`, whose grammar it uses, it may be wrong in one direction only: an object
that it has any doubt about is left to the parser, as one with an escape in a name. Texts are UTF-8.

Objects of one table have the same names in the same order. So what a name was found to be is remembered by its
place in the object, and the next object's name there is compared with the one before first.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from tailrace_server.numba_tools import called, inlined, is_present, number_at, store
from tailrace_server.typed.value_table import MEMBERS_AT_ONCE, LocatorTable, Note
from tailrace_server.wal.record.json_check_compiled import (
    behind_nested,
    behind_scalar,
    behind_space,
    borders_of,
    next_stop,
    uint8_at,
    uint64_at,
)

_int64_at, _int32_at = number_at(types.int64), number_at(types.int32)

# numba takes numbers of the module as they are now, and knows no enumeration.
_ROWS, _VALIDITY = int(LocatorTable.ROWS), int(LocatorTable.VALIDITY)
_OFFSETS, _VALUES = int(LocatorTable.OFFSETS), int(LocatorTable.VALUES)
_NAMES = int(LocatorTable.NAMES)
_NAME_OFFSETS, _NAME_BYTES = int(LocatorTable.NAME_OFFSETS), int(LocatorTable.NAME_BYTES)
_STARTS, _LENGTHS = int(LocatorTable.STARTS), int(LocatorTable.LENGTHS)
_NOTES, _SEEN = int(LocatorTable.NOTES), int(LocatorTable.SEEN)
_FOUND, _MORE, _DOUBTFUL = int(Note.FOUND), int(Note.MORE), int(Note.DOUBTFUL)
_MEMBERS_AT_ONCE = MEMBERS_AT_ONCE
_QUOTE, _COLON, _COMMA, _BRACE, _BRACE_END, _BRACKET = b'":,{}['


@inlined
def _are_equal(one: Any, other: Any, length: Any) -> Any:
    """Return whether bytes at two addresses are the same."""
    place = 0
    while place + 8 <= length and uint64_at(one + place) == uint64_at(other + place):
        place += 8
    while place < length and uint8_at(one + place) == uint8_at(other + place):
        place += 1
    return place == length


@called
def _place_of(start: Any, length: Any, names: Any, name_offsets: Any, name_bytes: Any) -> Any:
    """Return the place of a name among those that are looked for; -1 if it is none of them."""
    for each in range(names):
        at = np.int64(_int32_at(name_offsets + 4 * each))
        is_as_long = np.int64(_int32_at(name_offsets + 4 * each + 4)) - at == length
        if is_as_long and _are_equal(start, name_bytes + at, length):
            return each
    return -1


@called
def _located(
    at: Any,
    end: Any,
    table: Any,
    row: Any,
) -> Any:
    """Write where the members of one object are; return what is to be noted of it."""
    rows, values = _int64_at(table + 8 * _ROWS), _int64_at(table + 8 * _VALUES)
    starts, lengths = _int64_at(table + 8 * _STARTS), _int64_at(table + 8 * _LENGTHS)
    seen = _int64_at(table + 8 * _SEEN)
    at = behind_space(at, end)
    if at >= end or uint8_at(at) != _BRACE:
        return _DOUBTFUL
    at = behind_space(at + 1, end)
    members = 0
    note = _FOUND
    while True:
        # 1. The end may come instead of the first member, and nowhere else.
        if at >= end:
            return _DOUBTFUL
        if uint8_at(at) == _BRACE_END and members == 0:
            break
        if uint8_at(at) != _QUOTE or members == _MEMBERS_AT_ONCE:
            return _DOUBTFUL
        # 2. The name. Most often it is the one that the last object had here, which is known to end at its
        #    first stop.
        start = at + 1
        last = seen + 24 * members
        length = _int64_at(last + 8)
        stop = start + length
        place = _int64_at(last + 16)
        is_as_before = length >= 0 and stop < end and uint8_at(stop) == _QUOTE
        if not is_as_before or not _are_equal(start, _int64_at(last), length):
            stop = next_stop(start, end)
            if stop >= end or uint8_at(stop) != _QUOTE:
                return _DOUBTFUL
            length = stop - start
            place = _place_of(
                start,
                length,
                _int64_at(table + 8 * _NAMES),
                _int64_at(table + 8 * _NAME_OFFSETS),
                _int64_at(table + 8 * _NAME_BYTES),
            )
            store(last, start)
            store(last + 8, length)
            store(last + 16, np.int64(place))
        members += 1
        # 3. The value. A name that comes again writes over what it wrote before, as parsers have it.
        at = behind_space(stop + 1, end)
        if at >= end or uint8_at(at) != _COLON:
            return _DOUBTFUL
        at = behind_space(at + 1, end)
        if at >= end:
            return _DOUBTFUL
        value = at
        is_nested = uint8_at(at) in (_BRACE, _BRACKET)
        at = behind_nested(at, end) if is_nested else behind_scalar(at, end)
        if at == 0:
            return _DOUBTFUL
        if place < 0:
            note = _MORE
        else:
            cell = 4 * (place * rows + row)
            store(starts + cell, np.int32(value - values))
            store(lengths + cell, np.int32(at - value))
        # 4. A comma and a further name, or the end of all.
        at = behind_space(at, end)
        if at >= end:
            return _DOUBTFUL
        if uint8_at(at) == _BRACE_END:
            break
        if uint8_at(at) != _COMMA:
            return _DOUBTFUL
        at = behind_space(at + 1, end)
    return note if behind_space(at + 1, end) == end else _DOUBTFUL


def locate(table: Any) -> Any:
    """Find the members of all images; return how many images are left to the parser, or have others."""
    validity, offsets = _int64_at(table + 8 * _VALIDITY), _int64_at(table + 8 * _OFFSETS)
    values, notes = _int64_at(table + 8 * _VALUES), _int64_at(table + 8 * _NOTES)
    noted = 0
    for row in range(_int64_at(table + 8 * _ROWS)):
        if is_present(validity, row):
            start, end = borders_of(offsets, values, row)
            note = _located(start, end, table, row)
            if note != _FOUND:
                store(notes + row, np.uint8(note))
                noted += 1
    return noted
