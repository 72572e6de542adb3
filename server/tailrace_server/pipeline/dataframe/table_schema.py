"""A DataFrame's schema as the columns of an entity type, for rows whose images are its rows as JSON.

What is taken is Spark's own JSON of a schema (``df.schema.jsonValue()``)::

    {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": false, "metadata": {}},
                                  {"name": "price", "type": "decimal(10,2)", "nullable": true, …}, …]}

A member ``"key": ["id"]`` beside ``fields`` names the columns of the primary key.

Encodings are those of Spark's ``to_json``: dates and times as text, bytes in base64, everything else as JSON
has it.

Source: Spark SQL, data types; ``StructType.jsonValue``.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from tailrace.errors import InvalidRequest
from tailrace.schema import Origin
from tailrace_server.pipeline.column_listing import listing

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
_DECIMAL: Final = re.compile(r"decimal\(\d+,\d+\)")
_CHARACTERS: Final = re.compile(r"(?:var)?char(\(\d+\))")


class _Field(msgspec.Struct):
    name: str
    type: Any
    nullable: bool = True


class _Table(msgspec.Struct):
    fields: list[_Field]
    key: list[str] = []


def columns_of(schema: object) -> tuple[list[str], str]:
    """Return the names of a table's columns, and what a commit is to say of them.

    Raises:
        InvalidRequest: It is not the JSON of a schema.
    """
    try:
        table = msgspec.convert(schema, _Table)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"not the JSON of a DataFrame's schema: {error}") from None
    columns = [(field.name, *_type_of(field.type), field.nullable) for field in table.fields]
    names = [field.name for field in table.fields]
    for name in table.key:
        if name not in names:
            raise InvalidRequest(
                f"key names {name!r}, which is none of the columns {', '.join(names)}"
            )
    return names, listing(columns, tuple(table.key), Origin.TABLE)


def _type_of(kind: object) -> tuple[str, str]:
    """Return SQL type and encoding; what is nested is JSON, and so is what we do not know."""
    if not isinstance(kind, str):
        return "JSON", "json"
    if kind in _PLAIN:
        return _PLAIN[kind], "base64" if kind == "binary" else "json"
    if _DECIMAL.fullmatch(kind):
        return kind.upper(), "json"
    if found := _CHARACTERS.fullmatch(kind):
        return f"VARCHAR{found[1]}", "json"
    return "JSON", "json"
