"""A log with a value that its column's type cannot hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping

if TYPE_CHECKING:
    from pathlib import Path

MISFITS: Final = '{"day":"infinity"}'
"""The text of the value, as SQL has it."""


def write_misfit(root: Path) -> None:
    """Write the catalog ``shop`` with one row of the entity type ``item``."""
    mapping = SchemaMapping.parse('[entity_types.item.columns]\nday = { type = "DATE" }')
    with LogWriter.open(root, "shop", mapping=mapping) as writer:
        writer.append([Mutation("item", "1", after=b'{"day":"infinity"}')])
        writer.commit(publish=True)
