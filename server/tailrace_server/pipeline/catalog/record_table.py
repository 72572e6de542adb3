"""The conversion of records to the table that a segment writer expects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tailrace_server.pipeline.input.change import batch_of
from tailrace_server.wal.record.columns import RECORD_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable

ROWS_PER_WRITE: Final = 8_192
"""Number of records that are collected before they are written to the segment."""

ROW_SCHEMA: Final = pa.schema(
    [
        pa.field(field.name, pa.utf8()) if field.name == "entity_type" else field
        for field in RECORD_SCHEMA
        if field.name not in ("key_hash", "changed")
    ]
).insert(6, pa.field("changed", pa.list_(pa.utf8())))
"""The schema of the table that a segment writer expects; the writer hashes the keys and encodes the names."""

Row = tuple[int, int, int, int, str | None, str | None, list[str] | None, *tuple[bytes | None, ...]]
"""A row of `ROW_SCHEMA`."""


def record_table(rows: Iterable[Row]) -> pa.Table:
    """Return rows as a table of `ROW_SCHEMA`."""
    return pa.Table.from_batches([batch_of(rows, ROW_SCHEMA)])
