"""Frontiers against a grid on which every time is looked at."""

from __future__ import annotations

from itertools import product as pairs
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cdcv2 import INTEGERS, antichain
from tailrace.cdcv2.integers import INTERVALS_MAX, IntegerTimeline
from tailrace.cdcv2.lattice import reaches
from tailrace.cdcv2.timeline import LatticeTimeline
from tests.client.cdcv2.histories import PAIRS, TIMES

Interval = tuple[tuple[Any, ...], tuple[Any, ...]]


@st.composite
def intervals(draw: st.DrawFn, name: str) -> list[Interval]:
    lattice: Any = INTEGERS if name == INTEGERS.name else PAIRS
    bounds = st.sets(TIMES[name], min_size=1, max_size=3)
    drawn = []
    for lows, highs in draw(st.lists(st.tuples(bounds, bounds), max_size=8)):
        lower = antichain(lattice, lows)
        upper = antichain(lattice, (lattice.join(low, high) for low in lower for high in highs))
        drawn.append((lower, () if draw(st.booleans()) and draw(st.booleans()) else upper))
    return drawn


@settings(max_examples=150, deadline=None)
@given(intervals(PAIRS.name))
def test_a_partial_order_is_announced_up_to_its_earliest_uncovered_times(
    drawn: list[Interval],
) -> None:
    """Also where two intervals cover the frontier together, and neither does alone."""
    timeline = LatticeTimeline(PAIRS, (PAIRS.minimum,))
    for i, (lower, upper) in enumerate(drawn):
        if not timeline.is_past(lower, upper):
            timeline.cover(lower, upper, i)
        timeline.advance(lambda _: True)
    grid = list(pairs(range(6), range(6)))
    covered = {
        time
        for time in grid
        for lower, upper in drawn
        if reaches(PAIRS, lower, time) and not reaches(PAIRS, upper, time)
    }
    for time in grid:
        # The grid holds all that is before any of its times.
        below = [each for each in grid if PAIRS.less_equal(each, time)]
        assert reaches(PAIRS, timeline.announced, time) == any(b not in covered for b in below)
        if reaches(PAIRS, timeline.finished, time):
            assert (timeline.covering(time) is not None) == (time in covered)


@settings(max_examples=150, deadline=None)
@given(intervals(INTEGERS.name), st.sets(TIMES[INTEGERS.name]), st.sets(TIMES[INTEGERS.name]))
def test_integers_behave_as_any_lattice(
    drawn: list[Interval], known: set[int], incomplete: set[int]
) -> None:
    fast, plain = IntegerTimeline((0,)), LatticeTimeline(INTEGERS, (0,))
    for time in known:
        fast.add(time)
        plain.add(time)
    for i, (lower, upper) in enumerate(drawn):
        assert fast.is_past(lower, upper) == plain.is_past(lower, upper)
        if fast.is_past(lower, upper):
            continue
        assert fast.known_in(lower, upper) == sorted(plain.known_in(lower, upper))
        fast.cover(lower, upper, i)
        plain.cover(lower, upper, i)
        assert fast.announced == plain.announced
        passed = fast.advance(lambda time: time not in incomplete)
        assert passed == plain.advance(lambda time: time not in incomplete)
        assert fast.finished == plain.finished
        for time in range(14):
            assert fast.is_finished(time) == plain.is_finished(time)
            if not fast.is_finished(time):
                assert (fast.covering(time) is None) == (plain.covering(time) is None)
        assert fast.holes()[:1] == plain.holes()


def test_two_intervals_side_by_side_cover_a_frontier_together() -> None:
    """The published rule, which joins an interval only if its lower is before the whole frontier, stalls."""
    timeline = LatticeTimeline(PAIRS, (PAIRS.minimum,))
    frontiers = [((0, 1), (1, 0)), ((0, 1), (2, 0)), ((2, 0),)]
    drawn: list[Interval] = [
        (((0, 0),), ((0, 1), (1, 0))),
        (((1, 0),), ((2, 0),)),
        (((0, 1),), ((2, 0),)),
    ]
    for i, (lower, upper) in enumerate(drawn):
        timeline.cover(lower, upper, i)
        assert timeline.announced == frontiers[i]


def test_intervals_that_touch_are_joined_where_there_are_very_many() -> None:
    timeline = IntegerTimeline((0,))
    timeline.add(0)
    for time in range(2 * INTERVALS_MAX):
        timeline.cover((time,), (time + 1,), time)
        assert timeline.advance(lambda _: False) == []
    assert timeline.announced == (2 * INTERVALS_MAX,)
    assert len(timeline.intervals()) <= INTERVALS_MAX
    assert timeline.covering(17) == ((0,), (INTERVALS_MAX + 1,), None)
