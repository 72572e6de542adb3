"""The follower of a log, which yields a new view as soon as there is one.

A thread of the pool reads the log when it has changed; the event loop only receives views. If the store reports
changes (inotify, for local files), the whole log is still read once in a while, in case a report was lost.
Otherwise the log is polled, 1 ms after a change, doubling to 50 ms without changes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from tailrace.errors import InternalError, LogError, TailraceError
from tailrace_server.wal.files.local_watch import InotifyUnavailable, polled_because
from tailrace_server.wal.files.system_errors import is_scarce
from tailrace_server.wal.state.tail_pool import TailPool

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tailrace_server.wal.files.documents import ReadEntry
    from tailrace_server.wal.files.local_watch import FileWait
    from tailrace_server.wal.files.object_store import ChangeWatch
    from tailrace_server.wal.state.commit_log import CommitLog, Prepare, Wait
    from tailrace_server.wal.state.view import LogView

_log = logging.getLogger("tailrace.wal")

POLL_MIN_S: Final = 0.001
"""Without inotify, wait so long after something was new: a busy log is followed within a commit's time."""

POLL_MAX_S: Final = 0.05
"""Without inotify, the wait doubles up to this while nothing is new: a quiet log costs 20 reads a second."""

MARK_PATIENCE_S: Final = 0.02
"""Wait so long for a writer to say that an entry's name is durable; a disk needs one or two milliseconds."""
_SHORTAGE_S: Final = 1.0
"""Wait so long if the process lacks file descriptors or memory, before everything is read again."""
_WATCH_AGAIN_S: Final = 10.0
"""A log that is polled because a limit of the kernel is used up tries to be watched this often."""


class Tailer:
    """Follows one log; an async context manager and an async iterator of views, each newer than the one before.

    Views that are not taken in time are passed over: the newest one contains them. The iteration ends with what
    ``CommitLog.refresh`` raises. One consumer; cancelling ``__anext__`` loses nothing.
    """

    def __init__(
        self,
        log: CommitLog,
        pool: TailPool | None = None,
        *,
        inotify: bool = True,
        prepare: Prepare = lambda view, read: None,
        read_ahead: Callable[[ReadEntry], None] = lambda read: None,
    ) -> None:
        """Follow from ``log.view`` as it is now.

        Args:
            log: The log; others may refresh it too.
            pool: The threads that read; None: a pool for this log alone.
            inotify: Use inotify where it works; for a log with its own pool.
            prepare: As of ``CommitLog.refresh``; called in a thread of the pool, before anybody has the view:
                what it reads need not be read later.
            read_ahead: Called in a thread of the pool with an entry that may become the next one.
        """
        self._on_read_ahead = read_ahead
        self._prepare = prepare
        self._log = log
        self._seen = log.view
        self._pool = pool or TailPool(notified=inotify)
        self._own_pool = pool is None
        self._watch: ChangeWatch | None = None
        """None while the log is polled."""
        self._watch_at = 0.0
        """Monotonic time from which on the log tries to be watched."""
        self._full_at = 0.0
        """Monotonic time from which on everything is read, even if only entries are reported as new."""
        self._not_before = 0.0
        """Monotonic time before which nothing is read, as the process lacked something."""
        self._poll_s = POLL_MIN_S
        """The next wait of a log that is polled."""
        self._newest: LogView | None = None
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._stopping = False
        self._left = threading.Event()
        """Set once the log has had its last turn."""
        self.due_at = math.inf
        """Monotonic time at which the turn that is under way began, or by which the next one is to begin. If it
        lies far back, the storage does not answer."""

    async def __aenter__(self) -> Tailer:
        """Begin to follow."""
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self.due_at = time.monotonic()
        self._pool.add(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the last turn, also if cancelled: what it uses is closed only then."""
        self._stopping = True
        self._pool.call(self)
        try:
            await self._ended.wait()
        finally:
            self._left.wait()
            if self._own_pool:
                self._pool.close()

    def __aiter__(self) -> Tailer:
        return self

    async def __anext__(self) -> LogView:
        """Wait for a view newer than the last one and return it.

        Raises:
            CatalogReplaced: Another log is in this one's place, or none is.
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

    # From here on: a thread of the pool.

    def turn(self, waits: FileWait) -> float | None:
        """Read what is new; see ``Followed``."""
        error: BaseException | None = None
        self.due_at = time.monotonic()
        try:
            if not self._stopping:
                wait_s = self._read_new(waits)
                self.due_at = time.monotonic() + wait_s
                return wait_s
        except TailraceError as failure:
            error = failure
        except BaseException as failure:  # the consumer must learn that nothing more will come
            error = InternalError(f"the tailer failed: {failure!r}")
            error.__cause__ = failure
        self._leave(error)
        return None

    def _leave(self, error: BaseException | None) -> None:
        # 1. Release all that this thread holds of the log.
        self.due_at = math.inf
        self._log.forget_arriving()
        self._pool.polled.pop(self, None)
        if self._watch is not None:
            self._watch.close()
        # 2. Only then let ``__aexit__`` return, since its caller closes what this thread used. The error comes
        #    before the end: a consumer that waits for a view must see it.
        self._left.set()
        self._loop.call_soon_threadsafe(self._receive, None, error)
        self._loop.call_soon_threadsafe(self._ended.set)

    def _read_new(self, waits: FileWait) -> float:
        """Read what is new; return the longest wait until the next turn, in seconds."""
        now = time.monotonic()
        if now < self._not_before:
            return self._not_before - now
        try:
            # The watch begins before the first read: changes during that read are reported, so none is missed.
            if self._watch is None and now >= self._watch_at:
                self._begin_watch(now)
            if self._watch is None:
                return self._poll()
            return self._read_reported(self._watch, now, waits)
        except (OSError, LogError) as error:
            if not is_scarce(error):
                raise
            # Let time pass in which the process may get back what it lacks; then read everything.
            _log.warning("catalog %s: %s; it is tried again", self._log.path.name, error)
            self._full_at, self._not_before = 0.0, now + _SHORTAGE_S
            return _SHORTAGE_S

    def _read_reported(self, watch: ChangeWatch, now: float, waits: FileWait) -> float:
        # 1. Read what is reported as new. Reports of entries alone spare the look at checkpoints and
        #    publications, but not for long: a report may have been lost.
        is_full = now >= self._full_at
        if is_full or watch.changed:
            new_entries = watch.take_new_entries()
            if is_full or new_entries is None:
                new_entries, self._full_at = None, now + self._pool.check_s
            self._refresh(new_entries, partial(self._wait_for_mark, waits))
        # 2. Without reports, notice that the folder is gone. That is one system call, as a server may have a
        #    thousand quiet logs.
        else:
            self._log.check_folder()
        # 3. Read an entry on its way while its writer waits for the disk. That changes nothing in the log.
        if not watch.changed:
            self._read_ahead(watch.take_arriving())
        return self._pool.look_s

    def _poll(self) -> float:
        """Read everything; wait twice as long as the last time while nothing comes."""
        # A quiet log is polled rarely. A new view resets the wait to the shortest, as more views often follow.
        wait_s = self._poll_s
        self._poll_s = min(2 * wait_s, self._pool.longest_poll_s(POLL_MAX_S))
        if self._refresh(None, None):
            wait_s = self._poll_s = POLL_MIN_S
        return wait_s

    def _refresh(self, new_entries: int | None, wait: Wait | None) -> bool:
        """Read the log and hand over its view; return True if the view is new."""
        self._log.refresh(self._prepare, new_entries=new_entries, wait=wait)
        # ``log.view`` and not the value of ``refresh``: another caller of ``refresh`` may have made the view.
        view = self._log.view
        if view is self._seen:
            return False
        self._seen = view
        self._loop.call_soon_threadsafe(self._receive, view, None)
        return True

    def _read_ahead(self, names: list[str]) -> None:
        for name in names:
            if (read := self._log.read_ahead(name)) is not None:
                self._on_read_ahead(read)

    def _begin_watch(self, now: float) -> None:
        """Have the log watched, or note why it is polled."""
        try:
            self._watch = self._log.store.watch(self._pool.watcher, self)
        except InotifyUnavailable as error:
            polled = self._pool.polled
            if not error.is_shortage:  # a file system that reports nothing, and never will
                polled[self], self._watch_at = "", math.inf
                return
            reason, self._watch_at = polled_because(error), now + _WATCH_AGAIN_S
            if not any(polled.values()):  # one line, however many logs follow
                _log.warning("catalog %s %s", self._log.path.name, reason)
            polled[self] = reason
        else:
            self._pool.polled.pop(self, None)
            self._full_at = 0.0

    def _wait_for_mark(self, waits: FileWait, path: str, is_marked: Callable[[], bool]) -> bool:
        """Wait until an entry's writer has marked it, but no longer than a writer should take."""
        return waits.wait_until(f"{self._log.path}/{path}", is_marked, MARK_PATIENCE_S)
