"""Decoders of a column's values, for people and for programs that do not know the encodings.

===================================  ============  ==================================================
encoding                             kind          becomes
===================================  ============  ==================================================
``decimal.bytes(s)``                 Decimal       a text of its digits: ``"17.50"``
``debezium.VariableScaleDecimal``    Decimal       the same
``debezium.Date``, ``connect.Date``  Date          ``"2024-02-29"``
``debezium.Time``, ``.MicroTime``,   Time          ``"13:37:00.250000"``; hours may exceed a day, up to
``.NanoTime``, ``connect.Time``                    838:59:59
``debezium.Timestamp``,              Timestamp     ``"2024-02-29T13:37:00.250000"``, without a zone
``.MicroTimestamp``,
``.NanoTimestamp``,
``connect.Timestamp``
any other                                          unchanged
===================================  ============  ==================================================

Source: Debezium documentation, PostgreSQL and MySQL connectors, temporal and decimal types; MySQL manual, TIME.
"""

from __future__ import annotations

import base64
import re
from datetime import date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tailrace.typed.column_values import SCALED, UNITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.schema import Column

_COUNT: Final = re.compile(rb"-?[0-9]{1,19}")
_EPOCH: Final = datetime(1970, 1, 1)
_FIRST_DAY: Final = date.min.toordinal() - _EPOCH.toordinal()
_LAST_DAY: Final = date.max.toordinal() - _EPOCH.toordinal()
_SECOND: Final = 1_000_000_000
LAST_HOUR: Final = 838
"""Last hour of MySQL's TIME, which ends at 838:59:59."""
YEARS: Final = "years must be 0001 to 9999; infinity is sent as a day outside"
HOURS: Final = "from -838:59:59 to 838:59:59"
_SCALE_MAX: Final = 16_383
"""PostgreSQL's limit of digits after the point; no source has more."""
_UNSCALED_BYTES_MAX: Final = 1_785
"""Maximum size of an unscaled number, in bytes. Python converts integers of up to 4,300 digits to text, and an
integer of this size has fewer."""


class Undecodable(ValueError):
    """A value that does not have the form of its encoding, or that the text of its kind cannot express."""

    def __init__(self, reason: str = "") -> None:
        """Store the reason; empty if the value just has a wrong form."""
        super().__init__(reason)
        self.reason = reason


class Decoding(NamedTuple):
    """The decoder of the values of one encoding."""

    kind: str
    """Kind of the values: Decimal, Date, Time or Timestamp."""
    decode: Callable[[bytes], bytes]
    """Converts a value's JSON text, not null, to readable JSON text; raises `Undecodable`."""

    def shown(self, raw: bytes) -> bytes:
        """Return a value decoded; return null and undecodable values unchanged."""
        if raw == b"null":
            return raw
        try:
            return self.decode(raw)
        except Undecodable:
            return raw


def decoding_of(column: Column) -> Decoding | None:
    """Return the decoder of a column's values; None if the values are readable without one."""
    encoding = column.encoding
    if encoding == "json":
        return None
    if (found := SCALED.fullmatch(encoding)) is not None and abs(int(found[1])) <= _SCALE_MAX:
        return Decoding("Decimal", partial(_decimal, int(found[1])))
    return _DECODINGS.get(encoding)


def _decimal(scale: int, raw: bytes) -> bytes:
    """Return the digits of a decimal, given its unscaled integer in base64; a negative scale adds zeros."""
    try:
        data = base64.b64decode(msgspec.json.decode(raw, type=str), validate=True)
    except (msgspec.DecodeError, ValueError):
        raise Undecodable from None
    if not 0 < len(data) <= _UNSCALED_BYTES_MAX:
        raise Undecodable(f"bytes must be 1 to {_UNSCALED_BYTES_MAX}")
    unscaled = int.from_bytes(data, "big", signed=True)
    digits = f"{abs(unscaled):0{max(scale, 0) + 1}d}"
    if scale > 0:
        digits = f"{digits[:-scale]}.{digits[-scale:]}"
    elif unscaled:
        digits += "0" * -scale
    return f'"{"-" if unscaled < 0 else ""}{digits}"'.encode()


class _Scaled(msgspec.Struct):
    """The members of Debezium's ``VariableScaleDecimal``."""

    scale: int
    value: msgspec.Raw


_decode_scaled: Final = msgspec.json.Decoder(_Scaled).decode
"""Made at import, as frames are encoded in threads; see `wal.files.documents`."""


def _scaled_decimal(raw: bytes) -> bytes:
    """Return the number of a decimal that has its own scale."""
    try:
        found = _decode_scaled(raw)
    except msgspec.DecodeError:
        raise Undecodable from None
    if abs(found.scale) > _SCALE_MAX:
        raise Undecodable
    return _decimal(found.scale, bytes(found.value))


def _date(raw: bytes) -> bytes:
    days = _count(raw)
    if not _FIRST_DAY <= days <= _LAST_DAY:
        raise Undecodable(YEARS)
    return f'"{date.fromordinal(_EPOCH.toordinal() + days)}"'.encode()


def _timestamp(nanoseconds: int, raw: bytes) -> bytes:
    """Return the timestamp of a count since 1970, in units of ``nanoseconds``."""
    micros, rest = divmod(_count(raw) * nanoseconds, 1_000)
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise Undecodable(YEARS) from None
    # ``datetime`` has microseconds only: append the nanoseconds as three more digits.
    if rest:
        return f'"{moment.isoformat(timespec="microseconds")}{rest:03d}"'.encode()
    return f'"{moment.isoformat()}"'.encode()


def _time(nanoseconds: int, raw: bytes) -> bytes:
    """Return the time of day of a count since midnight, in units of ``nanoseconds``."""
    count = _count(raw) * nanoseconds
    # Split the absolute value: ``divmod`` of a negative number would round down.
    seconds, rest = divmod(abs(count), _SECOND)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    if hours > LAST_HOUR:
        raise Undecodable(HOURS)
    fraction = ""
    if rest:
        fraction = f".{rest:09d}" if rest % 1_000 else f".{rest // 1_000:06d}"
    sign = "-" if count < 0 else ""
    return f'"{sign}{hours:02d}:{minute:02d}:{second:02d}{fraction}"'.encode()


def _count(raw: bytes) -> int:
    if _COUNT.fullmatch(raw) is None:
        raise Undecodable
    return int(raw)


def _counted(what: str, unit: int) -> Decoding:
    if what == "day":
        return Decoding("Date", _date)
    if what == "time":
        return Decoding("Time", partial(_time, unit))
    return Decoding("Timestamp", partial(_timestamp, unit))


_DECODINGS: Final = {
    "debezium.VariableScaleDecimal": Decoding("Decimal", _scaled_decimal),
    **{encoding: _counted(*counted) for encoding, counted in UNITS.items()},
}
