"""The loop that finds members in a column of JSON objects and reads their values.

Objects that the loop is not sure about, such as those with an escape in a name, are left to a parser.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tailrace_server.machine_code.loops.codes import MEMBERS_AT_ONCE, Notation, Note, Program
from tailrace_server.machine_code.loops.json_objects import (
    behind_nested,
    behind_scalar,
    behind_space,
    next_stop,
)
from tailrace_server.machine_code.loops.primitives import (
    WIDE,
    are_equal,
    borders_of,
    called,
    differences_of,
    int64_at,
    is_present,
    marks_of,
    place_of,
    store,
    trailing_zeros,
    uint8_at,
)
from tailrace_server.machine_code.loops.values import read_numbers, read_texts

# numba compiles numbers of the module as constants, and does not support these enumerations.
_FOUND, _MORE, _DOUBTFUL = int(Note.FOUND), int(Note.MORE), int(Note.DOUBTFUL)
_MEMBER, _NOTATION, _OTHERS = int(Program.MEMBER), int(Program.NOTATION), int(Program.OTHERS)
_NUMBERS, _RAW = len(Program), int(Notation.RAW)
_BLOCK: Final = 1_024
"""Number of images that are located before their values are read."""
_QUOTE, _COLON, _COMMA, _BRACE, _BRACE_END, _BRACKET, _MINUS, _ZERO, _E = b'":,{}[-0e'
_CASE: Final = 0x20
_ONE, _TWO = np.uint64(1), np.uint64(2)
_quotes, _backslashes, _controls = marks_of(_QUOTE, _QUOTE), marks_of(92, 92), marks_of(0, 31)
_digits, _points = marks_of(48, 57), marks_of(46, 46)


@called
def _is_as_before(at: Any, before: Any, length: Any, end: Any, limit: Any) -> Any:
    """Return True if the bytes from ``at``, not beyond ``end``, equal those of an earlier row."""
    if at + length > end:
        return False
    if length > WIDE or at + WIDE > limit:
        return are_equal(at, before, length)
    return differences_of(at, before) << np.uint64(64 - length) == 0


@called
def _behind_plain(at: Any, end: Any) -> Any:
    """Return the place after a text without escapes, or a number without exponent, of few bytes; else 0.

    `WIDE` bytes from ``end`` on must be readable.
    """
    byte = uint8_at(at)
    if byte == _QUOTE:
        at += 1
        stops = _quotes(at) | _backslashes(at) | _controls(at)
        if stops == 0:
            return 0
        at += np.int64(trailing_zeros(stops))
        return at + 1 if at < end and uint8_at(at) == _QUOTE else 0
    # Bit n of each of these numbers is about byte n after the sign.
    at += np.int64(byte == _MINUS)
    digits, points = _digits(at), _points(at)
    length = trailing_zeros(~(digits | points))
    points &= (_ONE << length) - _ONE
    # A point has digits on both sides and is the only one. No other digit follows a leading zero.
    is_number = digits & _ONE and (points & (points - _ONE)) == 0
    if not is_number or points >> (length - _ONE) or (uint8_at(at) == _ZERO and digits & _TWO):
        return 0
    at += np.int64(length)
    return at if at < end and uint8_at(at) | _CASE != _E else 0


@called
def _behind_value(at: Any, end: Any, limit: Any) -> Any:
    """Return the place after a value; 0 if that is doubtful."""
    if at >= end:
        return 0
    if uint8_at(at) in (_BRACE, _BRACKET):
        return behind_nested(at, end)
    if end + WIDE < limit:
        behind = _behind_plain(at, end)
        if behind != 0:
            return behind
    return behind_scalar(at, end)


@called
def _located(
    at: Any,
    end: Any,
    row: Any,
    rows: Any,
    values: Any,
    limit: Any,
    names: Any,
    name_offsets: Any,
    name_bytes: Any,
    starts: Any,
    lengths: Any,
    seen: Any,
) -> Any:
    """Write the places of one object's members; return its `Note`. Arguments as in `read_members`."""
    members = 0
    note = _FOUND
    while True:
        # 1. Read all bytes before a value: a brace or comma, the name, a colon, and space. Objects of one table
        #    have the same names in the same order. So compare first with the bytes that an earlier object had
        #    here, which are known to be valid and to have no escape.
        last = seen + 24 * members
        length = int64_at(last + 8)
        place = int64_at(last + 16)
        if length >= 0 and _is_as_before(at, int64_at(last), length, end, limit):
            at += length
        else:
            begun = at
            at = behind_space(at, end)
            if at >= end or uint8_at(at) != (_COMMA if members else _BRACE):
                return _DOUBTFUL
            at = behind_space(at + 1, end)
            # An empty object ends here. After a comma, the object must not end.
            if at < end and uint8_at(at) == _BRACE_END and members == 0:
                break
            if at >= end or uint8_at(at) != _QUOTE or members == MEMBERS_AT_ONCE:
                return _DOUBTFUL
            start = at + 1
            stop = next_stop(start, end)
            if stop >= end or uint8_at(stop) != _QUOTE:
                return _DOUBTFUL
            place = np.int64(place_of(start, stop - start, 0, names, name_offsets, name_bytes))
            at = behind_space(stop + 1, end)
            if at >= end or uint8_at(at) != _COLON:
                return _DOUBTFUL
            at = behind_space(at + 1, end)
            store(last, begun)
            store(last + 8, at - begun)
            store(last + 16, place)
        members += 1
        # 2. Find the end of the value. If a name is repeated, its last value overwrites the others, as in
        #    parsers.
        value = at
        at = _behind_value(at, end, limit)
        if at == 0:
            return _DOUBTFUL
        if place < 0:
            note = _MORE
        else:
            cell = 4 * (place * rows + row)
            store(starts + cell, np.int32(value - values))
            store(lengths + cell, np.int32(at - value))
        # 3. After the value there is a comma and a further name, or the end of the object.
        if at < end and uint8_at(at) == _COMMA:
            continue
        at = behind_space(at, end)
        if at < end and uint8_at(at) == _BRACE_END:
            break
    return note if behind_space(at + 1, end) == end else _DOUBTFUL


def read_members(
    validity: Any,
    offsets: Any,
    values: Any,
    rows: Any,
    names: Any,
    name_offsets: Any,
    name_bytes: Any,
    starts: Any,
    lengths: Any,
    notes: Any,
    seen: Any,
    columns: Any,
    programs: Any,
) -> Any:
    """Find members in a column of JSON objects, and read the values of some of them.

    Return the number of images whose note is not FOUND.

    Args:
        validity: Address of the images' bitmap; 0 if no image is null.
        offsets: Address of the images' offsets, int32.
        values: Address of the images' bytes.
        rows: Number of images.
        names: Number of names to find.
        name_offsets: Address of the offsets of the names, int32.
        name_bytes: Address of the bytes of the names.
        starts: Output: for each name and each row, the start of the value, counted from ``values``, int32.
        lengths: Output: for each name and each row, the length of the value, int32. It is written only if the
            row has the name, so the caller sets it to 0 before.
        notes: Output: a `Note` for each row, uint8. FOUND, which is 0, is not written.
        seen: Scratch memory: three int64 for one more than `MEMBERS_AT_ONCE`; the caller sets it to -1 before.
        columns: Number of columns to read.
        programs: Address of the `Program` of each column.
    """
    noted = 0
    _, limit = borders_of(offsets, values, rows - 1)
    first = 0
    # The images of one block fit into a processor's cache, so each is fetched from memory once.
    while first < rows:
        stop = min(first + _BLOCK, rows)
        for row in range(first, stop):
            if not is_present(validity, row):
                continue
            start, end = borders_of(offsets, values, row)
            note = _located(
                start,
                end,
                row,
                rows,
                values,
                limit,
                names,
                name_offsets,
                name_bytes,
                starts,
                lengths,
                seen,
            )
            if note != _FOUND:
                store(notes + row, np.uint8(note))
                noted += 1
            if note == _DOUBTFUL:
                for place in range(names):
                    store(lengths + 4 * (place * rows + row), np.int32(0))
        for column in range(columns):
            program = programs + 8 * _NUMBERS * column
            cells = 4 * rows * int64_at(program + 8 * _MEMBER)
            given = starts + cells, lengths + cells, program
            if int64_at(program + 8 * _NOTATION) >= _RAW:
                others = read_texts(first, stop, values, *given)
            else:
                others = read_numbers(first, stop, rows, values, *given)
            counted = program + 8 * _OTHERS
            store(counted, int64_at(counted) + np.int64(others))
        first = stop
    return noted
