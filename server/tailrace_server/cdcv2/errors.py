"""Errors of the Avro form of a CDCv2 stream.

::

    CdcError                      (tailrace.cdcv2)
    ├── SchemaDiffers             not the documented schema, or not the schema at hand; says where
    ├── MessageUnreadable         bytes or text that the schema does not give a meaning
    └── DataMisfit                a value that the schema has no place for; says which field
"""

from __future__ import annotations

from tailrace.cdcv2 import CdcError


class SchemaDiffers(CdcError):
    """A schema is not what it has to be. Its writer's doing; a retry does not help."""

    code = "CDC_SCHEMA_DIFFERS"

    def __init__(self, place: str, expected: str, found: str) -> None:
        """Keep the place, as ``[1].fields[0].type``, and what stands there instead of what."""
        at = f"at {place}" if place else "at the top"
        super().__init__(f"schema differs {at}: expected {expected}, found {found}")
        self.place = place
        self.expected = expected
        self.found = found

    def figures(self) -> dict[str, str]:
        """Return the place, what was expected and what was found."""
        return {"place": self.place, "expected": self.expected, "found": self.found}


class MessageUnreadable(CdcError):
    """A message, or the file around it, is damaged, cut off, or of another kind."""

    code = "CDC_MESSAGE_UNREADABLE"

    def __init__(self, reason: str, where: str = "") -> None:
        """Keep what is wrong and where, as ``byte 1034`` or ``line 7``; empty is the message as a whole."""
        super().__init__(f"{where}: {reason}" if where else reason)
        self.reason = reason
        self.where = where

    def figures(self) -> dict[str, str]:
        """Return what is wrong and where."""
        return {"reason": self.reason, "where": self.where}


class DataMisfit(CdcError):
    """A value does not fit the schema of its place. The caller's or a writer's doing."""

    code = "CDC_DATA_MISFIT"

    def __init__(self, reason: str, place: str = "") -> None:
        """Keep what is wrong and the place in the statement, as ``[3].data.price``."""
        super().__init__(f"{place}: {reason}" if place else reason)
        self.reason = reason
        self.place = place

    def inside(self, place: str) -> DataMisfit:
        """Return the same, one level further out; ``place`` is ``.name`` or ``[index]``."""
        return DataMisfit(self.reason, place + self.place)

    def figures(self) -> dict[str, str]:
        """Return what is wrong and the place."""
        return {"reason": self.reason, "place": self.place}
