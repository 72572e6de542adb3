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
