"""The description of a named subscription."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.criteria import Criteria
    from tailrace.cursor import Cursor
    from tailrace.position import Position, TimestampMicros


class SubscriptionHealth(IntEnum):
    """The state of a named subscription's hold on the log."""

    HELD = 1
    """The log that it needs is retained: it is within its cap."""
    NOT_HELD = 2
    """It may hold nothing, or more than its cap is needed: the next trim may take it."""
    BROKEN = 3
    """A trim has broken its hold: what it needs is there still, but no longer kept."""
    LOST = 4
    """The log no longer has what it needs: its reader gets ``PositionCompacted``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSubscription:
    """One named subscription, now."""

    catalog: str
    name: str
    criteria: tuple[Criteria, ...]
    """Canonical; empty: every record at entity level."""
    cursor: Cursor
    """Everything up to it is acknowledged."""
    needed: Position
    """First record that is not acknowledged; above the newest, nothing is needed now."""
    epoch: int
    """Of the newest reader; 0: none has come yet."""
    reader: str
    """The newest reader, for people to read."""
    hold_s: float
    """How old a change may be that is kept for it, seconds; 0: nothing is held."""
    hold_bytes: int
    """How large the log may be that is kept for it; 0: nothing is held."""
    age_s: float
    """How long ago the first record that it needs was committed, seconds."""
    behind_bytes: int
    """Bytes of the log from there on."""
    health: SubscriptionHealth
    paused: bool
    """Whether it takes no readers."""
    owner: str
    """The caller that created it; empty: a command at the log's folder, or a server without identities."""
    created: TimestampMicros
    moved: TimestampMicros
    """When its cursor moved last."""
