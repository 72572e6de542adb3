"""Following a log: a new view as soon as there is one.

A thread waits for the log to change and reads; the event loop only receives views. Where the store reports
changes (inotify, for local files), everything is still read at least every second, in case a report was lost.
Elsewhere the thread polls, 1 ms after a change, doubling to 50 ms while nothing comes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from tailrace.errors import InternalError, LogError, TailraceError
from tailrace_server.wal.files.system_errors import is_scarce

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tailrace_server.wal.files.documents import ReadEntry
    from tailrace_server.wal.state.commit_log import CommitLog, Prepare
    from tailrace_server.wal.state.view import LogView

_log = logging.getLogger("tailrace.wal")

POLL_MIN_S: Final = 0.001
"""Without inotify, wait so long after something was new: a busy log is followed within a commit's time."""

POLL_MAX_S: Final = 0.05
"""Without inotify, the wait doubles up to this while nothing is new: a quiet log costs 20 reads a second."""

WATCH_CHECK_S: Final = 1.0
"""Read everything this often, even if the watch reports nothing or entries alone."""
MARK_PATIENCE_S: Final = 0.02
"""Wait so long for a writer to say that an entry's name is durable; a disk needs one or two milliseconds."""


class Tailer:
    """Follows one log; an async context manager and an async iterator of views, each newer than the one before.

    Views that are not taken in time are passed over: the newest one contains them. The iteration ends with what
    ``CommitLog.refresh`` raises. One consumer; cancelling ``__anext__`` loses nothing.
    """

    def __init__(
        self,
        log: CommitLog,
        *,
        poll_min_s: float = POLL_MIN_S,
        poll_max_s: float = POLL_MAX_S,
        inotify: bool = True,
        prepare: Prepare = lambda view, read: None,
        read_ahead: Callable[[ReadEntry], None] = lambda read: None,
    ) -> None:
        """Follow from ``log.view`` as it is now.

        Args:
            log: The log; others may refresh it too.
            poll_min_s: First wait after a change, without inotify.
            poll_max_s: Longest wait, without inotify.
            inotify: Use it where it works.
            prepare: As of ``CommitLog.refresh``; called in the tailer's thread, before anybody has the view:
                what it reads need not be read later.
            read_ahead: Called in the tailer's thread with an entry that may become the next one.
        """
        self._on_read_ahead = read_ahead
        self._prepare = prepare
        self._log = log
        self._seen = log.view
        self._poll_min_s = poll_min_s
        self._poll_max_s = poll_max_s
        self._watch = log.store.watch(notified=inotify)
        self._notified = False
        """Whether the watch reports changes; otherwise the log is polled."""
        self._full_check_at = 0.0
        """Monotonic time from which on everything is read, even if only entries are reported as new."""
        self._newest: LogView | None = None
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._stopping = False
        self.looked_at = time.monotonic()
        """Monotonic time of the thread's last turn, of which there is one every ``WATCH_CHECK_S`` at least."""

    async def __aenter__(self) -> Tailer:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"tail {self._log.path.name}")
        self._thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the thread and wait for it, also if cancelled: what it uses is closed only then."""
        self._stopping = True
        self._watch.wake()
        try:
            await self._ended.wait()
        finally:
            self._thread.join()
            self._watch.close()

    def __aiter__(self) -> Tailer:
        return self

    async def __anext__(self) -> LogView:
        """Wait for a view newer than the last one and return it.

        Raises:
            CatalogReplaced: Another log stands in this one's place, or none does.
            LogError: The log cannot be read.
        """
        while self._newest is None:
            if self._error is not None:
                raise self._error
            self._waiter = self._loop.create_future()
            await self._waiter
        view, self._newest = self._newest, None
        return view

    def _receive(self, view: LogView | None, error: BaseException | None) -> None:
        """Take what the thread has found; runs on the loop."""
        if view is not None:
            self._newest = view
        if error is not None:
            self._error = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # From here on: the thread.

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._follow()
        except TailraceError as failure:
            error = failure
        except BaseException as failure:  # the consumer must learn that nothing more will come
            error = InternalError(f"the tailer failed: {failure!r}")
            error.__cause__ = failure
        finally:
            self._loop.call_soon_threadsafe(self._receive, None, error)
            self._loop.call_soon_threadsafe(self._ended.set)

    def _follow(self) -> None:
        # The watch begins before the first read: what changes during that read is reported, so nothing is
        # missed.
        self._notified = self._watch.start()
        try:
            while not self._stopping:
                try:
                    self._follow_on()
                except (OSError, LogError) as error:
                    if not is_scarce(error):
                        raise
                    self._wait_out(error)
        finally:
            self._log.forget_arriving()

    def _follow_on(self) -> None:
        wait_s = self._poll_min_s
        while not self._stopping:
            self.looked_at = time.monotonic()
            # 1. Read what is new. Changes that are reported meanwhile stay in the watch for the next turn.
            self._log.refresh(
                self._prepare,
                new_entries=self._new_entries(),
                wait=self._wait_for_mark if self._notified else None,
            )
            # 2. Hand over the view if it is another than the last. ``log.view`` and not the value of
            #    ``refresh``: another caller of ``refresh`` may have made the view.
            view = self._log.view
            if view is not self._seen:
                self._seen = view
                self._loop.call_soon_threadsafe(self._receive, view, None)
                wait_s = self._poll_min_s
            # 3. Wait. Where changes are reported, the time is only a safeguard against a lost report. Where
            #    they are not, it doubles while nothing comes, so that a quiet log costs little.
            self._wait_for_change(WATCH_CHECK_S if self._notified else wait_s)
            wait_s = min(2 * wait_s, self._poll_max_s)

    def _wait_out(self, error: Exception) -> None:
        """Let some time pass in which the process may get back what it lacks; then read everything."""
        _log.warning("catalog %s: %s; it is tried again", self._log.path.name, error)
        self._full_check_at = 0.0
        self._watch.wait_unless_woken(WATCH_CHECK_S)

    def _wait_for_change(self, seconds: float) -> None:
        """Wait until the log may have changed, or for so long; read ahead meanwhile."""
        until = time.monotonic() + seconds
        while not self._watch.changed and not self._stopping and time.monotonic() < until:
            # An entry on its way is read while its writer waits for the disk. That changes nothing in the
            # log, so the wait goes on after it.
            for name in self._watch.take_arriving():
                if (read := self._log.read_ahead(name)) is not None:
                    self._on_read_ahead(read)
            self._watch.wait(until - time.monotonic())

    def _new_entries(self) -> int | None:
        """Return how many entries have appeared; None if everything is to be read.

        Reports of entries alone spare the look at checkpoints and publications, but not for longer than
        WATCH_CHECK_S: a report may have been lost.
        """
        new, now = self._watch.take_new_entries(), time.monotonic()
        if new is not None and now < self._full_check_at:
            return new
        self._full_check_at = now + WATCH_CHECK_S
        return None

    def _wait_for_mark(self, path: str, is_marked: Callable[[], bool]) -> bool:
        """Wait until an entry's writer has marked it, but no longer than a writer should take."""
        return self._watch.wait_until(path, is_marked, MARK_PATIENCE_S)
