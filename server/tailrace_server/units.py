"""Amounts as texts for people: bytes, durations, addresses and counts, parsed and formatted."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_BYTES: Final = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_DECIMAL_BYTES: Final = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SECONDS: Final = {"": 1.0, "s": 1.0, "us": 1e-6, "ms": 1e-3, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)", re.ASCII)
_ROUNDED: Final = ((172_800, 86_400, "days"), (7_200, 3_600, "h"), (120, 60, "min"))
"""Units of ``duration``: the shortest duration in the unit, the seconds of the unit, and its name."""


class Address(NamedTuple):
    """An address to listen on or to connect to; a server with port 0 chooses a free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, value: object) -> Address:
        """Parse ``host:port`` or ``[ipv6]:port``.

        Raises:
            ValueError: The text has another form; the error shows the valid form.
        """
        if isinstance(value, Address):
            return value
        match = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^:\[\]\s]+)):([0-9]{1,5})", str(value), re.ASCII)
        if match is None or int(match[3]) > 65_535:
            raise ValueError("write an address as host:port, such as 127.0.0.1:7411 or [::1]:7411")
        return cls(match[1] or match[2], int(match[3]))

    def __str__(self) -> str:
        """Return the form that ``parse`` accepts."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bytes(value: object) -> int:
    """Parse a number of bytes: a number, or text with KiB, MiB, GiB, TiB (or KB, MB, GB, TB).

    Raises:
        ValueError: The value is not a number of bytes; the error shows the valid form.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    factor = match and (_BYTES | _DECIMAL_BYTES).get(match[2].lower())
    if match is None or factor is None:
        raise ValueError("write an amount of bytes as 65536, 64KiB, 512MiB or 1.5GiB")
    return round(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def format_bytes(amount: int) -> str:
    """Return a number of bytes as text in the largest unit that divides it."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if amount and amount % factor == 0:
            return f"{amount // factor}{unit}"
    return str(amount)


def parse_seconds(value: object) -> float:
    """Parse a duration: a number of seconds, or text with us, ms, s, m, h, d.

    Raises:
        ValueError: The value is not a duration; the error shows the valid form.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    factor = match and _SECONDS.get(match[2].lower())
    if match is None or factor is None:
        raise ValueError("write a length of time as 10, 10s, 500ms, 15m, 2h or 1d")
    return float(match[1]) * factor


def format_seconds(seconds: float) -> str:
    """Return a duration as text in the largest unit that gives a whole number."""
    for unit in ("d", "h", "m", "s", "ms", "us"):
        amount = seconds / _SECONDS[unit]
        if amount >= 1 and abs(amount - round(amount)) < 1e-9:
            return f"{round(amount)}{unit}"
    return f"{seconds:g}s"


def counted(count: int, noun: str, many: str | None = None) -> str:
    """Return a count with its noun; ``many`` is the plural if it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def duration(seconds: float) -> str:
    """Return a duration as rounded text: tenths of a second, or whole minutes, hours or days."""
    for least, unit, name in _ROUNDED:
        if seconds >= least:
            return f"{seconds / unit:,.0f} {name}"
    return f"{seconds:.1f} s"
