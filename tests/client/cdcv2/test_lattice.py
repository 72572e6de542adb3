"""The order of times, as laws that both kinds of time obey."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdcv2 import INTEGERS, InvalidStatement, Lattice, antichain, product
from tailrace.cdcv2.lattice import TIME_MAX, reaches
from tests.client.cdcv2.histories import LATTICES, PAIRS, TIMES


@given(LATTICES, st.data())
def test_the_join_is_the_earliest_time_at_or_after_both(
    lattice: Lattice[Any], data: st.DataObject
) -> None:
    a, b, c = (data.draw(TIMES[lattice.name]) for _ in range(3))
    join = lattice.join(a, b)
    assert lattice.less_equal(a, join)
    assert lattice.less_equal(b, join)
    if lattice.less_equal(a, c) and lattice.less_equal(b, c):
        assert lattice.less_equal(join, c)


@given(LATTICES, st.data())
def test_a_time_that_is_before_another_sorts_before_it(
    lattice: Lattice[Any], data: st.DataObject
) -> None:
    a, b = (data.draw(TIMES[lattice.name]) for _ in range(2))
    if a != b and lattice.less_equal(a, b):
        assert not lattice.less_equal(b, a)
        assert sorted([b, a], key=lattice.order) == [a, b]


@given(LATTICES, st.data())
def test_an_antichain_reaches_what_its_times_reach(
    lattice: Lattice[Any], data: st.DataObject
) -> None:
    times = data.draw(st.lists(TIMES[lattice.name], max_size=6))
    found = antichain(lattice, times)
    assert list(found) == sorted(set(found), key=lattice.order)
    assert not any(lattice.less_equal(a, b) for a in found for b in found if a != b)
    for time in [*times, data.draw(TIMES[lattice.name])]:
        assert reaches(lattice, found, time) == any(lattice.less_equal(t, time) for t in times)


@given(LATTICES, st.data())
def test_times_come_back_from_json(lattice: Lattice[Any], data: st.DataObject) -> None:
    time = data.draw(TIMES[lattice.name])
    assert lattice.from_json(lattice.to_json(time)) == time
    assert lattice.less_equal(lattice.minimum, time)


@pytest.mark.parametrize(
    ("time", "reason"),
    [
        (-1, "outside 0 to"),
        (TIME_MAX + 1, "outside 0 to"),
        (True, "is not an integer"),
        (1.0, "is not an integer"),
        (None, "is not an integer"),
    ],
)
def test_what_is_no_coordinate_is_refused(time: object, reason: str) -> None:
    with pytest.raises(InvalidStatement, match=reason):
        INTEGERS.check(time)
    with pytest.raises(InvalidStatement, match=reason):
        PAIRS.check((0, time))


@pytest.mark.parametrize("time", [0, (0,), (0, 0, 0), [0, 0]])
def test_a_product_time_has_all_its_coordinates(time: object) -> None:
    with pytest.raises(InvalidStatement, match="not a tuple of 2 integers"):
        PAIRS.check(time)


def test_a_product_has_coordinates() -> None:
    with pytest.raises(ValueError, match="no times"):
        product(0)
