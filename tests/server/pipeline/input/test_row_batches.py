"""Tuples as record batches."""

from __future__ import annotations

import pyarrow as pa

from tailrace_server.pipeline.input.change import batch_of

SCHEMA = pa.schema([pa.field("a", pa.int16(), nullable=False), pa.field("b", pa.string())])


def test_rows_become_columns_of_the_schema_also_none_and_from_an_iterator() -> None:
    rows = [(1, "x"), (2, None)]
    for given in (rows, iter(rows)):
        found = batch_of(given, SCHEMA)
        assert found.schema == SCHEMA
        assert found.to_pydict() == {"a": [1, 2], "b": ["x", None]}
    assert batch_of([], SCHEMA).num_rows == 0
