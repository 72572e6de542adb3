"""What is kept of a table's due rows: the last word of each, and those that are due first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.pipeline.catalog.due_times import NEVER, DueRows

if TYPE_CHECKING:
    from collections.abc import Sequence

words = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from((1, 2, 3, NEVER))), max_size=6),
    max_size=8,
)


def say(rows: DueRows, said: Sequence[tuple[int, int]]) -> None:
    hashes, due = zip(*said, strict=True) if said else ((), ())
    rows.say(np.array(hashes, np.uint64), np.array(due, np.int64))


@given(words)
def test_the_last_word_of_a_row_counts(said: list[list[tuple[int, int]]]) -> None:
    rows, known = DueRows(), dict[int, int]()
    for each in said:
        say(rows, each)
        known.update(each)
        for now in (0, 2, 3):
            assert rows.until(now).tolist() == sorted(k for k, due in known.items() if due <= now)
        assert rows.first == min(known.values(), default=NEVER)


@given(words)
def test_above_the_bound_none_is_missing_before_the_horizon(
    said: list[list[tuple[int, int]]],
) -> None:
    rows, known = DueRows(4), dict[int, int]()
    for each in said:
        say(rows, each)
        known.update(each)
        assert len(rows) <= 4
        before = [k for k, due in known.items() if due < rows.horizon]
        assert {*rows.until(rows.horizon - 1).tolist()} == {*before}
    rows.clear()
    assert (len(rows), rows.horizon) == (0, NEVER)
