"""The types of columns: listed by Debezium's ``schema`` block, and checked against what a mapping declares.

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

A type that the mapping declares says what a plain number or text means, and each value is checked against it.
It cannot change how values are written: where the message names one encoding and the mapping another, a value
would be read as something else. In ``after`` it sends the row to quarantine. In ``before`` it counts as not
sent, so that a removal is never kept from its table.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.schema import Origin
from tailrace_server.pipeline.input.column_listing import listing
from tailrace_server.pipeline.input.images import hidden, members
from tailrace_server.pipeline.sources.debezium.refusals import Incompatible
from tailrace_server.wal.schema.column_types import known_encoding
from tailrace_server.wal.schema.restating import misread

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.mapping import SchemaMapping

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


class DeclaredTypes:
    """The declared types of a mapping, as the rows of one task meet them."""

    def __init__(self, mapping: SchemaMapping | None, unavailable: Unavailable) -> None:
        """Take a mapping, None for nothing declared, and the placeholders of values that were not sent."""
        self._mapping = mapping
        self._unavailable = unavailable
        self._misread: dict[tuple[str, bytes], dict[str, str]] = {}

    def check(
        self, entity_type: str, block: bytes, before: bytes | None, after: bytes | None
    ) -> bytes | None:
        """Check a row, and return its ``before`` without what would be misread.

        Args:
            entity_type: The row's.
            block: The schema that came with it; empty without.
            before: Its image before.
            after: Its image after; None for a removal.

        Raises:
            Incompatible: A declared type cannot hold a value of ``after``.
        """
        mapping = self._mapping
        if mapping is None or entity_type not in mapping.entity_types:
            return before
        misread_columns = self._misread_columns(entity_type, block) if block else {}
        if after is not None:
            row = members(after)
            fault = mapping.fault_of(entity_type, row, self._unavailable)
            if fault is not None:
                raise Incompatible(fault)
            for name, reason in misread_columns.items():
                value = bytes(row.get(name, b"null"))
                if value != b"null" and not self._unavailable.is_one(value):
                    raise Incompatible(reason)
        if before is None or not misread_columns:
            return before
        return hidden(before, misread_columns)

    def _misread_columns(self, entity_type: str, block: bytes) -> dict[str, str]:
        """Return the columns whose encoding in the message is not the declared one, each with the reason."""
        cached = self._misread.get((entity_type, block))
        if cached is not None:
            return cached
        assert self._mapping is not None
        declared = self._mapping.entity_types[entity_type].columns
        found = {}
        for name, _, encoding, _ in columns_of(block) or ():
            column = declared.get(name)
            if column is None or column.sql_type is None:
                continue
            read = column.encoding or "json"
            if misread(encoding, read):
                found[name] = (
                    f"column {name}: the source writes it in {encoding}, and {self._mapping.source} declares "
                    f"{column.sql_type} in {read}; declare that encoding, or JSON"
                )
        if len(self._misread) >= _CACHED_MAX:
            self._misread.clear()
        self._misread[entity_type, block] = found
        return found
