"""Numbers with a meaning that loops and their callers exchange; imported by both, so without numba."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

MEMBERS_AT_ONCE: Final = 4_096
"""Members of an object that loops read; an object with more is left to the parser."""


class Note(IntEnum):
    """The result for an image."""

    FOUND = 0
    MORE = 1
    """It has members that were not requested."""
    DOUBTFUL = 2
    """It is left to the parser; what was written about it does not count."""


class Notation(IntEnum):
    """How compiled code reads a value."""

    LEFT = 0
    """Not at all: all values are left to Python."""
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
    """As it is."""
    NUMBER = 11
    """As it is, if it is a number."""
    TEXT = 12
    BYTES = 13


class ValueState(IntEnum):
    """The result for a row's value."""

    ABSENT = 0
    """The image has none, or the source did not send it."""
    NULL = 1
    VALUE = 2
    """It is in what was written."""
    DOUBTFUL = 3
    """It is left to Python."""
    ESCAPED = 4
    """It is a text with a backslash, which is left to a parser."""


END, LONG, INT, SKIP, BYTES, TEXT, BOOLEAN, ENUM, UNION, JUMP, FLOAT, DOUBLE = range(12)
"""Operations of a program that reads Avro; `pipeline/cdcv2/cutting.py` describes it."""
