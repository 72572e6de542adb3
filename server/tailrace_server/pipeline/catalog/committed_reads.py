"""Reads of what a catalog has committed of one entity type, by its own writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from tailrace_server.wal.segment.reader import BatchReader, SegmentMissing

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.schema.mapping import SchemaMapping
    from tailrace_server.wal.state.view import LogView

_Found = TypeVar("_Found")
_ATTEMPTS: Final = 5
"""How often a read begins anew where upkeep has replaced what it reads."""


def read_committed(
    writer: CatalogWriter,
    mapping: SchemaMapping | None,
    entity_type: str,
    read: Callable[[LogView, BatchReader, str], _Found],
    otherwise: _Found,
) -> _Found:
    """Read what is committed of an entity type; return ``otherwise`` where the log does not know it.

    Args:
        writer: Of the catalog.
        mapping: The columns that are declared; may rename the entity type.
        entity_type: Its name in the source.
        read: Takes a view, a reader, and the name of the entity type in the log.
        otherwise: See above.

    Raises:
        LogCorrupted: What is read is damaged.
        SegmentMissing: Upkeep replaces files more quickly than they can be read.
    """
    attempts = _ATTEMPTS
    while True:
        view = writer.log.committed_view()
        name = name_in_log(view, mapping, entity_type)
        if name is None:
            return otherwise
        attempts -= 1
        try:
            with BatchReader(writer.path) as reader:
                return read(view, reader, name)
        except SegmentMissing:
            if not attempts:
                raise
            writer.log.follow_checkpoints()  # upkeep has replaced what was read


def name_in_log(view: LogView, mapping: SchemaMapping | None, entity_type: str) -> str | None:
    """Return what the log calls an entity type, which the mapping may rename with the next row of it."""
    known = view.schema_of(view.published).entity_types
    if entity_type in known:
        return entity_type
    declared = mapping.entity_types.get(entity_type) if mapping else None
    before = None if declared is None else declared.renamed_from
    return before if before in known else None
