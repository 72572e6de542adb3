"""The schema of a DataFrame as Spark's JSON (``df.schema.jsonValue()``), and the catalog's columns for it.

::

    {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": false, "metadata": {}},
                                  {"name": "price", "type": "decimal(10,2)", "nullable": true, …}, …]}

A member ``"key": ["id"]`` next to ``fields`` names the columns of the primary key.

Encodings are those of Spark's ``to_json``: dates and times as text, bytes in base64, everything else as plain
JSON. `typed_images` writes more types in a form of their own.

Source: Spark SQL, data types; ``StructType.jsonValue``.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
import pyarrow as pa

from tailrace.errors import InvalidRequest
from tailrace.schema import Origin
from tailrace_server.pipeline.input.column_listing import listing

_PLAIN: Final = {
    "boolean": "BOOLEAN",
    "byte": "SMALLINT",
    "short": "SMALLINT",
    "integer": "INTEGER",
    "long": "BIGINT",
    "float": "REAL",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "VARBINARY",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ntz": "TIMESTAMP",
}
_TYPED_ONLY: Final = (
    (re.compile(r"interval (?:day|hour|minute|second).*"), ("BIGINT", "debezium.MicroDuration")),
    (re.compile(r"time(?:\(\d\))?"), ("TIME", "json")),
    (re.compile("string .*"), ("VARCHAR", "json")),  # with a collation
    (re.compile("void"), (None, "json")),
)
"""Types that only `typed_images` writes in this form. A column of type void has had only nulls. An interval of
years or months is no type of pyarrow, so Spark cannot pass it to Python."""
_OF_ARROW: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.uint8(): "short",
    pa.int16(): "short",
    pa.uint16(): "integer",
    pa.int32(): "integer",
    pa.uint32(): "long",
    pa.int64(): "long",
    pa.uint64(): "decimal(20,0)",
    pa.float16(): "float",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.null(): "void",
}
_DECIMAL: Final = re.compile(r"decimal\(\d+,\d+\)")
_CHARACTERS: Final = re.compile(r"(?:var)?char(\(\d+\))")


class _Field(msgspec.Struct):
    name: str
    type: Any
    nullable: bool = True


class _Table(msgspec.Struct):
    fields: list[_Field]
    key: list[str] = []


def columns_of(schema: object, *, typed: bool = False) -> tuple[list[str], str]:
    """Return the names of a table's columns, and the declaration of these columns for a commit.

    Args:
        schema: The JSON of the schema.
        typed: True for images of `typed_images`, False for images of ``to_json``.

    Raises:
        InvalidRequest: The value is not the JSON of a schema.
    """
    try:
        table = msgspec.convert(schema, _Table)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"not the JSON of a DataFrame's schema: {error}") from None
    stated = _typed if typed else _type_of
    columns = [(field.name, *stated(field.type), field.nullable) for field in table.fields]
    names = [field.name for field in table.fields]
    for name in table.key:
        if name not in names:
            raise InvalidRequest(
                f"key names {name!r}, which is not one of the columns {', '.join(names)}"
            )
    return names, listing(columns, tuple(table.key), Origin.TABLE)


def json_of(schema: pa.Schema) -> dict[str, Any]:
    """Return the JSON of the schema that Spark has for plain Arrow columns (`plain`)."""
    fields = [{"name": each.name, "type": _kind(each.type), "nullable": True} for each in schema]
    return {"type": "struct", "fields": fields}


def plain(name: str, kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type as which the values of a column are written, without large offsets or views.

    Raises:
        InvalidRequest: The values have no form in an image. The error names the column.
    """
    types = pa.types
    if types.is_dictionary(kind):
        return plain(name, kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if (
        types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    ):
        return pa.binary()
    if types.is_date64(kind):
        return pa.date32()
    if types.is_map(kind):
        return pa.map_(plain(name, kind.key_type), plain(name, kind.item_type))
    if types.is_struct(kind):
        return pa.struct([(each.name, plain(name, each.type)) for each in kind.fields])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(plain(name, kind.value_type))
    if _kind(kind) is None:
        raise InvalidRequest(
            f"column {name} is of type {kind}, which has no form in an image; cast it to a string"
        )
    return kind


def _kind(kind: pa.DataType) -> Any:
    """Return Spark's name of a plain Arrow type; None without one."""
    types = pa.types
    if types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_time(kind):
        return "time(6)"
    if types.is_duration(kind):
        return "interval day to second"
    if types.is_list(kind):
        return {"type": "array", "elementType": _kind(kind.value_type)}
    if types.is_map(kind):
        parts = {"keyType": _kind(kind.key_type), "valueType": _kind(kind.item_type)}
        return {"type": "map", **parts}
    if types.is_struct(kind):
        return json_of(pa.schema(kind.fields))
    return _OF_ARROW.get(kind)


def typed_fault(kind: object) -> str | None:
    """Return the type in a Spark type that has no form in an image; None if each part has a form."""
    if isinstance(kind, str):
        known = _typed(kind) != ("JSON", "json")
        return None if known else f"of type {kind}, which has no form in an image"
    assert isinstance(kind, dict)
    if kind["type"] == "udt":
        return f"of the user-defined type {kind.get('pyClass') or kind.get('class')}"
    parts = [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
    parts += [each["type"] for each in kind.get("fields", ())]
    return next((fault for fault in map(typed_fault, parts) if fault is not None), None)


def _type_of(kind: object) -> tuple[str, str]:
    """Return the SQL type and the encoding of a Spark type; nested and unknown types are JSON."""
    if not isinstance(kind, str):
        return "JSON", "json"
    if kind in _PLAIN:
        return _PLAIN[kind], "base64" if kind == "binary" else "json"
    if _DECIMAL.fullmatch(kind):
        return kind.upper(), "json"
    if found := _CHARACTERS.fullmatch(kind):
        return f"VARCHAR{found[1]}", "json"
    return "JSON", "json"


def _typed(kind: object) -> tuple[str | None, str]:
    """Return the SQL type and the encoding of a Spark type in images of `typed_images`."""
    if isinstance(kind, str):
        for pattern, stated in _TYPED_ONLY:
            if pattern.fullmatch(kind):
                return stated
    return _type_of(kind)
