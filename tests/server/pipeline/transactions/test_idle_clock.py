"""When the idle clock goes, and when it stands."""

from __future__ import annotations

from tailrace_server.pipeline.transactions.driver_state import IdleClock


def test_it_stands_until_the_source_was_quiet_once() -> None:
    """As at a start: whatever Spark takes to come up is not idle time."""
    clock = IdleClock()
    clock.source_idle(20.0)
    assert clock.now == 0.0
    clock.source_idle(21.5)
    assert clock.now == 1.5


def test_it_stands_while_a_batch_runs() -> None:
    clock = IdleClock()
    clock.source_idle(0.0)
    clock.batch_began(1.0, whole=True)
    assert clock.now == 1.0
    clock.source_idle(61.0)
    assert clock.now == 1.0
    clock.source_idle(62.0)
    assert clock.now == 2.0


def test_it_stands_while_files_wait() -> None:
    clock = IdleClock()
    for at in range(0, 100, 10):
        clock.batch_began(float(at), whole=False)
    clock.batch_began(100.0, whole=True)
    assert clock.now == 0.0


def test_it_goes_from_batch_to_batch_where_each_takes_all_there_is() -> None:
    """A source that is fed faster than batches run is never quiet."""
    clock = IdleClock()
    for at in range(5):
        clock.batch_began(float(at), whole=True)
    assert clock.now == 4.0


def test_it_never_goes_back() -> None:
    clock = IdleClock()
    clock.source_idle(5.0)
    clock.source_idle(4.0)
    clock.batch_began(3.0, whole=True)
    assert clock.now == 0.0
