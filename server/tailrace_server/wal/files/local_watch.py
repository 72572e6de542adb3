"""Change reports for the folders of logs: one inotify for all logs that a process follows.

inotify(7) reports changes on Linux, for local file systems. A remote file system does not report changes by
other machines, so its folders are refused here, and the tailer polls them.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import select
import struct
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace_server.wal.files.documents import CHECKPOINTS, ENTRIES, PUBLICATIONS
from tailrace_server.wal.files.new_file import TEMPORARY_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path

CREATED: Final = 0x100 | 0x80
"""IN_CREATE | IN_MOVED_TO: a name has appeared in the folder."""

MARKED: Final = 0x4
"""IN_ATTRIB: times or permissions of a file changed; a modification time alone is reported as WRITTEN."""

WRITTEN: Final = 0x2
"""IN_MODIFY: bytes were written to a file in the folder."""

GONE: Final = 0x800 | 0x400
"""IN_MOVE_SELF | IN_DELETE_SELF: the folder itself was renamed or deleted."""

_ONLY_DIRECTORIES: Final = 0x01000000
_READ_BYTES: Final = 8_192
_event: Final = struct.Struct("iIII").unpack_from
_EVENT_BYTES: Final = 16
"""Size of an event without its name: watch, mask, cookie, and length of the name, which follows."""
_EVENT_BYTES_MAX: Final = _EVENT_BYTES + 256
_STATFS_BYTES: Final = 256
"""Larger than struct statfs on any architecture; only its first word, the type, is read."""

_REMOTE_FILE_SYSTEMS: Final = frozenset(
    {
        0x6969,  # NFS
        0x517B,  # SMB
        0xFE534D42,  # SMB2
        0xFF534D42,  # CIFS
        0x65735546,  # FUSE
        0x01021997,  # 9P
        0x00C36400,  # Ceph
        0x0BD00BD0,  # Lustre
        0x5346414F,  # AFS
        0x47504653,  # GPFS
    }
)


_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM})


class InotifyUnavailable(OSError):
    """Inotify cannot be used: not Linux, a remote file system, or a kernel limit is reached. Poll instead."""

    @property
    def is_shortage(self) -> bool:
        """True if the reason is a reached kernel limit; higher limits would make inotify available."""
        return self.errno in _SHORTAGES


def polled_because(error: InotifyUnavailable) -> str:
    """Return the reason why a local log is polled, and the remedy, as the predicate of a message."""
    return (
        f"is polled, which costs time and delays its changes: inotify cannot watch it ({error}); "
        "raise fs.inotify.max_user_watches (five for each catalog) or "
        "fs.inotify.max_user_instances (five for each process) with sysctl"
    )


class Event(NamedTuple):
    """An event of inotify."""

    watch: int
    """Watch descriptor; negative if the kernel's queue overflowed."""
    padded_name: bytes
    """Name of the file in the folder, padded with zero bytes."""

    @property
    def is_overflow(self) -> bool:
        """True if the kernel dropped events here because its queue was full."""
        return self.watch < 0

    @property
    def name(self) -> str:
        """Name of the file in the folder."""
        return os.fsdecode(self.padded_name.rstrip(b"\0"))


class Inotify:
    """An inotify instance: a descriptor that becomes readable when a watched folder or file changes."""

    def __init__(self) -> None:
        """Open an instance without watches.

        Raises:
            InotifyUnavailable: The system has no inotify, or its instances are used up.
        """
        if not sys.platform.startswith("linux"):
            raise InotifyUnavailable(errno.ENOSYS, "inotify is Linux's")
        self._library = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise InotifyUnavailable(ctypes.get_errno(), "inotify_init1")

    def watch(self, folder: str | Path, mask: int) -> int:
        """Watch a folder for the events in a mask; return the watch descriptor.

        Raises:
            InotifyUnavailable: The folder's file system does not report changes, or the user's watches are used
                up.
        """
        path = os.fsencode(folder)
        status = ctypes.create_string_buffer(_STATFS_BYTES)
        if self._library.statfs(path, status) == 0:
            kind = int.from_bytes(status.raw[:8], sys.byteorder) & 0xFFFFFFFF
            if kind in _REMOTE_FILE_SYSTEMS:
                raise InotifyUnavailable(errno.EOPNOTSUPP, f"remote file system {kind:#x}")
        return self._add(path, mask | _ONLY_DIRECTORIES)

    def watch_file(self, file: str, mask: int) -> int:
        """Watch a file for the events in a mask; return the watch descriptor.

        Raises:
            InotifyUnavailable: The file does not exist, or the user's watches are used up.
        """
        return self._add(os.fsencode(file), mask)

    def forget(self, watch: int) -> None:
        """Remove a watch; the kernel sends one last event for it."""
        self._library.inotify_rm_watch(self.descriptor, watch)

    def _add(self, path: bytes, mask: int) -> int:
        watch: int = self._library.inotify_add_watch(self.descriptor, path, mask)
        if watch < 0:
            raise InotifyUnavailable(ctypes.get_errno(), f"inotify_add_watch {os.fsdecode(path)}")
        return watch

    def drain(self) -> list[Event]:
        """Return the waiting events and remove them from the queue."""
        events = []
        with suppress(BlockingIOError):
            while True:
                data = os.read(self.descriptor, _READ_BYTES)
                place = 0
                while place < len(data):
                    watch, _, _, length = _event(data, place)
                    place += _EVENT_BYTES
                    events.append(Event(watch, data[place : place + length]))
                    place += length
                if place < _READ_BYTES - _EVENT_BYTES_MAX:
                    break  # the kernel gives all that fit
        return events

    def close(self) -> None:
        """Close the descriptor, and with it all watches."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


_NAMES_MAX: Final = 16


class LocalWatcher:
    """Reports which logs have changed, by inotify; see ``ChangeWatcher``."""

    def __init__(self, *, notified: bool = True) -> None:
        """Open the pipe that ``wake`` writes to. If ``notified`` is False, every log must be polled."""
        self._notified = notified
        self._lock = threading.Lock()
        """Guards the fields below, and the notes of each watch."""
        self._inotify: Inotify | None = None
        """The inotify instance; None until the first log is added, and while the user's instances are used
        up."""
        self._watches: dict[int, LocalWatch] = {}
        """Watch descriptor → the watch of its log."""
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._waiting = select.poll()
        self._waiting.register(self._wake_read, select.POLLIN)

    def add(self, folder: str, owner: Hashable) -> LocalWatch:
        """Watch the folders that a view of a log depends on; ``wait`` reports their changes under ``owner``.

        Raises:
            InotifyUnavailable: The file system does not report changes, or a kernel limit is reached.
        """
        inotify, watch = self._opened(), LocalWatch(self, owner)
        # Add watches without the lock: a storage that hangs here stops one log, not the whole watcher. Events
        # that arrive before the watch is entered below are ignored; the caller reads the log only after that.
        try:
            watch.numbers.append(inotify.watch(folder, GONE))
            watch.entries = inotify.watch(f"{folder}/{ENTRIES}", CREATED)
            watch.numbers.append(watch.entries)
            for each in (PUBLICATIONS, CHECKPOINTS):
                watch.numbers.append(inotify.watch(f"{folder}/{each}", CREATED))
        except InotifyUnavailable:
            self.remove(watch)
            raise
        with suppress(InotifyUnavailable):  # nothing is lost if nothing is read ahead
            watch.temporaries = inotify.watch(f"{folder}/{TEMPORARY_FOLDER}", WRITTEN)
            watch.numbers.append(watch.temporaries)
        with self._lock:
            self._watches.update(dict.fromkeys(watch.numbers, watch))
        return watch

    def wait(self, seconds: float) -> list[Hashable]:
        """Wait for a change of a log, for ``wake``, or for a time-out; return the owners of changed logs."""
        self._waiting.poll(math.ceil(1_000 * max(seconds, 0)))
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4_096)
        with self._lock:
            events = self._inotify.drain() if self._inotify is not None else ()
            changed: dict[LocalWatch, None] = {}
            for event in events:
                if event.is_overflow:
                    # The kernel has dropped events, so any log may have changed.
                    for each in {*self._watches.values()}:
                        each.note(event.watch, "")
                        changed[each] = None
                elif (watch := self._watches.get(event.watch)) is not None:
                    watch.note(event.watch, event.name)
                    changed[watch] = None
            return [each.owner for each in changed]

    def wake(self) -> None:
        """End the current wait, or the next one if no thread waits."""
        with suppress(BlockingIOError):  # the pipe is full: the wait ends all the same
            os.write(self._wake_write, b"\0")

    def remove(self, watch: LocalWatch) -> None:
        """Stop watching a log."""
        with self._lock:
            for each in watch.numbers:
                self._watches.pop(each, None)
                if self._inotify is not None:
                    self._inotify.forget(each)

    def close(self) -> None:
        """Close the descriptors; no thread may wait at this time."""
        if self._inotify is not None:
            self._inotify.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _opened(self) -> Inotify:
        """Return the inotify instance that all logs share; the first call opens it."""
        if not self._notified:
            raise InotifyUnavailable(0, "all logs are polled")
        with self._lock:
            if self._inotify is None:
                self._inotify = Inotify()
                self._waiting.register(self._inotify.descriptor, select.POLLIN)
                self.wake()  # a wait that is under way does not include the new descriptor
            return self._inotify


class LocalWatch:
    """The reported changes of one log; see ``ChangeWatch``."""

    def __init__(self, watcher: LocalWatcher, owner: Hashable) -> None:
        """Start without reports; ``LocalWatcher.add`` fills in the watch descriptors."""
        self._watcher = watcher
        self.owner = owner
        self.numbers: list[int] = []
        """Watch descriptors of the log's folders."""
        self.entries = 0
        """Watch descriptor of the folder of entries."""
        self.temporaries = 0
        """Watch descriptor of the folder for temporary names; 0 if it cannot be watched."""
        self._lock = threading.Lock()
        """Guards the reports: one thread takes them while another adds some."""
        self._changes: list[int] = []
        """Watch descriptor of each event since the last ``take_new_entries``."""
        self._arriving_names: deque[str] = deque(maxlen=_NAMES_MAX)
        """Temporary names of the newest files that are being written; each may become the next entry."""

    @property
    def changed(self) -> bool:
        """True if a change was reported since the last ``take_new_entries``."""
        return bool(self._changes)

    def note(self, number: int, name: str) -> None:
        """Note an event of a watch descriptor."""
        with self._lock:
            if number == self.temporaries:
                self._arriving_names.append(name)
            else:
                self._changes.append(number)

    def take_new_entries(self) -> int | None:
        """Return the number of new entries since the last call; None if something else may have changed too."""
        with self._lock:
            changes, self._changes = self._changes, []
        # Only events of the entries folder: a reader can then read as many new entries as there were events.
        # Any other event, an overflow too, requires a full check.
        return len(changes) if set(changes) == {self.entries} else None

    def take_arriving(self) -> list[str]:
        """Return the temporary names of the newest files that are being written, each once."""
        with self._lock:
            names = [*dict.fromkeys(self._arriving_names)]
            self._arriving_names.clear()
        return names

    def close(self) -> None:
        """Stop watching the log."""
        self._watcher.remove(self)


class FileWait:
    """Waits for changes of one file after another, in a single thread. Other threads cannot wake it."""

    def __init__(self) -> None:
        """Start without an inotify instance; the first wait opens it."""
        self._inotify: Inotify | None = None

    def wait_until(self, file: str, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait up to ``seconds`` for a condition that a change of a file makes true; return True if it is.

        Returns False at once if inotify is unavailable.
        """
        until = time.monotonic() + seconds
        try:
            if self._inotify is None:
                self._inotify = Inotify()
            # Begin the watch before the first evaluation: else a change between the two would be missed.
            watch = self._inotify.watch_file(file, MARKED | WRITTEN)
        except InotifyUnavailable:
            return False
        waiting = select.poll()
        waiting.register(self._inotify.descriptor, select.POLLIN)
        try:
            while not condition():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                waiting.poll(math.ceil(1_000 * left))
                self._inotify.drain()
            return True
        finally:
            self._inotify.forget(watch)
            self._inotify.drain()

    def close(self) -> None:
        """Close the descriptor."""
        if self._inotify is not None:
            self._inotify.close()
