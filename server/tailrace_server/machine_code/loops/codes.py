"""Constants that loops and their callers exchange. Both import this module, so it does not use numba."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

MEMBERS_AT_ONCE: Final = 4_096
"""The most members of an object that loops handle. An object with more is left to the parser."""


class Note(IntEnum):
    """The result of `locate_members` for one image."""

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


END, LONG, INT, SKIP, BYTES, TEXT, BOOLEAN, ENUM, UNION, JUMP, FLOAT, DOUBLE = range(12)
"""Operations of a program that reads Avro; `pipeline/cdcv2/cutting.py` describes such programs."""
