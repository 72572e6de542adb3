"""Frontiers of any lattice, against a grid on which every time is looked at."""

from __future__ import annotations

from itertools import product as pairs

from hypothesis import given, settings

from tailrace.cdcv2.lattice import reaches
from tailrace.cdcv2.timeline import LatticeTimeline
from tests.client.cdcv2.histories import PAIRS, Interval, intervals


@settings(max_examples=150)
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
