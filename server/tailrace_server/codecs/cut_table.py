"""The table of cuts that `member_cutter.py` gives to compiled code: 64-bit numbers, by place."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

MEMBERS_AT_ONCE: Final = 4_096
"""Members of an object that are looked at; an object with more is left to the parser."""


class CutTable(IntEnum):
    """Places in the table. Whatever is not a number of rows is an address."""

    ROWS = 0
    VALIDITY = 1
    """Of the column; 0: nothing is null."""
    OFFSETS = 2
    VALUES = 3
    RULES = 4
    """An int32 a row: -1 = left to the parser, 0 = as it is, n = cut to the set n - 1."""
    SETS = 5
    """Three int64 a set of columns: 1 if those are shown, 0 if hidden; first name; behind the last."""
    NAME_OFFSETS = 6
    """An int32 a name, and one for the end."""
    NAME_BYTES = 7
    CUT_OFFSETS = 8
    """Written: an int32 a row, and one for the end."""
    CUT_VALUES = 9
    """Written: at most as many bytes as the column has."""
    DOUBTS = 10
    """Written: a byte a row, 1 where the row is left to the parser."""
    PLACES = 11
    """Two int64 for each of `MEMBERS_AT_ONCE`, for use meanwhile."""


TABLE_LENGTH: Final = len(CutTable)
