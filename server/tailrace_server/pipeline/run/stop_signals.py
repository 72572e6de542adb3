"""SIGINT and SIGTERM as an event that an ingest checks between two steps."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class Stopping(threading.Event):
    """An event that is set when the ingest must end; ``signal`` is the number of the signal, None before."""

    signal: int | None = None


@contextmanager
def stop_signals() -> Iterator[Stopping]:
    """Yield an event that SIGINT and SIGTERM set. Outside the main thread no handler is installed."""
    stopping = Stopping()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.signal = number
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
