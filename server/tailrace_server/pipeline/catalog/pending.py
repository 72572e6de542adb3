"""Pending files: the rows and tallies of incomplete transactions, in files that entries name.

There are three kinds of pending files, distinguished by their schemas:

* *rows*: the rows that one batch left open, in `CHANGE_SCHEMA`. Every entry names the file until none of its
  transactions is open. The file never changes: rows of closed transactions stay in it, and are ignored.
* *tallies*: one row for each open transaction, with the names of the rows files that hold parts of it. Every
  commit that changes a tally writes a new file.
* *counts*: the counts of rows in tables without a key (`transactions.row_counts`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import LogCorrupted
from tailrace_server.pipeline.input.change import Change, from_table
from tailrace_server.wal.files.documents import PendingSegment
from tailrace_server.wal.files.new_file import replace_durably
from tailrace_server.wal.files.sealed import crc32c
from tailrace_server.wal.segment.writer import relative_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


def write_pending(path: Path, table: pa.Table | pa.RecordBatch) -> PendingSegment:
    """Write a pending file in the Arrow IPC format, and make it durable.

    Runs in tasks and in the driver. A file of the same name, left by a failed attempt, is replaced.

    Raises:
        LogFull: The disk is full.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write(table)
    data = sink.getvalue()
    # An entry will name this file, so both its bytes and its name must be durable before the entry is.
    replace_durably(path, [memoryview(data)])
    return PendingSegment(relative_path(path), table.num_rows, len(data), crc32c(data))


def read_pending(catalog: Path, segment: PendingSegment) -> pa.Table:
    """Read a pending file.

    Raises:
        LogCorrupted: The file is missing, or its checksum does not match.
    """
    try:
        data = (catalog / segment.path).read_bytes()
    except FileNotFoundError as error:
        raise LogCorrupted(
            segment.path, 0, "an entry names this pending file, but it is missing"
        ) from error
    if len(data) != segment.bytes or crc32c(data) != segment.crc32c:
        raise LogCorrupted(segment.path, 0, "checksum of the pending file")
    return pa.ipc.open_file(pa.py_buffer(data)).read_all()


def rows_of(table: pa.Table, keys: Iterable[str]) -> Iterator[Change]:
    """Yield the changes of a rows file that belong to the transactions with the given keys."""
    wanted = pc.is_in(table.column("transaction"), value_set=pa.array(list(keys), pa.string()))
    return iter(from_table(table.filter(wanted)))
