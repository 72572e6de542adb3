"""Holds: the part of a log that retention keeps for named subscriptions, up to a cap in time and bytes each.

A subscription needs everything after its cursor. It protects this part from a trim while the first needed
record is at most ``hold_us`` old, and the log from that record on has at most ``hold_bytes``::

    oldest            needed: the cursor's next record                        published
      │  may be trimmed  │◀────────── at most hold_us old, hold_bytes ─────────▶│

Beyond either limit the hold is broken: this is written into the subscription and logged, and the trim
continues. The subscription has a hold again once its reader acknowledges something newer, or once it is reset.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tailrace.cursor import Cursor
from tailrace.named import SubscriptionHealth
from tailrace.position import END, Position
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tailrace_server.wal.files.sequence_documents import SubscriptionDocument
    from tailrace_server.wal.state.view import LogView

_log = logging.getLogger("tailrace.wal")


@dataclass(frozen=True, slots=True)
class Hold:
    """The part of a log that one subscription needs, and its distance from its cap."""

    name: str
    needed: Position
    """Position of the first record that was not acknowledged. If it is not published yet, the subscription
    needs nothing."""
    age_us: int
    """Time since the commit of the first needed record that is still readable, in microseconds; 0 if the
    subscription needs nothing."""
    bytes: int
    """Size of the log from that record on, in bytes."""
    left_us: int
    """Time until the age exceeds the cap, in microseconds."""
    left_bytes: int
    """Bytes until the size exceeds the cap."""
    broken: bool
    """True if the hold was broken."""
    lost: bool
    """True if the needed record was trimmed: the reader gets POSITION_COMPACTED."""

    @property
    def is_within_cap(self) -> bool:
        """True if retention must keep the needed part."""
        ended = self.broken or self.lost
        return not ended and self.left_us > 0 and self.left_bytes > 0


def needed_position(cursor: Cursor) -> Position:
    """Return the position of the first record with captures after a cursor."""
    if cursor.ordinal != END:
        return cursor.position
    if cursor.index == END:
        return Position(cursor.version + 1, 0)
    return Position(cursor.version, cursor.index + 1)


def hold_of(found: SubscriptionDocument, view: LogView, now: int) -> Hold:
    """Return the hold of a subscription at a time, in microseconds."""
    needed = needed_position(Cursor.parse(found.cursor))
    age = size = 0
    if needed.version <= view.published:
        # Trimmed records cannot be held any more: the age is that of the first record that can still be read.
        first = max(needed, view.oldest)
        age = max(0, now - view.timestamp_of(first.version))
        size = view.bytes_from(first)
    return Hold(
        name=found.name,
        needed=needed,
        age_us=age,
        bytes=size,
        left_us=found.hold_us - age,
        left_bytes=found.hold_bytes - size,
        broken=found.broken > 0,
        lost=needed < view.oldest,
    )


def health_of(hold: Hold) -> SubscriptionHealth:
    """Return the health of a subscription, given its hold."""
    if hold.lost:
        return SubscriptionHealth.LOST
    if hold.broken:
        return SubscriptionHealth.BROKEN
    return SubscriptionHealth.HELD if hold.is_within_cap else SubscriptionHealth.NOT_HELD


def holds_below(
    subscriptions: Iterable[SubscriptionDocument], view: LogView, before: int, now: int
) -> list[Hold]:
    """Return the holds of subscriptions that need records below version ``before``, lowest first."""
    found = (hold_of(each, view, now) for each in subscriptions)
    return sorted(
        (each for each in found if each.needed.version < before), key=lambda each: each.needed
    )


def held_from(path: Path, view: LogView, before: int, now: int) -> int:
    """Return the first version that a trim to ``before`` has to retain because of holds."""
    holds = holds_below(SubscriptionSequences(path, view.uuid).all(), view, before, now)
    return min((each.needed.version for each in holds if each.is_within_cap), default=before)


def holding(path: Path, view: LogView, before: int, now: int) -> str:
    """Return a text that names the subscriptions that block a trim to ``before``; empty if none does."""
    holds = holds_below(SubscriptionSequences(path, view.uuid).all(), view, before, now)
    return ", ".join(f"{each.name} needs {each.needed}" for each in holds if each.is_within_cap)


@dataclass(frozen=True, slots=True)
class Release:
    """The permitted limit of a trim."""

    before: int
    """First version that the trim has to retain."""
    holding: tuple[Hold, ...]
    """Holds within their caps that limit the trim, lowest first."""
    broken: tuple[Hold, ...]
    """Holds that were broken for this trim."""


def release(path: Path, view: LogView, before: int, now: int) -> Release:
    """Return the permitted limit of a trim, after breaking the holds that are beyond their caps.

    Args:
        path: The catalog's folder.
        view: The published versions of the log.
        before: First version to retain if there are no holds.
        now: Present time, in microseconds since 1970.

    Raises:
        LogError: A subscription cannot be read, or its broken hold cannot be written: do not trim.
    """
    sequences = SubscriptionSequences(path, view.uuid)
    holds = holds_below(sequences.all(), view, before, now)
    holding = tuple(each for each in holds if each.is_within_cap)
    kept = min((each.needed.version for each in holding), default=before)
    # Break a hold only if the trim reaches its records; a lower hold within its cap may protect them.
    broken = []
    for each in holds:
        breaks = not (each.is_within_cap or each.broken or each.lost)
        if breaks and each.needed.version < kept and _break(sequences, each, view, now):
            broken.append(each)
    return Release(kept, holding, tuple(broken))


def _break(sequences: SubscriptionSequences, hold: Hold, view: LogView, now: int) -> bool:
    """Break a hold durably and log it; return False if its reader has acknowledged more or it has no cap."""

    def decide(found: SubscriptionDocument) -> SubscriptionDocument | None:
        # The reader may have acknowledged more since the subscriptions were listed, so evaluate the newest
        # object.
        latest = hold_of(found, view, now)
        holds = found.hold_us and found.hold_bytes
        if latest.needed > hold.needed or latest.broken or not holds:
            return None
        return replace(found, broken=now)

    written = sequences.change(hold.name, decide)
    if written.broken != now:
        return False
    _log.warning(
        "catalog %s: the hold of subscription %r is broken: it needs the log from %s on, which "
        "is %d s old and has %d bytes, but may hold only %d s and %d bytes; its reader gets "
        "POSITION_COMPACTED once these records are trimmed",
        *(view.name, hold.name, hold.needed, hold.age_us // 1_000_000, hold.bytes),
        *(written.hold_us // 1_000_000, written.hold_bytes),
    )
    return True
