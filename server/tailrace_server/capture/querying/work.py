"""The work of one statement in a pool of threads: one job at a time, and behind the last one its end."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor

_T = TypeVar("_T")
_log = structlog.get_logger("tailrace.sql")


def _take_left(future: asyncio.Future[Any]) -> None:
    """Take the error of a job whose caller has left; log it if it is a defect."""
    error = None if future.cancelled() else future.exception()
    if error is not None and not isinstance(error, TailraceError):
        _log.error("a statement failed behind its reader", exc_info=error)


class StatementWork:
    """Lives on the event loop; its jobs run in threads."""

    def __init__(self, threads: ThreadPoolExecutor, end: Callable[[], None]) -> None:
        """Begin without a job; ``end`` gives back what they have, in a thread, once."""
        self._threads = threads
        self._end = end
        self._lock = threading.Lock()
        self._busy = self._closing = False
        self.computed_s = 0.0
        """The time that its jobs have taken so far, by the clock."""

    async def run(self, job: Callable[[], _T]) -> _T:
        """Return what a job returns. A cancelled caller leaves it running: `close` waits for it elsewhere."""
        with self._lock:
            assert not self._busy, "one job at a time"
            self._busy = True
        future = asyncio.wrap_future(self._threads.submit(self._ran, job))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # Without this asyncio logs the error of the job, which mostly says that the statement was closed.
            future.add_done_callback(_take_left)
            raise

    def _ran(self, job: Callable[[], _T]) -> _T:
        began = time.monotonic()
        try:
            return job()
        finally:
            self.computed_s += time.monotonic() - began
            with self._lock:
                self._busy = False
                closing = self._closing
            if closing:
                self._end()

    @property
    def is_busy(self) -> bool:
        """Whether a job is under way, or waits for a thread."""
        return self._busy

    @property
    def is_closed(self) -> bool:
        """Whether no job may begin any more."""
        return self._closing

    def close(self) -> None:
        """Let ``end`` run behind the job that is under way, or at once. Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            busy = self._busy
        if not busy:
            self._threads.submit(self._end)
