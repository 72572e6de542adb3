"""Rows that ExtractNewRecordState has taken out of their envelopes, with the metadata that it adds.

::

    {"id": 1, "name": "cup", "__deleted": "false", "__op": "u", "__table": "product", "__lsn": 27}

``add.fields=op,table,…`` adds metadata under a prefix, by default ``__``, with ``source_`` or ``transaction_``
behind it where the option names the block. ``delete.tombstone.handling.mode=rewrite`` keeps the row of a
removal, with ``__deleted``. There is no row before a change.

Source: Debezium documentation, new record state extraction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace_server.pipeline.images import projection
from tailrace_server.pipeline.sources.debezium.refusals import Unusable
from tailrace_server.pipeline.sources.debezium.shapes import FLATTENED
from tailrace_server.pipeline.sources.debezium.source_attributes import (
    SOURCE_NAMES,
    TRANSACTION_NAMES,
    envelope_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

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
"""Columns that the transformation adds. Others that begin with two underscores are the row's own."""


_WITHOUT_SCHEMAS: Final = frozenset(("mysql", "mariadb", "mongodb", "vitess"))


def _names_table(row: Mapping[str, msgspec.Raw], source: Mapping[str, Any]) -> bool:
    """Whether a row says its table with all levels: tables of one name in two schemas are not one.

    The transformation adds a member that a connector does not have as null, which says as much.
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
    """Whether an object with these members is such a row."""
    return _OP in names or _DELETED in names


def envelope_of_row(row: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """Return the members of the envelope that a row was in, without the row before the change.

    Raises:
        Unusable: The row lacks its operation, or its database, schema and table.
    """
    operation = msgspec.json.decode(row[_OP]) if _OP in row else None
    deleted = bytes(row.get(_DELETED, b"")) in (b'"true"', b"true")
    image = msgspec.Raw(projection(row, [name for name in row if name not in _METADATA]))
    gone = deleted or operation == "d"
    envelope = envelope_of(
        row,
        # Without the block's name, these are the times of the envelope.
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
