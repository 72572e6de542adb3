"""Interruption of a running statement: on request from any thread, or when its time is over.

DuckDB ignores an interrupt while it runs nothing. So the statement is interrupted repeatedly until it is
closed.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

_AGAIN_S: Final = 0.02
_CTRL_C: Final = "Ctrl-C"


class Interruptible(Protocol):
    """A computation that can be ended."""

    def interrupt(self) -> None:
        """Interrupt the computation, if one is running."""


class Interruption:
    """The interruption of one statement. Any thread may call its methods."""

    def __init__(self) -> None:
        """Start without a request to end."""
        self.reason: str | None = None
        """The reason for which the statement has to end; None: it may continue."""
        self._lock = threading.Lock()
        self._asked = threading.Event()
        self._closed = threading.Event()
        self._watch: threading.Thread | None = None

    @property
    def is_asked(self) -> bool:
        """True if the statement has to end."""
        return self.reason is not None

    def ask(self, reason: str) -> None:
        """Request the end of the statement. The first reason is the one that is reported."""
        with self._lock:
            if self.reason is None:
                self.reason = reason
        self._asked.set()

    @contextmanager
    def heeding_ctrl_c(self) -> Iterator[None]:
        """End the statement at Ctrl-C, and raise KeyboardInterrupt after the ``with`` block.

        Python's own handler could raise inside a callback from DuckDB or Arrow, which would turn the exception
        into an error of theirs or drop it. Nothing changes in other threads, or if another handler is set.
        """
        is_mine = threading.current_thread() is threading.main_thread()
        # Only the main thread gets signals, and a handler of another program part must keep working.
        if not is_mine or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, lambda *_: self.ask(_CTRL_C))
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if self.reason == _CTRL_C:
                raise KeyboardInterrupt

    def watch(self, statement: Interruptible, seconds: float, reason: str) -> None:
        """Start a thread that interrupts a statement on request or after ``seconds``, until ``close``.

        Args:
            statement: The statement.
            seconds: The time limit.
            reason: The reason to report when the time is over.
        """

        def run() -> None:
            if not self._asked.wait(seconds):
                self.ask(reason)
            # Repeat the interrupt: DuckDB ignores one that comes between two computations.
            while not self._closed.is_set():
                statement.interrupt()
                self._closed.wait(_AGAIN_S)

        self._watch = threading.Thread(target=run, name="tailrace-sql-watch", daemon=True)
        self._watch.start()

    def close(self) -> None:
        """Stop interrupting the statement, and wait for the thread. Idempotent."""
        self._closed.set()
        # This wakes the thread if it still waits for a request.
        self._asked.set()
        # Ctrl-C may have come before the thread was started: then there is nothing to wait for.
        if self._watch is not None and self._watch.is_alive():
            self._watch.join()
