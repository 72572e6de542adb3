"""The time and the bytes until retention may remove records that a reader still needs.

Retention follows the settings of the catalog (wal/upkeep/keeping.py). It removes versions older than
``max_lookback``. If that is not set, it removes the oldest versions above 7/8 of ``max_bytes``. A named
subscription holds versions longer, up to its cap. Without settings nothing is removed automatically, and
nothing is reported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace_server.wal.sequences.settings import MAX_BYTES, MAX_LOOKBACK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.position import Position
    from tailrace_server.wal.state.view import LogView


@dataclass(frozen=True, slots=True)
class RetentionTerms:
    """The retention settings of a catalog. If both are None, everything is retained."""

    lookback_us: int | None = None
    bytes_left: int | None = None
    """Bytes that remain after a trim by ``max_bytes``; None if the log is not trimmed by bytes."""

    @classmethod
    def of(cls, settings: Mapping[str, int]) -> RetentionTerms:
        """Return the terms for a catalog's settings, given by name."""
        lookback, bytes_max = settings.get(MAX_LOOKBACK), settings.get(MAX_BYTES)
        # With a lookback, ``max_bytes`` alone removes nothing that is younger.
        by_bytes = bytes_max is not None and lookback is None
        return cls(lookback, bytes_max * 7 // 8 if by_bytes and bytes_max is not None else None)


@dataclass(frozen=True, slots=True)
class Loss:
    """The least distance to a loss of records. The loss comes when the first of both distances is used up."""

    in_us: int | None = None
    """Microseconds until the loss; None if time alone causes none."""
    in_bytes: int | None = None
    """Bytes that the log can grow until the loss; None if growth alone causes none."""


NO_LOSS: Final = Loss()
NO_TERMS: Final = RetentionTerms()


def loss_of(
    view: LogView, needed: Position, terms: RetentionTerms, hold: tuple[int, int], now: int
) -> Loss:
    """Return the distance until retention may remove a position.

    Args:
        view: The published versions of the log.
        needed: Position of the first record that a reader still needs.
        terms: The retention settings of the catalog.
        hold: The caps of a named subscription's hold, in µs and in bytes; zeros without a hold.
        now: Current time, µs since the epoch.
    """
    if terms == NO_TERMS or needed.version > view.published or needed < view.oldest:
        return NO_LOSS
    age, size = now - view.timestamp_of(needed.version), view.bytes_from(needed)
    hold_us, hold_bytes = hold
    holds = hold_us > 0 and hold_bytes > 0
    if terms.lookback_us is not None:
        if holds and hold_us > terms.lookback_us and size < hold_bytes:
            # The hold ends when one of its caps is reached. But until the lookback is over, the promise of the
            # catalog retains the position, whatever the size.
            young = age < terms.lookback_us
            return Loss(max(0, hold_us - age), None if young else hold_bytes - size)
        return Loss(max(0, terms.lookback_us - age))
    # Trims by bytes: likewise the hold's age matters only once the log is larger than a trim leaves.
    assert terms.bytes_left is not None
    if holds and hold_bytes > terms.bytes_left and age < hold_us:
        small = size < terms.bytes_left
        return Loss(None if small else hold_us - age, max(0, hold_bytes - size))
    return Loss(None, max(0, terms.bytes_left - size))
