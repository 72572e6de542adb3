"""The changed columns of updates: compiled code and Python find the same ones."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.image_differences import differences_of
from tailrace_server.wal.record.mutation import difference_of
from tests.support.compiled_loops import loops_used

VALUES = st.none() | st.integers(0, 2) | st.sampled_from(["a", '"', "{}", "é"])
IMAGES = st.none() | st.dictionaries(st.sampled_from(["a", "b", 'c"', "é"]), VALUES)


@pytest.mark.parametrize("compiled", [True, False])
@given(st.lists(st.tuples(IMAGES, IMAGES), max_size=6))
@settings(max_examples=40)
def test_differences_are_those_of_the_rows_one_by_one(
    compiled: bool, rows: list[tuple[dict[str, object] | None, dict[str, object] | None]]
) -> None:
    before, after = (
        [None if row[place] is None else orjson.dumps(row[place]) for row in rows]
        for place in (0, 1)
    )
    with loops_used(compiled):
        found = differences_of(pa.array(before, pa.binary()), pa.array(after, pa.binary()))
    expected = [
        (None, None)
        if old is None or new is None
        else difference_of(decode_members(old), decode_members(new))
        for old, new in zip(before, after, strict=True)
    ]
    names = [
        None if codes is None else tuple(found.names[code] for code in codes)
        for codes in found.changed.to_pylist()
    ]
    assert [*zip(names, found.change.to_pylist(), strict=True)] == expected
