"""Lines of files as Spark hands them over, decoded.

`LINES_SCHEMA` is what the stream selects: the line's bytes, and which split of which file it comes
from. Rows of a split are contiguous and in order.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.pipeline.sources.debezium.decoder import (
    DebeziumDecoder,
    DebeziumOptions,
    Split,
)
from tailrace_server.pipeline.spark.checkpoint import local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace_server.pipeline.changes import Change

LINES_SCHEMA: Final = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("file", pa.string()),
        pa.field("block", pa.int64()),
        pa.field("modified_us", pa.int64()),
    ]
)


class Decoded(NamedTuple):
    """The lines of a batch, decoded."""

    changes: list[Change]
    skipped: int
    """Lines passed over because the log holds them."""


def runs(table: pa.Table | pa.RecordBatch, folder: str) -> Iterator[tuple[Split, list[bytes]]]:
    """Yield the lines of a table by split, in the table's order.

    Args:
        table: Of `LINES_SCHEMA`.
        folder: The input folder; files are named by their path below it.
    """
    rows = table.num_rows
    if not rows:
        return
    files = pc.dictionary_encode(_whole(table.column("file")))
    blocks = _whole(table.column("block")).to_numpy()
    codes = files.indices.to_numpy()
    starts = [0, *((codes[1:] != codes[:-1]) | (blocks[1:] != blocks[:-1])).nonzero()[0] + 1, rows]
    values = table.column("value")
    modified = table.column("modified_us")
    for start, stop in itertools.pairwise(starts):
        path = relative_file(files.dictionary[codes[start]].as_py(), folder)
        split = Split(path, int(blocks[start]), modified[start].as_py())
        yield split, values.slice(start, stop - start).to_pylist()


def decode_lines(
    table: pa.Table, folder: str, options: DebeziumOptions, consumed: Callable[[str], int]
) -> Decoded:
    """Decode the lines of a whole batch.

    Args:
        table: Of `LINES_SCHEMA`.
        folder: The input folder.
        options: How lines are read.
        consumed: File → lines at its head that the log holds already.
    """
    splits = sorted(runs(table, folder), key=lambda run: run[0])
    skip: dict[tuple[str, int], int] = {}
    lines: dict[str, int] = {}
    for split, values in splits:
        before = lines.get(split.file, 0)
        lines[split.file] = before + len(values)
        left = min(max(consumed(split.file) - before, 0), len(values))
        if left:
            skip[split.file, split.block] = left
    decoder = DebeziumDecoder(options, skip)
    changes: list[Change] = []
    for split, values in splits:
        changes.extend(decoder.feed(split, values))
    changes.extend(decoder.finish())
    return Decoded(changes, sum(skip.values()))


def relative_file(uri: str, folder: str) -> str:
    """Return a file's name below the input folder; that of lines from no file is empty."""
    return os.path.relpath(local_path(uri), folder) if uri else ""


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
