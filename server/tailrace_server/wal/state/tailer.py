"""The follower of a log, which yields each new view as soon as it exists.

A thread of the pool reads the log when it has changed; the event loop only receives views. If the store reports
changes (inotify, for local files), checkpoints, publications and entries are still read periodically, in case a
report was lost. Otherwise the log is polled: 1 ms after a change, and at intervals that double up to 50 ms
while nothing changes.
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
    from collections.abc import Callable, Hashable
    from types import TracebackType

    from tailrace_server.wal.files.documents import ReadEntry
    from tailrace_server.wal.files.local_watch import FileWait
    from tailrace_server.wal.files.object_store import ChangeWatch
    from tailrace_server.wal.state.commit_log import CommitLog, Prepare, Wait
    from tailrace_server.wal.state.view import LogView

_log = logging.getLogger("tailrace.wal")

POLL_MIN_S: Final = 0.001
"""Seconds between two polls after a change; so a busy log is followed within the time of a commit."""

POLL_MAX_S: Final = 0.05
"""The most seconds between two polls; the time doubles up to this while nothing changes. A quiet log costs 20
reads a second."""

MARK_PATIENCE_S: Final = 0.02
"""The most seconds to wait for a writer's mark that its entry is durable; a disk needs one or two
milliseconds."""
_SHORTAGE_S: Final = 1.0
"""Seconds to wait if the process lacks file descriptors or memory, before all is read again."""
_WATCH_AGAIN_S: Final = 10.0
"""Seconds between two attempts to watch a log that is polled because a limit of the kernel is used up."""


class Tailer:
    """Follows one log: an async context manager, and an async iterator of views, each newer than the last.

    If a new view arrives before the consumer has taken the last one, the consumer gets only the newer view,
    which contains the older one. An error of ``CommitLog.refresh`` ends the iteration and is raised by it. One
    consumer; cancelling ``__anext__`` loses nothing.
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
        """Prepare to follow the log; the first view is newer than ``log.view`` is now.

        Args:
            log: The log. Other callers may refresh it too.
            pool: The threads that read the log; None: a pool for this log alone.
            inotify: Use inotify where it works; only for a log with a pool of its own.
            prepare: Called in a thread of the pool with a new view before the consumer gets it, as described at
                ``CommitLog.refresh``. It can load into caches what the view's readers will need.
            read_ahead: Called in a thread of the pool with an entry that may become the next one.
        """
        self._on_read_ahead = read_ahead
        self._prepare = prepare
        self._log = log
        self._seen = log.view
        self._pool = pool or TailPool(notified=inotify)
        self._own_pool = pool is None
        self._watch: ChangeWatch | None = None
        """The watch that reports changes; None while the log is polled."""
        self._watched: Hashable = None
        """``log.identity`` when the watch began. The watch stays with that folder if a copy takes its name."""
        self._watch_at = 0.0
        """Monotonic time of the next attempt to watch a polled log."""
        self._full_at = 0.0
        """Monotonic time of the next read of everything, even if only new entries are reported."""
        self._not_before = 0.0
        """Monotonic time before which nothing is read, because the process lacks file descriptors or memory."""
        self._poll_s = POLL_MIN_S
        """Seconds until the next poll."""
        self._newest: LogView | None = None
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._stopping = False
        self._left = threading.Event()
        """Set once the log has had its last turn."""
        self.due_at = math.inf
        """Monotonic time at which the current turn began, or else by which the next turn has to begin. If this
        time lies far back, the storage does not answer."""

    async def __aenter__(self) -> Tailer:
        """Start following the log."""
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
        """Stop following, and wait for the last turn to end, even if cancelled.

        The caller may close the log only after that.
        """
        self._stopping = True
        self._pool.call(self)
        try:
            await self._ended.wait()
        finally:
            # Blocks the event loop only if the wait above was cancelled, and then for the rest of one turn.
            self._left.wait()
            if self._own_pool:
                self._pool.close()

    def __aiter__(self) -> Tailer:
        return self

    async def __anext__(self) -> LogView:
        """Wait for a view that is newer than the last one, and return it.

        Raises:
            CatalogReplaced: The folder has another log, or none.
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
        """Take a new view or the final error from the thread, and wake the consumer; runs on the event loop."""
        if view is not None:
            self._newest = view
        if error is not None:
            self._error = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The methods below run in a thread of the pool.

    def turn(self, waits: FileWait) -> float | None:
        """Read what is new, as the pool's interface ``Followed`` describes."""
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
        """Read what is new; return the most seconds until the next turn."""
        now = time.monotonic()
        if now < self._not_before:
            return self._not_before - now
        try:
            # Begin to watch before the first read: then changes during that read are reported, and none is
            # missed.
            if self._watch is None and now >= self._watch_at:
                self._begin_watch(now)
            if self._watch is None:
                return self._poll()
            return self._read_reported(self._watch, now, waits)
        except (OSError, LogError) as error:
            if not is_scarce(error):
                raise
            # Wait until the process may have descriptors or memory again. Then read everything, since the
            # reports of this turn are used up.
            _log.warning("catalog %s: %s; reading is retried", self._log.path.name, error)
            self._full_at, self._not_before = 0.0, now + _SHORTAGE_S
            return _SHORTAGE_S

    def _read_reported(self, watch: ChangeWatch, now: float, waits: FileWait) -> float:
        # 1. Read what is reported as new. If only entries are reported, checkpoints and publications are not
        #    looked up, which saves system calls; but at intervals they are, as a report may have been lost.
        is_full = now >= self._full_at
        if is_full or watch.changed:
            new_entries = watch.take_new_entries()
            if is_full or new_entries is None:
                new_entries, self._full_at = None, now + self._pool.check_s
            self._refresh(new_entries, partial(self._wait_for_mark, waits))
        # 2. Without reports, only check that the folder still exists. That is one system call, since a server
        #    may have a thousand quiet logs.
        else:
            self._log.check_folder()
        # 3. Read an arriving entry while its writer waits for the disk. This does not change the log's state
        #    yet.
        if not watch.changed:
            self._read_ahead(watch.take_arriving())
        # 4. If a copy has taken the name of the watched folder, watch the copy, in a turn that follows at once.
        if self._watched != self._log.identity:
            watch.close()
            self._watch = None
            return 0.0
        return self._pool.look_s

    def _poll(self) -> float:
        """Read everything; return the seconds until the next poll, which double while nothing changes."""
        # A quiet log is polled rarely. A new view resets the wait to the shortest, since more often follow.
        wait_s = self._poll_s
        self._poll_s = min(2 * wait_s, self._pool.longest_poll_s(POLL_MAX_S))
        if self._refresh(None, None):
            wait_s = self._poll_s = POLL_MIN_S
        return wait_s

    def _refresh(self, new_entries: int | None, wait: Wait | None) -> bool:
        """Read the log, and pass its view to the consumer if it is new; return True in that case."""
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
        """Begin to watch the log; if that fails, note the reason and the time of the next attempt."""
        self._watched = self._log.identity
        try:
            self._watch = self._log.store.watch(self._pool.watcher, self)
        except InotifyUnavailable as error:
            polled = self._pool.polled
            if not error.is_shortage:  # a file system that reports nothing, and never will
                polled[self], self._watch_at = "", math.inf
                return
            reason, self._watch_at = polled_because(error), now + _WATCH_AGAIN_S
            if not any(polled.values()):  # log one line, however many logs have the same fault
                _log.warning("catalog %s %s", self._log.path.name, reason)
            polled[self] = reason
        else:
            self._pool.polled.pop(self, None)
            self._full_at = 0.0

    def _wait_for_mark(self, waits: FileWait, path: str, is_marked: Callable[[], bool]) -> bool:
        """Wait, at most MARK_PATIENCE_S, until a writer has marked its entry as durable; return True if so."""
        return waits.wait_until(f"{self._log.path}/{path}", is_marked, MARK_PATIENCE_S)
