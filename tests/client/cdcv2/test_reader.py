"""The reader, case by case: duplicates, what it waits for, figures."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.cdcv2 import (
    INTEGERS,
    Finished,
    Progress,
    Reader,
    Update,
    Waiting,
    Writer,
    product,
)
from tests.support.mangle import mangle

if TYPE_CHECKING:
    from tailrace.cdcv2 import Lattice, Statement

EXAMPLE: list[Statement[int]] = [
    [Update((5, 10), 5, 1)],
    [Update((5, 12), 4, 1)],
    [Update((5, 12), 5, -1)],
    [Update((5, 10), 6, -1)],
    Progress((0,), (3,), ()),
    Progress((3,), (10,), ((4, 1), (5, 2), (6, 1))),
]
"""The documentation's example, its prices as plain numbers."""


def test_contract_40_duplicates_inside_one_message_count_once() -> None:
    reader = Reader()
    update = Update("a", 0, 1)
    assert reader.receive([update, update, Update("a", 0, 1)]) == []
    assert reader.receive(Progress((0,), (1,), ((0, 1),))) == [Finished([update], (1,))]
    assert reader.statistics().duplicates == 2


def test_contract_40_finished_times_come_in_order_with_the_frontier() -> None:
    for seed in range(50):
        reader = Reader()
        updates = [
            each
            for message in mangle(EXAMPLE, random.Random(seed))
            for piece in reader.receive(message)
            for each in piece.updates
        ]
        assert [(each.time, each.diff) for each in sorted(updates)] == [
            (5, 1),
            (6, -1),
            (4, 1),
            (5, -1),
        ]
        assert [each.time for each in updates] == [4, 5, 5, 6]
        assert reader.frontier == (10,)
        assert not reader.closed
        assert reader.why_waiting() == []


def test_times_without_updates_finish_too() -> None:
    reader = Reader()
    assert reader.receive(Progress((0,), (3,), ())) == [Finished([], (3,))]
    assert reader.receive(Progress((3,), (5,), ((4, 0),))) == [Finished([], (5,))]
    assert reader.receive(Progress((5,), (5,), ())) == []
    assert reader.receive(Progress((5,), (), ())) == [Finished([], ())]
    assert reader.closed


def test_an_interval_that_reaches_back_over_finished_times_goes_on_from_there() -> None:
    reader = Reader()
    reader.receive([Update("a", 1, 1)])
    assert len(reader.receive(Progress((0,), (2,), ((1, 1),)))) == 1
    assert reader.receive(Progress((0,), (4,), ((1, 1),))) == [Finished([], (4,))]


def test_contract_40_partially_ordered_times_finish_apart() -> None:
    reader = Reader(product(2))
    reader.receive([Update("a", (0, 1), 1), Update("b", (1, 0), 1)])
    reader.receive(Progress(((0, 0),), ((0, 2), (2, 0)), (((0, 1), 2), ((1, 0), 1))))
    assert reader.frontier == ((0, 1), (2, 0))
    assert reader.why_waiting() == [Waiting((0, 1), 2, 1)]
    [(updates, frontier)] = reader.receive([Update("c", (0, 1), 1)])
    assert [each.data for each in updates] == ["a", "c"]
    assert frontier == ((0, 2), (2, 0))
    assert reader.receive(Progress(((0, 0),), (), (((0, 1), 2), ((1, 0), 1))))[0].frontier == ()


def test_waiting_names_missing_updates_and_holes() -> None:
    reader = Reader()
    reader.receive(Progress((0,), (3,), ((1, 2), (2, 1))))
    reader.receive(Progress((5,), (6,), ()))
    reader.receive([Update("a", 1, 1), Update("a", 9, 1), Update("b", 2, 1)])
    assert reader.frontier == (1,)
    waiting = reader.why_waiting()
    assert waiting == [
        Waiting(3, None, 0, hole_until=(5,)),
        Waiting(1, 2, 1),
        Waiting(9, None, 1),
    ]
    assert [each.missing for each in waiting] == [None, 1, None]
    assert list(map(str, waiting)) == [
        "no progress statement covers time 3 up to 5",
        "time 1: 1 of 2 received",
        "time 9: 1 received, count not announced",
    ]
    assert reader.why_waiting(limit=2) == waiting[:2]
    assert reader.why_waiting(limit=0) == []


def test_a_hole_of_partially_ordered_times_is_named_by_where_it_begins() -> None:
    reader = Reader(product(2))
    reader.receive(Progress(((1, 1),), ((2, 2),), ()))
    assert reader.why_waiting() == [Waiting((0, 0), None, 0, hole_until=((1, 1),))]


def test_what_concerns_finished_times_is_dropped_unread_and_counted() -> None:
    """Even where it contradicts what was said of them."""
    reader = Reader()
    for message in EXAMPLE:
        reader.receive(message)
    figures = reader.statistics()
    assert (figures.dropped_finished, figures.finished_updates) == (0, 4)
    assert reader.receive([Update((5, 10), 5, 7), Update("new", 4, 0)]) == []
    assert reader.receive(Progress((3,), (10,), ((4, 99), (5, -1)))) == []
    figures = reader.statistics()
    assert (figures.dropped_finished, figures.conflicts, figures.held_times) == (3, 0, 0)


def test_a_start_makes_earlier_times_finished() -> None:
    reader = Reader(start=(5,))
    assert reader.frontier == (5,)
    assert reader.receive([Update("early", 4, 1), Update("a", 5, 1)]) == []
    assert reader.receive(Progress((0,), (6,), ((4, 1), (5, 1)))) == [
        Finished([Update("a", 5, 1)], (6,))
    ]
    assert reader.statistics().dropped_finished == 1
    assert Reader(product(2), start=[(2, 0), (0, 2), (3, 3)]).frontier == ((0, 2), (2, 0))
    assert Reader(start=()).closed


@pytest.mark.parametrize("lattice", [INTEGERS, product(2)])
def test_contract_40_a_long_mangled_stream_is_read_in_memory_that_does_not_grow(
    lattice: Lattice[Any],
) -> None:
    """The saved state is all that a reader knows; it stays the size of the mismatch."""
    chance, writer, reader = random.Random(3), Writer(lattice, batch_size=2), Reader(lattice)
    window: list[Statement[Any]] = []
    sizes = []
    for step in range(2000):
        times = [step] * 2 if lattice is INTEGERS else [(step, 0), (step, 7)]
        writer.write(Update(i * sign, times[i % 2], 1) for i in (1, 2) for sign in (1, -1))
        window += writer.advance([step + 1 if lattice is INTEGERS else (step + 1, 0)]) * 2
        chance.shuffle(window)
        while len(window) > 60:
            reader.receive(window.pop())
        if step % 200 == 199:
            sizes.append(len(reader.save()))
    assert max(sizes) < 10_000, sizes
    for message in window:
        reader.receive(message)
    assert reader.frontier == writer.frontier
    assert reader.statistics().finished_updates == 8000


def test_contract_40_a_stream_that_stands_still_keeps_no_memory_of_empty_times() -> None:
    reader = Reader()
    reader.receive(Progress((0,), (1,), ((0, 1),)))
    for time in range(1, 20_000):
        reader.receive(Progress((time,), (time + 1,), ()))
    assert reader.frontier == (0,)
    assert len(reader.save()) < 200_000
    assert reader.receive([Update("late", 0, 1)])[0].frontier == (20_000,)
