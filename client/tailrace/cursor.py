"""The cursor: a resume point that belongs to one log and means "strictly after this capture".

Text form, the same on every transport, in Spark and in files::

    1.<catalog uuid, 32 hex digits>.<version>.<index>.<ordinal>.<commit timestamp of the version>

with the numbers in decimal, without sign or leading zeros; index and ordinal may be 2147483647,
"past the last". The leading 1 is the form's own version. Readers treat the text as opaque; its
meaning is fixed so that any program can make one. Examples stand in docs/protocol.md and are
tested.

The commit timestamp tells the histories of a log apart. A log that was restored from an older copy
and written anew has the same uuid and the same version numbers, but other commits. The timestamp
may be left out: such a cursor is not checked against the history.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from tailrace.errors import CursorInvalid
from tailrace.position import END, MAX_VERSION, Position

_NUMBER: Final = r"(0|[1-9][0-9]{0,18})"
_FORM: Final = re.compile(
    rf"1\.([0-9a-f]{{32}})\.{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:\.{_NUMBER})?", re.ASCII
)
_TIMESTAMP_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A place in one catalog's log, exclusive: the next capture is the first one after it."""

    catalog_uuid: UUID
    """The log that it belongs to; another log refuses it by name."""
    version: int
    """Version of the last capture passed; 0 stands before the first."""
    index: int
    """Index of the last record passed, wholly or in part; ``END``: the whole version."""
    ordinal: int = END
    """Ordinal of the last capture passed in that record; ``END``: the whole record."""
    commit_timestamp: int | None = field(default=None, compare=False)
    """When ``version`` was committed, µs; 0: it had not been, the cursor is that of a start that waits. None:
    not known. Not compared: cursors are equal if they name the same place."""

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read the text form.

        Raises:
            CursorInvalid: The text is not a cursor; says what a cursor looks like.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise CursorInvalid(text)
        version, index, ordinal = (int(number) for number in match.groups()[1:4])
        timestamp = None if match[5] is None else int(match[5])
        if (
            version > MAX_VERSION
            or index > END
            or ordinal > END
            or (timestamp or 0) > _TIMESTAMP_MAX
        ):
            raise CursorInvalid(text)
        return cls(UUID(hex=match[1]), version, index, ordinal, timestamp)

    @classmethod
    def before(cls, catalog_uuid: UUID, position: Position) -> Cursor:
        """Return the cursor after which ``position`` is the first record that can come."""
        return cls(catalog_uuid, *position.preceding())

    @classmethod
    def past(cls, catalog_uuid: UUID, position: Position) -> Cursor:
        """Return the cursor that has passed the whole record at ``position``."""
        return cls(catalog_uuid, position.version, position.index)

    @property
    def position(self) -> Position:
        """The record that was passed last, wholly or in part."""
        return Position(self.version, self.index)

    def __str__(self) -> str:
        """Write the text form."""
        place = f"1.{self.catalog_uuid.hex}.{self.version}.{self.index}.{self.ordinal}"
        return place if self.commit_timestamp is None else f"{place}.{self.commit_timestamp}"
