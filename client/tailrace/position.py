"""The position of a record in the log of a catalog.

A log is a sequence of versions, one per transaction of the source. A version is a sequence of records: record 0
is the lead record of the transaction, and its mutations follow in the order of the source. A record may give
several captures, which differ in their ordinals.

    version   41            42                      43
    index     0  1  2       0  1  2  3  4           0  1
              |  |  |       |  |  |  |  |
              lead, then mutations  |
                                    (42, 2) is a Position; (42, 2, 1) names one capture of it
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, NewType

Version = NewType("Version", int)
"""A catalog's transaction counter: 1, 2, 3 and so on, without gaps."""

TimestampMicros = NewType("TimestampMicros", int)
"""Microseconds since the Unix epoch, UTC."""

END: Final = 2**31 - 1
"""Index after all records of a version, or ordinal after all captures of a record."""

MAX_VERSION: Final = 2**63 - 1


class Position(NamedTuple):
    """The place of a record in a log. Positions are totally ordered. As a start, a position is inclusive."""

    version: int
    """Version of the record, from 1. As a start, 0 means the oldest retained position."""
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which a position has no use for
    """Index of the record in its version, from 0 (the lead record), counted before filtering; ``END`` is the
    place after the last record."""

    def __str__(self) -> str:
        """Return the form that the command line accepts, ``version:index``."""
        return f"{self.version}:{'end' if self.index == END else self.index}"

    def preceding(self) -> Position:
        """Return the position just before this one, with no position between the two.

        Before (V, 0) that is the end of version V - 1, whatever its length.
        """
        if self.index > 0:
            return Position(self.version, self.index - 1)
        return Position(self.version - 1, END)


FIRST: Final = Position(1, 0)
"""The first position of every log."""

_WRITTEN: Final = re.compile(r"([0-9]{1,19})(?::([0-9]{1,10}))?", re.ASCII)


def position_in(text: str) -> Position | None:
    """Parse a position written as ``VERSION`` or ``VERSION:INDEX``; return None for any other text."""
    match = _WRITTEN.fullmatch(text)
    if match is None or int(match[1]) > MAX_VERSION or int(match[2] or 0) > END:
        return None
    return Position(int(match[1]), int(match[2] or 0))
