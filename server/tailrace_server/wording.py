"""Numbers as a person reads them: counts with their noun, lengths of time in a unit that fits."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ((172_800, 86_400, "days"), (7_200, 3_600, "h"), (120, 60, "min"))
"""From so many seconds on, so many to a unit."""


def counted(count: int, noun: str, many: str | None = None) -> str:
    """Return a count with its noun, ``many`` being the plural where it is not made by an s."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def duration(seconds: float) -> str:
    """Return a length of time, rounded: tenths of a second, or whole minutes, hours or days."""
    for least, unit, name in _UNITS:
        if seconds >= least:
            return f"{seconds / unit:,.0f} {name}"
    return f"{seconds:.1f} s"
