"""How long a broken subscription waits, and when it gives up."""

from __future__ import annotations

import random

import pytest

from tailrace import Retry, Timeouts
from tailrace.clock import SystemClock
from tailrace.errors import (
    ConnectTimeout,
    DeadlineExceeded,
    InvalidRequest,
    SubscriptionBroken,
    TransportError,
)
from tailrace.retry import Attempts


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


class FakeClock(SystemClock):
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


def test_before_the_first_acknowledgement_all_attempts_share_one_time_limit() -> None:
    clock = FakeClock()
    attempts = Attempts(Retry(first_s=1.0, factor=1.0), Timeouts(connect_s=5.0), clock)
    assert attempts.patience_s == 5.0
    assert 0.5 <= attempts.wait_after(TransportError("refused")) <= 1.0
    clock.seconds += 4.9
    assert attempts.patience_s == pytest.approx(0.1)
    with pytest.raises(ConnectTimeout, match="no subscription within 5 s: refused"):
        attempts.wait_after(TransportError("refused"))


def test_a_server_that_waits_for_a_version_has_that_time_too() -> None:
    clock = FakeClock()
    attempts = Attempts(Retry(first_s=0.1), Timeouts(connect_s=5.0), clock, wait_s=60.0)
    assert attempts.patience_s == 65.0
    # Whoever begins is told; a subscription that stood may have come to a server that is behind.
    late = DeadlineExceeded("shop", 9, 8, 60.0)
    with pytest.raises(DeadlineExceeded):
        attempts.wait_after(late)
    attempts.acknowledged = True
    assert attempts.wait_after(late) <= 0.1


def test_after_an_acknowledgement_only_the_number_of_attempts_is_limited() -> None:
    clock = FakeClock()
    attempts = Attempts(Retry(attempts_max=2), Timeouts(connect_s=5.0), clock)
    attempts.acknowledged = True
    clock.seconds += 1_000.0
    assert attempts.patience_s == 5.0
    lost = TransportError("lost")
    attempts.wait_after(lost)
    attempts.wait_after(lost)
    with pytest.raises(SubscriptionBroken, match="lost") as caught:
        attempts.wait_after(lost, "a cursor")
    assert caught.value.resume_cursor == "a cursor"
    assert caught.value.__cause__ is lost


def test_an_error_that_no_retry_helps_is_raised_as_it_is() -> None:
    attempts = Attempts(Retry(), Timeouts(), FakeClock())
    refused = InvalidRequest("criteria")
    with pytest.raises(InvalidRequest) as caught:
        attempts.wait_after(refused)
    assert caught.value is refused
    assert attempts.number == 0
