"""How long it takes until retention may take what a reader still needs.

Retention takes by the settings of the catalog (wal/upkeep/keeping.py): what is older than ``max_lookback``, or,
where that is not set, the oldest above seven eighths of ``max_bytes``. A named subscription holds it longer, up
to its cap. Without settings nothing is removed automatically, and nothing is reported.
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
    """The retention settings of a catalog; neither: everything is retained."""

    lookback_us: int | None = None
    bytes_left: int | None = None
    """The bytes that a trim by bytes leaves; None: there is no such trim."""

    @classmethod
    def of(cls, settings: Mapping[str, int]) -> RetentionTerms:
        """Return the terms that settings make."""
        lookback, bytes_max = settings.get(MAX_LOOKBACK), settings.get(MAX_BYTES)
        # Where a lookback is set, bytes alone take nothing that is younger.
        by_bytes = bytes_max is not None and lookback is None
        return cls(lookback, bytes_max * 7 // 8 if by_bytes and bytes_max is not None else None)


@dataclass(frozen=True, slots=True)
class Loss:
    """How far off a loss is, at least; the earlier of both counts. None: it does not come that way."""

    in_us: int | None = None
    in_bytes: int | None = None


NO_LOSS: Final = Loss()
NO_TERMS: Final = RetentionTerms()


def loss_of(
    view: LogView, needed: Position, terms: RetentionTerms, hold: tuple[int, int], now: int
) -> Loss:
    """Return how far it is until retention may take a position.

    Args:
        view: What is published.
        needed: The first record that a reader still needs.
        terms: What the catalog keeps.
        hold: What a named subscription keeps besides, in µs and bytes; zeros: nothing.
        now: µs since the epoch.
    """
    if terms == NO_TERMS or needed.version > view.published or needed < view.oldest:
        return NO_LOSS
    age, size = now - view.timestamp_of(needed.version), view.bytes_from(needed)
    hold_us, hold_bytes = hold
    holds = hold_us > 0 and hold_bytes > 0
    if terms.lookback_us is not None:
        if holds and hold_us > terms.lookback_us and size < hold_bytes:
            # Whichever cap is reached first ends the hold; until the lookback is over it need not hold.
            young = age < terms.lookback_us
            return Loss(max(0, hold_us - age), None if young else hold_bytes - size)
        return Loss(max(0, terms.lookback_us - age))
    assert terms.bytes_left is not None
    if holds and hold_bytes > terms.bytes_left and age < hold_us:
        small = size < terms.bytes_left
        return Loss(None if small else hold_us - age, max(0, hold_bytes - size))
    return Loss(None, max(0, terms.bytes_left - size))
