"""Errors of the Avro form of a CDCv2 stream.

::

    CdcError                      (tailrace.cdcv2)
    ├── SchemaDiffers             a schema is not the documented or the expected one; it names the place
    ├── MessageUnreadable         bytes or text are not a message of the schema
    └── DataMisfit                a value does not fit the schema; it names the field
"""

from __future__ import annotations

from tailrace.cdcv2 import CdcError


class SchemaDiffers(CdcError):
    """A schema is not the required one.

    The schema has to be changed where it is written; a retry does not help.
    """

    code = "CDC_SCHEMA_DIFFERS"

    def __init__(self, place: str, expected: str, found: str) -> None:
        """Store the place, such as ``[1].fields[0].type``, with the expected and the found schema."""
        at = f"at {place}" if place else "at the top"
        super().__init__(f"schema differs {at}: expected {expected}, found {found}")
        self.place = place
        self.expected = expected
        self.found = found

    def figures(self) -> dict[str, str]:
        """Return the place, the expected schema and the found schema."""
        return {"place": self.place, "expected": self.expected, "found": self.found}


class MessageUnreadable(CdcError):
    """A message or its file is damaged, cut off, or of another kind. A retry does not help."""

    code = "CDC_MESSAGE_UNREADABLE"

    def __init__(self, reason: str, where: str = "") -> None:
        """Store the fault and its place, such as ``byte 1034``; an empty place means the whole message."""
        super().__init__(f"{where}: {reason}" if where else reason)
        self.reason = reason
        self.where = where

    def figures(self) -> dict[str, str]:
        """Return the fault and its place."""
        return {"reason": self.reason, "where": self.where}


class DataMisfit(CdcError):
    """A value does not fit the schema at its place. The caller or the writer of the value has to change it."""

    code = "CDC_DATA_MISFIT"

    def __init__(self, reason: str, place: str = "") -> None:
        """Store the fault and its place in the statement, such as ``[3].data.price``."""
        super().__init__(f"{place}: {reason}" if place else reason)
        self.reason = reason
        self.place = place

    def inside(self, place: str) -> DataMisfit:
        """Return this error with the place of an enclosing value prepended.

        ``place`` is ``.name`` or ``[index]``.
        """
        return DataMisfit(self.reason, place + self.place)

    def figures(self) -> dict[str, str]:
        """Return the fault and its place."""
        return {"reason": self.reason, "place": self.place}
