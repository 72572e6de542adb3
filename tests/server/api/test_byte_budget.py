"""Who goes when peers send more at once than there is room for."""

from __future__ import annotations

from tailrace_server.api.byte_budget import ByteBudget


class Sending:
    def __init__(self) -> None:
        self.refused = 0

    def refuse(self) -> None:
        self.refused += 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def budget_of(nbytes: int) -> tuple[ByteBudget, Clock]:
    clock = Clock()
    return ByteBudget(nbytes, clock), clock


def test_what_was_dealt_with_makes_room_again() -> None:
    budget, _ = budget_of(100)
    one, other = Sending(), Sending()
    assert budget.hold(one, 90)
    assert budget.hold(one, 60)
    assert budget.hold(other, 40)
    assert budget.bytes == 100
    assert budget.hold(one, 0)
    assert budget.bytes == 40
    assert not one.refused + other.refused + budget.refused


def test_one_that_finishes_in_its_time_stays_beside_those_that_do_not() -> None:
    budget, clock = budget_of(100)
    crowd = [Sending() for _ in range(9)]
    for each in crowd:
        assert budget.hold(each, 11)
    clock.now = 5
    newcomer = Sending()
    for size in (4, 8, 16, 32):
        assert budget.hold(newcomer, size)
    assert not newcomer.refused
    assert sum(each.refused for each in crowd) == budget.refused == 3
    assert crowd[0].refused  # the oldest of a size first
    assert budget.bytes == 6 * 11 + 32


def test_one_that_is_larger_than_all_the_room_goes_and_nobody_with_it() -> None:
    budget, clock = budget_of(100)
    small, large = Sending(), Sending()
    budget.hold(small, 1)
    clock.now = 1
    budget.hold(large, 50)
    clock.now = 3
    assert not budget.hold(large, 101)
    assert (small.refused, large.refused) == (0, 1)
    assert budget.bytes == 1
