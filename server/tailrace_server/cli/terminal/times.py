"""Points and lengths of time, as people write them in options."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Final

from tailrace.arguments import micros
from tailrace.errors import InvalidRequest
from tailrace.position import TimestampMicros
from tailrace_server.units import parse_seconds

_NEVER: Final = 1 << 63
"""µs that no field holds."""


def time_of(text: str, option: str, *, now: float | None = None) -> TimestampMicros:
    """Read a point in time: ISO 8601 (local where it names no zone), µs since the epoch, or an age.

    A bare number is µs if that is a time since 1973, or 0; another number is ambiguous.

    Raises:
        InvalidRequest: It is none of them.
    """
    try:
        found = _micros_of(text, now)
    except (ValueError, OverflowError):
        found = _NEVER
    if not -_NEVER <= found < _NEVER:
        raise InvalidRequest(
            f"{option}: not a time: {text!r}; write 2026-05-04T10:30, microseconds since the epoch, "
            "or an age as 15m"
        )
    return TimestampMicros(found)


def datetime_of(text: str, option: str) -> datetime:
    """Read a point in time, as ``time_of``; it has a zone.

    Raises:
        InvalidRequest: It is none, or beyond the calendar.
    """
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_of(text, option))
    except OverflowError:
        raise InvalidRequest(f"{option} {text!r}: beyond every calendar") from None


def version_or_time(text: str, option: str) -> int | datetime:
    """Read a version, or a time as ``time_of``. A number of 15 digits is a time: no log has so many versions.

    Raises:
        InvalidRequest: It is neither.
    """
    if re.fullmatch(r"[0-9]{1,14}", text, re.ASCII):
        return int(text)
    return datetime_of(text, option)


def _micros_of(text: str, now: float | None) -> int:
    if re.fullmatch(r"0|[0-9]{15,19}", text, re.ASCII):
        return int(text)
    if re.fullmatch(r"[0-9.]+", text, re.ASCII):
        raise ValueError("a number without a unit")
    try:
        age = parse_seconds(text)
    except ValueError:
        found = datetime.fromisoformat(text)
        return micros(found if found.tzinfo is not None else found.astimezone())
    return int(((time.time() if now is None else now) - age) * 1e6)
