"""Rows before they are written. What a file has of them, and rows that are refused: test_writer.py."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_server.wal.segment.rows import Rows, RowsEncoder

FEW = 48
"""Rows up to which the encoder takes the way row by row."""

rows = st.tuples(
    st.none() | st.sampled_from(["order", "", "straße"]),
    st.none() | st.text(max_size=5),
    st.none() | st.lists(st.sampled_from(["id", "preis"]), max_size=2),
    st.none() | st.binary(max_size=5),
)


def batch_of(values: list[tuple[Any, ...]], first: int = 0) -> pa.RecordBatch:
    """Return rows of one transaction, whose first has an index."""
    count = len(values)
    types, keys, changed, images = zip(*values, strict=True) if values else ((),) * 4
    return pa.record_batch(
        {
            "version": pa.array([0] * count, pa.int64()),
            "index": pa.array(range(first, first + count), pa.int32()),
            "area": pa.array([2] * count, pa.uint8()),
            "operation": pa.array([1] * count, pa.uint8()),
            "entity_type": pa.array(types, pa.utf8()),
            "primary_key": pa.array(keys, pa.utf8()),
            "changed": pa.array(changed, pa.list_(pa.utf8())),
            "after": pa.array(images, pa.binary()),
        }
    )


def sized(*sizes: int) -> Rows:
    return RowsEncoder().encode(batch_of([("t", None, None, b"x" * size) for size in sizes]))


@given(st.lists(rows, min_size=1, max_size=12), st.integers(1, FEW))
@settings(max_examples=12)
def test_few_rows_at_a_time_come_out_as_many_at_once(
    values: list[tuple[Any, ...]], step: int
) -> None:
    values = (values * FEW)[: FEW + 5]
    whole, parts = RowsEncoder(), RowsEncoder()
    once = whole.encode(batch_of(values))
    cut = [parts.encode(batch_of(values[at : at + step], at)) for at in range(0, len(values), step)]
    assert Rows.concat(cut).batch.equals(once.batch)
    assert whole.counts() == parts.counts()
    assert whole.transactions == parts.transactions == 1
    assert whole.dictionaries(may_grow=False) == parts.dictionaries(may_grow=False)
    assert sum(part.bytes_between(0, len(part)) for part in cut) == once.bytes_between(
        0, len(values)
    )


def test_a_slice_of_a_larger_batch_is_encoded_as_the_same_rows_alone() -> None:
    values = [(f"t{row % 3}", str(row), [f"c{row % 5}"], b"%d" % row) for row in range(3 * FEW)]
    for start, stop in ((0, FEW), (FEW, 3 * FEW), (FEW + 1, FEW + 2)):
        part = RowsEncoder().encode(batch_of(values).slice(start, stop - start))
        alone = RowsEncoder().encode(batch_of(values[start:stop], start))
        assert part.batch.equals(alone.batch)
        assert part.ends.tolist() == alone.ends.tolist()


def test_a_batch_ends_at_the_bound_that_comes_first() -> None:
    each = sized(0).bytes_between(0, 1)
    rows = sized(10, 10, 500, 10)
    assert rows.end_of_batch(0, rows_max=1, bytes_max=10**6) == 1
    assert rows.end_of_batch(0, rows_max=9, bytes_max=10**6) == 4
    assert rows.end_of_batch(0, rows_max=9, bytes_max=2 * (each + 10)) == 2
    assert rows.end_of_batch(0, rows_max=9, bytes_max=2 * (each + 10) - 1) == 1
    assert rows.end_of_batch(2, rows_max=9, bytes_max=each + 499) == 2, "the row alone is too large"


def test_a_slice_measures_its_own_rows() -> None:
    rows = sized(1, 20, 300, 4_000)
    part = rows.slice(1, 4).slice(1, 3)
    assert part.column("after").to_pylist() == [b"x" * 300, b"x" * 4_000]
    assert [part.bytes_between(0, 1), part.bytes_between(1, 2)] == [
        rows.bytes_between(2, 3),
        rows.bytes_between(3, 4),
    ]
    one = part.bytes_between(0, 1)
    assert part.end_of_batch(0, rows_max=9, bytes_max=one) == 1


def test_a_dictionary_that_may_grow_is_never_empty() -> None:
    """Arrow lets a dictionary grow in a file only if the file has one already."""
    encoder = RowsEncoder()
    encoder.encode(batch_of([(None, None, None, None)]))
    assert [each.to_pylist() for each in encoder.dictionaries(may_grow=False)] == [[], []]
    assert [each.to_pylist() for each in encoder.dictionaries(may_grow=True)] == [[""], [""]]
    encoder.encode(batch_of([("order", "1", None, None)], 1))
    assert encoder.dictionaries(may_grow=True)[0].to_pylist() == ["", "order"]
    assert encoder.counts() == {"order": 1}


@pytest.mark.parametrize("count", [2, FEW + 2])
def test_refused_rows_are_named_with_those_before_them(count: int) -> None:
    encoder = RowsEncoder()
    encoder.encode(batch_of([("t", "1", None, None)] * 3))
    with pytest.raises(ValueError, match=r"consecutive: \(0, 2\) is followed by \(0, 4\)"):
        encoder.encode(batch_of([("t", "1", None, None)] * count, 4))
