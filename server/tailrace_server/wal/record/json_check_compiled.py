"""JSON objects of whole columns looked at by machine code: whether they are, and what names they have.

Python that numba compiles; loading takes half a second (`json_objects.compiled_for`). What is not plain it
leaves to a parser: "doubtful" is not "wrong". Columns come as the addresses of their buffers, as Arrow lays out
binary arrays. Texts are looked through eight bytes at a time, and never read past the end of a row.
"""

# mypy: disable-error-code="untyped-decorator,no-any-return"

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tailrace_server.numba_tools import called, compiled, inlined, is_present, load

if TYPE_CHECKING:
    import numpy.typing as npt

_int64_at, _int32_at = load(types.int64), load(types.int32)
_uint64_at, _uint32_at, _uint8_at = load(types.uint64), load(types.uint32), load(types.uint8)

_DEPTH_MAX: Final = 62
"""Of nested arrays and objects, a bit each."""
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
"""What makes small letters of capital ones; of other characters it makes no letters that are asked for."""


@intrinsic
def _trailing_zeros(context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@called
def _stop(at: Any, end: Any) -> Any:
    """Return the place of the next quote, backslash or control character of a text; ``end`` for none."""
    while at + 8 <= end:
        word = _uint64_at(at)
        quotes, slashes = word ^ _QUOTES, word ^ _BACKSLASHES
        # In each of the three the lowest byte that is marked is right; above it a borrow may mark more.
        marks = ((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes)
        marks = (marks | ((word - _SPACES) & ~word)) & _HIGHS
        if marks:
            return at + np.int64(_trailing_zeros(marks) >> np.uint64(3))
        at += 8
    while at < end:
        byte = _uint8_at(at)
        if byte in (_QUOTE, _BACKSLASH) or byte < _SPACE:
            return at
        at += 1
    return end


@inlined
def _is_hex(byte: Any) -> Any:
    return _ZERO <= byte <= _NINE or _A <= byte | _CASE <= _F


@called
def _behind_text(at: Any, end: Any) -> Any:
    """Return the place behind the quote that ends a text; 0 where that is doubtful."""
    while True:
        at = _stop(at, end)
        if at >= end:
            return 0
        byte = _uint8_at(at)
        if byte == _QUOTE:
            return at + 1
        if byte != _BACKSLASH or at + 1 >= end:
            return 0
        byte = _uint8_at(at + 1)
        at += 2
        if byte == _U:
            if at + 4 > end:
                return 0
            for place in range(at, at + 4):
                if not _is_hex(_uint8_at(place)):
                    return 0
            if _uint8_at(at) | _CASE == _D and _uint8_at(at + 1) >= _EIGHT:  # one half of a pair
                return 0
            at += 4
        elif byte not in (_QUOTE, _BACKSLASH, _SLASH, _B, _F, _N, _R, _T):
            return 0


@inlined
def _behind_digits(at: Any, end: Any) -> Any:
    while at < end and _ZERO <= _uint8_at(at) <= _NINE:
        at += 1
    return at


@called
def _behind_number(at: Any, end: Any) -> Any:
    """Return the place behind a number; 0 where it is none."""
    begun = at + 1 if _uint8_at(at) == _MINUS else at
    at = _behind_digits(begun, end)
    if at == begun or (at > begun + 1 and _uint8_at(begun) == _ZERO):
        return 0
    if at < end and _uint8_at(at) == _POINT:
        begun = at + 1
        at = _behind_digits(begun, end)
        if at == begun:
            return 0
    if at < end and _uint8_at(at) | _CASE == _E:
        at += 1
        if at < end and (_uint8_at(at) == _PLUS or _uint8_at(at) == _MINUS):
            at += 1
        begun = at
        at = _behind_digits(begun, end)
        if at == begun:
            return 0
    return at


@inlined
def _behind_word(at: Any, end: Any) -> Any:
    """Return the place behind ``true``, ``false`` or ``null``; 0 where it is none."""
    if at + 4 <= end and (_uint32_at(at) == _TRUE or _uint32_at(at) == _NULL):
        return at + 4
    if at + 5 <= end and _uint8_at(at) == _F and _uint32_at(at + 1) == _ALSE:
        return at + 5
    return 0


@inlined
def _behind_space(at: Any, end: Any) -> Any:
    while at < end and _uint8_at(at) <= _SPACE:
        if _uint8_at(at) not in (_SPACE, _LF, _CR, _TAB):
            break
        at += 1
    return at


@called
def _behind_name(at: Any, end: Any) -> Any:
    """Return the place of the value behind a name and its colon; 0 where that is doubtful."""
    if at >= end or _uint8_at(at) != _QUOTE:
        return 0
    at = _behind_text(at + 1, end)
    if at == 0:
        return 0
    at = _behind_space(at, end)
    if at >= end or _uint8_at(at) != _COLON:
        return 0
    return _behind_space(at + 1, end)


@inlined
def _end_of(objects: Any) -> Any:
    """Return what ends the innermost of objects and arrays: the lowest bit says which of both it is."""
    return _BRACE_END if objects & np.uint64(1) else _BRACKET_END


@called
def _is_object(at: Any, end: Any) -> Any:
    """Return whether bytes, known to be UTF-8, are one JSON object; False where that is doubtful."""
    at = _behind_space(at, end)
    if at >= end or _uint8_at(at) != _BRACE:
        return False
    depth = 0
    objects = np.uint64(0)
    while at != 0 and at < end:
        # Here begins a value.
        byte = _uint8_at(at)
        if byte in (_BRACE, _BRACKET):
            if depth == _DEPTH_MAX:
                return False
            depth += 1
            objects = (objects << np.uint64(1)) | np.uint64(byte == _BRACE)
            at = _behind_space(at + 1, end)
            if at < end and _uint8_at(at) != _end_of(objects):
                if objects & np.uint64(1):
                    at = _behind_name(at, end)
                continue
        else:
            if byte == _QUOTE:
                at = _behind_text(at + 1, end)
            elif byte == _MINUS or _ZERO <= byte <= _NINE:
                at = _behind_number(at, end)
            else:
                at = _behind_word(at, end)
            if at == 0:
                return False
            at = _behind_space(at, end)
        # Here a value has ended, and maybe what it lies in, and what that lies in.
        while at < end and _uint8_at(at) == _end_of(objects):
            depth -= 1
            at = _behind_space(at + 1, end)
            if depth == 0:
                return at == end
            objects >>= np.uint64(1)
        if at >= end or _uint8_at(at) != _COMMA:
            return False
        at = _behind_space(at + 1, end)
        if objects & np.uint64(1):
            at = _behind_name(at, end)
    return False


@inlined
def _borders(offsets: Any, values: Any, row: Any) -> Any:
    """Return the address of a row's text and the one behind it."""
    at = offsets + 4 * row
    return values + np.int64(_int32_at(at)), values + np.int64(_int32_at(at + 4))


@compiled(types.int64(types.int64, types.int64, types.int64, types.int64, types.int64))
def first_doubtful(validity: int, offsets: int, values: int, first: int, stop: int) -> int:
    """Return the first row from ``first`` on, of those before ``stop``, that may be no object; -1 for none.

    Args:
        validity: Address of the bitmap; 0 where none is null.
        offsets: Address of the offsets, int32.
        values: Address of the bytes, UTF-8.
        first: Where to begin.
        stop: Where to end.
    """
    for row in range(first, stop):
        if is_present(validity, row):
            start, end = _borders(offsets, values, row)
            if not _is_object(start, end):
                return row
    return -1


@called
def _hash(group: Any, start: Any, end: Any) -> Any:
    """Return the hash of a name; as `names` has it."""
    value = (np.uint64(group) + np.uint64(1)) * _FACTOR
    at = end - 8
    while at >= start:
        product = (value ^ _uint64_at(at)) * _FACTOR
        value = product ^ (product >> _SHIFT)
        at -= 8
    word = np.uint64(0)
    for place in range(start, at + 8):
        word |= np.uint64(_uint8_at(place)) << np.uint64(8 * (place - at))
    product = (value ^ word) * _FACTOR
    return product ^ (product >> _SHIFT)


@called
def _knows_names(at: Any, end: Any, group: Any, table: Any, shift: Any) -> Any:
    """Return whether all names of an object are known, those of nested ones apart."""
    depth = 0
    expected = False
    while at < end:
        byte = _uint8_at(at)
        at += 1
        if byte == _QUOTE:
            start = at
            at = _stop(at, end)
            while at < end and _uint8_at(at) != _QUOTE:
                at = _stop(at + 2, end)
            if expected:
                value = _hash(group, start, at)
                if _uint64_at(table + np.int64(8 * (value >> shift))) != value:
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


@compiled(types.void(*(types.int64,) * 8, types.boolean[::1]))
def mark_unknown(
    validity: int,
    offsets: int,
    values: int,
    first: int,
    rows: int,
    groups: int,
    table: int,
    bits: int,
    marks: npt.NDArray[np.bool_],
) -> None:
    """Mark the rows of objects with a name that is not known in the row's group.

    Args:
        validity: Address of the bitmap; 0 where none is null.
        offsets: Address of the offsets, int32.
        values: Address of the bytes: JSON objects.
        first: The first row, as Arrow counts in its buffers.
        rows: How many.
        groups: Address of the group of each row, int64.
        table: Address of the hash table.
        bits: Of its size.
        marks: Of each row.
    """
    shift = np.uint64(64 - bits)
    for row in range(rows):
        if is_present(validity, first + row):
            start, end = _borders(offsets, values, first + row)
            if not _knows_names(start, end, _int64_at(groups + 8 * row), table, shift):
                marks[row] = True
