"""The first files of a stream's index: the rows that the log holds when the stream begins.

A catalog may hold records of the entity type that another source wrote. The first batch folds them and commits
the result with its own; if that fails, the next attempt folds them again. The rows of all live keys and one
version are held in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.catalog.pending import write_pending
from tailrace_server.pipeline.cdcv2.folding import INDEX
from tailrace_server.pipeline.cdcv2.state import INDEX_KIND, StateFile
from tailrace_server.pipeline.cdcv2.updates import SLOTS, slots
from tailrace_server.pipeline.input.column_listing import announced
from tailrace_server.pipeline.input.images import hidden, renamed
from tailrace_server.wal.record.keys import key_hashes, type_seed
from tailrace_server.wal.schema.restating import (
    conversion_of,
    first_stated,
    read_as,
    restated_image,
)
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.entity_records import EntityRecords

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.schema import Column
    from tailrace_server.pipeline.cdcv2.folding import Folding
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.schema.restating import Conversions, Stated

FILE_ROWS: Final = 100_000
"""About so many keys go into a file."""


def seed_index(
    writer: CatalogWriter, folding: Folding, batch_id: int, file_rows: int = FILE_ROWS
) -> list[StateFile]:
    """Fold the records of the stream's entity type, and write the last row of each key.

    Commits of another writer that are unpublished are published first, as the batch would do anyway.

    Args:
        writer: The writer of the catalog.
        folding: How the stream's rows become records.
        batch_id: The first batch.
        file_rows: About so many keys go into a file.

    Returns:
        A tier older than that of any batch. Without key columns there is none, since multiplicities count
        from the beginning of the stream; nor if the log has no row of the entity type.

    Raises:
        InvalidRequest: A gate has not published what was committed.
        PositionCompacted: Retention has taken a version while it was read.
        LogCorrupted: A segment is damaged.
        LogFull: No room.
    """
    if not folding.key:
        return []
    # Readers, and so the fold below, stop at the watermark. What another writer committed and left unpublished
    # would be missing from the index for good.
    if writer.state.published != writer.state.last_version:
        writer.publish()
        gate = writer.state.gate
        if gate is not None and writer.state.published != writer.state.last_version:
            raise InvalidRequest(
                f"versions {writer.state.published + 1} to {writer.state.last_version} wait for the gate "
                f"{gate.name} at {gate.place}: begin once it has published them"
            )
    writer.log.refresh()
    view = writer.log.view
    if folding.entity_type not in view.schema_of(view.published).entity_types:
        return []
    with BatchReader(writer.path) as reader:
        return _written(
            _live_rows(EntityRecords(writer.log, reader, folding.entity_type), folding),
            writer,
            folding,
            batch_id,
            file_rows,
        )


def _live_rows(records: EntityRecords, folding: Folding) -> dict[str, bytes]:
    """Return the last image of each key as the stream would write it; retention may have deleted some."""
    view = records.view
    # Columns may have been renamed since. Images keep the names of their time, the stream uses those of today.
    columns = records.columns_in(view.schema_of(view.published))
    names = {column.id: column.name for column in columns}
    listed = announced(folding.schema.listing(folding.key)).columns
    wanted = {name: (sql_type, encoding) for name, sql_type, encoding, _ in listed}
    stated = first_stated(view.schemas())
    rows: dict[str, bytes] = {}
    for version in records.versions(view.oldest.version, view.published + 1):
        names_now = _renamed(version.columns, names)
        conversions = _conversions(version.columns, names, wanted, stated)
        for record in version.records:
            if record.key is None:  # a truncate
                rows.clear()
            elif record.operation == Operation.UPSERT and record.after is not None:
                image = record.after
                if conversions:
                    image, inexact = restated_image(image, conversions)
                    image = hidden(image, inexact)
                rows[record.key] = renamed(image, names_now) if names_now else image
            else:  # removed, or the log has no image of it
                rows.pop(record.key, None)
    return rows


def _renamed(columns: tuple[Column, ...], names: Mapping[int, str]) -> dict[str, str]:
    """Return the columns of a version that have another name now: the old name → the new one."""
    now = ((column.name, names.get(column.id, column.name)) for column in columns)
    return {name: new for name, new in now if name != new}


def _conversions(
    columns: tuple[Column, ...],
    names: Mapping[int, str],
    wanted: Mapping[str, Stated],
    stated: Mapping[int, Column],
) -> Conversions:
    """Return the columns of a version that the stream writes otherwise."""
    found: Conversions = {}
    for column in columns:
        now = wanted.get(names.get(column.id, column.name))
        read = read_as(column, stated.get(column.id))
        conversion = None if now is None else conversion_of(read, now)
        if conversion is not None:
            found[column.name] = conversion
    return found


def _written(
    rows: dict[str, bytes], writer: CatalogWriter, folding: Folding, batch_id: int, file_rows: int
) -> list[StateFile]:
    """Write rows by the slots of their keys, so that a task reads the files of its share only."""
    keys = np.array(list(rows), object)
    texts = pa.array(keys, pa.string())
    # Not the hashes in the log: those are seeded with the name that the entity type had then.
    hashed = key_hashes(np.full(len(keys), type_seed(folding.entity_type), np.uint64), texts)
    parts = min(SLOTS, 1 << (max(0, len(keys) - 1) // file_rows).bit_length())
    of_part = slots(hashed) % np.uint16(parts)
    files = []
    for part in range(parts):
        places = np.flatnonzero(of_part == part)
        if not len(places):
            continue
        images = [folding.schema.normalised(rows[key]) for key in keys[places]]
        table = pa.RecordBatch.from_arrays(
            [
                pa.array(hashed[places]),
                texts.take(pa.array(places)).cast(pa.large_string()),
                pa.array(images, pa.large_binary()),
                pa.array(np.ones(len(places), np.int64)),
            ],
            schema=INDEX,
        )
        path = writer.segment_path(batch_id, f"pending-cdcv2-{INDEX_KIND}-seed-{part}")
        files.append(StateFile(INDEX_KIND, write_pending(path, table), batch_id - 1, part, parts))
    return files
