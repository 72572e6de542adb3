"""The types of columns: listed by Debezium's ``schema`` block, and checked against the mapping's declarations.

A message with its schema is ``{"schema": …, "payload": …}``. The schema describes the envelope, in the form of
Kafka Connect. The columns are the fields of its field ``after``, or ``before``::

    {"type": "struct", "fields": [
        {"field": "after", "type": "struct", "fields": [
            {"field": "id", "type": "int32", "optional": false},
            {"field": "made", "type": "int64", "optional": true, "name": "io.debezium.time.MicroTimestamp"},
            {"field": "price", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal",
             "parameters": {"scale": "2", "connect.decimal.precision": "10"}}]}, …]}

``type`` gives the SQL type. ``name``, if present, gives a more precise type and the encoding.

Source: Debezium documentation, PostgreSQL and MySQL connectors, data type mappings.

A type in the mapping declares the meaning of a plain number or text, and each value is checked against it. It
cannot change the encoding of values: if the message and the mapping name different encodings, the value would
be decoded wrongly. In ``after``, such a value sends the row to quarantine. In ``before``, it is replaced by the
placeholder of a value that was not sent, so that removals are always applied.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.schema import Origin
from tailrace_server.pipeline.input.column_listing import listing
from tailrace_server.pipeline.sources.debezium.refusals import Incompatible
from tailrace_server.wal.record.images import hidden, members
from tailrace_server.wal.schema.column_types import known_encoding
from tailrace_server.wal.schema.restating import misread

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.mapping import SchemaMapping

_CACHED_MAX: Final = 256
"""Maximum number of cached schema blocks. Each table needs one, and one more for each alteration."""

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
    """The default value, encoded like values of the field; empty if there is none."""


class Announcements:
    """Converts schema blocks to listings; a row gets a listing only if the previous row has another one.

    The previous row is the one of the same entity type, split and transaction. So the listing of every row of a
    transaction is known, even if the table was altered in the middle of it.
    """

    def __init__(self) -> None:
        """Begin without any block."""
        self._texts: dict[tuple[bytes, tuple[str, ...]], str | None] = {}
        self._run: Hashable = None
        self._said: dict[str, str] = {}
        """Entity type → listing of its last row in the present split and transaction."""

    def of(
        self, entity_type: str, block: bytes, key: tuple[str, ...], run: Hashable | None
    ) -> str | None:
        """Return the listing for a row; None if it equals that of the previous row, or if the block has none.

        Args:
            entity_type: The row's entity type.
            block: The schema block of the row's message.
            key: Names of the key columns, as far as they are known.
            run: The row's split and transaction; None for a row that always gets its listing.
        """
        text = self._text(block, key)
        if text is None or run is None:
            return text
        # Begin again with each transaction, so that its own rows carry every listing that it needs.
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
    """Return name, SQL type, encoding and nullability of the columns in a block; None if it lists none."""
    fields = fields_of(block)
    if fields is None:
        return None
    return [(field.field, *_type_of(field), field.optional) for field in fields if field.field]


@lru_cache(maxsize=_CACHED_MAX)
def fields_of(block: bytes) -> list[ConnectField] | None:
    """Return the fields of a block that are the table's columns; None if it lists none."""
    try:
        envelope = _decode_block(block)
    except msgspec.DecodeError:
        return None  # the block is null, or the number of a schema in a registry
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
        # Oracle's NUMBER(5,-2) counts hundreds. No SQL type can express that, but the encoding does.
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
    """The check of rows against the types that a mapping declares, for the rows of one task."""

    def __init__(self, mapping: SchemaMapping | None, unavailable: Unavailable) -> None:
        """Store the mapping, None if nothing is declared, and the test for placeholders."""
        self._mapping = mapping
        self._unavailable = unavailable
        self._misread: dict[tuple[str, bytes], dict[str, str]] = {}

    def concern(self, entity_type: str) -> bool:
        """Return True if the rows of an entity type are checked."""
        return self._mapping is not None and entity_type in self._mapping.entity_types

    def check(
        self, entity_type: str, block: bytes, before: bytes | None, after: bytes | None
    ) -> bytes | None:
        """Check a row, and return its ``before`` with placeholders for values that would be decoded wrongly.

        Args:
            entity_type: The row's entity type.
            block: The schema block of the row's message; empty if there is none.
            before: The image before the change.
            after: The image after the change; None for a removal.

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
            # A null or a placeholder has no encoding, so only real values are rejected.
            for name, reason in misread_columns.items():
                value = bytes(row.get(name, b"null"))
                if value != b"null" and not self._unavailable.is_one(value):
                    raise Incompatible(reason)
        if before is None or not misread_columns:
            return before
        return hidden(before, misread_columns)

    def _misread_columns(self, entity_type: str, block: bytes) -> dict[str, str]:
        """Return name → reason for the columns whose encoding in the message contradicts the declared one."""
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
                    f"column {name}: the source writes it in {encoding}, but "
                    f"{self._mapping.source} declares {column.sql_type} in {read}; declare the "
                    "source's encoding, or JSON"
                )
        if len(self._misread) >= _CACHED_MAX:
            self._misread.clear()
        self._misread[entity_type, block] = found
        return found
