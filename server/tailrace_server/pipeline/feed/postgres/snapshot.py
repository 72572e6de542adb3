"""The rows of the published tables as of the snapshot that a new slot exports.

The stream of the slot begins exactly behind this snapshot, so no change is missing between the two or in both.
The snapshot is read by COPY in one transaction, table by table, while writers continue.
"""

from __future__ import annotations

import re
import select
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import pq

from tailrace_server.machine_code.loader import BYTE, INT, LONG, address, loops
from tailrace_server.pipeline.feed.postgres.batches import ESCAPED, TableLayouts
from tailrace_server.pipeline.feed.postgres.tables import SourceTables
from tailrace_server.pipeline.feed.source import (
    SnapshotEnd,
    SnapshotRows,
    SourceRefused,
    SourceUnreachable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace_server.pipeline.feed.postgres.database import PublishedTable, SourceDatabase
    from tailrace_server.pipeline.feed.postgres.tables import SourceTable

_ROWS: Final = 10_000
_BYTES: Final = 8 << 20
"""Rows and bytes of a version of the snapshot, except for its last row."""
_ROWS_MIN: Final = 64
"""Rows from which they are read by the loop."""
_ROOM_MAX: Final = 1 << 31
"""Size that an Arrow column cannot have."""
_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPES: Final = {b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}


def snapshot_items(
    database: SourceDatabase, publication: str, snapshot: str
) -> Iterator[SnapshotRows | SnapshotEnd]:
    """Yield the rows of all tables of a publication.

    Args:
        database: The database; its connection is in a transaction while this runs.
        publication: Name of the publication.
        snapshot: Name of the exported snapshot.

    Raises:
        SourceUnreachable: The connection failed.
        SourceRefused: A table has no key, or the user may not read it.
    """
    found = database.tables(publication)
    keys = {each.relation.oid: each.key for each in found}
    tables = SourceTables(database.type_of, lambda relation: keys[relation.oid])
    published = [(each, tables.put(each.relation)[1]) for each in found]
    database.rows("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    database.rows(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
    # The columns of all tables first: they are then one change of the catalog's schema.
    for _, table in published:
        yield SnapshotRows(table.entity_type, {}, table.announced)
    for each, table in published:
        yield from _rows(database, each, table)
        yield SnapshotEnd(table.entity_type)
    database.rows("COMMIT")


def _rows(
    database: SourceDatabase, published: PublishedTable, table: SourceTable
) -> Iterator[SnapshotRows]:
    command = f"COPY ({published.selection()}) TO STDOUT".encode()
    layout = TableLayouts([table])
    try:
        for rows in _portions(database.connection, command):
            yield SnapshotRows(table.entity_type, _read(rows, table, layout))
    except psycopg.OperationalError as error:
        raise SourceUnreachable(f"PostgreSQL cannot be reached: {error}") from error
    except psycopg.Error as error:
        raise SourceRefused(
            f"table {table.entity_type} cannot be read: {str(error).strip()}"
        ) from error


def _portions(
    connection: psycopg.Connection[Any], command: bytes
) -> Iterator[list[bytes | memoryview]]:
    """Yield the rows of a COPY; `psycopg.Copy` would take twice the time."""
    stream = connection.pgconn
    result: pq.abc.PGresult | None = stream.exec_(command)
    rows: list[bytes | memoryview] = []
    size = 0
    while result is not None and result.status == pq.ExecStatus.COPY_OUT:
        length, row = stream.get_copy_data(1)
        if length > 0:
            rows.append(row)
            size += length
        elif length == 0:
            select.select([stream.socket], [], [])
            stream.consume_input()
        else:
            result = stream.get_result()
        if rows and (length < 0 or len(rows) >= _ROWS or size >= _BYTES):
            yield rows
            rows, size = [], 0
    if result is None or result.status != pq.ExecStatus.COMMAND_OK:
        assert result is not None, "a command has a result"
        raise psycopg.errors.error_from_result(result)
    while stream.get_result() is not None:
        pass


def _read(
    rows: list[bytes | memoryview], table: SourceTable, layout: TableLayouts
) -> pa.RecordBatch:
    """Return the keys and images of rows, as in `SnapshotRows`; by a compiled loop if it can be used."""
    machine, count = loops(len(rows), _ROWS_MIN), len(rows)
    data = np.frombuffer(bytearray().join(rows), BYTE)
    room = ESCAPED * len(data) + count * layout.row_bytes
    offsets, values = [np.zeros(count + 1, INT) for _ in "ki"], [np.empty(room, BYTE) for _ in "ki"]
    if machine is not None and room < _ROOM_MAX:
        begin = address(data, BYTE)
        found = machine.read_copied(
            *(begin, begin + len(data), address(layout.table, LONG)),
            *(address(layout.columns, LONG), address(layout.heads, BYTE)),
            *(address(layout.keys, LONG), address(offsets[0], INT), address(values[0], BYTE)),
            *(address(offsets[1], INT), address(values[1], BYTE), address(layout.spans, LONG)),
        )
        if found == count:
            keys, images = (
                pa.StringArray.from_buffers(
                    count, pa.py_buffer(at), pa.py_buffer(text[: at[-1]].copy())
                )
                for at, text in zip(offsets, values, strict=True)
            )
            return pa.RecordBatch.from_arrays([keys, images], ["primary_key", "after"])
    texts = [table.texts(_values(bytes(row))) for row in rows]
    columns = {
        "primary_key": pa.array(map(table.key_of, texts), pa.utf8()),
        "after": pa.array(map(table.image, texts), pa.binary()).cast(pa.utf8()),
    }
    return pa.RecordBatch.from_pydict(columns)


def _values(row: bytes) -> tuple[bytes | None, ...]:
    """Return the values of a row of COPY, without its escapes."""
    return tuple(
        None
        if each == rb"\N"
        else _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), each)
        for each in row[:-1].split(b"\t")
    )
