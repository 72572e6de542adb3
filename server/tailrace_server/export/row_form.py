"""The Avro form of an entity type's rows, and the conversion of images into it.

===============================  ===============================================================
column                           Avro
===============================  ===============================================================
BOOLEAN                          boolean
SMALLINT, INTEGER                int
BIGINT                           long
REAL, DOUBLE                     double; also of the texts "NaN", "Infinity" and "-Infinity"
DECIMAL(p), DECIMAL(p,s)         bytes, decimal of that precision and scale
DECIMAL(p,s) in decimal.bytes(t) bytes, decimal of scale t, and of as many digits before the point
VARBINARY in base64              bytes
UUID                             string, uuid
other texts, times as text       string
JSON, DECIMAL, unknown           string that holds the value's JSON text, digits as written
debezium.Date, connect.Date      int, date
debezium.Time, connect.Time      int, time-millis
debezium.MicroTime               long, time-micros
debezium.Timestamp, connect.…    long, timestamp-millis
debezium.MicroTimestamp          long, timestamp-micros
another encoding                 the image's own number or text: long or string (an object: JSON text)
===============================  ===============================================================

A column that may be null or absent, and every dropped column, is a union with null as its first branch. Further
properties of a column are attributes of its field, which Avro readers ignore: ``tailrace.type``,
``tailrace.encoding``, and ``tailrace.text``, which is ``json`` if a string holds JSON text.
"""

from __future__ import annotations

import base64
import math
import re
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from tailrace.errors import InvalidRequest
from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.unavailable import DEFAULT
from tailrace_server.wal.schema.column_types import EXACTLY
from tailrace_server.wal.schema.restating import (
    conversion_of,
    read_as,
    restated_image,
    restated_or_shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from tailrace.schema import Column
    from tailrace_server.wal.schema.restating import Conversions, Stated

Row = tuple["Hashable", ...]
"""The values of a row, in the order of the fields of its Avro record."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Texts of the floats that JSON lacks. There is only one NaN object, so that rows with it are equal
(`cdcv2.scalars`).
"""
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+)(?:,(\d+))?\)")
_INT: Final = 1 << 31
_LONG: Final = 1 << 63
"""An Avro int or long is below its bound, and at least the negative of the bound."""
_DECIMAL_BYTES: Final = re.compile(r"decimal\.bytes\((\d+)\)")
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
"""Encodings that have a logical type in Avro."""
_NUMBERS: Final = frozenset(
    f"debezium.{name}" for name in ("NanoTime", "NanoTimestamp", "Year", "MicroDuration")
)
"""Encodings that are whole numbers and have no logical type in Avro."""


class Unfit(ValueError):
    """An image does not fit the form; the message has the column and the reason."""


class RowForm:
    """The columns of a stream, in the order of its Avro record, and the conversion of images.

    The columns never change.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        stated: Callable[[], Mapping[int, Column]] = dict,
    ) -> None:
        """Prepare the conversion.

        Args:
            columns: All columns, including dropped ones. A nullable column may be null or absent.
            stated: Returns each column as it was first declared, by column id (`restating.first_stated`).

        Raises:
            InvalidRequest: Avro does not allow the name of a column.
        """
        for column in columns:
            if not _NAME.fullmatch(column.name):
                raise InvalidRequest(
                    f"column {column.name!r}: Avro allows only letters, digits and _; rename it in the "
                    "catalog's schema mapping (docs/schemas.md)"
                )
        self.columns = tuple(columns)
        self.unavailable = DEFAULT
        """Recognizes placeholders for values that the source did not send."""
        # If a column needs the text of its value, split the image into texts and parse the other values one by
        # one. Otherwise parse the whole image at once, which is much faster.
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
        """The columns of the last image; all images of a version have the same tuple."""
        self._read_places: dict[str, int] = {}
        """Column name → index in a row, for the columns of the last image."""
        self._conversions: Conversions = {}
        """Conversions for those columns of the last image that the form stores differently."""
        self._stated = stated

    def avro_record(self) -> dict[str, Any]:
        """Return the Avro schema of ``data``."""
        return {
            "type": "record",
            "name": "data",
            "fields": [_field(column) for column in self.columns],
        }

    def row(self, image: bytes, columns: tuple[Column, ...]) -> Row:
        """Return the values of an image, in the order of the form.

        Args:
            image: The text of a JSON object.
            columns: The entity type's columns at the image's version; their names may differ from the form's
                names.

        Raises:
            Unfit: The form lacks a column of the image, or a column cannot hold its value.
        """
        # Match columns by id, since versions may name them differently. Do it only when the tuple changes: the
        # same tuple comes with row after row.
        if columns is not self._read_columns:
            self._read_columns, self._read_places = columns, self._places_of(columns)
            self._conversions = self._conversions_of(columns)
        if self._conversions:
            image = self._restated(image)
        places = self._read_places
        values: list[Any] = [None] * len(self.columns)
        for name, value in self._members(image).items():
            place = places.get(name)
            if place is None:
                raise Unfit(f"column {name!r} is not in the stream's schema")
            if value is None or value == b"null":  # a parsed null, or the text of a null
                continue
            told = self.unavailable
            if told.is_one(value) if type(value) is bytes else told.is_one_parsed(value):
                raise Unfit(f"column {name!r}: the source did not send its value")
            try:
                values[place] = self._converters[place](value)
            except ValueError:
                kind = _label(self.columns[place])
                raise Unfit(f"column {name!r}: {_shown(value)} is no {kind}") from None
        # Check for nulls only now: an absent column is null too.
        for place, value in enumerate(values):
            if value is None and not self.columns[place].nullable:
                raise Unfit(f"column {self.columns[place].name!r} is null or absent")
        return tuple(values)

    def _places_of(self, columns: Sequence[Column]) -> dict[str, int]:
        """Return the index in a row for each column name of a version.

        Columns with the same id are the same column.
        """
        return {
            column.name: self._places[column.id] for column in columns if column.id in self._places
        }

    def _conversions_of(self, columns: Sequence[Column]) -> Conversions:
        """Return, by name, the conversions for columns of a version that the form stores differently."""
        stated = self._stated()
        found: Conversions = {}
        for column in columns:
            place = self._places.get(column.id)
            if place is None:
                continue
            read, own = (
                read_as(each, stated.get(column.id)) for each in (column, self.columns[place])
            )
            conversion = conversion_of(read, (own.sql_type, own.encoding))
            if conversion is not None:
                found[column.name] = conversion
        return found

    def _restated(self, image: bytes) -> bytes:
        """Return an image with its values converted for the form.

        Raises:
            Unfit: A value cannot be converted exactly.
        """
        texts = _texts(image)
        found, inexact = restated_image(
            image, self._conversions, self.unavailable, restated_or_shown
        )
        for name in inexact:
            written, wanted = (_stated_label(each) for each in self._conversions[name])
            raise Unfit(f"column {name!r}: {_shown(texts[name])} of {written} is no {wanted}")
        return found


def _stated_label(stated: Stated) -> str:
    return " in encoding ".join(each or "an unknown type" for each in stated)


def _values(image: bytes) -> Mapping[str, Any]:
    """Return the parsed values of an image, by column."""
    try:
        return orjson.loads(image)  # type: ignore[no-any-return]
    except orjson.JSONDecodeError as error:
        # The log accepts more than this parser, for instance a number beyond every double. Find the column.
        for name, text in _texts(image).items():
            try:
                orjson.loads(text)
            except orjson.JSONDecodeError:
                raise Unfit(f"column {name!r}: {_shown(text)} is not supported by Avro") from None
        raise Unfit(str(error)) from None


def _texts(image: bytes) -> Mapping[str, Any]:
    """Return the JSON texts of an image's values, by column."""
    try:
        return {name: bytes(text) for name, text in decode_members(image).items()}
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unfit(str(error)) from None


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
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        encoded = _DECIMAL_BYTES.fullmatch(column.encoding)
        if encoded is not None:
            # The bytes are in units of the encoding's scale, whatever scale the type has.
            precision, scale = max(1, precision - scale + int(encoded[1])), int(encoded[1])
            precision = max(precision, scale)
        if json or encoded is not None:
            decimal_type = {"type": "bytes", "logicalType": "decimal"}
            return decimal_type | {"precision": precision, "scale": scale}
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
    """Return True if the Avro field is a string with JSON text."""
    if column.encoding == "json":
        return column.sql_type in (None, "JSON", "DECIMAL")
    return column.encoding == "debezium.VariableScaleDecimal"


def _is_text(column: Column) -> bool:
    """Return True if the conversion needs the JSON text of the column's value, not the parsed value."""
    return _is_json_text(column) or _is_decimal(column)


def _is_decimal(column: Column) -> bool:
    """Return True if numbers of the column become the bytes of a decimal."""
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
        "bytes": _number_bytes if column.encoding.startswith("decimal.bytes(") else _bytes,
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
    # The parser turns a whole number beyond 64 bits into a float, which is refused like any other float.
    if type(value) is not int or not -bound <= value < bound:
        raise ValueError
    return value


def _double(value: object) -> float:
    if type(value) is str and value in _NO_NUMBERS:
        return _NO_NUMBERS[value]
    if type(value) is int and int(float(value)) == value:
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


def _number_bytes(value: object) -> bytes:
    found = _bytes(value)
    if not found:
        raise ValueError  # an empty value is not a number, though some readers take it for 0
    return found


def _decimal(precision: int, scale: int, value: bytes) -> bytes:
    """Return the unscaled number as two's complement, big-endian; refuse a number that would lose digits."""
    try:
        number = Decimal(value.decode())
        # Check before scaling: an exponent of a billion would make a number of a billion digits.
        if number and number.adjusted() + scale >= precision:
            raise ValueError
        number = number.scaleb(scale, EXACTLY)
        unscaled = int(number.to_integral_exact(context=EXACTLY))
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
