"""How long a broken subscription waits."""

from __future__ import annotations

import random

import pytest

from tailrace import Retry


def test_waits_grow_to_the_longest_and_never_fall_below_half_their_ceiling() -> None:
    retry = Retry(first_s=0.1, factor=2.0, longest_s=1.0, random=random.Random(1))
    for attempt, ceiling in ((1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (5, 1.0), (10_000, 1.0)):
        waits = [retry.wait_s(attempt) for _ in range(200)]
        assert ceiling / 2 < min(waits) < max(waits) <= ceiling
        assert max(waits) - min(waits) > ceiling / 3


def test_two_clients_do_not_wait_alike() -> None:
    one, other = Retry(), Retry()
    assert [one.wait_s(n) for n in (1, 2, 3)] != [other.wait_s(n) for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("most", "allowed"), [(None, [True] * 4), (0, [False] * 4), (2, [True, True, False, False])]
)
def test_attempts_are_counted_from_1(most: int | None, allowed: list[bool]) -> None:
    retry = Retry(attempts_max=most)
    assert [retry.allows(attempt) for attempt in (1, 2, 3, 4)] == allowed
