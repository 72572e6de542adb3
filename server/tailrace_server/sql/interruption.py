"""The end of a statement that is being run: asked for from any thread, or when its time is over.

DuckDB forgets an interrupt that comes while it runs nothing. So it is interrupted again and again, until the
statement is closed.
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
        """End what is being computed, if anything is."""


class Interruption:
    """Of one statement. Any thread may call it."""

    def __init__(self) -> None:
        """Begin without a request to end."""
        self.reason: str | None = None
        """Why the statement has to end; None: it may continue."""
        self._lock = threading.Lock()
        self._asked = threading.Event()
        self._closed = threading.Event()
        self._watch: threading.Thread | None = None

    @property
    def is_asked(self) -> bool:
        """True if the statement has to end."""
        return self.reason is not None

    def ask(self, reason: str) -> None:
        """End the statement soon, wherever it is; the first reason is reported."""
        with self._lock:
            if self.reason is None:
                self.reason = reason
        self._asked.set()

    @contextmanager
    def heeding_ctrl_c(self) -> Iterator[None]:
        """End the statement at Ctrl-C, which is KeyboardInterrupt behind that, as everywhere.

        Python would raise it wherever it is: also where DuckDB or Arrow calls Python, and makes an error of its
        own of it, or none. Other threads, and whoever has another handler, are left alone.
        """
        is_mine = threading.current_thread() is threading.main_thread()
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
        """Interrupt a statement when it is asked for, or after ``seconds`` for a reason; until ``close``."""

        def run() -> None:
            if not self._asked.wait(seconds):
                self.ask(reason)
            while not self._closed.is_set():
                statement.interrupt()
                self._closed.wait(_AGAIN_S)

        self._watch = threading.Thread(target=run, name="tailrace-sql-watch", daemon=True)
        self._watch.start()

    def close(self) -> None:
        """Touch the statement no more. Idempotent."""
        self._closed.set()
        self._asked.set()
        # Ctrl-C may have come before it was started, or while it was: it finds the statement closed then.
        if self._watch is not None and self._watch.is_alive():
            self._watch.join()
