"""The order of rows by the files that they were read from.

Spark distributes the files of a batch over partitions by size, and the order of a batch is the order of its
partitions. Rows with Spark's column ``_metadata`` name their file and block. A task writes each block to
separate segments, and the commit sorts the blocks of all tasks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tailrace_server.pipeline.dataframe.sink import SinkResult

_METADATA: Final = "_metadata"


class FilePlace(NamedTuple):
    """The block of a file that rows were read from.

    Places sort by the file's time, the file's name, and the block.
    """

    modified_us: int
    path: str
    block: int
    """Offset of the block's first byte."""


def runs_of_files(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[FilePlace | None, pa.RecordBatch]]:
    """Yield batches without ``_metadata``, each with its block; a batch is cut where the block changes.

    Raises:
        InvalidRequest: The column ``_metadata`` is not the one of Spark's file source.
    """
    for batch in batches:
        if _METADATA not in batch.schema.names:
            yield None, batch
            continue
        metadata = batch.column(_METADATA)
        try:
            paths, blocks, times = (
                metadata.field(name)
                for name in ("file_path", "file_block_start", "file_modification_time")
            )
            micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
        except (AttributeError, KeyError, pa.ArrowException) as error:
            raise InvalidRequest(
                f"column {_METADATA} is {metadata.type}; select the column of Spark's file source "
                "unchanged"
            ) from error
        rows = batch.drop_columns([_METADATA])
        # Cut where path, block or time differ from the row before.
        codes = pc.dictionary_encode(paths).indices
        differs = np.zeros(max(batch.num_rows - 1, 0), np.bool_)
        for each in (codes, blocks, micros):
            values = each.to_numpy(zero_copy_only=False)
            differs |= values[1:] != values[:-1]
        ends = [0, *(np.flatnonzero(differs) + 1).tolist(), batch.num_rows]
        for start, stop in pairwise(ends):
            if start < stop:
                place = FilePlace(*(each[start].as_py() for each in (micros, paths, blocks)))
                yield place, rows.slice(start, stop - start)


class Part(NamedTuple):
    """Rows that a task wrote: the rows of one block of a file, or all rows of the task."""

    place: FilePlace | None
    """The block; None if the rows have no ``_metadata``."""
    result: SinkResult


def in_order(parts: Sequence[Part]) -> Sequence[Part]:
    """Return the parts of a batch sorted by the time, name and block of their files; unchanged without files.

    Raises:
        InvalidRequest: The rows of a block are not adjacent, so the order of its lines is lost.
    """
    if not any(part.place for part in parts):
        return parts
    ordered = sorted(parts, key=lambda part: part.place or FilePlace(0, "", 0))
    # Two parts of one block: its rows were in two tasks, or other rows came between them.
    for one, other in pairwise(ordered):
        if one.place == other.place:
            path = one.place.path if one.place else "no file"
            raise InvalidRequest(
                f"rows of {path} are not consecutive: a shuffle (repartition, join, groupBy) has "
                "changed the order of lines; drop _metadata and sort the rows, or leave the "
                "shuffle out"
            )
    return ordered
