"""Debezium's ``schema`` block: the columns of a table, with their types and encodings.

A message with its schema is ``{"schema": …, "payload": …}``. The schema is that of the envelope in the form of
Kafka Connect; the columns are the fields of its field ``after``, or ``before``::

    {"type": "struct", "fields": [
        {"field": "after", "type": "struct", "fields": [
            {"field": "id", "type": "int32", "optional": false},
            {"field": "made", "type": "int64", "optional": true, "name": "io.debezium.time.MicroTimestamp"},
            {"field": "price", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal",
             "parameters": {"scale": "2", "connect.decimal.precision": "10"}}]}, …]}

``type`` gives the SQL type. ``name``, where there is one, gives a more exact type and the encoding.

Source: Debezium documentation, PostgreSQL and MySQL connectors, data type mappings.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.schema import Origin
from tailrace_server.pipeline.column_listing import listing
from tailrace_server.wal.schema.column_types import known_encoding

if TYPE_CHECKING:
    from collections.abc import Hashable

_CACHED_MAX: Final = 256
"""Blocks that are remembered: one for each table, and one more for each time that it was altered."""

_PLAIN: Final = {
    "boolean": ("BOOLEAN", "json"),
    "int8": ("SMALLINT", "json"),
    "int16": ("SMALLINT", "json"),
    "int32": ("INTEGER", "json"),
    "int64": ("BIGINT", "json"),
    "float": ("REAL", "json"),
    "float32": ("REAL", "json"),
    "double": ("DOUBLE", "json"),
    "float64": ("DOUBLE", "json"),
    "string": ("VARCHAR", "json"),
    "bytes": ("VARBINARY", "base64"),
}
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_CONNECT: Final = "org.apache.kafka.connect.data."
_LOGICAL: Final = {
    "Date": "DATE",
    "Time": "TIME",
    "MicroTime": "TIME",
    "NanoTime": "TIME",
    "ZonedTime": "TIME WITH TIME ZONE",
    "Timestamp": "TIMESTAMP",
    "MicroTimestamp": "TIMESTAMP",
    "NanoTimestamp": "TIMESTAMP",
    "ZonedTimestamp": "TIMESTAMP WITH TIME ZONE",
    "Year": "INTEGER",
    "MicroDuration": "BIGINT",
    "Interval": "VARCHAR",
    "Json": "JSON",
    "Xml": "VARCHAR",
    "Uuid": "UUID",
    "Enum": "VARCHAR",
    "EnumSet": "VARCHAR",
    "Bits": "VARBINARY",
    "VariableScaleDecimal": "DECIMAL",
}


class ConnectField(msgspec.Struct):
    """One field of a schema block."""

    type: str = ""
    field: str | None = None
    optional: bool = False
    name: str | None = None
    parameters: dict[str, str] | None = None
    fields: list[ConnectField] = []
    default: msgspec.Raw = msgspec.Raw()
    """As values of the field are written; empty where it has none."""


class Announcements:
    """Turns schema blocks into listings, one for each row whose columns are not those of the row before it.

    The row before is that of the same entity type, split and transaction. So a transaction gives the columns of
    each of its rows, also if the table was altered in its midst.
    """

    def __init__(self) -> None:
        """Begin without any block."""
        self._texts: dict[tuple[bytes, tuple[str, ...]], str | None] = {}
        self._run: Hashable = None
        self._said: dict[str, str] = {}
        """Entity type → the listing that its last row of the run has."""

    def of(
        self, entity_type: str, block: bytes, key: tuple[str, ...], run: Hashable | None
    ) -> str | None:
        """Return the listing that a row must carry; None where the row before it says the same.

        Args:
            entity_type: The row's.
            block: The schema that came with it.
            key: Names of the key's columns, as far as they are known.
            run: The row's split and transaction; None for a row that carries its listing in any case.
        """
        text = self._text(block, key)
        if text is None or run is None:
            return text
        if run != self._run:
            self._run = run
            self._said.clear()
        if self._said.get(entity_type) == text:
            return None
        self._said[entity_type] = text
        return text

    def _text(self, block: bytes, key: tuple[str, ...]) -> str | None:
        cached = (block, key)
        if cached not in self._texts:
            if len(self._texts) >= _CACHED_MAX:
                self._texts.clear()
            columns = columns_of(block)
            self._texts[cached] = (
                listing(columns, key, Origin.DEBEZIUM) if columns is not None else None
            )
        return self._texts[cached]


def columns_of(block: bytes) -> list[tuple[str, str | None, str, bool]] | None:
    """Return name, SQL type, encoding and nullable of the columns of a block; None where it lists none."""
    fields = fields_of(block)
    if fields is None:
        return None
    return [(field.field, *_type_of(field), field.optional) for field in fields if field.field]


@lru_cache(maxsize=_CACHED_MAX)
def fields_of(block: bytes) -> list[ConnectField] | None:
    """Return the fields of a block that are columns of the table; None where it lists none."""
    try:
        envelope = _decode_block(block)
    except msgspec.DecodeError:
        return None  # null, or the number of a schema in a registry
    images = {field.field: field for field in envelope.fields if field.fields}
    image = images.get("after") or images.get("before")
    return None if image is None else image.fields


def _type_of(field: ConnectField) -> tuple[str | None, str]:
    name = field.name or ""
    if name == _DECIMAL:
        parameters = field.parameters or {}
        scale = parameters.get("scale", "0")
        precision = parameters.get("connect.decimal.precision")
        encoding = f"decimal.bytes({scale})"
        if not known_encoding(encoding) or not (precision or "0").isdecimal():
            return None, "json"
        # Oracle's NUMBER(5,-2) counts hundreds. No SQL type of a column says so, but the encoding does.
        plain = precision is None or scale.startswith("-")
        return "DECIMAL" if plain else f"DECIMAL({precision},{scale})", encoding
    last = name.rpartition(".")[2]
    if name.startswith("io.debezium.") and last in _LOGICAL:
        return _LOGICAL[last], f"debezium.{last}"
    if name.startswith(_CONNECT) and last in ("Date", "Time", "Timestamp"):
        return _LOGICAL[last], f"connect.{last}"
    return _PLAIN.get(field.type, ("JSON", "json"))


_decode_block = msgspec.json.Decoder(ConnectField).decode
