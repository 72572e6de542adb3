"""The disk usage of the catalogs' logs, measured at intervals in a separate thread.

Walking a folder of 100,000 files takes a second. So no caller waits for a walk: `Engine.statistics` has the
last result, and a slow folder is walked less often.
"""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from pathlib import Path

_EVERY_S: Final = 60.0
_SHARE: Final = 50
"""Walks may take at most 1/50 of the time."""
_WALKS_PER_S: Final = 8
"""Maximum number of walks per second, of all catalogs together: of a thousand small catalogs, each is walked
every two minutes."""
_BLOCK_BYTES: Final = 512
"""Unit of ``st_blocks`` on every file system."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The disk usage of one catalog's folder, as last measured."""

    nbytes: int
    """Bytes on disk of all files, including the quarantine and files that wait for deletion."""
    files: int
    free_bytes: int
    """Bytes that the file system has left for this user."""


class DiskMeasurements:
    """The newest measurement of each catalog under a log root. Lives on the event loop."""

    def __init__(self, root: Path, threads: Executor) -> None:
        """Bind to a log root; the folders are walked in ``threads``."""
        self._root = root
        self._threads = threads
        self.found: dict[str, DiskUsage] = {}
        """Catalog → its newest measurement; a catalog that was not measured yet is missing."""

    async def follow(self, catalog: str) -> None:
        """Measure a catalog at intervals until cancelled; then forget its measurement."""
        loop, stopping = asyncio.get_running_loop(), threading.Event()
        try:
            while True:
                begun = loop.time()
                path = self._root / catalog
                usage = await loop.run_in_executor(self._threads, measured, path, stopping)
                if usage is not None:
                    self.found[catalog] = usage
                # Slow walks and many catalogs both lengthen the interval.
                took_s, catalogs = loop.time() - begun, len(self.found)
                await asyncio.sleep(max(_EVERY_S, _SHARE * took_s, catalogs / _WALKS_PER_S))
        finally:
            stopping.set()  # the walk still runs, and shutdown waits for its thread
            self.found.pop(catalog, None)


def measured(folder: Path, stopping: threading.Event) -> DiskUsage | None:
    """Measure a folder; return None if it cannot be read, or if ``stopping`` was set.

    Files that are removed during the walk are not counted.
    """
    total = files = 0
    try:
        room = os.statvfs(folder)
        waiting = [os.fspath(folder)]
        while waiting:
            for entry in _entries(waiting.pop()):
                if stopping.is_set():
                    return None
                size = _occupied(entry)
                if size is None:
                    waiting.append(entry.path)
                else:
                    total += size
                    files += 1
    except OSError:
        return None
    return DiskUsage(total, files, room.f_bavail * room.f_frsize)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _occupied(entry: os.DirEntry[str]) -> int | None:
    """Return the bytes that a file occupies on disk, 0 if it is gone; None for a folder."""
    try:
        if entry.is_dir(follow_symlinks=False):
            return None
        return entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
    except OSError:
        return 0
