"""Versions and running numbers of a commit's segments. What a log shows of them: test_commit_log.py."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_server.wal.segment.carried import carried_segment
from tailrace_server.wal.segment.writer import SegmentReceipt
from tailrace_server.wal.state.batch_table import (
    FIRST_INDEX,
    FIRST_VERSION,
    LAST_VERSION,
    RECEIPT_FIELDS,
    ROWS,
    carried_records,
    place_segments,
)

LEAD: list[list[Any]] = [[0], [0], [3], [3], *([None] for _ in range(6))]


def receipt(*batches: tuple[int, int], continues: bool = False, path: str = "p") -> SegmentReceipt:
    """Return a segment whose batches have rows, and transactions that are not shared with others."""
    made: list[tuple[int, ...]] = []
    version = 0
    for rows, transactions in batches:
        numbers = [0] * RECEIPT_FIELDS
        numbers[ROWS] = rows
        numbers[FIRST_VERSION] = version
        numbers[FIRST_INDEX] = int(continues and not made)
        version += transactions
        numbers[LAST_VERSION] = version - 1
        made.append(tuple(numbers))
    rows = sum(numbers[ROWS] for numbers in made)
    return SegmentReceipt(path, rows, 9, version, continues, {"order": rows}, tuple(made), ())


segments = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4),
    ),
    max_size=4,
)


@given(segments, st.integers(0, 10**9), st.integers(0, 10**12))
@settings(max_examples=30)
def test_versions_and_rows_go_on_without_gaps(
    chosen: list[tuple[bool, list[tuple[int, int]]]], last_version: int, end_row: int
) -> None:
    receipts = [
        receipt(*batches, continues=continues and place > 0)
        for place, (continues, batches) in enumerate(chosen)
    ]
    for each, placed in zip(
        receipts, place_segments(receipts, last_version, end_row, entry=5), strict=True
    ):
        first = last_version + (not each.continues)
        assert placed.base_version == placed.first[0] == first
        assert placed.last[0] == first + each.transactions - 1
        for version, last, rows, row in zip(
            *(
                placed.batches[name]
                for name in ("first_version", "last_version", "rows", "first_row")
            ),
            strict=True,
        ):
            assert version == last_version + (not each.continues or version != first)
            assert row == end_row
            last_version, end_row = last, end_row + rows


def test_what_continues_needs_a_segment_before_it() -> None:
    with pytest.raises(ValueError, match="p continues a transaction, but no segment comes before"):
        place_segments([receipt((2, 1), continues=True)], 3, 9, entry=5)


def test_records_without_a_path_are_in_the_entry_that_carries_them() -> None:
    carried = carried_segment(LEAD)
    data, receipts = carried_records([carried, receipt((1, 1))])
    assert data == carried.data
    placed = place_segments(receipts, 0, 0, entry=12)
    assert [segment.path for segment in placed] == ["log/00000000000000000012.json", "p"]
    assert carried_records([receipt((1, 1))])[0] == b""


def test_only_the_first_segment_is_carried() -> None:
    with pytest.raises(AssertionError, match="carries one segment, its first"):
        carried_records([receipt((1, 1)), carried_segment(LEAD)])
