"""Functions that read the values of one member, at the places where `members.py` has found them.

They read common values: numbers of up to 18 digits, texts without escapes, dates and times in the form that
databases write. All other values are left to `typed/forms.py`. A loop may leave a readable value to it, but
must never read a value wrongly. All numbers are integers of 64 bits.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

import numpy as np

from tailrace_server.machine_code.loops.codes import SCRATCH, Notation, Program, ValueState
from tailrace_server.machine_code.loops.json_objects import (
    next_stop,
)
from tailrace_server.machine_code.loops.primitives import (
    called,
    copy,
    inlined,
    int32_at,
    int64_at,
    place_of,
    store,
    uint8_at,
    uint64_at,
)

# numba compiles numbers of the module as constants, and does not support these enumerations.
_WHOLE, _BOOLEAN, _DECIMAL = int(Notation.WHOLE), int(Notation.BOOLEAN), int(Notation.DECIMAL)
_QUOTED_DECIMAL, _SCALED_DECIMAL = int(Notation.QUOTED_DECIMAL), int(Notation.SCALED_DECIMAL)
_DATE, _TIME, _INSTANT = int(Notation.DATE), int(Notation.TIME), int(Notation.INSTANT)
_RAW, _NUMBER, _TEXT = int(Notation.RAW), int(Notation.NUMBER), int(Notation.TEXT)
_ABSENT, _NULL, _VALUE = int(ValueState.ABSENT), int(ValueState.NULL), int(ValueState.VALUE)
_DOUBTFUL, _ESCAPED = int(ValueState.DOUBTFUL), int(ValueState.ESCAPED)
_NOTATION, _SCALE = int(Program.NOTATION), int(Program.SCALE)
_LEAST, _GREATEST = int(Program.LEAST), int(Program.GREATEST)
_STATES, _OUT, _OFFSETS = int(Program.STATES), int(Program.OUT), int(Program.OFFSETS)
_WIDTH = int(Program.WIDTH)
_PLACEHOLDERS, _PLACEHOLDER_LENGTHS = int(Program.PLACEHOLDERS), int(Program.PLACEHOLDER_LENGTHS)
_PLACEHOLDER_OFFSETS = int(Program.PLACEHOLDER_OFFSETS)
_PLACEHOLDER_BYTES = int(Program.PLACEHOLDER_BYTES)
_QUOTE, _BRACE, _BRACKET, _MINUS, _PLUS, _POINT = b'"{[-+.'
_COLON, _SPACE, _SLASH, _EQUALS, _ZERO, _NINE, _F, _N, _T, _Z = b": /=09fntZ"
_UPPER_A, _UPPER_Z, _LOWER_A, _LOWER_Z, _UPPER_T = b"AZazT"
_DIGITS_MAX = 18
"""The most digits of a number that is read here. Such numbers are always below 2^63."""
_UNREAD = np.int64(-(2**63))
"""Result for a value that was not read. No number of up to 18 digits is as low as this."""
_MONTHS = 12
_ZEROS, _OVER_NINE = np.uint64(0x3030303030303030), np.uint64(0x7676767676767676)
_HIGHS, _NO_BITS = np.uint64(0x8080808080808080), np.uint64(0xFFFFFFFFFFFFFFFF)
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND


@inlined
def _is_digit(at: Any) -> Any:
    return _ZERO <= uint8_at(at) <= _NINE


@called
def _state_of(at: Any, length: Any, program: Any) -> Any:
    """Return the state of a value before it is read: absent, null, or a value.

    Args:
        at: Place of the value.
        length: Length of the value; 0 if the image does not have the member.
        program: Address of the column's `Program`.
    """
    if length == 0:
        return _ABSENT
    byte = uint8_at(at)
    if byte == _N:
        return _NULL
    # A source writes a placeholder for a value that it does not send. Most values have a length that no
    # placeholder has, so one bit excludes them without a comparison.
    lengths = int64_at(program + 8 * _PLACEHOLDER_LENGTHS)
    if byte in (_QUOTE, _BRACE, _BRACKET) and (lengths >> (length & 63)) & 1:
        count = int64_at(program + 8 * _PLACEHOLDERS)
        offsets = int64_at(program + 8 * _PLACEHOLDER_OFFSETS)
        texts = int64_at(program + 8 * _PLACEHOLDER_BYTES)
        if place_of(at, length, 0, count, offsets, texts) >= 0:
            return _ABSENT
    return _VALUE


@called
def _eight(end: Any, count: Any) -> Any:
    """Return the number of up to eight digits before ``end``; -1 if there are other characters.

    Eight bytes before ``end`` must be readable.
    """
    # 1. Replace the characters before the number by zeros. A digit then is a byte from 0 to 9.
    word = uint64_at(end - 8) ^ _ZEROS
    if count < 8:
        word &= _NO_BITS << np.uint64(64 - 8 * count)
    if (word | (word + _OVER_NINE)) & _HIGHS:
        return np.int64(-1)
    # 2. Add up neighbours: eight digits are four numbers of two digits, then two of four, then one of eight.
    word = (word * np.uint64(10) + (word >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    word = (word * np.uint64(100) + (word >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    word = (word * np.uint64(10_000) + (word >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return np.int64(word)


@called
def _digits(at: Any, count: Any) -> Any:
    """Return a number of exactly ``count`` digits, up to 18; -1 if there are other characters.

    Eight bytes before the first digit must be readable.
    """
    end = at + count
    number = _eight(end, min(count, 8))
    unit = np.int64(100_000_000)
    while count > 8 and number >= 0:
        count -= 8
        end -= 8
        part = _eight(end, min(count, 8))
        number = number + unit * part if part >= 0 else np.int64(-1)
        unit *= unit
    return number


@called
def _whole(at: Any, end: Any) -> Any:
    """Return the value of a whole number; `_UNREAD` if it is no whole number, or has more than 18 digits."""
    negative = uint8_at(at) == _MINUS
    begun = at + 1 if negative else at
    if begun == end or end - begun > _DIGITS_MAX:
        return _UNREAD
    number = _digits(begun, end - begun)
    if number < 0:
        return _UNREAD
    return -number if negative else number


@called
def _unscaled(at: Any, end: Any, scale: Any) -> Any:
    """Return a decimal multiplied by 10 to the power of ``scale``; `_UNREAD` if it has more fraction digits."""
    negative = at < end and uint8_at(at) == _MINUS
    begun = at + 1 if negative else at
    point = begun
    while point < end and uint8_at(point) != _POINT:
        point += 1
    # There must be digits on both sides of a point. Append zeros for missing fraction digits.
    fraction = max(end - point - 1, 0)
    if point == begun or point + 1 == end or fraction > scale:
        return _UNREAD
    if point - begun + scale > _DIGITS_MAX:
        return _UNREAD
    number = _digits(begun, point - begun)
    decimals = np.int64(0)
    if fraction > 0:
        decimals = _digits(point + 1, fraction)
    if number < 0 or decimals < 0:
        return _UNREAD
    for _ in range(fraction):
        number *= 10
    number += decimals
    for _ in range(scale - fraction):
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


@inlined
def _store_number(at: Any, width: Any, number: Any) -> None:
    """Store a number in as many bytes as a column has for it; it is known to fit."""
    if width == 8:
        store(at, number)
    elif width == 4:
        store(at, np.int32(number))
    elif width == 1:
        store(at, np.uint8(number))
    elif width == 2:
        store(at, np.int16(number))
    else:
        store(at, number)
        for place in range(at + 8, at + width, 8):
            store(place, number >> 63)


@called
def read_numbers(
    first: Any, stop: Any, rows: Any, values: Any, starts: Any, lengths: Any, program: Any
) -> Any:
    """Read some rows of a column of numbers; return the number of rows whose state is not VALUE.

    Args:
        first: The first row.
        stop: The row after the last.
        rows: Number of rows of the column.
        values: Address of the images' bytes.
        starts: Address of the start of each row's value, counted from ``values``, int32.
        lengths: Address of the length of each row's value, int32.
        program: Address of the column's `Program`.
    """
    notation, scale = int64_at(program + 8 * _NOTATION), int64_at(program + 8 * _SCALE)
    least, greatest = int64_at(program + 8 * _LEAST), int64_at(program + 8 * _GREATEST)
    states, out = int64_at(program + 8 * _STATES), int64_at(program + 8 * _OUT)
    others = 0
    width = int64_at(program + 8 * _WIDTH)
    scratch = out + width * rows
    for row in range(first, stop):
        at = values + np.int64(int32_at(starts + 4 * row))
        length = np.int64(int32_at(lengths + 4 * row))
        state = _state_of(at, length, program)
        number = np.int64(0)
        if state == _VALUE:
            # Numbers are read by words that begin up to eight bytes before them. These bytes may not be
            # allocated before a value of the first image, so a copy of such a value is read.
            is_safe = at >= values + 8
            if not is_safe and length <= SCRATCH - 16:
                copy(scratch + 16, at, length)
                at = scratch + 16
                is_safe = True
            number = _number(at, at + length, notation, scale, scratch) if is_safe else _UNREAD
            if number < least or number > greatest or number == _UNREAD:
                state, number = _DOUBTFUL, np.int64(0)
        others += state != _VALUE
        _store_number(out + width * row, width, number)
        store(states + row, np.uint8(state))
    return others


@called
def read_texts(first: Any, stop: Any, values: Any, starts: Any, lengths: Any, program: Any) -> Any:
    """Read some rows of a column of texts or bytes; return the number of rows whose state is not VALUE.

    The rows before them have been read. Arguments as in `read_numbers`.
    """
    notation = int64_at(program + 8 * _NOTATION)
    states, out = int64_at(program + 8 * _STATES), int64_at(program + 8 * _OUT)
    out_offsets = int64_at(program + 8 * _OFFSETS)
    to = out + np.int64(int32_at(out_offsets + 4 * first))
    others = 0
    for row in range(first, stop):
        at = values + np.int64(int32_at(starts + 4 * row))
        length = np.int64(int32_at(lengths + 4 * row))
        state = _state_of(at, length, program)
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
        others += state != _VALUE
        store(states + row, np.uint8(state))
        store(out_offsets + 4 * row + 4, np.int32(to - out))
    return others
