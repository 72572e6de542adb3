"""Transactions that are not complete: their rows and tallies, kept in files that entries name.

Two kinds of pending files, told apart by their columns:

* *rows*: `CHANGE_SCHEMA`, the rows that one batch left open. Written once; named by every entry
  until none of their transactions is open any more.
* *tallies*: one row for each open transaction, with the rows files that hold parts of it. Replaced
  by every commit that changes them, so that a rows file never needs to be: rows of transactions
  that it does not name for them are past.
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import LogCorrupted
from tailrace_server.pipeline.changes import Change, from_table
from tailrace_server.pipeline.transactions.grouping import Tally
from tailrace_server.wal.files.documents import PendingSegment
from tailrace_server.wal.files.objects import crc32c, make_folder_of, os_errors, sync_folder
from tailrace_server.wal.segment.writer import relative_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

TALLY_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("transaction_id", pa.string()),
        pa.field("place", pa.binary()),
        pa.field("first_arrival", pa.binary()),
        pa.field("last_arrival", pa.binary()),
        pa.field("mark", pa.binary()),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("quarantined", pa.int64(), nullable=False),
        pa.field("expected", pa.int64()),
        pa.field("timestamp", pa.int64()),
        pa.field("source", pa.string()),
        pa.field("segments", pa.list_(pa.string()), nullable=False),
    ]
)
"""The fields of `Tally` but ``seen``: the idle time begins anew with the process that reads them."""


def tallies_table(tallies: Iterable[Tally]) -> pa.Table:
    """Return open transactions as a table of `TALLY_SCHEMA`."""
    names = [field.name for field in TALLY_SCHEMA]
    rows = [tuple(getattr(tally, name) for name in names) for tally in tallies]
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, TALLY_SCHEMA, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=TALLY_SCHEMA)


def tallies_from(table: pa.Table, seen: float) -> dict[str, Tally]:
    """Return the open transactions of a tallies file, as seen at a time of this process's clock."""
    tallies = {}
    for row in table.to_pylist():
        row["segments"] = tuple(row["segments"])
        tallies[row["key"]] = Tally(**row, seen=seen)
    return tallies


def is_tallies(table: pa.Table) -> bool:
    """Whether a pending file holds tallies; else it holds rows."""
    return "segments" in table.schema.names


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


assert {field.name for field in fields(Tally)} == {*TALLY_SCHEMA.names, "seen"}
