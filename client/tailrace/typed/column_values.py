"""Conversion of a column's values to Python, by its SQL type and encoding.

===================================  ============  ====================================================
column                               Python        a value that is a misfit
===================================  ============  ====================================================
BOOLEAN                              bool
SMALLINT, INTEGER, BIGINT            int           out of range, a fraction
REAL, DOUBLE                         float         beyond the largest
DECIMAL, in any encoding             Decimal
VARCHAR, debezium.Enum, …            str
UUID, debezium.Uuid                  UUID          not of its form
base64, debezium.Bits                bytes         not base64
DATE, debezium.Date, connect.Date    date          years beyond 0001 to 9999
TIME, with a zone too, debezium's    time          24:00 and beyond, parts of a microsecond
TIMESTAMP, debezium's                datetime      years as above, parts of a microsecond
TIMESTAMP WITH TIME ZONE,            datetime      no zone; the same
debezium.ZonedTimestamp
debezium.Year, .MicroDuration        int           out of range
JSON, debezium.Json, not known       what it says  text that is no JSON
===================================  ============  ====================================================

Values of REAL and DOUBLE are rounded to the nearest number of their type, and may be the texts ``"NaN"``,
``"Infinity"`` and ``"-Infinity"``. All other values are exact or misfits: a decimal has all digits of the
source. JSON does not limit numbers. Whole numbers of more than 4,300 digits become Decimals, because int()
refuses them. A number whose exponent has more than 18 digits is a misfit in every column except REAL and
DOUBLE.

Source: Debezium documentation, PostgreSQL and MySQL connectors, temporal and decimal types.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tailrace.schema import Column

_JSON: Final = json.JSONDecoder(parse_float=Decimal)

_BITS: Final = {"SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}
_NO_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
UNITS: Final[Mapping[str, tuple[str, int]]] = {
    "debezium.Date": ("day", 1),
    "connect.Date": ("day", 1),
    "debezium.Time": ("time", 1_000_000),
    "connect.Time": ("time", 1_000_000),
    "debezium.MicroTime": ("time", 1_000),
    "debezium.NanoTime": ("time", 1),
    "debezium.Timestamp": ("moment", 1_000_000),
    "connect.Timestamp": ("moment", 1_000_000),
    "debezium.MicroTimestamp": ("moment", 1_000),
    "debezium.NanoTimestamp": ("moment", 1),
}
"""Encoding of a count → kind of value (day, time or moment), and length of the counted unit: one day, or so
many nanoseconds."""
_TYPE: Final = re.compile(r"[A-Z]+(?: [A-Z]+)*")
SCALED: Final = re.compile(r"decimal\.bytes\((-?\d+)\)")
"""Pattern of the encoding of unscaled numbers; its group is the scale."""
_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_CLOCK: Final = r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,12}))?)?"
_ZONE: Final = r"(?:Z|[+-]\d\d(?::?\d\d(?::?\d\d)?)?)"
_TIME: Final = re.compile(rf"{_CLOCK}({_ZONE})?", re.ASCII)
_MOMENT: Final = re.compile(rf"(\d{{4}}-\d\d-\d\d)[T ]{_CLOCK}({_ZONE})?", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1)
_FIRST_DAY: Final = date.min.toordinal() - _EPOCH.toordinal()
_LAST_DAY: Final = date.max.toordinal() - _EPOCH.toordinal()
_DAY_NS: Final = 86_400 * 1_000_000_000
_SCALE_MAX: Final = 16_383
"""Maximum scale of PostgreSQL's numbers; no source has numbers with more digits after the point."""
_UNSCALED_BYTES_MAX: Final = 1_785
"""Maximum size of an unscaled number, in bytes; the same as in the server."""
_YEARS: Final = "years must be 0001 to 9999; infinity is sent as a day outside"
_BEYOND: Final = "its exponent has more than the 18 digits that a Decimal supports"
_LATE: Final = "a time of day must be before 24:00"
_FINE: Final = "it has parts of a microsecond"


class NotHeld(ValueError):
    """Error: the type of a column cannot hold a value; the text has the reason."""


class BeyondDecimal:
    """A number whose exponent is too large for Decimal."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        """Store the text of the number."""
        self.text = text

    def __str__(self) -> str:
        return self.text


def parsed(text: str) -> tuple[Any, bool]:
    """Parse JSON without losing a digit.

    Returns:
        The value, and True if it contains a `BeyondDecimal`.

    Raises:
        ValueError: ``text`` is not JSON.
        RecursionError: The values nest too deeply.
    """
    try:
        return _JSON.decode(text), False
    except (ValueError, InvalidOperation):
        # The second decoder takes twice as long, since it calls a function for each number. So it is used only
        # for texts that the first one cannot decode.
        found = _ANY_NUMBER.decode(text)
        return found, holds_beyond(found)


def holds_beyond(value: object) -> bool:
    """Return True if a parsed value is a `BeyondDecimal` or contains one."""
    left = [value]
    while left:
        match left.pop():
            case BeyondDecimal():
                return True
            case dict() as members:
                left.extend(members.values())
            case list() as items:
                left.extend(items)
    return False


def refuse_beyond(value: object) -> None:
    """Raise `NotHeld` if a parsed value is a `BeyondDecimal` or contains one."""
    if holds_beyond(value):
        raise NotHeld(_BEYOND)


def _exact(text: str) -> Decimal | BeyondDecimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        return BeyondDecimal(text)


def _whole_or_exact(text: str) -> int | Decimal | BeyondDecimal:
    try:
        return int(text)
    except ValueError:  # more digits than Python turns into an int
        return _exact(text)


_ANY_NUMBER: Final = json.JSONDecoder(parse_float=_exact, parse_int=_whole_or_exact)


def convert_of(column: Column) -> Callable[[Any], object] | None:
    """Return the function that converts the parsed JSON values of a column; None: no conversion is needed.

    The function must not be called for null. It raises `NotHeld` for a misfit.
    """
    encoding = column.encoding
    found = _TYPE.match(column.sql_type or "JSON")
    base = "JSON" if found is None else found[0]
    if base == "JSON":
        return _document if encoding == "debezium.Json" else None
    if encoding in UNITS:
        what, unit = UNITS[encoding]
        return _day_of if what == "day" else partial(_COUNTED[what], unit)
    if (scaled := SCALED.fullmatch(encoding)) is not None:
        return partial(_scaled, int(scaled[1]))
    if encoding != "json":
        return _ENCODED.get(encoding, _text)
    if base in _BITS:
        return partial(_whole, _BITS[base])
    return _PLAIN.get(base, _text)


def label_of(column: Column) -> str:
    """Describe a column's type for messages, such as ``DECIMAL(10,2) in encoding decimal.bytes(2)``."""
    if column.encoding == "json":
        return column.sql_type or "JSON"
    return f"{column.sql_type or 'value'} in encoding {column.encoding}"


def _boolean(value: object) -> bool:
    if value is True or value is False:
        return value
    raise NotHeld("it is neither true nor false")


def _is_number(value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _whole(bits: int, value: object) -> int:
    if type(value) is not int:
        if isinstance(value, Decimal) and value.as_tuple().exponent == 0:
            raise NotHeld("it is out of range")  # a whole number of more than 4,300 digits
        is_number = isinstance(value, Decimal | BeyondDecimal)
        raise NotHeld("it is not a whole number" if is_number else "it is not a number")
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise NotHeld("it is out of range")
    return value


def _float(form: str, value: Any) -> float:
    """Return the nearest float; ``form`` is the format of `struct` for its size, 32 or 64 bits."""
    if isinstance(value, str) and value in _NO_NUMBERS:
        return _NO_NUMBERS[value]
    # `float` of the text is 0 or infinity for such an exponent: 0 is the nearest number, infinity is refused
    # below.
    if isinstance(value, BeyondDecimal):
        value = value.text
    elif not _is_number(value):
        raise NotHeld("it is not a number")
    try:
        found = float(value)
        if math.isinf(found):
            raise OverflowError
        struct.pack(form, found)  # raises OverflowError for a number beyond 32 bits
    except OverflowError:
        raise NotHeld("it is out of range") from None
    return found


def _decimal(value: Any) -> Decimal:
    refuse_beyond(value)
    if not _is_number(value):
        raise NotHeld("it is not a number")
    return Decimal(value)


def _quoted(value: object) -> Decimal:
    text = _text(value)
    if _NUMBER.fullmatch(text) is None:
        raise NotHeld("it is not a number")
    return _decimal(_exact(text))


def _scaled(scale: int, value: object) -> Decimal:
    """Return the number of an unscaled number in base64; a negative scale appends zeros before the point."""
    data = _bytes(value)
    if not 0 < len(data) <= _UNSCALED_BYTES_MAX:
        raise NotHeld(f"bytes must be 1 to {_UNSCALED_BYTES_MAX}")
    if abs(scale) > _SCALE_MAX:
        raise NotHeld("it is not in the encoding's form")
    unscaled = Decimal(int.from_bytes(data, "big", signed=True) * 10 ** max(-scale, 0))
    # Construct the Decimal from its parts: arithmetic would round to the precision of the context.
    sign, digits, _ = unscaled.as_tuple()
    return Decimal((sign, digits, -max(scale, 0)))


def _scaled_by_itself(value: object) -> Decimal:
    """Return the number in Debezium's ``VariableScaleDecimal``, which carries its own scale."""
    match value:
        case {"scale": int(scale), "value": unscaled}:
            return _scaled(scale, unscaled)
    raise NotHeld("it is not in the encoding's form")


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise NotHeld("it is not a text")


def _bytes(value: object) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except NotHeld:
        raise
    except ValueError:
        raise NotHeld("it is not base64") from None


def _uuid(value: object) -> UUID:
    try:
        return UUID(_text(value))
    except NotHeld:
        raise
    except ValueError:
        raise NotHeld("it is not a UUID") from None


def _document(value: object) -> object:
    text = _text(value)
    try:
        found, has_beyond = parsed(text)
    except ValueError:
        raise NotHeld("it is not JSON") from None
    if has_beyond:
        raise NotHeld(_BEYOND)
    return found


def _date(value: object) -> date:
    text = _text(value)
    if _DAY.fullmatch(text) is None:
        raise NotHeld("it is not a day of the form 2024-02-29")
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise NotHeld(f"this day does not exist; {_YEARS}") from None


def _time(value: object) -> time:
    found = _TIME.fullmatch(_text(value))
    if found is None:
        raise NotHeld("it is not a time of the form 13:37:00.25")
    *clock, zone = found.groups()
    return _clock(clock, zone)


def _moment(zoned: bool, value: object) -> datetime:
    found = _MOMENT.fullmatch(_text(value))
    if found is None:
        raise NotHeld(f"it is not a time of the form 2024-02-29T13:37:00.25; {_YEARS}")
    day, *clock, zone = found.groups()
    if zoned and zone is None:
        raise NotHeld("it has no time zone")
    if zone is not None and not zoned:
        raise NotHeld("it has a time zone")
    return datetime.combine(_date(day), _clock(clock, zone))


def _clock(parts: list[str | None], zone: str | None) -> time:
    hour, minute, second, fraction = (part or "0" for part in parts)
    if int(hour) > 23:
        raise NotHeld(_LATE)
    if int(minute) > 59 or int(second) > 59:
        raise NotHeld("this time does not exist")
    # Python's times have microseconds: further digits must be zeros, or the value would change.
    if fraction[6:].strip("0"):
        raise NotHeld(_FINE)
    micros = int(fraction[:6].ljust(6, "0"))
    return time(int(hour), int(minute), int(second), micros, _zone(zone))


def _zone(text: str | None) -> timezone | None:
    if text is None:
        return None
    if text == "Z":
        return UTC
    # The forms are +01, +0130, +01:30 and +01:30:15: without colons, filled up with zeros, all are hhmmss.
    digits = text[1:].replace(":", "").ljust(6, "0")
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:4]), seconds=int(digits[4:])) * (
        -1 if text[0] == "-" else 1
    )
    try:
        return timezone(ahead)
    except ValueError:
        raise NotHeld("this time zone does not exist") from None


def _day_of(value: object) -> date:
    days = _whole(64, value)
    if not _FIRST_DAY <= days <= _LAST_DAY:
        raise NotHeld(_YEARS)
    return date.fromordinal(_EPOCH.toordinal() + days)


def _time_of(unit: int, value: object) -> time:
    count = _whole(64, value) * unit
    if not 0 <= count < _DAY_NS:
        raise NotHeld(_LATE)
    return (_EPOCH + timedelta(microseconds=_micros(count))).time()


def _moment_of(unit: int, value: object) -> datetime:
    micros = _micros(_whole(64, value) * unit)
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise NotHeld(_YEARS) from None


def _micros(nanoseconds: int) -> int:
    micros, rest = divmod(nanoseconds, 1_000)
    if rest:
        raise NotHeld(_FINE)
    return micros


_COUNTED: Final = {"time": _time_of, "moment": _moment_of}
_PLAIN: Final[Mapping[str, Callable[[Any], object]]] = {
    "BOOLEAN": _boolean,
    "REAL": partial(_float, "<f"),
    "DOUBLE": partial(_float, "<d"),
    "DECIMAL": _decimal,
    "UUID": _uuid,
    "DATE": _date,
    "TIME": _time,
    "TIME WITH TIME ZONE": _time,
    "TIMESTAMP": partial(_moment, False),
    "TIMESTAMP WITH TIME ZONE": partial(_moment, True),
}
"""SQL type → conversion of its values in the encoding ``json``."""
_ENCODED: Final[Mapping[str, Callable[[Any], object]]] = {
    "base64": _bytes,
    "debezium.Bits": _bytes,
    "decimal.string": _quoted,
    "debezium.VariableScaleDecimal": _scaled_by_itself,
    "debezium.ZonedTime": _time,
    "debezium.ZonedTimestamp": partial(_moment, True),
    "debezium.Year": partial(_whole, 32),
    "debezium.MicroDuration": partial(_whole, 64),
    "debezium.Uuid": _uuid,
}
"""Encoding → conversion of its values, for columns of any SQL type."""
