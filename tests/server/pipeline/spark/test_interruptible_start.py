"""A start that a signal ends. That a start of Spark itself ends: tests/process/ingest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from tailrace_server.pipeline.spark.session import StartInterrupted, interruptible

pytestmark = pytest.mark.slow


def test_a_signal_ends_the_start_and_its_processes_and_no_other_and_calls_the_handler() -> None:
    forever = [sys.executable, "-c", "import signal; signal.pause()"]
    heard: list[int] = []

    def handler(number: int, _: object) -> None:
        heard.append(number)

    kept = signal.signal(signal.SIGTERM, handler)
    try:
        with subprocess.Popen(forever) as other:
            started: list[subprocess.Popen[bytes]] = []

            def start() -> None:
                with interruptible():
                    started.append(subprocess.Popen(forever))
                    os.kill(os.getpid(), signal.SIGTERM)

            with pytest.raises(StartInterrupted):
                start()
            assert heard == [signal.SIGTERM]
            assert signal.getsignal(signal.SIGTERM) is handler
            assert not os.path.exists(f"/proc/{started[0].pid}")
            started[0].wait()
            assert other.poll() is None
            other.kill()
    finally:
        signal.signal(signal.SIGTERM, kept)


def test_an_error_of_the_start_is_raised_as_it_is_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT)

    def start() -> None:
        with interruptible():
            assert signal.getsignal(signal.SIGINT) is not before
            raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        start()
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_handlers_stay_as_they_are() -> None:
    seen: list[bool] = []

    def run() -> None:
        before = signal.getsignal(signal.SIGINT)
        with interruptible():
            seen.append(signal.getsignal(signal.SIGINT) is before)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [True]
