"""The errors with which a message is refused or passed over."""

from __future__ import annotations


class Unusable(ValueError):
    """A message cannot be used; the text is the reason in the quarantine."""


class Incompatible(Unusable):
    """A value that its declared type cannot hold."""


class NotDebezium(Unusable):
    """JSON that is no message of Debezium in any layout that is taken."""


class NoRow(Exception):
    """A message is normal traffic of a connector, and is about no row."""

    def __init__(self, kind: str) -> None:
        """Keep what it is, in the singular."""
        super().__init__(kind)
        self.kind = kind


class SchemaMessage(NoRow):
    """A message of a schema change topic."""

    def __init__(self, text: bytes) -> None:
        """Keep the message."""
        super().__init__("schema change")
        self.text = text
