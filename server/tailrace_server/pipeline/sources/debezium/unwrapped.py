"""The reconstruction of envelopes from CloudEvents and from rows of ExtractNewRecordState.

Both formats have the members of ``source`` and ``transaction`` next to the row, under other names.

**CloudEvents**, in the structured JSON form. The images are in ``data``. The other members are attributes;
their names have a prefix and no underscores, and 64-bit integers are texts::

    {"specversion": "1.0", "id": …, "source": "/debezium/postgresql/shop", "type": …, "iodebeziumop": "u",
     "iodebeziumtable": "a", "iodebeziumlsn": "29274832", "iodebeziumtxId": "565",
     "iodebeziumtxid": "565", "iodebeziumtxtotalorder": "1",
     "data": {"before": …, "after": …}}                               or {"schema": …, "payload": {…}}

Other producers put a whole message into ``data``, or in base64 into ``data_base64``.

**ExtractNewRecordState** removes the envelope, and adds metadata to the row as columns::

    {"id": 1, "name": "cup", "__deleted": "false", "__op": "u", "__table": "product", "__lsn": 27}

The option ``add.fields=op,table,…`` chooses the metadata. The columns have the prefix ``__``, followed by
``source_`` or ``transaction_`` if the option names the block. With ``delete.tombstone.handling.mode=rewrite``,
a removal is the removed row with ``__deleted``. Updates have no before-image.

Source: Debezium documentation, exporting CloudEvents, and new record state extraction; CloudEvents
specification 1.0, JSON event format.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import orjson

from tailrace_server.pipeline.sources.debezium.refusals import (
    AVRO_EVENT,
    EVENT_WITHOUT_ATTRIBUTES,
    FLATTENED,
    Unusable,
)
from tailrace_server.wal.record.images import members, projection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SOURCE_NAMES: Final = (
    *("version", "connector", "name", "ts_ms", "ts_us", "ts_ns", "snapshot", "sequence"),
    *("db", "schema", "table", "collection", "keyspace"),
    *("txId", "lsn", "xmin", "gtid", "file", "pos", "row", "server_id", "thread", "query"),
    *("change_lsn", "commit_lsn", "event_serial_no", "scn", "commit_scn", "start_scn"),
    *("ssn", "rs_id", "redo_thread", "user_name", "row_id", "txSeq", "lcr_position"),
    *("rs", "ord", "lsid", "txnNumber", "wallTime", "shard", "vgtid"),
)
"""The members of the source blocks of all connectors."""
TRANSACTION_NAMES: Final = ("id", "total_order", "data_collection_order")


def envelope_of(
    attributes: Mapping[str, msgspec.Raw],
    source_name: Callable[[str], tuple[str, ...]],
    transaction_name: Callable[[str], tuple[str, ...]],
    **members: Any,
) -> dict[str, Any]:
    """Return an envelope, made from attributes.

    Args:
        attributes: Name of an attribute → JSON text of its value.
        source_name: Returns the possible attribute names of a member of the source block; the first name has
            precedence.
        transaction_name: Returns the possible attribute names of a member of the transaction block.
        members: The other members of the envelope.
    """

    def block(names: tuple[str, ...], form: Callable[[str], tuple[str, ...]]) -> dict[str, Any]:
        found = {
            name: msgspec.json.decode(attributes[attribute])
            for name in names
            for attribute in reversed(form(name))
            if attribute in attributes
        }
        return {name: value for name, value in found.items() if value is not None}

    transaction = block(TRANSACTION_NAMES, transaction_name)
    return {
        **members,
        "source": block(SOURCE_NAMES, source_name),
        "transaction": transaction if "id" in transaction else None,
    }


_PREFIX: Final = "iodebezium"
_IMAGES: Final = frozenset(("before", "after"))


class EventContent(NamedTuple):
    """The content of a CloudEvent: an envelope made from its attributes, or a message in its data."""

    envelope: dict[str, Any] | None
    """The envelope; None if the data has a whole message."""
    message: bytes
    """Text of the message; empty if there is an envelope."""
    schema: bytes
    """Schema block of the images; empty if there is none."""


def is_event(names: Mapping[str, msgspec.Raw]) -> bool:
    """Return True if an object with these members is a CloudEvent."""
    return "specversion" in names and ("data" in names or "data_base64" in names)


def content_of(event: Mapping[str, msgspec.Raw]) -> EventContent:
    """Return the content of a CloudEvent.

    Raises:
        Unusable: The data is not JSON, or it has images without Debezium's attributes.
    """
    data, schema = _data_of(event), b""
    if data[:1] != b"{":
        return EventContent(None, data, b"")
    found = members(data)
    if "payload" in found and found.keys() <= {"schema", "payload"}:
        inner = bytes(found["payload"])
        images = members(inner) if inner[:1] == b"{" else {}
        schema = bytes(found.get("schema", b""))
    else:
        images = found
    # Data with other members than images is a whole message; its own envelope is used.
    if not images or not images.keys() <= _IMAGES:
        return EventContent(None, data, b"")
    operation = event.get(f"{_PREFIX}op")
    if operation is None:
        raise Unusable(EVENT_WITHOUT_ATTRIBUTES)
    envelope = envelope_of(
        event,
        lambda name: _names(name, ""),
        lambda name: _names(name, "tx"),
        op=msgspec.json.decode(operation),
        before=images.get("before", msgspec.Raw()),
        after=images.get("after", msgspec.Raw()),
    )
    return EventContent(envelope, b"", schema)


def _names(member: str, prefix: str) -> tuple[str, ...]:
    name = f"{_PREFIX}{prefix}{member.replace('_', '')}"
    return name, name.lower()


def _data_of(event: Mapping[str, msgspec.Raw]) -> bytes:
    kind = bytes(event.get("datacontenttype", b""))
    if b"avro" in kind or b"protobuf" in kind:
        raise Unusable(AVRO_EVENT)
    text = bytes(event.get("data", b""))
    if "data_base64" in event:
        try:
            return base64.b64decode(orjson.loads(bytes(event["data_base64"])), validate=True)
        except (binascii.Error, TypeError, orjson.JSONDecodeError) as error:
            raise Unusable(f"data_base64 of a CloudEvent is not base64: {error}") from None
    return orjson.loads(text).encode() if text[:1] == b'"' else text


_OP: Final = "__op"
_DELETED: Final = "__deleted"
_METADATA: Final = frozenset(
    (
        *(_OP, _DELETED, "__ts_ms", "__ts_us", "__ts_ns"),
        *(f"__{name}" for name in SOURCE_NAMES + TRANSACTION_NAMES),
        *(f"__source_{name}" for name in SOURCE_NAMES),
        *(f"__transaction_{name}" for name in TRANSACTION_NAMES),
    )
)
"""Columns that the transformation can add. Other columns that begin with two underscores belong to the row."""


_WITHOUT_SCHEMAS: Final = frozenset(("mysql", "mariadb", "mongodb", "vitess"))


def _names_table(row: Mapping[str, msgspec.Raw], source: Mapping[str, Any]) -> bool:
    """Return True if a row names its table with all levels.

    Otherwise tables of two schemas could not be distinguished. A null schema counts as named: the
    transformation adds null for a member that the connector does not have.
    """
    return (
        bool(source.get("table") or source.get("collection"))
        and bool(source.get("db") or source.get("keyspace"))
        and (
            "__schema" in row
            or "__source_schema" in row
            or source.get("connector") in _WITHOUT_SCHEMAS
        )
    )


def is_flattened(names: Mapping[str, msgspec.Raw]) -> bool:
    """Return True if an object with these members is a row of ExtractNewRecordState."""
    return _OP in names or _DELETED in names


def envelope_of_row(row: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """Return the envelope of a row of ExtractNewRecordState; it has no before-image of an update.

    Raises:
        Unusable: The metadata lacks the operation, or the database, schema or table.
    """
    operation = msgspec.json.decode(row[_OP]) if _OP in row else None
    deleted = bytes(row.get(_DELETED, b"")) in (b'"true"', b"true")
    image = msgspec.Raw(projection(row, [name for name in row if name not in _METADATA]))
    gone = deleted or operation == "d"
    envelope = envelope_of(
        row,
        # `__ts_ms` and the like, without the block's name, are the times of the envelope.
        lambda name: (f"__source_{name}",) + (() if name.startswith("ts_") else (f"__{name}",)),
        lambda name: (f"__transaction_{name}", f"__{name}"),
        op="d" if gone else operation,
        before=image if gone else msgspec.Raw(),
        after=msgspec.Raw() if gone else image,
        ts_ms=msgspec.json.decode(row["__ts_ms"]) if "__ts_ms" in row else None,
    )
    if operation is None or not _names_table(row, envelope["source"]):
        raise Unusable(FLATTENED)
    return envelope
