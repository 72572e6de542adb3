"""What a single statement may say; that readers refuse the rest is tested in `test_conflicts.py`."""

from __future__ import annotations

import pytest

from tailrace.cdcv2 import INTEGERS, InvalidStatement, Progress, product
from tailrace.cdcv2.statements import LONG_LIMIT, checked_counts, checked_diff, checked_interval


@pytest.mark.parametrize("diff", [1, -1, LONG_LIMIT - 1, -LONG_LIMIT])
def test_a_diff_is_any_long_but_zero(diff: int) -> None:
    assert checked_diff(diff, "a", 0) == diff


@pytest.mark.parametrize("diff", [LONG_LIMIT, -LONG_LIMIT - 1, True, 1.0, "1", None])
def test_a_diff_beyond_a_long_is_refused_with_its_record_and_time(diff: object) -> None:
    with pytest.raises(InvalidStatement, match=r"'a' at time 7: diff .* is not a 64-bit integer"):
        checked_diff(diff, "a", 7)  # type: ignore[arg-type]


def test_a_diff_of_zero_is_refused() -> None:
    with pytest.raises(InvalidStatement, match="'a' at time 7: a diff of zero"):
        checked_diff(0, "a", 7)


def test_bounds_of_an_interval_are_reduced_to_antichains() -> None:
    pairs = product(2)
    progress: Progress[tuple[int, ...]] = Progress(
        ((1, 0), (0, 0), (0, 0)), ((3, 3), (0, 4), (4, 4))
    )
    assert checked_interval(pairs, progress) == (((0, 0),), ((0, 4), (3, 3)))
    assert checked_interval(INTEGERS, Progress((3,), (3,))) == ((3,), (3,))
    assert checked_interval(INTEGERS, Progress((3,), ())) == ((3,), ())
    assert checked_interval(INTEGERS, Progress((), ())) == ((), ())


def test_an_upper_bound_is_not_before_the_lower() -> None:
    with pytest.raises(InvalidStatement, match=r"upper \[2\] is not at or after lower \[3\]"):
        checked_interval(INTEGERS, Progress((3,), (2,)))
    beside: Progress[tuple[int, ...]] = Progress(((1, 0),), ((0, 5),))
    with pytest.raises(InvalidStatement, match=r"upper \[\(0, 5\)\] is not at or after"):
        checked_interval(product(2), beside)
    with pytest.raises(InvalidStatement, match=r"upper \[2\] is not at or after lower \[\]"):
        checked_interval(INTEGERS, Progress((), (2,)))


def counts(*listed: tuple[int, object]) -> dict[int, int]:
    progress = Progress((2,), (5,), listed)  # type: ignore[arg-type]
    return checked_counts(INTEGERS, progress, range(2, 5).__contains__)


def test_counts_of_zero_are_left_out_and_equal_ones_may_be_listed_twice() -> None:
    assert counts((2, 1), (3, 0), (2, 1)) == {2: 1}


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        ([(1, 1)], "count 1 of time 1 lies outside"),
        ([(5, 0)], "count 0 of time 5 lies outside"),
        ([(2, -1)], "is outside 0 to"),
        ([(2, LONG_LIMIT)], "is outside 0 to"),
        ([(2, True)], "count True of time 2 is outside"),
        ([(2, 1), (2, 2)], "time 2 has two counts, 1 and 2"),
        ([(2, 0), (2, 2)], "time 2 has two counts, 0 and 2"),
    ],
)
def test_a_count_that_none_may_state_is_refused(
    listed: list[tuple[int, object]], reason: str
) -> None:
    with pytest.raises(InvalidStatement, match=reason):
        counts(*listed)
