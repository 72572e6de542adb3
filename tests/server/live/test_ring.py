"""The ring: bounds, the interval that it covers, and what it forgets."""

from __future__ import annotations

import gc
import weakref

import pytest

from tailrace_server.live.ring import Ring, RingBudget
from tailrace_server.rows.run import Mark
from tests.support.runs import entity_run


def ring(captures_max: int = 1000, bytes_max: int = 1 << 20, budget: int = 1 << 30) -> Ring:
    return Ring(0, RingBudget(budget), captures_max=captures_max, bytes_max=bytes_max)


def test_contract_05_an_eviction_takes_whole_records_and_raises_the_floor_past_them() -> None:
    subject = ring(captures_max=4)
    subject.append(entity_run(0, [0, 1, 2]))
    subject.append(entity_run(10, [0, 5]))
    assert subject.floor == 3
    assert subject.captures == 2
    assert subject.evicted == 3


def test_contract_16_a_run_larger_than_the_ring_leaves_it_empty_and_the_floor_behind_it() -> None:
    subject = ring(captures_max=4)
    subject.append(entity_run(0, list(range(20))))
    assert len(subject) == 0
    assert subject.floor == 20


def test_contract_16_a_ring_is_bounded_in_bytes_too() -> None:
    run = entity_run(0, [0, 2], rows=100)
    subject = ring(bytes_max=run.nbytes)
    subject.append(run)
    assert len(subject) == 1
    subject.append(entity_run(100, [0], rows=100))
    assert len(subject) == 1
    assert subject.floor == 3


def test_contract_16_one_budget_bounds_all_rings_and_the_idlest_pays_first() -> None:
    run = entity_run(0, [0, 2], rows=100)
    budget = RingBudget(2 * run.nbytes)
    rings = [Ring(0, budget, captures_max=100, bytes_max=1 << 20) for _ in range(3)]
    for each in rings:
        each.append(entity_run(0, [0, 2], rows=100))
    assert [len(each) for each in rings] == [0, 1, 1]
    assert rings[0].floor == 3
    assert budget.bytes == 2 * run.nbytes
    rings[1].forget_all()
    assert budget.bytes == run.nbytes


def test_contract_17_a_ring_that_forgets_holds_no_reference() -> None:
    subject = ring()
    run = entity_run(0, [0, 1])
    reference = weakref.ref(run)
    subject.append(run)
    del run
    subject.forget_all()
    gc.collect()
    assert reference() is None
    assert subject.captures == subject.bytes == 0


def test_runs_from_a_mark_begin_with_the_run_that_holds_it() -> None:
    subject = ring()
    runs = [entity_run(first, [0, 1]) for first in (0, 10, 20)]
    for run in runs:
        subject.append(run)
    assert list(subject.runs_from(Mark(0))) == runs
    assert list(subject.runs_from(Mark(11))) == runs[1:]
    assert list(subject.runs_from(Mark(12))) == runs[2:]
    assert list(subject.runs_from(Mark(22))) == []


def test_asking_below_the_floor_is_a_programmers_error() -> None:
    subject = ring(captures_max=1)
    subject.append(entity_run(0, [0, 1]))
    with pytest.raises(AssertionError):
        next(subject.runs_from(Mark(1)))
