"""The keys that several tasks of a direct write have, found by the key hashes in their segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.pipeline.dataframe.runs import merged
from tailrace_server.wal.files.system_errors import os_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tailrace_server.pipeline.dataframe.runs import SortedRun
    from tailrace_server.wal.segment.writer import SegmentReceipt

_HASHES_AT_ONCE: Final = 1 << 22
"""Approximate number of key hashes that are compared together, 8 bytes each; more take several passes."""
_NAMED: Final = ["entity_type", "primary_key"]


def repeated_key(
    catalog: Path,
    segments: Sequence[SegmentReceipt],
    runs: Sequence[SortedRun],
    names: Sequence[str],
) -> tuple[str, str, int] | None:
    """Return an entity type, a key and its number of records, if a key has several; None if none has.

    Args:
        catalog: The catalog's folder.
        segments: The segments of the tasks.
        runs: The runs of small tasks.
        names: The sorted names of all entity types.

    Raises:
        LogError: A file is missing or cannot be read.
    """

    def batches() -> Iterator[pa.RecordBatch]:
        types = pa.array(names, pa.string())
        for window in merged(catalog, runs, names):
            encoded = pa.DictionaryArray.from_arrays(window.column("type"), types)
            yield window.append_column("entity_type", encoded)
        for segment in segments:
            with (
                os_errors(f"cannot read {segment.path}"),
                pa.memory_map(str(catalog / segment.path)) as file,
                pa.ipc.open_file(file) as reader,
            ):
                yield from map(reader.get_batch, range(reader.num_record_batches))

    passes = 1 + sum(segment.rows for segment in segments) // _HASHES_AT_ONCE
    for number in range(passes):
        found = _repeated_in(batches, number, passes)
        if found is not None:
            return found
    return None


def _repeated_in(
    batches: Callable[[], Iterator[pa.RecordBatch]], number: int, passes: int
) -> tuple[str, str, int] | None:
    """Return a repeated key as `repeated_key`, among the keys whose hashes are in one of equal ranges."""
    # 1. Equal keys have equal hashes. Hashes are uniform, so each range has about as many.
    parts = [np.zeros(0, np.uint64)]
    for batch in batches():
        hashes = batch.column("key_hash").to_numpy()
        parts.append(hashes[(hashes >> 32) * np.uint64(passes) >> 32 == number])
    found = np.sort(np.concatenate(parts))
    twice = found[1:][found[1:] == found[:-1]]
    if not len(twice):
        return None
    # 2. Different keys may have one hash, so compare the keys themselves.
    tables = []
    for batch in batches():
        rows = np.flatnonzero(np.isin(batch.column("key_hash").to_numpy(), twice))
        some = batch.select(_NAMED).take(pa.array(rows))
        tables.append(pa.table([some.column(name).cast(pa.string()) for name in _NAMED], _NAMED))
    counts = pa.concat_tables(tables).group_by(_NAMED).aggregate([([], "count_all")])
    for row in counts.filter(pc.greater(counts.column("count_all"), 1)).slice(0, 1).to_pylist():
        return row["entity_type"], row["primary_key"], row["count_all"]
    return None
