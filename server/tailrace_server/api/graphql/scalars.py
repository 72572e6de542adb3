"""The scalars of the GraphQL schema, and the choice of the scalar for a column.

Values that exceed JavaScript's numbers are sent as strings: 64-bit integers of columns (``BigInt``) and
decimals (``Decimal``) are strings with the digits that the source wrote. ``Long`` is for numbers that the
server generates: versions, counts and microseconds stay below 2^53, so they are JSON numbers. ``JSON`` is the
source's text, inserted unchanged. The ``…Text`` fields return the same text as a string, for clients that need
its exact digits.

=============================  ===========  ==========================================================
SQL type                       scalar       in JSON
=============================  ===========  ==========================================================
``SMALLINT``, ``INTEGER``      Int          number
``BIGINT``                     BigInt       string of digits
``DECIMAL(p,s)``               Decimal      string, the source's digits
``REAL``, ``DOUBLE``           Float        number, the source's digits; whole above 2^53, the double's
``BOOLEAN``                    Boolean      true, false
``VARCHAR``, ``UUID``, bytes   String       string; bytes in base64
``DATE``, ``TIME…``            Date, …      string, ISO 8601
``JSON``, not known            JSON         whatever the source wrote
=============================  ===========  ==========================================================

Days, times and moments are exact; a value that cannot be exact is an error. Counts of days, milliseconds,
microseconds or nanoseconds, and texts of the source, become ISO 8601::

    Date       2024-02-29
    Timestamp  2024-02-29T13:37:00.250000            nine digits if the source counts nanoseconds
    Time       13:37:00.250000  26:15:00  -00:30:00  hours may be above 23 and below 0, as in MySQL's TIME

Years are 0001 to 9999. PostgreSQL's infinity is outside this range: Debezium sends it as 9223372036825200000
µs, or as the text +294247-01-10T04:00:00Z. A Time ranges from -838:59:59 to 838:59:59, as in MySQL.

Source: Debezium documentation, PostgreSQL and MySQL connectors, temporal types; MySQL manual, the TIME type.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NewType

import msgspec
import strawberry

from tailrace_server.api.graphql.errors import cannot_represent
from tailrace_server.wal.record.unavailable import DEFAULT, Unavailable, unavailable
from tailrace_server.wal.schema.decoding import HOURS, LAST_HOUR, YEARS, Undecodable, decoding_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from strawberry.types.scalar import ScalarDefinition

    from tailrace.schema import Column
    from tailrace_server.wal.schema.decoding import Decoding


Long = NewType("Long", int)
BigInt = NewType("BigInt", str)
Decimal = NewType("Decimal", str)
Date = NewType("Date", str)
Time = NewType("Time", str)
Timestamp = NewType("Timestamp", str)
Json = NewType("Json", object)


_WHOLE: Final = re.compile(r"-?[0-9]{1,1000}", re.ASCII)
_DECIMAL: Final = re.compile(
    r"-?[0-9]{1,1000}(?:\.[0-9]{1,1000})?(?:[eE][+-]?[0-9]{1,4})?", re.ASCII
)


NULL: Final = b"null"


_INTEGER: Final = re.compile(rb"-?[0-9]+")
_NUMBER: Final = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_QUOTED_NUMBER: Final = re.compile(rb'"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"')
_EXACT_MAX: Final = 1 << 53
"""A double represents every whole number up to this one exactly."""
_KINDS: Final = {"Decimal": Decimal, "Date": Date, "Time": Time, "Timestamp": Timestamp}
"""Scalars of decoded values, by kind of decoding."""


_SECONDS: Final = r":[0-5]\d(?::(?:[0-5]\d|60)(?:\.\d{1,12})?)?"
"""Pattern of minutes, seconds and fraction; the second 60 is a leap second."""
_CLOCK: Final = rf"(?:(?:[01]\d|2[0-3]){_SECONDS}|24:00(?::00(?:\.0{{1,12}})?)?)"
"""Pattern of a time of day; 24:00 is the end of a day."""
_ZONE: Final = r"(?:Z|[+-][01]\d(?::?[0-5]\d(?::?[0-5]\d)?)?)?"
_DAY: Final = re.compile(r'"(\d{4}-\d\d-\d\d)"', re.ASCII)
_MOMENT: Final = re.compile(rf'"(\d{{4}}-\d\d-\d\d)[T ]({_CLOCK}{_ZONE})"', re.ASCII)
_TIME_OF_DAY: Final = re.compile(rf'"{_CLOCK}{_ZONE}"', re.ASCII)
_SPAN: Final = re.compile(rf'"-?(\d{{2,3}}){_SECONDS}"', re.ASCII)


def written_date(raw: bytes) -> bytes:
    """Return a day that the source wrote as text.

    Raises:
        ValueUnfit: The text is not a day in the years 0001 to 9999.
    """
    found = _DAY.fullmatch(_written("Date", raw))
    if found is None or not _is_day(found[1]):
        raise cannot_represent("Date", raw, YEARS)
    return found[0].encode()


def written_timestamp(raw: bytes) -> bytes:
    """Return a moment that the source wrote as text, with a T between day and time.

    Raises:
        ValueUnfit: The text is not a moment in the years 0001 to 9999.
    """
    found = _MOMENT.fullmatch(_written("Timestamp", raw))
    if found is None or not _is_day(found[1]):
        raise cannot_represent("Timestamp", raw, YEARS)
    return f'"{found[1]}T{found[2]}"'.encode()


def written_time(raw: bytes) -> bytes:
    """Return a time of day, or a span of hours, that the source wrote as text.

    Raises:
        ValueUnfit: The text is not a time, or is outside the range of MySQL's TIME.
    """
    text = _written("Time", raw)
    if _TIME_OF_DAY.fullmatch(text) is None:
        found = _SPAN.fullmatch(text)
        if found is None or int(found[1]) > LAST_HOUR:
            raise cannot_represent("Time", raw, HOURS)
    return text.encode()


def _written(scalar: str, raw: bytes) -> str:
    """Return a JSON string with its quotes and without escapes; valid days and times need none."""
    if raw[:1] != b'"':
        raise cannot_represent(scalar, raw)
    # Days and times need no escapes, so decode the JSON string only if it has one.
    if b"\\" not in raw:
        return raw.decode()
    try:
        return f'"{msgspec.json.decode(raw, type=str)}"'
    except msgspec.DecodeError:
        raise cannot_represent(scalar, raw) from None


@lru_cache(maxsize=4_096)
def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _whole(value: object) -> int:
    """Parse an argument of type Long: a whole number or decimal text."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,20}", value, re.ASCII):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"Long cannot represent {str(value)[:40]!r}: must be a whole number")
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("Long cannot represent a number of more than 64 bits")
    return value


def _digits(scalar: str, pattern: re.Pattern[str], value: object) -> str:
    """Parse a numeric argument, a string of digits or a whole number; return it as a string."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and pattern.fullmatch(value):
        return value
    raise ValueError(
        f"{scalar} cannot represent {str(value)[:40]!r}: must be a string of its digits"
    )


def _string(scalar: str, value: object) -> str:
    """Check that an argument is a string; it is parsed later, when its column is known."""
    if not isinstance(value, str):
        raise ValueError(f"{scalar} cannot represent {str(value)[:40]!r}: must be a string")
    return value


def _same(value: object) -> object:
    return value


def _scalar(name: str, description: str, parse: Callable[[Any], Any] = _same) -> ScalarDefinition:
    return strawberry.scalar(name=name, description=description, serialize=_same, parse_value=parse)


SCALARS: Final[dict[object, ScalarDefinition]] = {
    Long: _scalar(
        "Long",
        "A whole number of 64 bits: versions, counts, microseconds. A JSON number, below 2^53 in all that is "
        "sent; taken as a number or as decimal text.",
        _whole,
    ),
    BigInt: _scalar(
        "BigInt",
        "A whole number of 64 bits as a string of digits.",
        partial(_digits, "BigInt", _WHOLE),
    ),
    Decimal: _scalar(
        "Decimal",
        "A decimal number as a string, with the digits of the source.",
        partial(_digits, "Decimal", _DECIMAL),
    ),
    Date: _scalar(
        "Date",
        "A day as a string: 2024-02-29. Years are 0001 to 9999.",
        partial(_string, "Date"),
    ),
    Time: _scalar(
        "Time",
        "A time of day as a string: 13:37:00.250000, with its zone where it has one. It may also be a span of "
        "hours, where the source has such: -00:30:00, 26:15:00; from -838:59:59 to 838:59:59.",
        partial(_string, "Time"),
    ),
    Timestamp: _scalar(
        "Timestamp",
        "A moment as a string: 2024-02-29T13:37:00.250000, with its zone where it has one. Years are 0001 to "
        "9999.",
        partial(_string, "Timestamp"),
    ),
    Json: _scalar("JSON", "Any JSON value, as the source wrote it, byte for byte."),
}
"""The scalars by annotation, for Strawberry's ``scalar_map``."""


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """The conversion of a column's values to a scalar."""

    name: str
    """Identity of the form: forms with equal names convert values equally."""
    scalar: object
    """The scalar, as a Python annotation."""
    convert: Callable[[bytes], bytes]
    """Function that converts the JSON text of a value that the source sent."""
    unavailable: Unavailable = DEFAULT
    """Recognizes the placeholder of a value that the source did not send."""

    def text(self, raw: bytes) -> bytes:
        """Convert the JSON text of a value in an image, which is not null, to the JSON text of the answer.

        The result is null for a value that the source did not send; `Change.unavailable` lists its column.

        Raises:
            ValueUnfit: The scalar cannot represent the value.
        """
        return NULL if self.unavailable.is_one(raw) else self.convert(raw)

    def value(self, raw: bytes) -> object:
        """Return the converted value as a resolver returns it; raises like ``text``."""
        text = raw if raw == NULL else self.text(raw)
        if text == NULL:
            return None
        return msgspec.Raw(text) if self.scalar is Json else msgspec.json.decode(text)


def _json(raw: bytes) -> bytes:
    return raw


def _int(raw: bytes) -> bytes:
    # The length is checked first: `int` of a very long text is slow, and the regular expression reads all of
    # it.
    if len(raw) <= 11 and _INTEGER.fullmatch(raw) and -(1 << 31) <= int(raw) < 1 << 31:
        return raw
    raise cannot_represent("Int", raw)


def _big_int(raw: bytes) -> bytes:
    digits = raw[1:-1] if raw[:1] == b'"' else raw
    if _INTEGER.fullmatch(digits) and len(digits) <= 20 and -(1 << 63) <= int(digits) < 1 << 63:
        return b'"%b"' % digits
    raise cannot_represent("BigInt", raw)


def _decimal(raw: bytes) -> bytes:
    if _NUMBER.fullmatch(raw):
        return b'"%b"' % raw
    if _QUOTED_NUMBER.fullmatch(raw):
        return raw
    raise cannot_represent("Decimal", raw)


def _unbase64(scalar: str, raw: bytes) -> bytes:
    try:
        return base64.b64decode(msgspec.json.decode(raw, type=str), validate=True)
    except (msgspec.DecodeError, ValueError):
        raise cannot_represent(scalar, raw) from None


def _float(raw: bytes) -> bytes:
    if not _NUMBER.fullmatch(raw) or abs(float(raw)) == float("inf"):
        raise cannot_represent("Float", raw)
    if _INTEGER.fullmatch(raw):
        if abs(int(raw)) > _EXACT_MAX:
            # graphql-core refuses a whole number that a double cannot represent exactly.
            return repr(float(raw)).encode()
        if raw == b"-0":
            # Parsers that read whole numbers as integers would lose the sign.
            return b"-0.0"
    return raw


def _boolean(raw: bytes) -> bytes:
    if raw in (b"true", b"false"):
        return raw
    raise cannot_represent("Boolean", raw)


def _text(raw: bytes) -> bytes:
    if raw[:1] == b'"':
        return raw
    raise cannot_represent("String", raw)


def _base64(raw: bytes) -> bytes:
    _unbase64("String", raw)
    return raw


_JSON: Final = ColumnForm("JSON", Json, _json)

_STRING: Final = ColumnForm("String", str, _text)

_BASES: Final = {
    "BOOLEAN": ColumnForm("Boolean", bool, _boolean),
    "SMALLINT": ColumnForm("Int", int, _int),
    "INTEGER": ColumnForm("Int", int, _int),
    "BIGINT": ColumnForm("BigInt", BigInt, _big_int),
    "DECIMAL": ColumnForm("Decimal", Decimal, _decimal),
    "REAL": ColumnForm("Float", float, _float),
    "DOUBLE": ColumnForm("Float", float, _float),
    "VARCHAR": _STRING,
    "UUID": _STRING,
    "VARBINARY": _STRING,
    "DATE": ColumnForm("Date", Date, written_date),
    "TIME": ColumnForm("Time", Time, written_time),
    "TIMESTAMP": ColumnForm("Timestamp", Timestamp, written_timestamp),
}
"""Forms by the first word of an SQL type."""

_BYTES: Final = ColumnForm("bytes", str, _base64)

_ENCODED: Final = {
    "base64": _BYTES,
    "debezium.Bits": _BYTES,
    "decimal.string": _BASES["DECIMAL"],
    "debezium.ZonedTime": _BASES["TIME"],
    "debezium.ZonedTimestamp": _BASES["TIMESTAMP"],
}
"""Forms by encoding; they apply to columns of any SQL type."""


def column_form(column: Column, placeholders: tuple[str, ...] = ()) -> ColumnForm:
    """Return the conversion of a column's values; the scalar is ``JSON`` if its type is unknown.

    Args:
        column: The column.
        placeholders: Texts that replace values that the source did not send, from the schema of the log.
    """
    form = _form_of(column)
    if not placeholders:
        return form
    name = f"{form.name}, unavailable as {placeholders}"
    return replace(form, name=name, unavailable=unavailable(placeholders))


def _form_of(column: Column) -> ColumnForm:
    base = _BASES.get(re.split(r"[ (]", column.sql_type or "", maxsplit=1)[0], _JSON)
    encoding = column.encoding
    # With the encoding `json`, or an unknown type, the value is the source's own JSON.
    if encoding == "json" or base is _JSON:
        return base
    if (decoding := decoding_of(column)) is not None:
        return ColumnForm(encoding, _KINDS[decoding.kind], partial(_decoded, decoding))
    return _ENCODED.get(encoding, base)


def _decoded(decoding: Decoding, raw: bytes) -> bytes:
    try:
        return decoding.decode(raw)
    except Undecodable as error:
        raise cannot_represent(decoding.kind, raw, error.reason) from None
