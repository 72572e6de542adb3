"""Following a log: a new view as soon as there is one.

A thread waits for the folder to change and reads; the event loop only receives views. It waits on inotify
where the file system has it, with a look at least every second in case an event was lost; elsewhere it
polls, 1 ms after a change, doubling to 50 ms while nothing comes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import select
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tailrace.errors import InternalError, LogError, TailraceError
from tailrace_server.wal.files.documents import CHECKPOINTS, ENTRIES, PUBLICATIONS
from tailrace_server.wal.files.inotify import (
    CREATED,
    GONE,
    MARKED,
    WRITTEN,
    Inotify,
    InotifyUnavailable,
)
from tailrace_server.wal.files.objects import TEMPORARY_FOLDER, is_scarce

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
"""Without inotify, the wait doubles up to this while nothing is new: a quiet log costs 20 looks a second."""

WATCH_CHECK_S: Final = 1.0
"""Look at all of the log this often, also where inotify says nothing or tells of entries alone."""
_NAMES_MAX: Final = 16
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
        foresee: Callable[[ReadEntry], None] = lambda read: None,
    ) -> None:
        """Follow from ``log.view`` as it is now.

        Args:
            log: The log; others may refresh it too.
            poll_min_s: First wait after a change, without inotify.
            poll_max_s: Longest wait, without inotify.
            inotify: Use it where it works.
            prepare: As of ``CommitLog.refresh``; called in the tailer's thread, before anybody has the view:
                what it reads need not be read later.
            foresee: Called in the tailer's thread with an entry that may become the next one.
        """
        self._foresee = foresee
        self._prepare = prepare
        self._log = log
        self._seen = log.view
        self._poll_min_s = poll_min_s
        self._poll_max_s = poll_max_s
        self._use_inotify = inotify
        self._changed: list[int] = []
        """Whose events have come since the last look."""
        self._entries: int | None = None
        """Whose are the entries'."""
        self._look_at = 0.0
        """When to look at everything, whatever the events say."""
        self._temporaries: int | None = None
        """Whose are those of the files on their way; None where they cannot be watched."""
        self._arriving_names: deque[str] = deque(maxlen=_NAMES_MAX)
        """Names of the newest files on their way, each of which may be the next entry."""
        self._newest: LogView | None = None
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._stopping = False

    async def __aenter__(self) -> Tailer:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
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
        os.write(self._wake_write, b"\0")
        try:
            await self._ended.wait()
        finally:
            self._thread.join()
            os.close(self._wake_read)
            os.close(self._wake_write)

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
        except Exception as failure:  # the consumer must learn that nothing more will come
            error = InternalError(f"the tailer failed: {failure!r}")
            error.__cause__ = failure
        finally:
            self._loop.call_soon_threadsafe(self._receive, None, error)
            self._loop.call_soon_threadsafe(self._ended.set)

    def _follow(self) -> None:
        self._watch = self._open_watch()
        self._waiting = select.poll()
        self._waiting.register(self._wake_read, select.POLLIN)
        if self._watch is not None:
            self._waiting.register(self._watch.descriptor, select.POLLIN)
        try:
            while not self._stopping:
                try:
                    self._follow_on()
                except (OSError, LogError) as error:
                    if not is_scarce(error):
                        raise
                    self._wait_out(error)
        finally:
            self._log.forget_foreseen()
            if self._watch is not None:
                self._watch.close()

    def _follow_on(self) -> None:
        wait_s = self._poll_min_s
        while not self._stopping:
            self._log.refresh(
                self._prepare,
                new_entries=self._new_entries(),
                wait=None if self._watch is None else self._wait_for,
            )
            view = self._log.view
            if view is not self._seen:
                self._seen = view
                self._loop.call_soon_threadsafe(self._receive, view, None)
                wait_s = self._poll_min_s
            self._wait_for_news(WATCH_CHECK_S if self._watch else wait_s)
            wait_s = min(2 * wait_s, self._poll_max_s)

    def _wait_out(self, error: Exception) -> None:
        """Let some time pass in which the process may get back what it lacks; then look at everything."""
        _log.warning("catalog %s: %s; it is tried again", self._log.path.name, error)
        self._look_at = 0.0
        stopping = select.poll()
        stopping.register(self._wake_read, select.POLLIN)
        stopping.poll(math.ceil(1_000 * WATCH_CHECK_S))

    def _wait_for_news(self, seconds: float) -> None:
        """Wait until the log may have changed, or for so long; read ahead meanwhile."""
        until = time.monotonic() + seconds
        while not self._changed and not self._stopping and time.monotonic() < until:
            names = dict.fromkeys(self._arriving_names)
            self._arriving_names.clear()
            for name in names:
                if (read := self._log.foresee(name)) is not None:
                    self._foresee(read)
            self._wait(until - time.monotonic())

    def _new_entries(self) -> int | None:
        """Return how many names have appeared among the entries; None where all is to be looked at."""
        changed, self._changed = self._changed, []
        now = time.monotonic()
        if set(changed) == {self._entries} and now < self._look_at:
            return len(changed)
        self._look_at = now + WATCH_CHECK_S
        return None

    def _wait_for(self, path: str, condition: Callable[[], bool]) -> bool:
        """Wait until a condition holds that only a change of a file can bring about, or for a while."""
        assert self._watch is not None
        until = time.monotonic() + MARK_PATIENCE_S
        try:
            mark = self._watch.watch_file(path, MARKED | WRITTEN)
        except InotifyUnavailable:
            return False
        try:
            while not condition():
                left = until - time.monotonic()
                if left <= 0 or self._stopping:
                    return False
                self._wait(left)
            return True
        finally:
            self._watch.forget(mark)
            self._take_events()
            self._changed = [each for each in self._changed if each != mark]

    def _wait(self, seconds: float) -> None:
        """Wait for the folder to change, or to be stopped."""
        self._waiting.poll(math.ceil(1_000 * max(seconds, 0)))
        self._take_events()

    def _take_events(self) -> None:
        for event in self._watch.drain() if self._watch is not None else ():
            if event.watch == self._temporaries:
                self._arriving_names.append(event.name)
            else:
                self._changed.append(event.watch)

    def _open_watch(self) -> Inotify | None:
        """Return a watch on all that a view depends on, None where the file system has none."""
        if not self._use_inotify:
            return None
        try:
            watch = Inotify()
        except InotifyUnavailable:
            return None
        try:
            watch.watch(self._log.path, GONE)
            self._entries = watch.watch(self._log.path / ENTRIES, CREATED)
            watch.watch(self._log.path / PUBLICATIONS, CREATED)
            watch.watch(self._log.path / CHECKPOINTS, CREATED)
        except InotifyUnavailable:
            watch.close()
            return None
        with suppress(InotifyUnavailable):  # nothing is lost if nothing is read ahead
            self._temporaries = watch.watch(self._log.path / TEMPORARY_FOLDER, WRITTEN)
        return watch
