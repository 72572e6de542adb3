"""Forms: the Arrow type for a column's values, and the decoder of their JSON texts.

===================================  ==========================  =====================================
column                               Arrow                       a value that is a misfit
===================================  ==========================  =====================================
BOOLEAN                              bool                        neither true nor false
SMALLINT, INTEGER, BIGINT            int16, int32, int64         out of range, a fraction
REAL, DOUBLE                         float32, float64            beyond the largest
DECIMAL(p,s), p up to 76             decimal128, decimal256      more digits
DECIMAL(p,s) in decimal.bytes(t)     the same, of scale t        more digits
other DECIMAL                        string of its digits
VARCHAR, UUID, other texts           string                      not a JSON string
VARBINARY in base64, debezium.Bits   binary                      not base64
DATE, debezium.Date, connect.Date    date32                      years beyond 0001 to 9999
TIME, debezium.MicroTime             time64[us]                  24:00 and beyond
debezium.Time, connect.Time          time32[ms]                  the same
debezium.NanoTime                    time64[ns]                  the same
TIMESTAMP, debezium.MicroTimestamp   timestamp[us]               years as above, parts of a microsecond
debezium.Timestamp, connect.…        timestamp[ms]               the same years
debezium.NanoTimestamp               timestamp[ns]
TIMESTAMP WITH TIME ZONE,            timestamp[us, UTC]          no zone; years as above
debezium.ZonedTimestamp
TIME WITH TIME ZONE                  string, as written
debezium.Year, debezium.MicroDur…    int32, int64                out of range
JSON, unknown types                  string of the JSON text
===================================  ==========================  =====================================

Values of REAL and DOUBLE are rounded to the nearest number of the type, and may be the texts ``"NaN"``,
``"Infinity"`` and ``"-Infinity"``. Every other value is converted exactly, or is a misfit. Timestamps with a
zone are converted to UTC.
"""

from __future__ import annotations

import base64
import math
import re
from dataclasses import dataclass, replace
from datetime import date
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from tailrace.typed.column_values import SCALED, UNITS
from tailrace_server.machine_code.loops.codes import Notation
from tailrace_server.wal.schema.column_types import parts_of
from tailrace_server.wal.schema.decoding import (
    HOURS,
    LAST_HOUR,
    YEARS,
    Undecodable,
    decoding_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tailrace.schema import Column


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a column's values: their Arrow type and their decoder."""

    notation: Notation
    """The notation that compiled code reads; it leaves other values to ``decode``."""
    type: pa.DataType
    """The type of the Arrow array."""
    label: str
    """The column's type in words, for errors: ``DECIMAL(10,2) in encoding decimal.bytes(2)``."""
    decode: Callable[[bytes], Any]
    """Function that decodes a JSON text other than null to a value for ``pyarrow.array``; raises ``Misfit``."""
    least: int = 0
    """The least 64-bit number that compiled code accepts."""
    greatest: int = 0
    """The greatest 64-bit number that compiled code accepts."""
    scale: int = 0
    """Digits after the decimal point, for decimals."""
    is_json: bool = False
    """True if the values are strings of JSON text."""


class Misfit(ValueError):
    """A column's Arrow type cannot hold a value; the message has the reason."""


_INTEGERS: Final[Mapping[str, tuple[int, pa.DataType]]] = {
    "SMALLINT": (16, pa.int16()),
    "INTEGER": (32, pa.int32()),
    "BIGINT": (64, pa.int64()),
}
_DIGITS_MAX: Final = 76
"""The most digits of decimal256."""
_SURE_DIGITS: Final = 18
"""The most digits of a number that fits 64 bits whatever its digits are."""
_INTEGER_DIGITS_MAX: Final = 19
"""Digits of the greatest 64-bit integer."""
_NARROW_DIGITS_MAX: Final = 38
"""The most digits of decimal128."""
_FLOATS: Final[Mapping[str, pa.DataType]] = {"REAL": pa.float32(), "DOUBLE": pa.float64()}
_NO_NUMBERS: Final = {b'"NaN"': math.nan, b'"Infinity"': math.inf, b'"-Infinity"': -math.inf}
_EXACTLY: Final = Context(
    prec=_DIGITS_MAX, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, InvalidOperation]
)
"""Context of exact arithmetic: it raises instead of rounding."""
_WHOLE: Final = re.compile(rb"-?[0-9]+")
_NUMBER: Final = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_HOUR: Final = r"(\d\d)"
_CLOCK: Final = _HOUR + r":(\d\d)(?::(\d\d)(?:\.(\d{1,12}))?)?"
_TIME: Final = re.compile(_CLOCK, re.ASCII)
_SPAN: Final = re.compile(rf"(-)?(\d{{1,3}}){_CLOCK.removeprefix(_HOUR)}", re.ASCII)
_ZONE: Final = r"(?:Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d(?::?[0-5]\d)?)?)"
_MOMENT: Final = re.compile(rf"(\d{{4}}-\d\d-\d\d)[T ]{_CLOCK}({_ZONE})?", re.ASCII)
_EPOCH: Final = date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH
_DAY_NS: Final = 86_400 * 1_000_000_000
_DAY_MICROS: Final = _DAY_NS // 1_000
_MICROS: Final = _FIRST_DAY * _DAY_MICROS, (_LAST_DAY + 1) * _DAY_MICROS - 1
"""The first and the last microsecond of the years 0001 to 9999, since 1970."""
_UNIT_NAMES: Final = {1_000_000: "ms", 1_000: "us", 1: "ns"}
"""Length of a unit in nanoseconds → Arrow's name of the unit."""
UNITS_IN_SECOND: Final = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_SHOWN_MAX: Final = 40
_decode_text: Final = msgspec.json.Decoder(str).decode


def form_of(column: Column) -> Form:
    """Return the form of a column's values; JSON text if the column's type is JSON or unknown."""
    sql_type, encoding = column.sql_type, column.encoding
    label = sql_type or "JSON"
    if encoding != "json":
        label = f"{sql_type or 'value'} in encoding {encoding}"
    base, first, second = ("JSON", None, None) if sql_type is None else parts_of(sql_type)
    if base == "JSON":
        if encoding == "debezium.Json":
            return Form(Notation.TEXT, pa.string(), label, _text, is_json=True)
        return Form(Notation.RAW, pa.string(), label, _json, is_json=True)
    if encoding in UNITS:
        return _counted(label, *UNITS[encoding])
    if encoding == "debezium.VariableScaleDecimal":
        return Form(Notation.LEFT, pa.string(), label, partial(_decoded_digits, column))
    if (scaled := SCALED.fullmatch(encoding)) is not None:
        scale = int(scaled[1])
        if base != "DECIMAL" or first is None or (kind := _decimal(first, second, scale)) is None:
            return Form(Notation.LEFT, pa.string(), label, partial(_decoded_digits, column))
        decode = partial(_scaled_decimal, column, kind)
        # Compiled code does not multiply, which a negative scale would need.
        notation = Notation.LEFT if scale < 0 else Notation.SCALED_DECIMAL
        return _of_decimal(notation, kind, label, decode)
    if encoding in ("base64", "debezium.Bits"):
        return Form(Notation.BYTES, pa.binary(), label, _bytes)
    if encoding == "debezium.Year":
        return _whole(label, 32, pa.int32())
    if encoding == "debezium.MicroDuration":
        return _whole(label, 64, pa.int64())
    if encoding == "debezium.ZonedTimestamp":
        return Form(Notation.INSTANT, pa.timestamp("us", "UTC"), label, _instant, *_MICROS)
    quoted = encoding == "decimal.string"
    if encoding != "json" and not quoted:
        return Form(Notation.TEXT, pa.string(), label, _text)
    if quoted or base == "DECIMAL":
        kind = None if first is None or base != "DECIMAL" else _decimal(first, second)
        if kind is None:
            digits = _quoted_digits if quoted else _digits
            notation = Notation.LEFT if quoted else Notation.NUMBER
            return Form(notation, pa.string(), label, digits)
        if quoted:
            return _of_decimal(Notation.QUOTED_DECIMAL, kind, label, partial(_quoted_number, kind))
        return _of_decimal(Notation.DECIMAL, kind, label, partial(_number, kind))
    return _plain(label, base)


def narrow_form_of(column: Column) -> Form:
    """Return the form of a column like ``form_of``, but with decimals above 38 digits as texts of digits."""
    form = form_of(column)
    if not pa.types.is_decimal256(form.type):
        return form
    decode = form.decode
    digits = replace(form, notation=Notation.LEFT, type=pa.string())
    return replace(digits, decode=lambda raw: f"{decode(raw):f}")


def span_form_of(column: Column) -> Form:
    """Return the form of a column like ``form_of``, but with times as durations.

    MySQL's TIME is a duration, from -838:59:59 to 838:59:59.
    """
    form = form_of(column)
    if not pa.types.is_time(form.type):
        return form
    kind = pa.duration(form.type.unit)
    if form.notation is Notation.TIME:
        # Compiled code reads times of day, and leaves longer and negative times to `decode`.
        return replace(form, type=kind, decode=_span)
    greatest = (LAST_HOUR + 1) * 3_600 * UNITS_IN_SECOND[kind.unit] - 1
    decode = partial(_integer, -greatest, greatest, HOURS)
    return replace(form, type=kind, decode=decode, least=-greatest, greatest=greatest)


def _plain(label: str, base: str) -> Form:
    """Return the form of values without a special encoding in JSON."""
    if base in _INTEGERS:
        return _whole(label, *_INTEGERS[base])
    if base in _FLOATS:
        return Form(Notation.NUMBER, _FLOATS[base], label, partial(_float, _FLOATS[base]))
    match base:
        case "BOOLEAN":
            return Form(Notation.BOOLEAN, pa.bool_(), label, _boolean, 0, 1)
        case "DATE":
            return Form(Notation.DATE, pa.date32(), label, _date, _FIRST_DAY, _LAST_DAY)
        case "TIME":
            return Form(Notation.TIME, pa.time64("us"), label, _time, 0, _DAY_MICROS - 1)
        case "TIMESTAMP":
            return Form(Notation.TIMESTAMP, pa.timestamp("us"), label, _moment, *_MICROS)
        case "TIMESTAMP WITH TIME ZONE":
            return Form(Notation.INSTANT, pa.timestamp("us", "UTC"), label, _instant, *_MICROS)
        case _:
            return Form(Notation.TEXT, pa.string(), label, _text)


def _whole(label: str, bits: int, kind: pa.DataType) -> Form:
    least, greatest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    decode = partial(_integer, least, greatest, "")
    return Form(Notation.WHOLE, kind, label, decode, least, greatest)


def _of_decimal(
    notation: Notation, kind: pa.DataType, label: str, decode: Callable[[bytes], Decimal]
) -> Form:
    # Compiled code reads 64-bit numbers, so it accepts only numbers of as many digits as always fit.
    greatest = 10 ** min(kind.precision, _SURE_DIGITS) - 1
    return Form(notation, kind, label, decode, -greatest, greatest, kind.scale)


def _counted(label: str, what: str, unit: int) -> Form:
    """Return the form of dates, times or timestamps that are encoded as a count of units.

    Args:
        label: The column's type in words.
        what: "day" for a date, "time" for a time of day, otherwise a timestamp.
        unit: Length of the unit in nanoseconds, for times and timestamps.
    """
    if what == "day":
        least, greatest, kind, why = _FIRST_DAY, _LAST_DAY, pa.date32(), YEARS
    elif what == "time":
        least, greatest, why = 0, _DAY_NS // unit - 1, "a time of day must be before 24:00"
        kind = pa.time32("ms") if unit == 1_000_000 else pa.time64(_UNIT_NAMES[unit])
    elif unit == 1:
        least, greatest, kind, why = -(1 << 63), (1 << 63) - 1, pa.timestamp("ns"), ""
    else:
        day = _DAY_NS // unit
        least, greatest, why = _FIRST_DAY * day, (_LAST_DAY + 1) * day - 1, YEARS
        kind = pa.timestamp(_UNIT_NAMES[unit])
    decode = partial(_integer, least, greatest, why)
    return Form(Notation.WHOLE, kind, label, decode, least, greatest)


def _decimal(precision: int, scale: int | None, counted: int | None = None) -> pa.DataType | None:
    """Return the Arrow type of a decimal; None if it has more digits than Arrow's decimals.

    Args:
        precision: Number of digits in the SQL type.
        scale: Number of digits after the decimal point in the SQL type.
        counted: Scale of the encoding, if its bytes count units of this scale instead of the type's; else None.
    """
    places = scale or 0
    # The encoding decides the digits after the point; the digits before it stay those of the SQL type.
    if counted is not None:
        precision, places = precision - places + max(counted, 0), max(counted, 0)
    precision = max(precision, places, 1)
    if precision > _DIGITS_MAX:
        return None
    make = pa.decimal128 if precision <= _NARROW_DIGITS_MAX else pa.decimal256
    return make(precision, places)


def _boolean(raw: bytes) -> bool:
    if raw not in (b"true", b"false"):
        raise Misfit("it is neither true nor false")
    return raw == b"true"


def _integer(least: int, greatest: int, why: str, raw: bytes) -> int:
    if _WHOLE.fullmatch(raw) is None:
        raise Misfit("it is not a whole number" if _NUMBER.fullmatch(raw) else "it is not a number")
    # Check the length first: Python would take long for a number of a million digits, or refuse it.
    if len(raw) > 1 + _INTEGER_DIGITS_MAX or not least <= int(raw) <= greatest:
        raise Misfit(why or "it is out of range")
    return int(raw)


def _float(kind: pa.DataType, raw: bytes) -> float:
    if raw in _NO_NUMBERS:
        return _NO_NUMBERS[raw]
    if _NUMBER.fullmatch(raw) is None:
        raise Misfit("it is not a number")
    # Let Arrow parse the text to the final type: a REAL that
    # is parsed as a double first would be rounded twice.
    found: float = pa.scalar(raw.decode()).cast(kind).as_py()
    if math.isinf(found):
        raise Misfit("it is out of range")
    return found


def _number(kind: pa.DataType, raw: bytes) -> Decimal:
    """Return a number as a decimal that fits a type's precision and scale exactly; raise Misfit otherwise."""
    if _NUMBER.fullmatch(raw) is None:
        raise Misfit("it is not a number")
    try:
        return _fitting(kind, Decimal(raw.decode()))
    except ArithmeticError:  # more decimals than the scale, or an exponent that Decimal cannot have
        raise Misfit("it has more digits") from None


def _quoted_number(kind: pa.DataType, raw: bytes) -> Decimal:
    return _number(kind, _text(raw).encode())


def _scaled_decimal(column: Column, kind: pa.DataType, raw: bytes) -> Decimal:
    return _number(kind, _decoded_digits(column, raw).encode())


def _fitting(kind: pa.DataType, number: Decimal) -> Decimal:
    # Checked before scaling: an exponent of a billion would make a number of a billion digits.
    if number and number.adjusted() + kind.scale >= kind.precision:
        raise Misfit("it has more digits")
    if not number:
        return Decimal(0).scaleb(-kind.scale)
    return number.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACTLY)


def _digits(raw: bytes) -> str:
    if _NUMBER.fullmatch(raw) is None:
        raise Misfit("it is not a number")
    return raw.decode()


def _quoted_digits(raw: bytes) -> str:
    return _digits(_text(raw).encode())


def _decoded_digits(column: Column, raw: bytes) -> str:
    decoding = decoding_of(column)
    if decoding is None:
        raise Misfit("its encoding is of no number that there is")
    try:
        return _text(decoding.decode(raw))
    except Undecodable as error:
        raise Misfit(error.reason or "it is not in the encoding's form") from None


def _text(raw: bytes) -> str:
    if raw[:1] != b'"':
        raise Misfit("it is not a text")
    return _decode_text(raw)


def _json(raw: bytes) -> str:
    return raw.decode()


def _bytes(raw: bytes) -> bytes:
    text = _text(raw)
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise Misfit("it is not base64") from None


def _date(raw: bytes) -> int:
    text = _text(raw)
    if _DAY.fullmatch(text) is None:
        raise Misfit("it is not a day of the form 2024-02-29")
    return _days(text)


def _days(text: str) -> int:
    try:
        return date.fromisoformat(text).toordinal() - _EPOCH
    except ValueError:
        raise Misfit(f"this day does not exist; {YEARS}") from None


def _time(raw: bytes) -> int:
    found = _TIME.fullmatch(_text(raw))
    if found is None:
        raise Misfit("it is not a time of the form 13:37:00.25")
    return _micros_of_day(*found.groups())


def _micros_of_day(hour: str, minute: str, second: str | None, fraction: str | None) -> int:
    if hour > "23":
        raise Misfit("a time of day must be before 24:00")
    if minute > "59" or (second or "0") > "59":
        raise Misfit("this time does not exist")
    if (fraction or "")[6:].strip("0"):
        raise Misfit("it has parts of a microsecond")
    seconds = int(hour) * 3_600 + int(minute) * 60 + int(second or 0)
    return seconds * 1_000_000 + int((fraction or "")[:6].ljust(6, "0"))


def _span(raw: bytes) -> int:
    found = _SPAN.fullmatch(_text(raw))
    if found is None:
        raise Misfit("it is not a time of the form 26:15:00.25")
    sign, hours, *clock = found.groups()
    if int(hours) > LAST_HOUR:
        raise Misfit(HOURS)
    micros = int(hours) * 3_600_000_000 + _micros_of_day("00", *clock)
    return -micros if sign else micros


def _moment(raw: bytes) -> int:
    micros, zone = _micros(raw)
    if zone is not None:
        raise Misfit("it has a time zone")
    return micros


def _instant(raw: bytes) -> int:
    micros, zone = _micros(raw)
    if zone is None:
        raise Misfit("it has no time zone")
    micros -= _offset(zone)
    # The offset may move the moment out of the years 0001 to 9999.
    if not _MICROS[0] <= micros <= _MICROS[1]:
        raise Misfit(YEARS)
    return micros


def _micros(raw: bytes) -> tuple[int, str | None]:
    """Return the local time in microseconds since 1970, without regard to the zone, and the zone or None."""
    found = _MOMENT.fullmatch(_text(raw))
    if found is None:
        raise Misfit(f"it is no moment of the form 2024-02-29T13:37:00.25; {YEARS}")
    day, *clock, zone = found.groups()
    return _days(day) * _DAY_MICROS + _micros_of_day(*clock), zone


def _offset(zone: str) -> int:
    """Return the offset of a zone from UTC in microseconds, positive east of Greenwich."""
    if zone == "Z":
        return 0
    digits = zone[1:].replace(":", "").ljust(6, "0")
    seconds = int(digits[:2]) * 3_600 + int(digits[2:4]) * 60 + int(digits[4:])
    return (-seconds if zone[0] == "-" else seconds) * 1_000_000


def shown(raw: bytes) -> str:
    """Return the beginning of a value, for errors."""
    text = raw[: 4 * _SHOWN_MAX].decode(errors="replace")
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
