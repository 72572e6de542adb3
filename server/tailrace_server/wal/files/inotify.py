"""Notices of the kernel that a folder has changed, on Linux, for local file systems.

A few calls of the C library; see inotify(7). A remote file system does not report what other machines do,
so those are refused here, and the tailer polls.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

CREATED: Final = 0x100 | 0x80
"""IN_CREATE | IN_MOVED_TO: a name has appeared in the folder."""

MARKED: Final = 0x4
"""IN_ATTRIB: a file got other times or permissions; a time of modification alone is WRITTEN."""

WRITTEN: Final = 0x2
"""IN_MODIFY: bytes were written to a file in the folder."""

GONE: Final = 0x800 | 0x400
"""IN_MOVE_SELF | IN_DELETE_SELF: the folder itself was renamed or deleted."""

_ONLY_DIRECTORIES: Final = 0x01000000
_READ_BYTES: Final = 8_192
_event: Final = struct.Struct("iIII").unpack_from
_EVENT_BYTES: Final = 16
"""A watch, a mask, a cookie and the length of the name behind them."""
_EVENT_BYTES_MAX: Final = _EVENT_BYTES + 256
_STATFS_BYTES: Final = 256
"""More than the struct of any architecture; only its first word, the type, is read."""

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
    """Not Linux, a remote file system, or a limit of the kernel is used up: poll instead."""

    @property
    def is_shortage(self) -> bool:
        """True if the kernel would watch the folder if its limits were higher."""
        return self.errno in _SHORTAGES


def polled_because(error: InotifyUnavailable) -> str:
    """Return why a log is polled although its file system reports changes, and the remedy, after a subject."""
    return (
        f"is read at intervals, which costs time and delays its changes: inotify cannot watch it ({error}); "
        "raise fs.inotify.max_user_watches (five for each catalog) or fs.inotify.max_user_instances (five for "
        "each process) by sysctl"
    )


class Event(NamedTuple):
    """Something has happened."""

    watch: int
    """The number of the watch."""
    padded_name: bytes
    """Name of the file in the folder, with zeros behind it."""

    @property
    def is_overflow(self) -> bool:
        """True if the kernel dropped events at this place: its queue was full."""
        return self.watch < 0

    @property
    def name(self) -> str:
        """Name of the file in the folder."""
        return os.fsdecode(self.padded_name.rstrip(b"\0"))


class Inotify:
    """A descriptor that becomes readable when a watched folder changes."""

    def __init__(self) -> None:
        """Make one without watches.

        Raises:
            InotifyUnavailable: The system has none.
        """
        if not sys.platform.startswith("linux"):
            raise InotifyUnavailable(errno.ENOSYS, "inotify is Linux's")
        self._library = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise InotifyUnavailable(ctypes.get_errno(), "inotify_init1")

    def watch(self, folder: str | Path, mask: int) -> int:
        """Watch a folder for events of a mask; return what to know them by.

        Raises:
            InotifyUnavailable: The folder's file system does not report changes, or the user's watches are
            used up.
        """
        path = os.fsencode(folder)
        status = ctypes.create_string_buffer(_STATFS_BYTES)
        if self._library.statfs(path, status) == 0:
            kind = int.from_bytes(status.raw[:8], sys.byteorder) & 0xFFFFFFFF
            if kind in _REMOTE_FILE_SYSTEMS:
                raise InotifyUnavailable(errno.EOPNOTSUPP, f"remote file system {kind:#x}")
        return self._add(path, mask | _ONLY_DIRECTORIES)

    def watch_file(self, file: str, mask: int) -> int:
        """Watch a file for events of a mask; return what to know them by.

        Raises:
            InotifyUnavailable: The file is gone, or the user's watches are used up.
        """
        return self._add(os.fsencode(file), mask)

    def forget(self, watch: int) -> None:
        """Watch something no more; a last event says so."""
        self._library.inotify_rm_watch(self.descriptor, watch)

    def _add(self, path: bytes, mask: int) -> int:
        watch: int = self._library.inotify_add_watch(self.descriptor, path, mask)
        if watch < 0:
            raise InotifyUnavailable(ctypes.get_errno(), f"inotify_add_watch {os.fsdecode(path)}")
        return watch

    def drain(self) -> list[Event]:
        """Return the events that are waiting, and forget them."""
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
        """Close the descriptor and its watches."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
