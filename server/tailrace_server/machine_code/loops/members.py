"""The loop that finds members in a column of JSON objects.

Objects that the loop is not sure about, such as those with an escape in a name, are left to a parser.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

import numpy as np

from tailrace_server.machine_code.loops.codes import MEMBERS_AT_ONCE, Note
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
    int64_at,
    is_present,
    place_of,
    store,
    uint8_at,
)

# numba compiles numbers of the module as constants, and does not support these enumerations.
_FOUND, _MORE, _DOUBTFUL = int(Note.FOUND), int(Note.MORE), int(Note.DOUBTFUL)
_QUOTE, _COLON, _COMMA, _BRACE, _BRACE_END, _BRACKET = b'":,{}['


@called
def _located(
    at: Any,
    end: Any,
    row: Any,
    rows: Any,
    values: Any,
    names: Any,
    name_offsets: Any,
    name_bytes: Any,
    starts: Any,
    lengths: Any,
    seen: Any,
) -> Any:
    """Write the places of one object's members; return its `Note`. Arguments as in `locate_members`."""
    at = behind_space(at, end)
    if at >= end or uint8_at(at) != _BRACE:
        return _DOUBTFUL
    at = behind_space(at + 1, end)
    members = 0
    note = _FOUND
    while True:
        # 1. An empty object ends here. After a comma, the object must not end.
        if at >= end:
            return _DOUBTFUL
        if uint8_at(at) == _BRACE_END and members == 0:
            break
        if uint8_at(at) != _QUOTE or members == MEMBERS_AT_ONCE:
            return _DOUBTFUL
        # 2. Read the name. Objects of one table have the same names in the same order. So compare first with
        #    the name that the object before had here, which is known to have no escape.
        start = at + 1
        last = seen + 24 * members
        length = int64_at(last + 8)
        stop = start + length
        place = int64_at(last + 16)
        is_as_before = length >= 0 and stop < end and uint8_at(stop) == _QUOTE
        if not is_as_before or not are_equal(start, int64_at(last), length):
            stop = next_stop(start, end)
            if stop >= end or uint8_at(stop) != _QUOTE:
                return _DOUBTFUL
            length = stop - start
            place = place_of(start, length, 0, names, name_offsets, name_bytes)
            store(last, start)
            store(last + 8, length)
            store(last + 16, np.int64(place))
        members += 1
        # 3. Find the end of the value. If a name is repeated, its last value overwrites the others, as in
        #    parsers.
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
        # 4. After the value there is a comma and a further name, or the end of the object.
        at = behind_space(at, end)
        if at >= end:
            return _DOUBTFUL
        if uint8_at(at) == _BRACE_END:
            break
        if uint8_at(at) != _COMMA:
            return _DOUBTFUL
        at = behind_space(at + 1, end)
    return note if behind_space(at + 1, end) == end else _DOUBTFUL


def locate_members(
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
) -> Any:
    """Find members in a column of JSON objects; return the number of images whose note is not FOUND.

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
        seen: Scratch memory: three int64 for each of `MEMBERS_AT_ONCE`; the caller sets it to -1 before.
    """
    noted = 0
    for row in range(rows):
        if is_present(validity, row):
            start, end = borders_of(offsets, values, row)
            note = _located(
                start,
                end,
                row,
                rows,
                values,
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
    return noted
