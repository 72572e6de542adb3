"""Which settings a catalog has, how their values are written, and what is refused.

Lengths of time are kept as µs and amounts as bytes; people write ``7d`` and ``200GiB``.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest
from tailrace_server.units import format_bytes, format_seconds, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_LOOKBACK: Final = "max_lookback"
MAX_BYTES: Final = "max_bytes"
BODIES: Final = "bodies"

_MICROS: Final = 1_000_000
_LOOKBACK_MIN: Final = 600 * _MICROS
_TIME_MAX: Final = 36_500 * 86_400 * _MICROS
_BYTES_MIN: Final = 64 << 20
_BYTES_MAX: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class KeptSetting:
    """One setting and the bounds of its values."""

    name: str
    is_time: bool
    """A length of time, µs; else bytes."""
    least: int
    most: int
    because: str
    """Why no less."""

    def parsed(self, text: str) -> int:
        """Return the value that a text says.

        Raises:
            InvalidRequest: It is no value of this setting; says what is.
        """
        # 1. A number alone would be taken for whatever its writer did not mean: seconds, days, megabytes.
        bare = text.strip().removeprefix("-").replace(".", "", 1).isdecimal()
        if bare or not text.strip():
            raise InvalidRequest(
                f"{self.name}={text}: say the unit, as "
                + ("7d, 36h or 90m" if self.is_time else "200GiB or 512MiB")
            )
        if text.strip().startswith("-"):
            raise InvalidRequest(
                f"{self.name}={text}: is not negative; tailrace catalog unset keeps without a bound"
            )
        try:
            value = round(parse_seconds(text) * _MICROS) if self.is_time else parse_bytes(text)
        except ValueError as error:
            raise InvalidRequest(f"{self.name}={text}: {error}") from None
        # 2. A value that no reader could live with is mostly a wrong unit.
        if value < self.least:
            raise InvalidRequest(
                f"{self.name}={text}: at least {self.shown(self.least)}, {self.because}"
            )
        if value > self.most:
            raise InvalidRequest(
                f"{self.name}={text}: at most {self.shown(self.most)}; tailrace catalog unset keeps everything"
            )
        return value

    def shown(self, value: int) -> str:
        """Return a value as people write it."""
        return format_seconds(value / _MICROS) if self.is_time else format_bytes(value)


OF_CATALOG: Final = {
    each.name: each
    for each in (
        KeptSetting(
            MAX_LOOKBACK,
            True,
            _LOOKBACK_MIN,
            _TIME_MAX,
            "as long as files that are let go stay for readers at work",
        ),
        KeptSetting(
            MAX_BYTES, False, _BYTES_MIN, _BYTES_MAX, "as large as one file of records may become"
        ),
    )
}
OF_ENTITY_TYPE: Final = {
    BODIES: KeptSetting(
        BODIES,
        True,
        _LOOKBACK_MIN,
        _TIME_MAX,
        "as long as files that are let go stay for readers at work",
    )
}


def setting(name: str, *, of_type: bool) -> KeptSetting:
    """Return a setting by its name.

    Raises:
        InvalidRequest: There is none; or it is of catalogs and one of entity types is wanted, or the opposite.
    """
    known, other = (OF_ENTITY_TYPE, OF_CATALOG) if of_type else (OF_CATALOG, OF_ENTITY_TYPE)
    if name in known:
        return known[name]
    if name in other:
        how = "leave --entity-type out" if of_type else "name one with --entity-type"
        kind = "the whole catalog" if of_type else "an entity type"
        raise InvalidRequest(f"{name} is a setting of {kind}: {how}")
    raise InvalidRequest(f"no setting {name!r}{nearest(name, known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint at the nearest of the known names, or at all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known: {', '.join(names)}" if names else "; none is known yet"
