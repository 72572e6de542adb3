"""The Avro form of an entity type's rows, and images turned into it.

===============================  ===============================================================
column                           Avro
===============================  ===============================================================
BOOLEAN                          boolean
SMALLINT, INTEGER                int
BIGINT                           long
REAL, DOUBLE                     double
DECIMAL(p), DECIMAL(p,s)         bytes, decimal of that precision and scale; also from decimal.bytes
VARBINARY in base64              bytes
UUID                             string, uuid
other texts, times as text       string
JSON, DECIMAL, not known         string that holds the value's JSON text, digits as written
debezium.Date, connect.Date      int, date
debezium.Time, connect.Time      int, time-millis
debezium.MicroTime               long, time-micros
debezium.Timestamp, connect.…    long, timestamp-millis
debezium.MicroTimestamp          long, timestamp-micros
another encoding                 the image's own number or text: long or string (an object: JSON text)
===============================  ===============================================================

A column that may be null or absent, and every one that the source has dropped, is a union with null, null
first. What the catalog knows besides is kept as attributes of the field, which Avro has readers pass over:
``tailrace.type``, ``tailrace.encoding``, and ``tailrace.text`` = ``json`` where a string holds JSON text.
"""

from __future__ import annotations

import base64
import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from tailrace.errors import InvalidRequest
from tailrace_server.wal.schema.column_types import UNAVAILABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from tailrace.schema import Column

Row = tuple["Hashable", ...]
"""Values of a row, by the fields of its Avro record."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+)(?:,(\d+))?\)")
_UNAVAILABLE_TEXT: Final = orjson.dumps(UNAVAILABLE)
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_INT: Final = 1 << 31
_LONG: Final = 1 << 63
_EXACT: Final = 1 << 53
_EXACTLY: Final = Context(
    prec=10_000, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, InvalidOperation]
)
"""Arithmetic that refuses to round."""
_LOGICAL: Final = {
    "debezium.Date": ("int", "date"),
    "debezium.Time": ("int", "time-millis"),
    "debezium.MicroTime": ("long", "time-micros"),
    "debezium.Timestamp": ("long", "timestamp-millis"),
    "debezium.MicroTimestamp": ("long", "timestamp-micros"),
    "debezium.Uuid": ("string", "uuid"),
    "connect.Date": ("int", "date"),
    "connect.Time": ("int", "time-millis"),
    "connect.Timestamp": ("long", "timestamp-millis"),
}
"""Encodings that Avro has a name for."""
_NUMBERS: Final = frozenset(
    f"debezium.{name}" for name in ("NanoTime", "NanoTimestamp", "Year", "MicroDuration")
)
"""Encodings whose text is a whole number, and that Avro has no name for."""


class Unfit(ValueError):
    """A value or an image that the form cannot hold; says which column and why."""


class RowForm:
    """The columns of a stream, in the order of its Avro record; fixed for as long as the stream lasts."""

    def __init__(self, columns: Sequence[Column]) -> None:
        """Take the columns, dropped ones included; ``nullable`` says what may be null or absent.

        Raises:
            InvalidRequest: A column's name is none in Avro.
        """
        for column in columns:
            if not _NAME.fullmatch(column.name):
                raise InvalidRequest(
                    f"column {column.name!r}: Avro's names are letters, digits and _ only; rename it in "
                    "the catalog's schema mapping (docs/schemas.md)"
                )
        self.columns = tuple(columns)
        self._converters = [_converter(column) for column in columns]
        if any(map(_is_text, columns)):
            self._converters = [
                converter if _is_text(column) else partial(_parsed, converter)
                for converter, column in zip(self._converters, columns, strict=True)
            ]
            self._members: Callable[[bytes], Mapping[str, Any]] = _texts
        else:
            self._members = _values
        self._places = {column.id: place for place, column in enumerate(columns)}
        self._read_columns: tuple[Column, ...] | None = None
        self._read_places: dict[str, int] = {}
        """By name, of the columns that the last image was read with."""

    def avro_record(self) -> dict[str, Any]:
        """Return the Avro schema of ``data``."""
        return {
            "type": "record",
            "name": "data",
            "fields": [_field(column) for column in self.columns],
        }

    def row(self, image: bytes, columns: tuple[Column, ...]) -> Row:
        """Return an image's values in the order of the form.

        Args:
            image: Text of a JSON object.
            columns: The entity type's columns at the image's version: names there may be others.

        Raises:
            Unfit: It has a column that the form lacks, or a value that its column cannot hold.
        """
        if columns is not self._read_columns:
            self._read_columns, self._read_places = columns, self._places_of(columns)
        places = self._read_places
        values: list[Any] = [None] * len(self.columns)
        for name, value in self._members(image).items():
            place = places.get(name)
            if place is None:
                raise Unfit(f"column {name!r} is not in the stream's schema")
            if value is None or value == b"null":
                continue
            if value in (UNAVAILABLE, _UNAVAILABLE_TEXT):
                raise Unfit(f"column {name!r}: the source did not send its value")
            try:
                values[place] = self._converters[place](value)
            except ValueError:
                kind = _label(self.columns[place])
                raise Unfit(f"column {name!r}: {_shown(value)} is no {kind}") from None
        for place, value in enumerate(values):
            if value is None and not self.columns[place].nullable:
                raise Unfit(f"column {self.columns[place].name!r} is null or absent")
        return tuple(values)

    def _places_of(self, columns: Sequence[Column]) -> dict[str, int]:
        """Return the place of each name at a version; a column is the same one by its id."""
        return {
            column.name: self._places[column.id] for column in columns if column.id in self._places
        }


def _values(image: bytes) -> Mapping[str, Any]:
    """Return the values of an image."""
    try:
        return orjson.loads(image)  # type: ignore[no-any-return]
    except orjson.JSONDecodeError as error:
        raise Unfit(str(error)) from None


def _texts(image: bytes) -> Mapping[str, Any]:
    """Return the texts of an image's values."""
    return {name: bytes(text) for name, text in _members.decode(image).items()}


def _parsed(convert: Callable[[Any], Hashable], text: bytes) -> Hashable:
    return convert(orjson.loads(text))


def _field(column: Column) -> dict[str, Any]:
    kind = _avro_type(column)
    field: dict[str, Any] = {"name": column.name, "type": kind}
    if column.nullable:
        field |= {"type": ["null", kind], "default": None}
    if column.sql_type is not None:
        field["tailrace.type"] = column.sql_type
    if column.encoding != "json":
        field["tailrace.encoding"] = column.encoding
    if _is_json_text(column):
        field["tailrace.text"] = "json"
    return field


def _avro_type(column: Column) -> str | dict[str, Any]:
    if column.encoding in _LOGICAL:
        kind, logical = _LOGICAL[column.encoding]
        return {"type": kind, "logicalType": logical}
    if column.encoding in _NUMBERS:
        return "long"
    sql_type, json = column.sql_type, column.encoding == "json"
    decimal = _DECIMAL.fullmatch(sql_type or "")
    if decimal is not None and (json or column.encoding.startswith("decimal.bytes(")):
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    if column.encoding == "base64":
        return "bytes"
    if not json:
        return "string"
    match sql_type:
        case "BOOLEAN":
            return "boolean"
        case "SMALLINT" | "INTEGER":
            return "int"
        case "BIGINT":
            return "long"
        case "REAL" | "DOUBLE":
            return "double"
        case "UUID":
            return {"type": "string", "logicalType": "uuid"}
        case _:
            return "string"


def _is_json_text(column: Column) -> bool:
    """Whether the field is a string that holds JSON text."""
    if column.encoding == "json":
        return column.sql_type in (None, "JSON", "DECIMAL")
    return column.encoding == "debezium.VariableScaleDecimal"


def _is_text(column: Column) -> bool:
    """Whether the value's text in the image is wanted rather than what a parser makes of it."""
    return _is_json_text(column) or _is_decimal(column)


def _is_decimal(column: Column) -> bool:
    """Whether the image has a number that is to become the bytes of a decimal."""
    return column.encoding == "json" and _DECIMAL.fullmatch(column.sql_type or "") is not None


def _converter(column: Column) -> Callable[[Any], Hashable]:
    if _is_json_text(column):
        return _json_text
    kind = _avro_type(column)
    if isinstance(kind, dict):
        if _is_decimal(column):
            return partial(_decimal, kind["precision"], kind["scale"])
        kind = kind["type"]
    converters: dict[str, Callable[[Any], Hashable]] = {
        "boolean": _boolean,
        "bytes": _bytes,
        "int": partial(_whole, _INT),
        "long": partial(_whole, _LONG),
        "double": _double,
        "string": _string,
    }
    return converters[kind]


def _json_text(value: bytes) -> str:
    return value.decode()


def _boolean(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError
    return value


def _whole(bound: int, value: object) -> int:
    # A parser makes a float of a whole number beyond 64 bits; it is refused like any other float.
    if type(value) is not int or not -bound <= value < bound:
        raise ValueError
    return value


def _double(value: object) -> float:
    if type(value) is int and -_EXACT <= value <= _EXACT:
        return float(value)
    if type(value) is not float:
        raise ValueError
    return value


def _string(value: object) -> str:
    if type(value) is not str:
        raise ValueError
    return value


def _bytes(value: object) -> bytes:
    return base64.b64decode(_string(value), validate=True)


def _decimal(precision: int, scale: int, value: bytes) -> bytes:
    """Return the unscaled number, two's complement, big endian; one that would lose a digit is refused."""
    try:
        number = Decimal(value.decode())
        if number and number.adjusted() + scale >= precision:
            raise ValueError
        number = number.scaleb(scale, _EXACTLY)
        unscaled = int(number.to_integral_exact(context=_EXACTLY))
    except ArithmeticError:
        raise ValueError from None
    size = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
    return unscaled.to_bytes(size, "big", signed=True)


def _label(column: Column) -> str:
    if column.encoding != "json":
        return f"{column.sql_type or 'value'} in encoding {column.encoding}"
    return column.sql_type or "JSON"


def _shown(value: object) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
