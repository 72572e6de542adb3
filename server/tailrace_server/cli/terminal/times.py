"""Parsing of times and ages in options."""

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
"""A time in µs that is out of range for every field."""


def time_of(text: str, option: str, *, now: float | None = None) -> TimestampMicros:
    """Parse a time: ISO 8601 (local time without a zone), µs since the epoch, or an age such as 15m.

    A bare number is taken as µs if it has at least 15 digits (a time since 1973) or is 0. Other numbers are
    refused as ambiguous.

    Raises:
        InvalidRequest: The text has another form.
    """
    try:
        found = _micros_of(text, now)
    except (ValueError, OverflowError):
        found = _NEVER
    if not -_NEVER <= found < _NEVER:
        raise InvalidRequest(
            f"{option} {text!r}: not a time; write 2026-05-04T10:30, microseconds since the "
            "epoch, or an age such as 15m"
        )
    return TimestampMicros(found)


def datetime_of(text: str, option: str) -> datetime:
    """Parse a time as ``time_of`` does, and return it as an aware datetime.

    Raises:
        InvalidRequest: The text is not a time, or is beyond the calendar.
    """
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_of(text, option))
    except OverflowError:
        raise InvalidRequest(f"{option} {text!r}: the time is out of range") from None


def version_or_time(text: str, option: str) -> int | datetime:
    """Parse a version, or a time as ``time_of`` does.

    A number of 15 or more digits is a time, since no log has so many versions.

    Raises:
        InvalidRequest: The text is neither.
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
