"""Rows as the table that a segment writer takes."""

from __future__ import annotations

from tailrace_server.pipeline.catalog.record_table import ROW_SCHEMA, Row, record_table
from tailrace_server.wal.record.columns import RECORD_SCHEMA


def test_rows_come_back_from_the_table() -> None:
    rows: list[Row] = [
        (0, 0, 3, 4, None, None, None, None, None, b"{}"),
        (0, 1, 2, 1, "t", "1", ["n"], b'{"n":1}', b'{"n":0}', b'{"n":1}'),
    ]
    table = record_table(rows)
    assert table.schema == ROW_SCHEMA
    assert [tuple(row.values()) for row in table.to_pylist()] == rows
    assert record_table([]).num_rows == 0


def test_the_columns_are_those_of_a_record_without_the_hash_of_its_key() -> None:
    assert ROW_SCHEMA.names == [name for name in RECORD_SCHEMA.names if name != "key_hash"]
