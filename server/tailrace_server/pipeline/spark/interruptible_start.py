"""The start of Spark's JVM as something that a signal can end.

Spark starts a JVM through two shell scripts, waits for its port in a file, then builds a context through
it: three to nine seconds in the main thread, in which a signal's handler would only take note. Here the
handler ends the processes that were started and raises, so that the start ends where it stands. (Where the
system does not tell a process its descendants, the JVM ends a little later: when its input does.)
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_GRACE_S: Final = 0.5
"""How long a JVM may take to remove its temporary folders before it is killed."""


class StartInterrupted(BaseException):
    """A signal ended the start of Spark. Its handler has been called; no process is left.

    Not an ``Exception``, since Spark catches those on its way.
    """


@contextmanager
def interruptible() -> Iterator[None]:
    """Start Spark inside: a signal that has a handler ends it at once, and what it has started.

    In another thread than the main one, where signals do not arrive, it changes nothing.

    Raises:
        StartInterrupted: A signal came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = [number for number in _SIGNALS if callable(before[number])]
    others = set(_descendants())
    started: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
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
        # What Spark makes of its JVM's end on the way is not what happened.
        if started or isinstance(error, StartInterrupted):
            _end(started)
            raise StartInterrupted from None
        if not isinstance(error, Exception):
            # Spark puts a handler of its own in the place of ours on its way, and that was called.
            _end(_tell_to_end(others))
        raise
    finally:
        for number in handled:
            signal.signal(number, before[number])


def _tell_to_end(others: set[int]) -> list[int]:
    """Tell the processes below this one to end, but for others; return them."""
    pids = [pid for pid in _descendants() if pid not in others]
    _signal(pids, signal.SIGTERM)
    return pids


def _end(pids: list[int]) -> None:
    """Wait for processes that were told to end, kill those that take too long, and reap our children."""
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


def _descendants() -> list[int]:
    """Return the processes below this one; none where the system does not tell."""
    pids = [os.getpid()]
    for pid in pids:
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids.extend(int(number) for number in (task / "children").read_text().split())
    return pids[1:]
