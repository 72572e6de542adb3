"""The loop that finds members in a column of JSON objects.

It may be wrong in one direction only: an object with any doubt about it, such as one with an escape in a name,
is left to a parser.
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

# numba takes numbers of the module as they are now, and knows no enumeration.
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
    """Write where the members of one object are; return the note about it."""
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
        if uint8_at(at) != _QUOTE or members == MEMBERS_AT_ONCE:
            return _DOUBTFUL
        # 2. The name. Objects of one table have the same names in the same order, so it is most often the
        #    one that the last object had here, which is known to end at its first stop.
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
    """Find members in a column of JSON objects; return the number of images with a note.

    Args:
        validity: Address of the images' bitmap; 0 if nothing is null.
        offsets: Address of their offsets, int32.
        values: Address of their bytes.
        rows: Number of images.
        names: Number of names to find.
        name_offsets: Address of the offsets of the names, int32.
        name_bytes: Address of their bytes.
        starts: Written, int32: for each name a number for each row, where its value begins, counted from
            ``values``.
        lengths: Written, int32, where a row has the name: the length of its value. It is 0 before.
        notes: Written where it is not 0: a byte a row, one of `Note`.
        seen: Three int64 for each of `MEMBERS_AT_ONCE`, for use meanwhile; -1 before.
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
