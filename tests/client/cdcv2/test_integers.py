"""The timeline of integers, against the one that serves any lattice."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cdcv2 import INTEGERS
from tailrace.cdcv2.lattice import TIME_MAX
from tailrace.cdcv2.timeline import INTERVALS_MAX, IntegerTimeline, LatticeTimeline
from tests.client.cdcv2.histories import TIMES, Interval, intervals


@settings(max_examples=150)
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


def test_intervals_that_touch_are_joined_where_there_are_very_many() -> None:
    timeline = IntegerTimeline((0,))
    timeline.add(0)
    for time in range(2 * INTERVALS_MAX):
        timeline.cover((time,), (time + 1,), time)
        assert timeline.advance(lambda _: False) == []
    assert timeline.announced == (2 * INTERVALS_MAX,)
    assert len(timeline.intervals()) <= INTERVALS_MAX
    assert timeline.covering(17) == ((0,), (INTERVALS_MAX + 1,), None)


def test_only_the_uncovered_parts_of_an_interval_are_kept() -> None:
    timeline = IntegerTimeline((0,))
    timeline.add(0)
    timeline.cover((4,), (6,), "middle")
    timeline.cover((8,), (), "end")
    timeline.cover((0,), (9,), "all")
    assert timeline.intervals() == [
        ((0,), (4,), "all"),
        ((4,), (6,), "middle"),
        ((6,), (8,), "all"),
        ((8,), (), "end"),
    ]
    assert timeline.announced == ()
    assert timeline.advance(lambda _: True) == [0]
    assert (timeline.finished, timeline.intervals()) == ((), [])


def test_the_last_time_is_before_the_end_of_time() -> None:
    timeline = IntegerTimeline((TIME_MAX,))
    assert not timeline.is_finished(TIME_MAX)
    assert timeline.holder((0,), ())(TIME_MAX)
    timeline.cover((0,), (), "end")
    assert timeline.covering(TIME_MAX) == ((TIME_MAX,), (), "end")
    assert timeline.holes() == []
