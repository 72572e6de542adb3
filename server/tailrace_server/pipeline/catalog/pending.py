"""Rows and tallies of transactions that are not complete, in files that entries name.

Two kinds of pending files, distinguished by their columns:

* *rows*: `CHANGE_SCHEMA`, the rows that one batch left open. A file is written once. Every entry names it
  until none of its transactions is open any more.
* *tallies*: one row for each open transaction, with the rows files that hold parts of it. Every commit that
  changes a tally replaces the file. So a rows file never changes: its rows of closed transactions stay in it
  and are not read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import LogCorrupted
from tailrace_server.pipeline.input.change import Change, from_table
from tailrace_server.wal.files.documents import PendingSegment
from tailrace_server.wal.files.new_file import make_folder_of, sync_folder
from tailrace_server.wal.files.sealed import crc32c
from tailrace_server.wal.files.system_errors import os_errors
from tailrace_server.wal.segment.writer import relative_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


def write_pending(path: Path, table: pa.Table | pa.RecordBatch) -> PendingSegment:
    """Write a pending file, an Arrow IPC file, and make it durable.

    Runs in tasks and in the driver. A file of that name, left by an attempt that failed, is replaced.

    Raises:
        LogFull: No room.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write(table)
    data = sink.getvalue()
    aside = path.with_name(f"{path.name}.tmp")
    with os_errors(f"cannot write {path}"):
        make_folder_of(path)
        with aside.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        aside.rename(path)
        sync_folder(path.parent)
    return PendingSegment(relative_path(path), table.num_rows, len(data), crc32c(data))


def read_pending(catalog: Path, segment: PendingSegment) -> pa.Table:
    """Read a pending file.

    Raises:
        LogCorrupted: It is missing or its bytes are wrong.
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
    """Yield the changes of a rows file that belong to some transactions."""
    wanted = pc.is_in(table.column("transaction"), value_set=pa.array(list(keys), pa.string()))
    return iter(from_table(table.filter(wanted)))
