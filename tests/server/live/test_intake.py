"""The intake: refill's three outcomes, and moves between live and resync without gap or repeat."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.position import END, Position
from tailrace_server.live.intake import Intake, Mode, RefillResult
from tailrace_server.live.ring import Ring, RingBudget
from tailrace_server.log_cache.catalog_reader import Scan
from tailrace_server.rows.run import Mark, SafePoint
from tests.support.runs import column_run, entity_run, position_of

BEFORE_ALL = SafePoint(0, 0, END)


def ring(captures_max: int = 1000) -> Ring:
    return Ring(0, RingBudget(1 << 30), captures_max=captures_max, bytes_max=1 << 20)


def drain(intake: Intake) -> list[tuple[int, int]]:
    """Deliver the whole queue and return the marks that came."""
    found = []
    while intake.queue:
        first = intake.queue[0]
        mark = first.run.mark(first.start)
        found.append((mark.row, mark.ordinal))
        intake.deliver(1, (*position_of(mark.row), mark.ordinal))
    return found


def test_a_start_at_the_end_waits_and_is_live() -> None:
    intake = Intake(Mark(5), BEFORE_ALL, captures_max=10)
    assert intake.refill(ring(), routed=5) is RefillResult.CAUGHT_UP
    assert intake.mode is Mode.LIVE
    assert intake.resyncs == 0


def test_a_start_inside_the_ring_never_reads_the_log() -> None:
    subject = ring()
    subject.append(entity_run(0, [0, 1, 2]))
    intake = Intake(Mark(1), BEFORE_ALL, captures_max=10)
    assert intake.refill(subject, routed=3) is RefillResult.FILLED
    assert drain(intake) == [(1, 0), (2, 0)]


def test_contract_05_a_queue_of_4_gives_all_10_captures_of_one_record() -> None:
    subject = ring()
    subject.append(column_run(0, [(0, ordinal) for ordinal in range(10)]))
    intake = Intake(Mark(0), BEFORE_ALL, captures_max=4)
    found = []
    while intake.refill(subject, routed=1) is RefillResult.FILLED:
        assert intake.queued <= 4
        found += drain(intake)
    assert found == [(0, ordinal) for ordinal in range(10)]
    assert intake.matched == 1


def test_a_run_that_would_have_to_be_cut_waits_until_the_queue_is_empty() -> None:
    subject = ring()
    for first in (0, 3, 6):
        subject.append(entity_run(first, [0, 1, 2]))
    intake = Intake(Mark(0), BEFORE_ALL, captures_max=5)
    for first in (0, 3, 6):
        assert intake.refill(subject, routed=9) is RefillResult.FILLED
        assert drain(intake) == [(first, 0), (first + 1, 0), (first + 2, 0)]
    assert intake.refill(subject, routed=9) is RefillResult.CAUGHT_UP


def test_contract_14_an_overrun_is_made_good_from_the_log_at_the_same_mark() -> None:
    subject = ring(captures_max=4)
    intake = Intake(Mark(0), BEFORE_ALL, captures_max=100)
    assert intake.refill(subject, routed=0) is RefillResult.CAUGHT_UP
    runs = [entity_run(first, [0]) for first in range(20)]
    for run in runs:
        subject.append(run)
    assert intake.refill(subject, routed=20) is RefillResult.OVERRUN
    assert intake.mode.value == "resync"
    intake.accept(Scan(tuple(runs[:18]), 0, 18, position_of(17), 0))
    assert intake.refill(subject, routed=20) is RefillResult.FILLED
    assert drain(intake) == [(row, 0) for row in range(20)]
    assert (intake.mode, intake.resyncs, intake.returns) == (Mode.LIVE, 1, 1)


def test_contract_14_a_ring_that_begins_behind_what_is_routed_leaves_what_is_before_it_to_the_log() -> (
    None
):
    """As that of a publisher which is opened while a batch is routed."""
    subject = ring()
    subject.skip_to(8)
    intake = Intake(Mark(5), BEFORE_ALL, captures_max=10)
    assert intake.refill(subject, routed=4) is RefillResult.BEHIND
    intake.accept(Scan((entity_run(4, [1, 2]),), 4, 8, position_of(7), 0))
    assert drain(intake) == [(5, 0), (6, 0)]
    assert intake.refill(subject, routed=4) is RefillResult.CAUGHT_UP
    assert intake.refill(subject, routed=8) is RefillResult.CAUGHT_UP
    assert intake.resyncs == 0


def test_who_is_live_is_overrun_only_by_what_was_pushed_out_for_want_of_room() -> None:
    subject = ring(captures_max=4)
    intake = Intake(Mark(0), BEFORE_ALL, captures_max=100)
    assert intake.refill(subject, routed=0) is RefillResult.CAUGHT_UP
    subject.append(entity_run(0, [0, 1]))
    subject.append(entity_run(2, [0]))
    # 1. A segment has gone, and a stretch could not be routed: no fault of the reader's.
    subject.forget_segment(entity_run(0, [0]).batch.segment.path)
    assert intake.refill(subject, routed=3) is RefillResult.BEHIND
    intake.accept(Scan((), 0, 3, position_of(2), 0))
    assert intake.refill(subject, routed=3) is RefillResult.CAUGHT_UP
    subject.skip_to(9)
    assert intake.refill(subject, routed=9) is RefillResult.BEHIND
    intake.accept(Scan((), 0, 9, position_of(8), 0))
    assert intake.refill(subject, routed=9) is RefillResult.CAUGHT_UP
    # 2. A run that the ring has no room for.
    subject.append(entity_run(9, [0, 1, 2, 3, 4]))
    assert intake.refill(subject, routed=14) is RefillResult.OVERRUN
    assert intake.refill(subject, routed=14) is RefillResult.BEHIND


def test_put_back_asks_for_the_queue_again() -> None:
    subject = ring()
    subject.append(entity_run(0, [0, 1, 2]))
    intake = Intake(Mark(0), BEFORE_ALL, captures_max=10)
    intake.refill(subject, routed=3)
    intake.deliver(1, (*position_of(0), 0))
    intake.put_back()
    assert intake.next == Mark(1)
    assert intake.queued == 0


def test_contract_09_putting_the_queue_back_leaves_the_safe_point_where_it_was() -> None:
    subject = ring()
    subject.skip_to(20)
    intake = Intake(Mark(0), BEFORE_ALL, captures_max=10)
    intake.accept(Scan((entity_run(0, [0, 1]), entity_run(4, [0, 3])), 0, 20, position_of(19), 0))
    for row in (0, 1):
        intake.deliver(1, (*position_of(row), 0))
    before = intake.safe_point(subject, 20, position_of(19))
    assert before == SafePoint(4, *position_of(4).preceding())
    intake.put_back()
    assert intake.safe_point(subject, 20, position_of(19)) == before


def test_contract_09_the_safe_point_stands_just_before_the_first_match_not_handed_over() -> None:
    subject = ring()
    subject.append(entity_run(0, [7, 9], rows=10))
    intake = Intake(Mark(0), BEFORE_ALL, captures_max=10)
    at_seven = SafePoint(7, *position_of(7).preceding())
    assert intake.safe_point(subject, 10, position_of(9)) == at_seven
    intake.refill(subject, routed=10)
    assert intake.safe_point(subject, 10, position_of(9)) == at_seven
    intake.deliver(1, (*position_of(7), 0))
    assert intake.safe_point(subject, 10, position_of(9)) == SafePoint(8, *position_of(7), 0)
    intake.deliver(1, (*position_of(9), 0))
    assert intake.safe_point(subject, 30, position_of(29)) == SafePoint(30, *position_of(29))


def test_contract_09_a_safe_point_that_was_told_outlives_an_overrun() -> None:
    """The stretch before it has no match and may be gone from the log: nobody needs it again."""
    subject = ring(captures_max=1)
    intake = Intake(Mark(0), BEFORE_ALL, captures_max=10)
    told = intake.safe_point(subject, 20, position_of(19))
    assert told == SafePoint(20, *position_of(19))
    subject.append(entity_run(20, [0, 1]))  # more than the ring holds
    assert intake.safe_point(subject, 22, position_of(21)) == told
    assert intake.refill(subject, routed=22) is RefillResult.BEHIND
    assert intake.next == Mark(20)


@given(
    matches=st.lists(st.integers(0, 199), unique=True).map(sorted),
    ring_size=st.integers(1, 30),
    queue=st.integers(1, 20),
    reads=st.lists(st.integers(0, 40), max_size=60),
    window=st.integers(1, 25),
    start=st.integers(0, 200),
    looks=st.sets(st.integers(0, 199)),
)
def test_contract_01_14_any_pace_gets_every_match_once_in_order(
    matches: list[int],
    ring_size: int,
    queue: int,
    reads: list[int],
    window: int,
    start: int,
    looks: set[int],
) -> None:
    """One batch a row is routed; between them the reader takes as many captures as it likes, and looks."""
    subject = ring(ring_size)
    intake = Intake(Mark(start), SafePoint(start, 0, END), captures_max=queue)
    found: list[int] = []
    told = SafePoint(0, 0, 0)

    def read(count: int, routed: int) -> None:
        while count:
            if intake.queue:
                first = intake.queue[0]
                mark = first.run.mark(first.start)
                intake.deliver(1, (*position_of(mark.row), 0))
                found.append(mark.row)
                count -= 1
                continue
            match intake.refill(subject, routed):
                case RefillResult.CAUGHT_UP:
                    return
                case RefillResult.OVERRUN | RefillResult.BEHIND:
                    first_row = intake.next.row - intake.next.row % window
                    end = min(first_row + window, routed)
                    runs = [entity_run(row, [0]) for row in matches if first_row <= row < end]
                    intake.accept(Scan(tuple(runs), first_row, end, position_of(end - 1), 0))
                case RefillResult.FILLED:
                    pass

    for row in range(200):
        if row in matches:
            subject.append(entity_run(row, [0]))
        if row in looks:
            safe = intake.safe_point(subject, row + 1, position_of(row))
            assert not [each for each in matches if start <= each < safe.rows and each not in found]
            assert safe >= told
            told = safe
        if row < len(reads):
            read(reads[row], row + 1)
    read(1000, 200)
    assert found == [row for row in matches if row >= start]
    assert intake.safe_point(subject, 200, Position(50, 0)).rows == 200
