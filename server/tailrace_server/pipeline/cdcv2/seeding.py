"""The first files of a stream's index: the rows that the log already holds when the stream begins.

Another source may have written records of the entity type before. The first batch folds these records and
commits the result together with its own records. If it fails, the next attempt folds them again. The last rows
of all live keys, and the records of one version, are in memory.
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
from tailrace_server.wal.record.images import hidden, renamed
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
"""Approximate number of keys in a file."""


def seed_index(
    writer: CatalogWriter, folding: Folding, batch_id: int, file_rows: int = FILE_ROWS
) -> list[StateFile]:
    """Fold the records of the stream's entity type, and write the last row of each key to index files.

    Unpublished commits of another writer are published first, as the batch would publish them later.

    Args:
        writer: The writer of the catalog.
        folding: The rules that turn the stream's rows into records.
        batch_id: The id of the first batch.
        file_rows: The approximate number of keys in a file.

    Returns:
        Files of a tier that is older than the tier of any batch. The list is empty without key columns, since
            multiplicities count from the beginning of the stream, and if the log has no row of the entity type.

    Raises:
        InvalidRequest: A gate has not published all commits yet.
        PositionCompacted: Retention removed a version while it was read.
        LogCorrupted: A segment is damaged.
        LogFull: There is no space for the files.
    """
    if not folding.key:
        return []
    # Readers, and so the fold below, stop at the watermark. Unpublished commits of another writer would be
    # missing from the index forever.
    if writer.state.published != writer.state.last_version:
        writer.publish()
        gate = writer.state.gate
        if gate is not None and writer.state.published != writer.state.last_version:
            raise InvalidRequest(
                f"versions {writer.state.published + 1} to {writer.state.last_version} wait for "
                f"the gate {gate.name} at {gate.place}: start again when they are published"
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
    """Return the last image of each key, written as the stream would write it.

    Keys whose last image was removed by retention are left out.
    """
    view = records.view
    # Images have the column names of their time. The stream uses the names of today.
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
    """Return the columns of a version that have another name now, as old name → new name."""
    now = ((column.name, names.get(column.id, column.name)) for column in columns)
    return {name: new for name, new in now if name != new}


def _conversions(
    columns: tuple[Column, ...],
    names: Mapping[int, str],
    wanted: Mapping[str, Stated],
    stated: Mapping[int, Column],
) -> Conversions:
    """Return, by column name, the conversions for columns of a version that the stream encodes differently."""
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
    """Write rows to files by the slots of their keys: a task reads only the files of its hash partition."""
    keys = np.array(list(rows), object)
    texts = pa.array(keys, pa.string())
    # Hash the keys again: hashes in the log are seeded with the name that the entity type had then.
    hashed = key_hashes(np.full(len(keys), type_seed(folding.entity_type), np.uint64), texts)
    parts = min(SLOTS, 1 << (max(0, len(keys) - 1) // file_rows).bit_length())
    # A power of two divides the number of slots, so every slot lies in one file.
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
