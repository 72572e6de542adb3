"""The input columns of the sink in one form. Refusals as a user meets them: `test_sink`."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.dataframe.input_rows import OPTIONAL, REQUIRED, input_table


def batch(**columns: pa.Array) -> pa.RecordBatch:
    """Return one row, with some columns replaced."""
    given = {name: pa.array(["x"]) for name in REQUIRED} | {"operation": pa.array(["upsert"])}
    return pa.RecordBatch.from_pydict(given | columns)


def test_operations_become_codes_by_name_in_any_case_or_by_number() -> None:
    for operation in (pa.array(["Remove"]), pa.array([2], pa.int16())):
        assert input_table(batch(operation=operation)).column("operation").to_pylist() == [2]
    for operation in (pa.array(["drop"]), pa.array([5]), pa.array([None], pa.int64())):
        with pytest.raises(InvalidRequest, match="column operation"):
            input_table(batch(operation=operation))


def test_missing_bodies_are_null_and_texts_become_bytes() -> None:
    table = input_table(batch(after=pa.array(["{}"])))
    assert set(table.column_names) == {*REQUIRED, *OPTIONAL} - {"changed"}
    assert table.column("after").to_pylist() == [b"{}"]
    assert table.column("before").null_count == 1


def test_a_missing_an_unknown_and_a_wrong_column_are_named() -> None:
    with pytest.raises(InvalidRequest, match="no column 'primary_key'"):
        input_table(batch().drop_columns(["primary_key"]))
    with pytest.raises(InvalidRequest, match="a column 'extra'"):
        input_table(batch(extra=pa.array([1])))
    with pytest.raises(InvalidRequest, match="column before is list"):
        input_table(batch(before=pa.array([["a"]])))
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"], pa.binary()).buffers())
    with pytest.raises(InvalidRequest, match="UTF-8"):
        input_table(batch(entity_type=text))
