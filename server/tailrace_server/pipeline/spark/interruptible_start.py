"""A start of Spark's JVM that a signal can end.

Spark starts a JVM through two shell scripts, waits until a file has its port, then builds a context. This takes
three to nine seconds in the main thread, in which an ordinary handler could only note a signal. Here the
handler ends the processes that were started and raises, so the start ends at once. If the system does not list
a process's descendants, the JVM ends a little later: when its standard input does.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from tailrace_server.child_processes import descendants_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_GRACE_S: Final = 0.5
"""How long a JVM may take to remove its temporary folders before it is killed."""


class StartInterrupted(BaseException):
    """A signal ended the start of Spark. The caller's handler has run; no process of the start is left.

    Not an ``Exception``: Spark catches those in several places.
    """


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a signal that has a handler end the start of Spark in the block, with the processes of the start.

    Outside the main thread, where no signals arrive, this does nothing.

    Raises:
        StartInterrupted: A signal came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # 1. Only signals that had a handler: one that is ignored, or ends the process anyway, keeps its effect. The
    #    processes that exist now are not of the start, and must survive it.
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = [number for number in _SIGNALS if callable(before[number])]
    others = set(descendants_of(os.getpid()))
    started: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        # 2. Processes first: the caller's handler may raise, and a JVM without its parent would go on. A second
        #    signal does nothing, since the first is being handled.
        handler = before[signal.Signals(number)]
        if started or not callable(handler):
            return
        started.extend(_tell_to_end(others))
        handler(number, frame)
        raise StartInterrupted

    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    except BaseException as error:
        # 3. Spark may have turned the end of its JVM into an error of its own; what happened is the signal.
        if started or isinstance(error, StartInterrupted):
            _end(started)
            raise StartInterrupted from None
        if not isinstance(error, Exception):
            # Late in its start Spark replaces our handler by its own, and that one was called: nothing was told
            # to end yet.
            _end(_tell_to_end(others))
        raise
    finally:
        for number in handled:
            signal.signal(number, before[number])


def _tell_to_end(others: set[int]) -> list[int]:
    """Send SIGTERM to the descendants of this process that are not in ``others``; return them."""
    pids = [pid for pid in descendants_of(os.getpid()) if pid not in others]
    _signal(pids, signal.SIGTERM)
    return pids


def _end(pids: list[int]) -> None:
    """Wait for processes that got SIGTERM, kill those that take too long, and reap our children."""
    deadline = time.monotonic() + _GRACE_S
    for pid in pids:
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                ended = select.poll()
                ended.register(descriptor, select.POLLIN)
                ended.poll(max(0.0, deadline - time.monotonic()) * 1000)
            finally:
                os.close(descriptor)
    _signal(pids, signal.SIGKILL)
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
