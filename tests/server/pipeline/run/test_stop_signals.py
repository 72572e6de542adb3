"""SIGINT and SIGTERM as an event; tests/process/ingest/test_interrupt.py stops a whole ingest."""

from __future__ import annotations

import signal
import threading

import pytest

from tailrace_server.pipeline.run.stop_signals import Stopping, stop_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sets_the_event_and_says_which_it_was(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_signals() as stopping:
        assert not stopping.is_set()
        signal.raise_signal(number)
        assert stopping.is_set()
        assert stopping.signal == number
    assert signal.getsignal(number) is before


def test_other_threads_get_the_event_and_leave_signals_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    found: list[Stopping] = []

    def enter() -> None:
        with stop_signals() as stopping:
            found.append(stopping)
            assert signal.getsignal(signal.SIGINT) is before

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert [stopping.is_set() for stopping in found] == [False]
