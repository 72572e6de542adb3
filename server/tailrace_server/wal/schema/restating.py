"""Conversion of values: the JSON text of a value in one type and encoding becomes that of another.

This is needed where images of one row were written under two schemas, and must be compared or written in one
form: within a transaction that spans a change of the schema, and in a stream with fixed columns. A value that
cannot be converted exactly is not converted.

===================================  ======================================================================
meaning of a value                   types and encodings
===================================  ======================================================================
a number                             integers, REAL, DOUBLE, DECIMAL in ``json``; ``decimal.string``,
                                     ``decimal.bytes(s)``, ``debezium.VariableScaleDecimal``, ``.Year``
a moment, a time of day, ns          ``debezium.Timestamp``, ``.MicroTimestamp``, ``.NanoTimestamp``,
                                     ``connect.Timestamp``; the same of ``Time``
a day                                ``debezium.Date``, ``connect.Date``
a text                               any text in ``json`` except type JSON; ``debezium.Uuid``, ``.Enum``, …
anything else                        only its own type and encoding
===================================  ======================================================================

A number becomes a text of its digits, and a text of digits becomes a number. Any value can become ``JSON``
unchanged.
"""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import orjson

from tailrace.typed.column_values import SCALED, UNITS
from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.unavailable import DEFAULT
from tailrace_server.wal.schema.column_types import (
    DECIMAL,
    EXACTLY,
    JSON,
    VARCHAR,
    fault_of,
    joined,
    may_become,
    type_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tailrace.schema import Column, Schema
    from tailrace_server.wal.record.unavailable import Unavailable

Stated = tuple[str | None, str]
"""SQL type (None if unknown) and encoding."""
Conversions = dict[str, tuple[Stated, Stated]]
"""Column → present and wanted type and encoding of its values."""

_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?")
NUMERIC: Final = ("SMALLINT", "INTEGER", "BIGINT", "REAL", "DOUBLE", DECIMAL)
"""Types whose values are numbers."""
TEXTS: Final = tuple(
    f"debezium.{name}"
    for name in (
        "ZonedTime",
        "ZonedTimestamp",
        "Interval",
        "Json",
        "Xml",
        "Uuid",
        "Enum",
        "EnumSet",
    )
)
"""Encodings whose values are texts."""
AS_TEXT: Final = ((VARCHAR, "json"), (VARCHAR, "debezium.Enum"), (VARCHAR, "debezium.EnumSet"))
"""Types and encodings that can hold any text."""
_SECOND: Final = 1_000_000_000


class _Count(NamedTuple):
    """A moment, a time of day, or a day, as a count."""

    kind: str
    value: int


_Meaning = Decimal | str | _Count
"""The meaning of a value, independent of its notation."""


def restated(
    value: bytes, written: Stated, wanted: Stated, unavailable: Unavailable = DEFAULT
) -> bytes | None:
    """Convert a value to another type and encoding; return None if that is not possible exactly.

    Args:
        value: JSON text that fits ``written``.
        written: Present type and encoding.
        wanted: Wanted type and encoding.
        unavailable: Recogniser of placeholders, which stay unchanged.
    """
    sql_type, encoding = wanted
    if written == wanted or type_of(value, unavailable) is None or sql_type is None:
        return value
    if (sql_type, encoding) == (JSON, "json"):
        return value
    # With one encoding the text means the same, if the other type can hold it.
    if written[1] == encoding and fault_of(sql_type, encoding, value) is None:
        return value
    try:
        meaning = _meaning(value, written)
        found = None if meaning is None else _written(meaning, sql_type, encoding)
    except (ArithmeticError, ValueError, TypeError, KeyError):
        return None
    # The text may be out of the type's range: too many digits, too long, or too large.
    if found is None or fault_of(sql_type, encoding, found) is not None:
        return None
    return found


def restated_or_shown(
    value: bytes, written: Stated, wanted: Stated, unavailable: Unavailable = DEFAULT
) -> bytes | None:
    """Convert a value as `restated`; if the wanted type is a text, use a readable text as the last resort.

    The readable text of a moment is ISO 8601, as in GraphQL; that of a boolean or an object is its JSON text.
    """
    found = restated(value, written, wanted, unavailable)
    if found is not None or (base_of(wanted[0]), wanted[1]) != (VARCHAR, "json"):
        return found
    try:
        meaning = _meaning(value, written)
    except (ArithmeticError, ValueError, TypeError, KeyError):
        meaning = None
    if isinstance(meaning, _Count):
        return msgspec.json.encode(_shown(meaning))
    return value if value[:1] == b'"' else msgspec.json.encode(value.decode())


def restated_image(
    image: bytes,
    conversions: Conversions,
    unavailable: Unavailable = DEFAULT,
    restate: Callable[[bytes, Stated, Stated, Unavailable], bytes | None] = restated,
) -> tuple[bytes, list[str]]:
    """Convert the values of an image; return the image, and the columns that cannot be converted.

    Args:
        image: Text of a JSON object.
        conversions: The columns to convert.
        unavailable: Recogniser of placeholders.
        restate: `restated` or `restated_or_shown`.

    Raises:
        msgspec.DecodeError: The image is not a JSON object.
    """
    row = decode_members(image)
    inexact = []
    for name, (written, wanted) in conversions.items():
        value = bytes(row.get(name, b"null"))
        if value == b"null":
            continue
        found = restate(value, written, wanted, unavailable)
        if found is None:
            inexact.append(name)
        else:
            row[name] = msgspec.Raw(found)
    texts = (orjson.dumps(name) + b":" + bytes(value) for name, value in row.items())
    return b"{%b}" % b",".join(texts), inexact


def first_stated(schemas: Iterable[Schema]) -> dict[int, Column]:
    """Return column id → the column as it was first declared or announced, from schemas given oldest first."""
    found: dict[int, Column] = {}
    for schema in schemas:
        for columns in schema.entity_types.values():
            for column in columns:
                if not column.inferred:
                    found.setdefault(column.id, column)
    return found


def under_own_names(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns of an entity type under distinct names.

    A dropped column whose name another column has now gets the name and its id: ``note_2``.
    """
    living = {column.name: column.id for column in columns}
    taken = set(living)
    found = []
    for column in columns:
        name = column.name
        if living[name] != column.id:
            name = f"{name}_{column.id}"
            while name in taken:
                name += "_"
            taken.add(name)
        found.append(column if name == column.name else replace(column, name=name))
    return tuple(found)


def table_columns(schema: Schema, entity_type: str, *, changes: bool) -> tuple[Column, ...]:
    """Return the columns that a table of an entity type has as of a schema.

    Args:
        schema: The schema of the version.
        entity_type: Name of the entity type in the schema.
        changes: True for a table of changes up to the version: it includes dropped columns, as older changes
            have them.
    """
    if not changes:
        return schema.columns(entity_type)
    return under_own_names(schema.entity_types[entity_type])


def read_as(column: Column, stated: Column | None) -> Column:
    """Return the column whose type and encoding determine how values are read.

    An inferred type only describes the JSON of the values, not its encoding. Once the source or the mapping
    states a type that this JSON fits, the values are read as that type.

    Args:
        column: The column as of the version of the values.
        stated: The column as it was first declared or announced; None: it never was.
    """
    if not column.inferred or stated is None or stated.sql_type is None:
        return column
    fits = may_become(column.sql_type, stated.sql_type, stated.encoding)
    return stated if fits else column


def conversion_of(read: Column, wanted: Stated) -> tuple[Stated, Stated] | None:
    """Return present and wanted type and encoding of values; None if no conversion is necessary.

    Args:
        read: The column that determines how the values are read (`read_as`).
        wanted: Wanted type and encoding.
    """
    written = (read.sql_type, read.encoding)
    sql_type, encoding = wanted
    if read.sql_type is None or sql_type is None or joined(written, wanted) is not None:
        return None
    # An inferred type only names a kind of JSON. A type of that kind in ``json`` reads the same text.
    if read.inferred and encoding == "json" and may_become(read.sql_type, sql_type, encoding):
        return None
    return written, wanted


def carries_all(old: Column, new: Column) -> bool:
    """Return True if a column's new type holds every value of its old type exactly."""
    if old.sql_type is None or new.sql_type in (None, JSON):
        return True
    assert new.sql_type is not None
    if old.inferred and may_become(old.sql_type, new.sql_type, new.encoding):
        return True
    if old.encoding in UNITS and new.encoding in UNITS:
        (kind, unit), (new_kind, new_unit) = UNITS[old.encoding], UNITS[new.encoding]
        return kind == new_kind and unit % new_unit == 0
    wanted = new.sql_type, new.encoding
    return joined((old.sql_type, old.encoding), wanted) == wanted


def misread(written: str, read: str) -> bool:
    """Return True if a text of one encoding would silently mean another value in the other encoding.

    In ``json`` a text means the number or text that it is.
    """
    if read in (written, "json"):
        return False
    if written in UNITS:
        return UNITS.get(read) != UNITS[written]
    return SCALED.fullmatch(written) is not None


def _meaning(value: bytes, written: Stated) -> _Meaning | None:
    """Return the meaning of a value; None if only its own type and encoding can express it."""
    sql_type, encoding = written
    if encoding in UNITS:
        kind, unit = UNITS[encoding]
        return _Count(kind, int(value) * unit)
    if (scaled := SCALED.fullmatch(encoding)) is not None:
        return _unscaled(orjson.loads(value), int(scaled[1]))
    if encoding == "debezium.VariableScaleDecimal":
        members = orjson.loads(value)
        return _unscaled(members["value"], int(members["scale"]))
    if encoding in ("decimal.string", *TEXTS):
        found = orjson.loads(value)
        return Decimal(found) if encoding == "decimal.string" else str(found)
    if encoding == "json" and base_of(sql_type) in ("REAL", "DOUBLE"):
        return Decimal(value.decode()).normalize(EXACTLY)  # 5.0 equals 5, as in the source's text
    if encoding == "debezium.Year" or (encoding == "json" and base_of(sql_type) in NUMERIC):
        return Decimal(value.decode())
    if encoding == "json" and value[:1] == b'"' and sql_type not in (None, JSON):
        return str(orjson.loads(value))
    return None


def _shown(count: _Count) -> str:
    """Return the ISO 8601 text of a day, moment or time, with six or nine digits after the second, or none."""
    # numpy's dates reach beyond the year 9999, where Python's end.
    if count.kind == "day":
        return str(np.datetime64(count.value, "D"))
    seconds, rest = divmod(count.value if count.kind == "moment" else abs(count.value), _SECOND)
    fraction = ""
    if rest:
        fraction = f".{rest:09d}" if rest % 1_000 else f".{rest // 1_000:06d}"
    if count.kind == "moment":
        return f"{np.datetime64(seconds, 's')}{fraction}"
    minutes, second = divmod(seconds, 60)
    sign = "-" if count.value < 0 else ""
    return f"{sign}{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}{fraction}"


def _written(meaning: _Meaning, sql_type: str, encoding: str) -> bytes | None:
    """Return the JSON text of a meaning in a type and encoding; None if these cannot express it."""
    base = base_of(sql_type)
    if isinstance(meaning, _Count):
        kind, unit = UNITS.get(encoding, ("", 1))
        exact = kind == meaning.kind and meaning.value % unit == 0
        return b"%d" % (meaning.value // unit) if exact else None
    if isinstance(meaning, str):
        if (base, encoding) in AS_TEXT:
            return msgspec.json.encode(meaning)
        if not _NUMBER.fullmatch(meaning):
            return None
        meaning = Decimal(meaning)
    return _number(meaning, base, encoding) if meaning.is_finite() else None


def _number(value: Decimal, base: str, encoding: str) -> bytes | None:
    """Return the JSON text of a number in a type and encoding; None if these cannot express it."""
    if (scaled := SCALED.fullmatch(encoding)) is not None:
        return msgspec.json.encode(_scaled(value, int(scaled[1])))
    if encoding == "debezium.VariableScaleDecimal":
        scale = max(0, -int(value.as_tuple().exponent))
        return msgspec.json.encode({"scale": scale, "value": _scaled(value, scale)})
    digits = _digits(value)
    if encoding == "decimal.string" or (encoding == "json" and base == VARCHAR):
        return msgspec.json.encode(digits)
    if encoding == "debezium.Year":
        return _whole(value)
    if encoding != "json":
        return None
    if base in ("REAL", "DOUBLE"):
        # A float restates a number only if reading the float back yields the same number.
        return digits.encode() if Decimal(repr(float(digits))) == value else None
    if base == DECIMAL:
        return digits.encode()
    return _whole(value) if base in NUMERIC else None


def _whole(value: Decimal) -> bytes | None:
    return b"%d" % int(value) if value == value.to_integral_value() else None


def _digits(value: Decimal) -> str:
    # A large exponent would otherwise be written out as that many zeros.
    if abs(value.adjusted()) > EXACTLY.prec:
        raise ValueError(f"more than {EXACTLY.prec} digits")
    return f"{value:f}"


def _scaled(value: Decimal, scale: int) -> str:
    """Return a number's unscaled integer in base64 (two's complement, big endian); never round."""
    if value and abs(value.adjusted()) > EXACTLY.prec:
        raise ValueError(f"more than {EXACTLY.prec} digits")
    unscaled = int(value.scaleb(scale, EXACTLY).to_integral_exact(context=EXACTLY))
    # Smallest size with room for the sign bit, as Java's BigInteger writes it.
    size = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
    return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


def _unscaled(text: str, scale: int) -> Decimal:
    data = base64.b64decode(text, validate=True)
    if not data:
        raise ValueError("no bytes are no number")
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, EXACTLY)


def base_of(sql_type: str | None) -> str:
    """Return the name of an SQL type without its parameters; empty if the type is unknown."""
    return re.split(r"[ (]", sql_type or "", maxsplit=1)[0]
