"""The tables that tell `compiled_members.py` and `compiled_values.py` what to do: 64-bit numbers, by place.

Whatever is not a number itself is an address.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

MEMBERS_AT_ONCE: Final = 4_096
"""Members of an object that are looked at; an object with more is left to the parser."""


class LocatorTable(IntEnum):
    """The finder of members in a column of images."""

    ROWS = 0
    VALIDITY = 1
    """Of the images; 0: none is null."""
    OFFSETS = 2
    VALUES = 3
    NAMES = 4
    """How many names are looked for."""
    NAME_OFFSETS = 5
    """An int32 a name, and one for the end."""
    NAME_BYTES = 6
    STARTS = 7
    """Written: for each name an int32 a row, where its value begins, counted from the first byte of all."""
    LENGTHS = 8
    """Written, where a row has it: the same of its length. It is 0 before, which says that the row has none."""
    NOTES = 9
    """Written: a byte a row, one of `Note`."""
    SEEN = 10
    """Three int64 for each of `MEMBERS_AT_ONCE`, for use meanwhile; -1 before."""


class Note(IntEnum):
    """The result for an image."""

    FOUND = 0
    MORE = 1
    """It has members that were not looked for."""
    DOUBTFUL = 2
    """It is left to the parser, and nothing that was written of it counts."""


class ValueTable(IntEnum):
    """The reader of the values of one name."""

    ROWS = 0
    VALUES = 1
    STARTS = 2
    LENGTHS = 3
    PLACEHOLDERS = 4
    """The number of placeholders for values that were not sent."""
    PLACEHOLDER_LENGTHS = 5
    """Bit n is set if one of them is n bytes long, modulo 64."""
    PLACEHOLDER_OFFSETS = 6
    PLACEHOLDER_BYTES = 7
    NOTATION = 8
    """One of `Notation`."""
    SCALE = 9
    """Of decimals: how many digits behind the point."""
    LEAST = 10
    """Of numbers, inclusive."""
    GREATEST = 11
    OUT = 12
    """Written: an int64 a row; or bytes, at most as many as the values have."""
    OUT_OFFSETS = 13
    """Written for bytes: an int32 a row, and one for the end."""
    STATES = 14
    """Written: a byte a row, one of `ValueState`."""


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
