"""The place of a record in a catalog's log.

A log is a sequence of versions, one per source transaction, each a sequence of records. Record 0 of a version
is the transaction's lead; the others follow in source order. One record may give several captures; their
ordinals differ.

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
"""A catalog's transaction counter, dense from 1."""

TimestampMicros = NewType("TimestampMicros", int)
"""Microseconds since the Unix epoch, UTC."""

END: Final = 2**31 - 1
"""As an index or ordinal: past everything in that version or record."""

MAX_VERSION: Final = 2**63 - 1


class Position(NamedTuple):
    """A record of a log, totally ordered. As a start it is inclusive."""

    version: int
    """The transaction, from 1; 0 only as "the oldest retained position"."""
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which a position has no use for
    """The record in it, from 0 (the lead), counted before filtering; ``END`` is past the last record."""

    def __str__(self) -> str:
        """Write the form that the command line takes, ``version:index``."""
        return f"{self.version}:{'end' if self.index == END else self.index}"

    def preceding(self) -> Position:
        """Return the position just before this one: there is none between the two.

        The record before (V, 0) is the end of version V - 1, whatever its length.
        """
        if self.index > 0:
            return Position(self.version, self.index - 1)
        return Position(self.version - 1, END)


FIRST: Final = Position(1, 0)
"""The begin of every log."""

_WRITTEN: Final = re.compile(r"([0-9]{1,19})(?::([0-9]{1,10}))?", re.ASCII)


def position_in(text: str) -> Position | None:
    """Return the position that a text writes as ``VERSION`` or ``VERSION:INDEX``; None: it writes none."""
    match = _WRITTEN.fullmatch(text)
    if match is None or int(match[1]) > MAX_VERSION or int(match[2] or 0) > END:
        return None
    return Position(int(match[1]), int(match[2] or 0))
