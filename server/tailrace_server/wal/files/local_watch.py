"""Waiting for a catalog's folder to change: by inotify where the file system has it, else for time to pass."""

from __future__ import annotations

import math
import os
import select
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tailrace_server.wal.files.documents import CHECKPOINTS, ENTRIES, PUBLICATIONS
from tailrace_server.wal.files.inotify import (
    CREATED,
    GONE,
    MARKED,
    WRITTEN,
    Inotify,
    InotifyUnavailable,
)
from tailrace_server.wal.files.new_file import TEMPORARY_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMES_MAX: Final = 16


class LocalWatch:
    """Watches the folders of one catalog's log; see ``ChangeWatch``."""

    def __init__(self, folder: str, *, notified: bool) -> None:
        """Open the pipe that ``wake`` writes to; ``start`` opens the rest."""
        self._folder = folder
        self._notified = notified
        self._inotify: Inotify | None = None
        """None before ``start``, and where the file system has none."""
        self._changes: list[int] = []
        """Watch descriptors of the changes since the last ``take_new_entries``, one for each event."""
        self._entries: int | None = None
        """Watch descriptor of the entries folder; None without inotify."""
        self._temporaries: int | None = None
        """Watch descriptor of the folder for temporary names; None where it cannot be watched."""
        self._arriving_names: deque[str] = deque(maxlen=_NAMES_MAX)
        """Names of the newest files on their way, each of which may be the next entry."""
        self._woken = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._waiting = select.poll()
        self._waiting.register(self._wake_read, select.POLLIN)

    def start(self) -> bool:
        """Watch all that a view depends on; return whether inotify reports its changes."""
        self._inotify = self._open_inotify() if self._notified else None
        if self._inotify is None:
            return False
        self._waiting.register(self._inotify.descriptor, select.POLLIN)
        return True

    @property
    def changed(self) -> bool:
        """Whether a change was reported that ``take_new_entries`` has not returned yet."""
        return bool(self._changes)

    def take_new_entries(self) -> int | None:
        """Return how many entries have appeared since the last call; None if anything may have changed."""
        changes, self._changes = self._changes, []
        return len(changes) if set(changes) == {self._entries} else None

    def take_arriving(self) -> list[str]:
        """Return the temporary names of the newest files on their way, each once."""
        names = [*dict.fromkeys(self._arriving_names)]
        self._arriving_names.clear()
        return names

    def wait(self, seconds: float) -> None:
        """Wait for a folder to change, for so long, or until woken."""
        self._waiting.poll(math.ceil(1_000 * max(seconds, 0)))
        self._take_events()

    def wait_until(self, path: str, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition that only a change of one file can bring about; return whether it holds."""
        if self._inotify is None:
            return False
        until = time.monotonic() + seconds
        # The watch begins before the condition is looked at: a change between the two would be missed.
        try:
            watch = self._inotify.watch_file(f"{self._folder}/{path}", MARKED | WRITTEN)
        except InotifyUnavailable:
            return False
        try:
            while not condition():
                left = until - time.monotonic()
                if left <= 0 or self._woken:
                    return False
                self.wait(left)
            return True
        finally:
            # The events of this file are no changes of the log. Those of other watches are kept.
            self._inotify.forget(watch)
            self._take_events()
            self._changes = [each for each in self._changes if each != watch]

    def wait_unless_woken(self, seconds: float) -> None:
        """Let time pass, whatever changes; return early if woken."""
        woken = select.poll()
        woken.register(self._wake_read, select.POLLIN)
        woken.poll(math.ceil(1_000 * seconds))

    def wake(self) -> None:
        """End all waiting, now and later: the byte stays in the pipe."""
        self._woken = True
        os.write(self._wake_write, b"\0")

    def close(self) -> None:
        """Close the descriptors."""
        if self._inotify is not None:
            self._inotify.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _take_events(self) -> None:
        for event in self._inotify.drain() if self._inotify is not None else ():
            if event.watch == self._temporaries:
                self._arriving_names.append(event.name)
            else:
                self._changes.append(event.watch)

    def _open_inotify(self) -> Inotify | None:
        try:
            inotify = Inotify()
        except InotifyUnavailable:
            return None
        try:
            inotify.watch(self._folder, GONE)
            self._entries = inotify.watch(f"{self._folder}/{ENTRIES}", CREATED)
            inotify.watch(f"{self._folder}/{PUBLICATIONS}", CREATED)
            inotify.watch(f"{self._folder}/{CHECKPOINTS}", CREATED)
        except InotifyUnavailable:
            inotify.close()
            self._entries = None
            return None
        with suppress(InotifyUnavailable):  # nothing is lost if nothing is read ahead
            self._temporaries = inotify.watch(f"{self._folder}/{TEMPORARY_FOLDER}", WRITTEN)
        return inotify
