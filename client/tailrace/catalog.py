"""A catalog as its server sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from tailrace.position import Position, TimestampMicros


@dataclass(frozen=True, slots=True)
class Catalog:
    """One catalog at the moment of the answer."""

    name: str
    uuid: UUID
    """Identity of its log."""
    oldest: Position
    """Oldest retained position."""
    published: int
    """Highest version that readers see, 0 for none."""
    committed: int
    """Highest durable version; those above ``published`` wait for their publication."""
    newest_timestamp: TimestampMicros
    """Commit timestamp of the newest published version, 0 for none."""
