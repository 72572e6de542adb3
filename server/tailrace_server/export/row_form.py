"""The Avro form of an entity type's rows, and images turned into it.

==========================  ====================================================================
column                      Avro
==========================  ====================================================================
BOOLEAN                     boolean
SMALLINT, INTEGER           int
BIGINT                      long
REAL, DOUBLE                double
DECIMAL(p) and (p,s)        bytes, logicalType decimal of that precision and scale
texts, times, UUID          string
JSON, DECIMAL, not known    string that holds the value's JSON text, digits as written
with an encoding            the image's own text or number: string or long (an object: JSON text)
==========================  ====================================================================

A column that may be null or absent, and every one that the source has dropped, is a union with null, null
first. What the catalog knows besides is kept as attributes of the field, which Avro has readers pass over:
``tailrace.type``, ``tailrace.encoding``, and ``tailrace.text`` = ``json`` where a string holds JSON text.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from tailrace.errors import InvalidRequest
from tailrace_server.wal.column_types import UNAVAILABLE

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
_NUMBERS: Final = frozenset(
    f"debezium.{name}"
    for name in (
        *("Date", "Time", "MicroTime", "NanoTime", "Timestamp", "MicroTimestamp"),
        *("NanoTimestamp", "Year", "MicroDuration"),
    )
) | {"connect.Date", "connect.Time", "connect.Timestamp"}
"""Encodings whose text is a whole number."""


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
        self._texts = [_is_text(column) for column in columns]
        self._places = {column.id: place for place, column in enumerate(columns)}
        self._readers: dict[tuple[Column, ...], dict[str, int]] = {}

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
        places = self._readers.get(columns)
        if places is None:
            places = self._readers[columns] = self._places_of(columns)
        values: list[Any] = [None] * len(self.columns)
        found: Mapping[str, Any] = orjson.loads(image)
        texts: Mapping[str, msgspec.Raw] = _members.decode(image) if any(self._texts) else {}
        for name, value in found.items():
            place = places.get(name)
            if place is None:
                raise Unfit(f"column {name!r} is not in the stream's schema")
            if value is None:
                continue
            if value == UNAVAILABLE:
                raise Unfit(f"column {name!r}: the source did not send its value")
            if self._texts[place]:
                value = bytes(texts[name])
            try:
                values[place] = self._converters[place](value)
            except (TypeError, ValueError, ArithmeticError):
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
    if column.encoding in _NUMBERS:
        return "long"
    if column.encoding != "json" or column.sql_type is None:
        return "string"
    decimal = _DECIMAL.fullmatch(column.sql_type)
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    match column.sql_type:
        case "BOOLEAN":
            return "boolean"
        case "SMALLINT" | "INTEGER":
            return "int"
        case "BIGINT":
            return "long"
        case "REAL" | "DOUBLE":
            return "double"
        case _:
            return "string"


def _is_json_text(column: Column) -> bool:
    """Whether the field is a string that holds JSON text."""
    if column.encoding == "json":
        return column.sql_type in (None, "JSON", "DECIMAL")
    return column.encoding == "debezium.VariableScaleDecimal"


def _is_text(column: Column) -> bool:
    """Whether the value's text in the image is wanted rather than what a parser makes of it."""
    kind = _avro_type(column)
    return _is_json_text(column) or isinstance(kind, dict)


def _converter(column: Column) -> Callable[[Any], Hashable]:
    kind = _avro_type(column)
    if _is_json_text(column):
        return _json_text
    if isinstance(kind, dict):
        return partial(_decimal, kind["precision"], kind["scale"])
    converters: dict[str, Callable[[Any], Hashable]] = {
        "boolean": _boolean,
        "int": partial(_whole, _INT),
        "long": partial(_whole, _LONG),
        "double": _double,
        "string": _string,
    }
    return converters[kind]


def _json_text(value: bytes) -> str:
    if value == _UNAVAILABLE_TEXT:
        raise ValueError
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


def _decimal(precision: int, scale: int, value: bytes) -> Decimal:
    """Return a number with exactly the column's scale; one that would lose a digit is refused."""
    try:
        number = Decimal(value.decode())
    except InvalidOperation:
        raise ValueError from None
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or len(digits) + exponent + scale > precision:
        raise ValueError
    shift = exponent + scale
    if shift < 0 and any(digits[shift:]):
        raise ValueError
    kept = digits[:shift] if shift < 0 else digits + (0,) * shift
    return Decimal((sign if any(kept) else 0, kept or (0,), -scale))


def _label(column: Column) -> str:
    if column.encoding != "json":
        return f"{column.sql_type or 'value'} in encoding {column.encoding}"
    return column.sql_type or "JSON"


def _shown(value: object) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
