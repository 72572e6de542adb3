"""Loops that read the values of one member, at the places where `members.py` has found them.

They read common values: numbers of up to 18 digits, texts without escapes, dates and times in the form that
databases write. All other values are left to `typed/forms.py`. A loop may leave a readable value to it, but
must never read a value wrongly. All numbers are integers of 64 bits.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

import numpy as np

from tailrace_server.machine_code.loops.codes import Notation, ValueState
from tailrace_server.machine_code.loops.json_objects import (
    next_stop,
)
from tailrace_server.machine_code.loops.primitives import (
    called,
    copy,
    inlined,
    int32_at,
    place_of,
    store,
    uint8_at,
)

# numba compiles numbers of the module as constants, and does not support these enumerations.
_WHOLE, _BOOLEAN, _DECIMAL = int(Notation.WHOLE), int(Notation.BOOLEAN), int(Notation.DECIMAL)
_QUOTED_DECIMAL, _SCALED_DECIMAL = int(Notation.QUOTED_DECIMAL), int(Notation.SCALED_DECIMAL)
_DATE, _TIME, _INSTANT = int(Notation.DATE), int(Notation.TIME), int(Notation.INSTANT)
_RAW, _NUMBER, _TEXT = int(Notation.RAW), int(Notation.NUMBER), int(Notation.TEXT)
_ABSENT, _NULL, _VALUE = int(ValueState.ABSENT), int(ValueState.NULL), int(ValueState.VALUE)
_DOUBTFUL, _ESCAPED = int(ValueState.DOUBTFUL), int(ValueState.ESCAPED)
_QUOTE, _BRACE, _BRACKET, _MINUS, _PLUS, _POINT = b'"{[-+.'
_COLON, _SPACE, _SLASH, _EQUALS, _ZERO, _NINE, _F, _N, _T, _Z = b": /=09fntZ"
_UPPER_A, _UPPER_Z, _LOWER_A, _LOWER_Z, _UPPER_T = b"AZazT"
_DIGITS_MAX = 18
"""The most digits of a number that is read here. Such numbers are always below 2^63."""
_UNREAD = np.int64(-(2**63))
"""Result for a value that was not read. No number of up to 18 digits is as low as this."""
_MONTHS = 12
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND


@inlined
def _is_digit(at: Any) -> Any:
    return _ZERO <= uint8_at(at) <= _NINE


@called
def _state_of(
    at: Any, length: Any, placeholders: Any, lengths: Any, offsets: Any, texts: Any
) -> Any:
    """Return the state of a value before it is read: absent, null, or a value.

    Args:
        at: Place of the value.
        length: Length of the value; 0 if the image does not have the member.
        placeholders: Number of placeholders.
        lengths: A set of the placeholders' lengths: bit n is set if one of them is n bytes long, modulo 64.
        offsets: Address of the offsets of the placeholders, int32.
        texts: Address of the bytes of the placeholders.
    """
    if length == 0:
        return _ABSENT
    byte = uint8_at(at)
    if byte == _N:
        return _NULL
    # A source writes a placeholder for a value that it does not send. Most values have a length that no
    # placeholder has, so one bit excludes them without a comparison.
    is_candidate = byte in (_QUOTE, _BRACE, _BRACKET) and (lengths >> (length & 63)) & 1
    if is_candidate and place_of(at, length, 0, placeholders, offsets, texts) >= 0:
        return _ABSENT
    return _VALUE


@called
def _whole(at: Any, end: Any) -> Any:
    """Return the value of a whole number; `_UNREAD` if it is no whole number, or has more than 18 digits."""
    negative = uint8_at(at) == _MINUS
    begun = at + 1 if negative else at
    if begun == end or end - begun > _DIGITS_MAX:
        return _UNREAD
    number = np.int64(0)
    for place in range(begun, end):
        if not _is_digit(place):
            return _UNREAD
        number = number * 10 + np.int64(uint8_at(place) - _ZERO)
    return -number if negative else number


@called
def _unscaled(at: Any, end: Any, scale: Any) -> Any:
    """Return a decimal multiplied by 10 to the power of ``scale``; `_UNREAD` if it has more fraction digits."""
    negative = at < end and uint8_at(at) == _MINUS
    begun = at + 1 if negative else at
    number = np.int64(0)
    digits, fraction = 0, -1
    for place in range(begun, end):
        byte = uint8_at(place)
        if byte == _POINT and fraction < 0 and digits > 0:
            fraction = 0
        elif _ZERO <= byte <= _NINE and digits < _DIGITS_MAX:
            number = number * 10 + np.int64(byte - _ZERO)
            digits += 1
            if fraction >= 0:
                fraction += 1
        else:
            return _UNREAD
    # There must be digits on both sides of a point. Append zeros for missing fraction digits.
    if digits == 0 or fraction == 0:
        return _UNREAD
    missing = scale - max(fraction, 0)
    if missing < 0 or digits + missing > _DIGITS_MAX:
        return _UNREAD
    for _ in range(missing):
        number *= 10
    return -number if negative else number


@inlined
def _sextet(byte: Any) -> Any:
    """Return the value of a base64 character; 64 if it is none."""
    if _UPPER_A <= byte <= _UPPER_Z:
        return np.int64(byte) - _UPPER_A
    if _LOWER_A <= byte <= _LOWER_Z:
        return np.int64(byte) - _LOWER_A + 26
    if _ZERO <= byte <= _NINE:
        return np.int64(byte) - _ZERO + 52
    if byte == _PLUS:
        return np.int64(62)
    return np.int64(63) if byte == _SLASH else np.int64(64)


@called
def _unbase64(at: Any, end: Any, to: Any) -> Any:
    """Write the bytes of a base64 text; return the place after them, or 0 if it is no plain base64."""
    if (end - at) & 3:
        return 0
    while at < end:
        # 1. Only the last four characters may have padding.
        padding = 0
        if at + 4 == end and uint8_at(at + 3) == _EQUALS:
            padding = 2 if uint8_at(at + 2) == _EQUALS else 1
        # 2. Four characters are three bytes, minus one for each padding character.
        word = np.int64(0)
        for place in range(4):
            sextet = np.int64(0)
            if place < 4 - padding:
                sextet = _sextet(uint8_at(at + place))
                if sextet == 64:
                    return 0
            word = (word << 6) | sextet
        for place in range(3 - padding):
            store(to, np.uint8((word >> (16 - 8 * place)) & 255))
            to += 1
        at += 4
    return to


@called
def _from_bytes(at: Any, end: Any, scratch: Any) -> Any:
    """Return the number whose big-endian bytes are a base64 text; `_UNREAD` if it has more than seven bytes.

    ``scratch`` is the address of at least nine bytes of scratch memory.
    """
    if at == end or end - at > 12:
        return _UNREAD
    behind = _unbase64(at, end, scratch)
    count = behind - scratch
    if behind == 0 or count == 0 or count > 7:
        return _UNREAD
    number = np.int64(0)
    for place in range(scratch, behind):
        number = (number << 8) | np.int64(uint8_at(place))
    return number - (np.int64(1) << (8 * count)) if uint8_at(scratch) & 128 else number


@called
def _digits(at: Any, count: Any) -> Any:
    """Return a number of exactly ``count`` digits; -1 if there are other characters."""
    number = np.int64(0)
    for place in range(at, at + count):
        if not _is_digit(place):
            return np.int64(-1)
        number = number * 10 + np.int64(uint8_at(place) - _ZERO)
    return number


@called
def _days(at: Any, end: Any) -> Any:
    """Return the days since 1970 of a date like ``2024-02-29``; `_UNREAD` if it is no valid date.

    Characters after the date are ignored.
    """
    if end - at < 10 or uint8_at(at + 4) != _MINUS or uint8_at(at + 7) != _MINUS:
        return _UNREAD
    year, month, day = _digits(at, 4), _digits(at + 5, 2), _digits(at + 8, 2)
    if year < 1 or month < 1 or month > _MONTHS or day < 1:
        return _UNREAD
    # Months have 31 and 30 days alternately, beginning anew with 31 in August; February is special.
    longest = 30 + ((month + (month >> 3)) & 1)
    if month == 2:
        is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        longest = 29 if is_leap else 28
    if day > longest:
        return _UNREAD
    # If years begin in March, the leap day is their last day. So count days from March 1 of the year 0; 719,468
    # is the number of days from there to 1970-01-01.
    if month <= 2:
        year -= 1
        month += 12
    of_year = (153 * (month - 3) + 2) // 5 + day - 1
    return 365 * year + year // 4 - year // 100 + year // 400 + of_year - 719_468


@called
def _micros(at: Any, end: Any) -> Any:
    """Return the microseconds of a time like ``13:37:00.25``; `_UNREAD` if it is no valid time."""
    if end - at < 8 or uint8_at(at + 2) != _COLON or uint8_at(at + 5) != _COLON:
        return _UNREAD
    hour, minute, second = _digits(at, 2), _digits(at + 3, 2), _digits(at + 6, 2)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return _UNREAD
    number = (hour * 3_600 + minute * 60 + second) * _SECOND
    if end - at == 8:
        return number
    count = end - at - 9
    if uint8_at(at + 8) != _POINT or count < 1 or count > 6:
        return _UNREAD
    fraction = _digits(at + 9, count)
    if fraction < 0:
        return _UNREAD
    for _ in range(6 - count):
        fraction *= 10
    return number + fraction


@called
def _offset(at: Any, end: Any) -> Any:
    """Return the offset of a zone like ``+01:30`` or ``Z`` from UTC, in microseconds; else `_UNREAD`."""
    if end - at == 1 and uint8_at(at) == _Z:
        return np.int64(0)
    if end - at != 6 or uint8_at(at + 3) != _COLON or uint8_at(at) not in (_PLUS, _MINUS):
        return _UNREAD
    hours, minutes = _digits(at + 1, 2), _digits(at + 4, 2)
    if hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
        return _UNREAD
    offset = (hours * 3_600 + minutes * 60) * _SECOND
    return -offset if uint8_at(at) == _MINUS else offset


@called
def _moment(at: Any, end: Any, zoned: Any) -> Any:
    """Return the microseconds since 1970 of a date with a time; `_UNREAD` if it is invalid.

    With ``zoned``, a zone must follow, and the result is in UTC. Otherwise no zone may follow.
    """
    days = _days(at, end)
    if days == _UNREAD or end - at < 19:
        return _UNREAD
    if uint8_at(at + 10) != _UPPER_T and uint8_at(at + 10) != _SPACE:
        return _UNREAD
    # The zone begins at the first character after the seconds that is neither a digit nor a point.
    zone = at + 19
    while zone < end and (_is_digit(zone) or uint8_at(zone) == _POINT):
        zone += 1
    micros, offset = _micros(at + 11, zone), np.int64(0)
    if zoned:
        offset = _offset(zone, end)
    elif zone != end:
        return _UNREAD
    if micros == _UNREAD or offset == _UNREAD:
        return _UNREAD
    return days * _DAY + micros - offset


@called
def _number(at: Any, end: Any, notation: Any, scale: Any, scratch: Any) -> Any:
    """Return a value as a number, read by its notation; `_UNREAD` if that is doubtful."""
    if notation == _WHOLE:
        return _whole(at, end)
    if notation == _DECIMAL:
        return _unscaled(at, end, scale)
    if notation == _BOOLEAN:
        # The value is valid JSON, so its first letter is enough to recognise it.
        byte = uint8_at(at)
        if byte == _T:
            return np.int64(1)
        return np.int64(0) if byte == _F else _UNREAD
    # The other notations are texts: read the characters between the quotes.
    if uint8_at(at) != _QUOTE:
        return _UNREAD
    at, end = at + 1, end - 1
    if notation == _QUOTED_DECIMAL:
        return _unscaled(at, end, scale)
    if notation == _SCALED_DECIMAL:
        return _from_bytes(at, end, scratch)
    if notation == _DATE:
        return _days(at, end) if end - at == 10 else _UNREAD
    if notation == _TIME:
        return _micros(at, end)
    return _moment(at, end, notation == _INSTANT)


def read_numbers(
    rows: Any,
    values: Any,
    starts: Any,
    lengths: Any,
    placeholders: Any,
    placeholder_lengths: Any,
    placeholder_offsets: Any,
    placeholder_bytes: Any,
    states: Any,
    out: Any,
    notation: Any,
    scale: Any,
    least: Any,
    greatest: Any,
) -> Any:
    """Read a column of numbers; return the number of values that are left to Python.

    Args:
        rows: Number of rows.
        values: Address of the images' bytes.
        starts: Address of the start of each value: an output of `locate_members`.
        lengths: Address of the length of each value: an output of `locate_members`.
        placeholders: Number of placeholders, which sources write for values that they do not send.
        placeholder_lengths: Set of the placeholders' lengths: bit n is set if one is n bytes long, modulo 64.
        placeholder_offsets: Address of the offsets of the placeholders, int32.
        placeholder_bytes: Address of the bytes of the placeholders.
        states: Output: a `ValueState` for each row, uint8.
        out: Output: the number in each row, int64; followed by 16 bytes of scratch memory.
        notation: The `Notation` of the values.
        scale: Number of digits after the point, for decimals.
        least: The smallest number to accept.
        greatest: The largest number to accept.
    """
    left = 0
    for row in range(rows):
        at = values + np.int64(int32_at(starts + 4 * row))
        length = np.int64(int32_at(lengths + 4 * row))
        state = _state_of(
            at, length, placeholders, placeholder_lengths, placeholder_offsets, placeholder_bytes
        )
        number = np.int64(0)
        if state == _VALUE:
            # The place of the row's number, which is written below, serves as scratch memory until then.
            number = _number(at, at + length, notation, scale, out + 8 * row)
            if number < least or number > greatest or number == _UNREAD:
                state, number = _DOUBTFUL, np.int64(0)
                left += 1
        store(out + 8 * row, number)
        store(states + row, np.uint8(state))
    return left


def read_texts(
    rows: Any,
    values: Any,
    starts: Any,
    lengths: Any,
    placeholders: Any,
    placeholder_lengths: Any,
    placeholder_offsets: Any,
    placeholder_bytes: Any,
    states: Any,
    out: Any,
    notation: Any,
    out_offsets: Any,
) -> Any:
    """Read a column of texts or bytes; return the number of values that are left to Python.

    Args:
        rows: As in `read_numbers`.
        values: As in `read_numbers`.
        starts: As in `read_numbers`.
        lengths: As in `read_numbers`.
        placeholders: As in `read_numbers`.
        placeholder_lengths: As in `read_numbers`.
        placeholder_offsets: As in `read_numbers`.
        placeholder_bytes: As in `read_numbers`.
        states: As in `read_numbers`.
        out: Output: the bytes of all values, at most as many as the images' values have.
        notation: The `Notation` of the values.
        out_offsets: Output: the offset of each row in ``out``, and the end, int32.
    """
    to = out
    left = 0
    for row in range(rows):
        store(out_offsets + 4 * row, np.int32(to - out))
        at = values + np.int64(int32_at(starts + 4 * row))
        length = np.int64(int32_at(lengths + 4 * row))
        state = _state_of(
            at, length, placeholders, placeholder_lengths, placeholder_offsets, placeholder_bytes
        )
        if state == _VALUE:
            byte = uint8_at(at)
            if notation == _RAW or (notation == _NUMBER and (byte == _MINUS or _is_digit(at))):
                copy(to, at, length)
                to += length
            elif notation == _NUMBER or byte != _QUOTE:
                state = _DOUBTFUL
            elif notation == _TEXT:
                if next_stop(at + 1, at + length) == at + length - 1:
                    copy(to, at + 1, length - 2)
                    to += length - 2
                else:
                    state = _ESCAPED
            else:
                behind = _unbase64(at + 1, at + length - 1, to)
                if behind == 0:
                    state = _DOUBTFUL
                else:
                    to = behind
            left += state != _VALUE
        store(states + row, np.uint8(state))
    store(out_offsets + 4 * rows, np.int32(to - out))
    return left
