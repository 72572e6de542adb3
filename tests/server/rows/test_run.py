"""Runs and selections: places of captures by mark; the model tests of rings and intakes use them, too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.rows.run import NO_MATCH, Mark, Run, whole_batch
from tests.support.runs import batch_ref, column_run, position_of

captures = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, unique=True).map(
    sorted
)
marks = st.tuples(st.integers(-1, 8), st.integers(0, 4))


@given(captures=captures, mark=marks)
def test_a_mark_finds_the_first_capture_at_or_after_it(
    captures: list[tuple[int, int]], mark: tuple[int, int]
) -> None:
    run = column_run(100, captures)
    expected = sum(each < mark for each in captures)
    assert run.place_of(Mark(100 + mark[0], mark[1])) == expected
    for place, (offset, ordinal) in enumerate(captures):
        assert run.mark(place) == (100 + offset, ordinal)
        assert run.place_of(run.mark(place)) == place
    assert (run.first_row, run.last_row) == (100 + captures[0][0], 100 + captures[-1][0])


@given(captures=captures, data=st.data())
def test_records_of_a_part_are_counted_once(
    captures: list[tuple[int, int]], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(captures) - 1))
    stop = data.draw(st.integers(start + 1, len(captures)))
    selection = column_run(0, captures).selection
    expected = len({offset for offset, _ in captures[start:stop]})
    assert selection.records(start, stop) == expected


@pytest.mark.parametrize("rows", [1, 48, 49, 1 << 16, (1 << 16) + 1])
def test_the_selection_of_a_whole_batch_has_every_row_and_no_identity(rows: int) -> None:
    selection = whole_batch(rows)
    assert selection.identity is None
    assert np.array_equal(selection.rows, np.arange(rows))


def test_a_whole_batch_is_charged_for_no_rows() -> None:
    whole = Run(batch_ref(0, 1_000), whole_batch(1_000), position_of(0))
    part = column_run(0, [(offset, 0) for offset in range(999)], 1_000)
    assert whole.nbytes < part.nbytes - 4 * 999
    assert not len(NO_MATCH)
