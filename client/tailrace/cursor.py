"""The cursor: a resume point that belongs to one log and means "strictly after this capture".

Text form, the same on every transport, in Spark and in files::

    1.<catalog uuid, 32 hex digits>.<version>.<index>.<ordinal>

with the numbers in decimal, without sign or leading zeros; index and ordinal may be 2147483647,
"past the last". The leading 1 is the form's own version. Readers treat the text as opaque; its
meaning is fixed so that any program can make one. Examples stand in docs/protocol.md and are
tested.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tailrace.errors import CursorInvalid
from tailrace.position import END, MAX_VERSION, Position

_NUMBER: Final = r"(0|[1-9][0-9]{0,18})"
_FORM: Final = re.compile(rf"1\.([0-9a-f]{{32}})\.{_NUMBER}\.{_NUMBER}\.{_NUMBER}", re.ASCII)


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

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read the text form.

        Raises:
            CursorInvalid: The text is not a cursor; says what a cursor looks like.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise CursorInvalid(text)
        version, index, ordinal = (int(number) for number in match.groups()[1:])
        if version > MAX_VERSION or index > END or ordinal > END:
            raise CursorInvalid(text)
        return cls(UUID(hex=match[1]), version, index, ordinal)

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
        return f"1.{self.catalog_uuid.hex}.{self.version}.{self.index}.{self.ordinal}"
