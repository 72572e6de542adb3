"""Reads of the committed records of one entity type, by the catalog's own writer."""

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
"""Maximum number of attempts of a read; upkeep (such as compaction) may replace the segments during each."""


def read_committed(
    writer: CatalogWriter,
    mapping: SchemaMapping | None,
    entity_type: str,
    read: Callable[[LogView, BatchReader, str], _Found],
    otherwise: _Found,
) -> _Found:
    """Call ``read`` for the committed records of an entity type, and return its result.

    Args:
        writer: The catalog's writer.
        mapping: The declared columns; the mapping may rename the entity type.
        entity_type: The entity type's name in the source.
        read: Receives a view of the log, a reader, and the entity type's name in the log.
        otherwise: The result if the log does not have the entity type.

    Raises:
        LogCorrupted: A batch that is read is damaged.
        SegmentMissing: Upkeep replaced the segments in each of several attempts.
    """
    # No lock keeps upkeep from replacing segments during a read. A replaced segment raises `SegmentMissing`.
    # Then take a new view: the new segments have the same records.
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
            writer.log.follow_checkpoints()  # learn the names of the segments that upkeep has written


def name_in_log(view: LogView, mapping: SchemaMapping | None, entity_type: str) -> str | None:
    """Return the name of an entity type in the log; None if the log does not have it.

    The log has the old name until the first row after the mapping renames the entity type.
    """
    known = view.schema_of(view.published).entity_types
    if entity_type in known:
        return entity_type
    declared = mapping.entity_types.get(entity_type) if mapping else None
    before = None if declared is None else declared.renamed_from
    return before if before in known else None
