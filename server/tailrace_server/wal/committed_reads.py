"""Reads of the committed records of one entity type, by the catalog's own writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from tailrace_server.wal.base.reading import last_known
from tailrace_server.wal.base.winners import FoldBounds, Wanted, fold
from tailrace_server.wal.record.keys import key_hash, type_seed
from tailrace_server.wal.segment.reader import BatchReader, SegmentMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tailrace_server.wal.base.winners import Fold
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.schema.mapping import SchemaMapping
    from tailrace_server.wal.segment.refs import BatchRef
    from tailrace_server.wal.state.view import LogView

_Found = TypeVar("_Found")
_ATTEMPTS: Final = 5
"""Maximum number of attempts of a read; upkeep (such as compaction) may replace the segments during each."""
_KEYS_AT_ONCE: Final = 50_000
"""The most keys that are looked up in one read, to bound its memory."""
_BOUNDS: Final = FoldBounds()


class Lead(msgspec.Struct):
    """The members of a lead record that a writer reads back, of any type: other writers may write leads."""

    transaction_id: object = None
    of: object = None
    source_log: object = None
    source_position: object = None
    source_timestamp: object = None
    snapshot: object = None


_lead = msgspec.json.Decoder(Lead).decode


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


def read_keys(
    writer: CatalogWriter,
    mapping: SchemaMapping | None,
    entity_type: str,
    keys: Sequence[str],
    read: Callable[[LogView, BatchReader, str, Sequence[str]], _Found],
    otherwise: _Found,
) -> Iterator[tuple[Sequence[str], _Found]]:
    """Yield portions of the keys, each with the result of ``read``, which receives the portion as well.

    The other arguments and the errors are those of `read_committed`.
    """
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        some = keys[start : start + _KEYS_AT_ONCE]

        def read_some(
            view: LogView, reader: BatchReader, name: str, some: Sequence[str] = some
        ) -> _Found:
            return read(view, reader, name, some)

        yield some, read_committed(writer, mapping, entity_type, read_some, otherwise)


def last_records(view: LogView, reader: BatchReader, entity_type: str, keys: Sequence[str]) -> Fold:
    """Return the last records of some keys in the log, and of other keys that have the hash of one of them.

    Args:
        view: A view of the log, with all of its schemas.
        reader: A reader of the log's batches.
        entity_type: Name of the entity type in the newest schema of the view.
        keys: The keys, at most as many as one fold can hold in memory.

    Raises:
        LogCorrupted: A batch that is read is damaged.
        SegmentMissing: Upkeep has replaced a segment.
    """
    state = last_known(view, reader, entity_type)
    seed = type_seed(state.hashed_as)
    hashes = np.unique(np.array([key_hash(seed, key) for key in keys], np.uint64))
    # Read from the beginning of the log, not from a base: a base lacks the rows that were removed.
    return fold(state.log_table, 0, state.version, Wanted(chosen=hashes), _BOUNDS, whole=False)


def leads_in(
    reader: BatchReader, ref: BatchRef, versions: Sequence[int] | None = None
) -> list[tuple[int, Lead]]:
    """Return versions in a batch with their leads, in the order of the log; None: all versions in it."""
    head = reader.head(ref)
    rows = np.flatnonzero(head.indexes == 0)
    if versions is not None:
        rows = rows[np.isin(head.versions[rows], versions)]
    if not len(rows):
        return []
    bodies = reader.body(ref, ("after",))["after"].take(pa.array(rows)).to_pylist()
    return list(zip(head.versions[rows].tolist(), map(_lead, bodies), strict=True))


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
