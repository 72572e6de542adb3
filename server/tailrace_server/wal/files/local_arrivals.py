"""Objects of local files whose names are not durable yet: marks, and entries on their way.

The mark is the file's time of modification, set to a time that the object itself states. A file that was only
written has the time of that, to the nanosecond.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Final

from tailrace_server.wal.files.new_file import TEMPORARY_FOLDER
from tailrace_server.wal.files.object_store import ObjectContent
from tailrace_server.wal.files.open_file import OpenFile, open_file, read_open
from tailrace_server.wal.files.system_errors import os_errors

_LEFTOVER_AGE_S: Final = 3_600.0
"""Objects on their way take milliseconds; deleting one too early would cost its writer a retry."""


def mark_in(modified_ns: int) -> int | None:
    """Return the mark that a time of modification may be; None where it cannot be one."""
    mark, rest = divmod(modified_ns, 1_000)
    return None if rest else mark


def set_mark(path: str, mark: int) -> None:
    """Mark a file; where that cannot be done its readers do without."""
    with suppress(OSError):
        os.utime(path, ns=(1_000 * mark, 1_000 * mark))


class LocalArrivals:
    """The arrivals of one catalog's folder; see ``Arrivals``."""

    __slots__ = ("_folder",)

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def mark_of(self, path: str) -> int | None:
        """Return the mark that a file has now; None where it has none, or is gone."""
        try:
            return mark_in(os.stat(f"{self._folder}/{path}").st_mtime_ns)
        except OSError:
            return None

    def open(self, name: str, bytes_max: int) -> ArrivingFile | None:
        """Return the file of a temporary name; None where there is none, or it is larger than ``bytes_max``."""
        path = f"{self._folder}/{TEMPORARY_FOLDER}/{name}"
        descriptor = open_file(path)
        if descriptor is None:
            return None
        file = OpenFile(descriptor)
        if file.size() > bytes_max:
            return None
        return ArrivingFile(self._folder, file, *read_open(descriptor, path))

    def delete_leftovers(self) -> None:
        """Delete the temporary names that are older than an hour: their writers were killed."""
        limit = time.time() - _LEFTOVER_AGE_S
        folder = f"{self._folder}/{TEMPORARY_FOLDER}"
        with os_errors(f"cannot delete from {self._folder}"):
            for name in os.listdir(folder):
                with suppress(FileNotFoundError):
                    if os.stat(f"{folder}/{name}").st_mtime < limit:
                        os.unlink(f"{folder}/{name}")


class ArrivingFile:
    """A file under its temporary name. It stays open, so no other file can have its inode meanwhile."""

    __slots__ = ("_file", "_folder", "_inode", "_modified_ns", "content")

    def __init__(self, folder: str, file: OpenFile, data: bytes, status: os.stat_result) -> None:
        self._folder = folder
        self._file = file
        self._inode = (status.st_dev, status.st_ino)
        self._modified_ns = status.st_mtime_ns
        self.content = ObjectContent(data, mark_in(status.st_mtime_ns))

    def content_at(self, path: str, mark: int) -> ObjectContent | None:
        """Return the content with its mark of now if the file has got a name; None if not, or another has.

        The same inode alone is not enough: the file may have been written to since it was read. Then it has
        another length or another time, unless that time is ``mark``, which only its writer sets.
        """
        try:
            status = os.stat(f"{self._folder}/{path}")
        except OSError:
            return None
        modified_ns = status.st_mtime_ns
        if (
            (status.st_dev, status.st_ino) != self._inode
            or status.st_size != len(self.content.data)
            or modified_ns not in (self._modified_ns, 1_000 * mark)
        ):
            return None
        return self.content._replace(mark=mark_in(modified_ns))
