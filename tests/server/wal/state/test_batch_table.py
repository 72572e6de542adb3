"""Look-ups in the tables. Against whole logs: test_commit_log.py; of segments: test_segment_table.py."""

from __future__ import annotations

import pytest

from tailrace.position import Position
from tailrace_server.wal.segment.refs import SegmentRef
from tailrace_server.wal.state.batch_table import (
    BATCH_FIELDS,
    BatchTable,
    batch_ref,
    end_of_rows,
    find_position,
    find_row,
)

ROWS = 4
"""Of each batch; a version has six, so every third batch ends where a version does."""


def table(batches: int) -> BatchTable:
    """Return a table of batches that are segments of their own."""
    made = BatchTable()
    for place in range(batches):
        first, last = ROWS * place, ROWS * (place + 1) - 1
        values = dict.fromkeys(BATCH_FIELDS, 0)
        values |= {"offset": place, "rows": ROWS, "first_row": first}
        values |= {"first_version": first // 6 + 1, "first_index": first % 6}
        values |= {"last_version": last // 6 + 1, "last_index": last % 6}
        made.append_batch(SegmentRef(f"s{place}", 0, (), rows=ROWS), values.values())
    return made


def test_every_row_and_every_position_is_found_in_its_batch() -> None:
    made = table(9)
    for row in range(9 * ROWS):
        position = Position(row // 6 + 1, row % 6)
        assert find_row(made.columns, 9, row) == row // ROWS
        assert find_position(made.columns, 9, position) == row // ROWS
    assert find_row(made.columns, 9, 9 * ROWS) == 9
    assert find_position(made.columns, 9, Position(7, 0)) == 9
    assert (find_row(made.columns, 9, -1), find_row(made.columns, 0, 5)) == (0, 0)


def test_a_view_of_fewer_batches_finds_none_of_the_later_ones() -> None:
    made = table(9)
    assert find_row(made.columns, 5, 8 * ROWS) == 5
    assert end_of_rows(made, 5, 1_000) == 5 * ROWS
    assert end_of_rows(made, 9, 9 * ROWS) == 9 * ROWS


@pytest.mark.parametrize("border", [0, 4, 9])
def test_a_table_that_is_cut_and_joined_is_the_same(border: int) -> None:
    made = table(9)
    joined = made.slice(0, border)
    joined.extend(made.slice(border))
    assert len(joined) == 9
    for place in range(9):
        found = batch_ref(joined.segments, joined.columns, place)
        assert found == batch_ref(made.segments, made.columns, place)
        assert found.key == (f"s{place}", place)
