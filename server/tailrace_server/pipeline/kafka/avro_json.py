"""Kafka Connect's Avro as the JSON that JsonConverter writes for the same values.

==============================  ==============================================================================
bytes, fixed                    a text in base64; so is a decimal, whose scale is in the schema block
float, double                   a number, or the text NaN, Infinity or -Infinity
int, long, with logical types   the number
a map without text keys         an array of arrays of key and value
a union                         the value alone
==============================  ==============================================================================

A message with row images has a schema block in front, as of ``schemas.enable=true``, with what `column_types`
reads in it: the types of the columns, from ``connect.name``, ``connect.parameters`` and the logical types.

Source: Confluent's AvroData, of its Avro converter; Kafka's JsonConverter.
"""

from __future__ import annotations

import base64
import math
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import fastavro
import numpy as np
import orjson

from tailrace_server.pipeline.kafka.schema_registry import UnreadableMessage, framed

if TYPE_CHECKING:
    from tailrace_server.pipeline.kafka.schema_registry import SchemaRegistry

_SCHEMAS_MAX: Final = 1_000
"""Maximum number of compiled schemas."""
_OURS: Final = "tailrace-json"
"""A logical type of our own: values become what JsonConverter writes."""


def _base64(data: bytes, *_: object) -> str:
    return base64.b64encode(data).decode()


def _number(value: float, writer: Any, *_: object) -> Any:
    if not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    # As short as Java writes it: 0.1 and not 0.10000000149011612.
    return np.float32(value) if writer["type"] == "float" else value


for _type, _reader in (
    *(("bytes", _base64), ("fixed", _base64)),
    *(("float", _number), ("double", _number)),
    ("record", lambda value, *_: [*value.values()]),  # an entry of a map
):
    # The library's documented way to add a logical type. The table is shared by the whole process.
    fastavro.read.LOGICAL_READERS[f"{_type}-{_OURS}"] = _reader


class _Form(NamedTuple):
    """A compiled schema."""

    reader: Any
    head: bytes
    """The schema block, and the text around it before the value; empty without a block."""


class AvroJson:
    """Turns framed messages to JSON, with the schemas of one registry."""

    def __init__(self, registry: SchemaRegistry) -> None:
        """Ask for each schema when a message needs it."""
        self._registry = registry
        self._form = lru_cache(_SCHEMAS_MAX)(self._compiled)

    def text(self, message: bytes) -> bytes:
        """Return the JSON text of a message.

        Raises:
            UnreadableMessage: The message is not Avro of the schema that it names.
            SourceUnreachable, SourceRefused: As `SchemaRegistry`.
        """
        number, body = framed(message)
        form = self._form(number)
        stream = BytesIO(body)
        try:
            value = fastavro.schemaless_reader(stream, form.reader, None)
            text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
        except Exception as error:  # the library has no error of its own for damaged bytes
            fault = str(error) or type(error).__name__
            raise UnreadableMessage(f"not Avro of schema {number}: {fault}") from None
        if left := len(body) - stream.tell():
            raise UnreadableMessage(
                f"not Avro of schema {number}: {left} more bytes follow the value"
            )
        return b"%b%b}" % (form.head, text) if form.head else text

    def _compiled(self, number: int) -> _Form:
        definition = self._registry.definition(number)
        try:
            reader = fastavro.parse_schema(_readable(definition))
            named: dict[str, Any] = {}
            columns = _image_columns(fastavro.parse_schema(definition, named), named)
        except Exception as error:  # as above
            raise UnreadableMessage(f"schema {number} cannot be interpreted: {error!r}") from None
        if columns is None:
            return _Form(reader, b"")
        image = {"field": "after", "type": "struct", "fields": columns}
        block = orjson.dumps({"type": "struct", "fields": [image]})
        return _Form(reader, b'{"schema":%b,"payload":' % block)


def _readable(schema: Any) -> Any:
    """Return a schema by which values are read as the JSON has them."""
    if isinstance(schema, list):
        return [_readable(each) for each in schema]
    if isinstance(schema, str):
        return {"type": schema, "logicalType": _OURS} if schema in _CONVERTED else schema
    read = {name: value for name, value in schema.items() if name != "logicalType"}
    if "fields" in read:
        read["fields"] = [{**each, "type": _readable(each["type"])} for each in read["fields"]]
        is_entry = read.get("connect.internal.type") == "MapEntry"
    else:
        is_entry = False
        for name in ("items", "values"):
            if name in read:
                read[name] = _readable(read[name])
        if not isinstance(read["type"], str):
            return _readable(read["type"])
    if is_entry or read["type"] in _CONVERTED:
        read["logicalType"] = _OURS
    return read


_CONVERTED: Final = frozenset(("bytes", "fixed", "float", "double"))
_CONNECT: Final = {"int": "int32", "long": "int64", "fixed": "bytes", "enum": "string"}
_LOGICAL: Final = {
    "decimal": "Decimal",
    "date": "Date",
    "time-millis": "Time",
    "timestamp-millis": "Timestamp",
}
"""Avro's logical types that Connect has, too → their names there."""


def _image_columns(definition: Any, named: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the columns of the row in an envelope, as a schema block lists them; None for other messages.

    Args:
        definition: A parsed schema.
        named: Full name → type, of the types that are defined in it.
    """
    fields = definition.get("fields", ()) if isinstance(definition, dict) else ()
    images = {
        each["name"]: _given(each["type"], named)[0]
        for each in fields
        if each["name"] in ("before", "after")
    }
    if len(images) < 2 or "fields" not in images["after"]:
        return None
    return [_column(each, named) for each in images["after"]["fields"]]


def _given(schema: Any, named: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the type of a value that is not null, and True if it may be null."""
    options = schema if isinstance(schema, list) else [schema]
    left = [each for each in options if each != "null"]
    kind = left[0] if len(left) == 1 else "union"
    return named.get(kind, {"type": kind}) if isinstance(kind, str) else kind, left != options


def _column(field: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    schema, is_optional = _given(field["type"], named)
    kind = schema["type"]
    column = {"field": field["name"], "type": _CONNECT.get(kind, kind), "optional": is_optional}
    if kind == "record":
        column |= {"type": "struct", "name": schema["name"]}
    if "connect.type" in schema:
        column["type"] = schema["connect.type"]
    if (logical := schema.get("logicalType")) in _LOGICAL:
        column["name"] = f"org.apache.kafka.connect.data.{_LOGICAL[logical]}"
        if logical == "decimal":
            column["parameters"] = {
                "scale": str(schema.get("scale", 0)),
                "connect.decimal.precision": str(schema["precision"]),
            }
    for name in ("name", "parameters"):
        if f"connect.{name}" in schema:
            column[name] = schema[f"connect.{name}"]
    default = schema.get("connect.default", field.get("default"))
    if default is not None:
        is_bytes = column["type"] == "bytes" and isinstance(default, str)
        column["default"] = _base64(default.encode("latin-1")) if is_bytes else default
    return column
