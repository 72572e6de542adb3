"""Constants that loops and their callers exchange. Both import this module, so it does not use numba."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

MEMBERS_AT_ONCE: Final = 4_096
"""The most members of an object that loops handle. An object with more is left to the parser."""
SCRATCH: Final = 80
"""Number of bytes of scratch memory after the output of a column of numbers."""


class Program(IntEnum):
    """Places of the int64 numbers with which a loop reads the values of a column."""

    MEMBER = 0
    """The place of the column's member among the names."""
    NOTATION = 1
    SCALE = 2
    """Number of digits after the point, for decimals."""
    LEAST = 3
    """The smallest number to accept."""
    GREATEST = 4
    """The largest number to accept."""
    WIDTH = 5
    """Number of bytes of a number in the output."""
    PLACEHOLDERS = 6
    """Number of placeholders, which sources write for values that they do not send."""
    PLACEHOLDER_LENGTHS = 7
    """Set of the placeholders' lengths: bit n is set if one is n bytes long, modulo 64."""
    PLACEHOLDER_OFFSETS = 8
    """Address of the offsets of the placeholders, int32."""
    PLACEHOLDER_BYTES = 9
    """Address of the bytes of the placeholders."""
    STATES = 10
    """Address of the output: a `ValueState` for each row, uint8."""
    OUT = 11
    """Address of the output: the number in each row, followed by `SCRATCH` bytes; or the bytes of all texts, at
    most as many as the images have."""
    OFFSETS = 12
    """For texts, address of the output: the offset of each row, and the end, int32; the first is 0."""
    OTHERS = 13
    """Output: number of rows whose state is not VALUE; the caller sets it to 0."""


class Note(IntEnum):
    """The result of `read_members` for one image."""

    FOUND = 0
    MORE = 1
    """The image has further members, which were not requested."""
    DOUBTFUL = 2
    """The image is left to the parser. All that the loop has written about it is invalid."""


class Notation(IntEnum):
    """The way in which a loop reads the values of a column."""

    LEFT = 0
    """The loops do not read these values; all are left to Python."""
    WHOLE = 1
    BOOLEAN = 2
    DECIMAL = 3
    QUOTED_DECIMAL = 4
    SCALED_DECIMAL = 5
    DATE = 6
    TIME = 7
    TIMESTAMP = 8
    INSTANT = 9
    RAW = 10
    """The JSON text of the value is copied unchanged."""
    NUMBER = 11
    """The JSON text is copied unchanged if it is a number."""
    TEXT = 12
    BYTES = 13


class ValueState(IntEnum):
    """The result of reading the value in one row."""

    ABSENT = 0
    """The image does not have the member, or the source did not send its value."""
    NULL = 1
    VALUE = 2
    """The loop has written the value to its output."""
    DOUBTFUL = 3
    """The value is left to Python."""
    ESCAPED = 4
    """The value is a text with a backslash, which is left to a parser."""


class TableText(IntEnum):
    """The way in which a value in PostgreSQL's text form becomes JSON."""

    SAME = 0
    """The text is a number."""
    NUMBER = 1
    """The text is a number, or NaN or an infinity, which becomes a string."""
    TRUTH = 2
    """The text is t or f."""
    OCTETS = 3
    """The text has hexadecimal digits, which become a string in base64."""
    STRING = 4


END, LONG, INT, SKIP, BYTES, TEXT, BOOLEAN, ENUM, UNION, JUMP, FLOAT, DOUBLE = range(12)
"""Operations of a program that reads Avro; `pipeline/cdcv2/cutting.py` describes such programs."""
