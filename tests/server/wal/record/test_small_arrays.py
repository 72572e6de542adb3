"""Small arrays are those that numpy's own constructors make."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.wal.record.text_columns import SMALL_LENGTH, int32s, int64s, repeated


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=SMALL_LENGTH + 2))
def test_numbers_are_kept_in_their_width(numbers: list[int]) -> None:
    for made, kind in ((int32s(numbers), np.int32), (int64s(numbers), np.int64)):
        assert made.dtype == kind
        assert made.tolist() == numbers


def test_a_number_is_repeated_on_both_sides_of_the_bound() -> None:
    for count in (0, 1, SMALL_LENGTH, SMALL_LENGTH + 1):
        made = repeated(2**62, count)
        assert (made.dtype, made.tolist()) == (np.dtype(np.int64), [2**62] * count)
