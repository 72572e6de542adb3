"""The stop deadline: it ends the process after a fixed time, whatever hangs.

A thread waits for signals::

    first SIGTERM or SIGINT    the server begins its orderly stop (app.py), and the time runs
    15/16 of the deadline      the log names what is still running, and the process ends with status 0
    second signal              the process ends at once, with status 128 + its number

A thread does this because the event loop may hang, and so may another thread for which Python would wait at its
exit. Writing a log line may block if stderr is not read; the end of the process does not wait for the line.
Nothing is lost: all state is in the log, and subscribers have their cursors.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from types import FrameType

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_LINE_S: Final = 0.25
"""Seconds for which the process waits until a log line is written."""
_NAMED_MAX: Final = 10
"""Most running threads and tasks that the log names."""
_log = structlog.get_logger("tailrace.server")


class StopDeadline:
    """A context manager that turns signals into a stop, and ends the process if the stop takes too long.

    Enter it in the main thread, on the event loop to stop. After a signal its thread continues to run when the
    context exits, so that the deadline also covers the rest of the process.
    """

    def __init__(self, deadline_s: float, stopping: asyncio.Event) -> None:
        """Set ``stopping`` at the first signal; the process ends within ``deadline_s`` after it."""
        self._deadline_s = deadline_s
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._signals: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def __enter__(self) -> StopDeadline:
        threading.Thread(target=self._run, name="tailrace-stop", daemon=True).start()
        # Not the handlers of the event loop, which run only if the loop does not hang.
        self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        if not self._stopping.is_set():
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._signals.put(None)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        # A signal may interrupt any code, so do no more than this here.
        self._signals.put(number)

    # The methods below run in the thread.

    def _run(self) -> None:
        first = self._signals.get()
        if first is None:
            return
        until = time.monotonic() + self._deadline_s * 15 / 16
        self._loop.call_soon_threadsafe(self._stopping.set)
        _say("info", "stopping", signal=signal.Signals(first).name)
        try:
            second = self._signals.get(timeout=max(0.0, until - time.monotonic() - _LINE_S))
        except queue.Empty:
            _say("warning", "stopped at the stop deadline", left=self._left())
            os._exit(0)
        if second is not None:
            _say("warning", "stopped at once", signal=signal.Signals(second).name)
            os._exit(128 + second)

    def _left(self) -> list[str]:
        """Return the names of the threads and tasks that have not ended."""
        threads = [each.name for each in threading.enumerate() if not each.daemon]
        tasks = sorted(each.get_name() for each in asyncio.all_tasks(self._loop))
        return (threads + tasks)[:_NAMED_MAX]


def _say(level: str, event: str, **values: object) -> None:
    line = threading.Thread(target=getattr(_log, level), args=(event,), kwargs=values, daemon=True)
    line.start()
    line.join(_LINE_S)
