"""What a writer writes, mangled in any way, reads back equal."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cdcv2 import Progress, Reader, read
from tailrace.cdcv2.lattice import reaches
from tests.client.cdcv2.histories import Case, cases
from tests.support.mangle import history_of, mangle


@settings(max_examples=150, deadline=None)
@given(cases())
def test_contract_40_41_any_mangling_of_any_writers_reads_back_equal(case: Case) -> None:
    """Also of several writers of one history at once, each with its own batches, killed and restarted."""
    lattice, order = case.lattice, case.lattice.order
    reader = Reader(lattice)
    finished = []
    for message in mangle(case.statements, case.chance):
        before = reader.frontier
        for piece in reader.receive(message):
            assert piece.frontier == reader.frontier != before
            keys = [order(update.time) for update in piece.updates]
            assert keys == sorted(keys)
            assert all(reaches(lattice, before, update.time) for update in piece.updates)
            finished.append(piece)
        # At every moment: exactly the history of the times that the frontier has passed.
        passed = {
            at: diff
            for at, diff in case.history.items()
            if not reaches(lattice, reader.frontier, at[1])
        }
        assert history_of(finished) == passed
    assert reader.closed
    assert reader.frontier == ()
    assert reader.why_waiting() == []
    assert history_of(finished) == case.history
    assert reader.statistics().held_updates == reader.statistics().held_times == 0


@settings(max_examples=50, deadline=None)
@given(cases(), st.integers(1, 9))
def test_contract_40_a_reader_saved_and_restored_at_any_message_goes_on(
    case: Case, every: int
) -> None:
    reader: Reader[Any] = Reader(case.lattice)
    finished = []
    for i, message in enumerate(mangle(case.statements, case.chance)):
        finished += reader.receive(message)
        if i % every == 0:
            waiting, figures = reader.why_waiting(), reader.statistics()
            reader = Reader.restore(reader.save(), case.lattice)
            assert reader.why_waiting() == waiting
            assert reader.statistics() == figures
    assert reader.closed
    assert history_of(finished) == case.history


@settings(max_examples=50, deadline=None)
@given(cases())
def test_pulling_ends_with_the_stream_and_leaves_the_rest(case: Case) -> None:
    messages = iter(mangle(case.statements, case.chance))
    finished = list(read(messages, case.lattice))
    assert finished[-1].frontier == ()
    assert history_of(finished) == case.history
    reader = Reader(case.lattice)
    for message in case.statements:
        reader.receive(message)
    assert list(read(messages, reader=reader)) == []


@settings(max_examples=50, deadline=None)
@given(cases())
def test_contract_41_a_writers_intervals_tile_time_and_its_updates_are_consolidated(
    case: Case,
) -> None:
    """Each message by itself: no zero, no (data, time) with two diffs, counts that are those written."""
    diffs: dict[tuple[object, Any], int] = {}
    for statement in case.statements:
        if not isinstance(statement, Progress):
            for data, time, diff in statement:
                assert diff != 0
                assert diffs.setdefault((data, time), diff) == diff
    for statement in case.statements:
        if isinstance(statement, Progress):
            for time, count in statement.counts:
                assert count == sum(at[1] == time for at in diffs)
