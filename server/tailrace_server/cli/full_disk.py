"""An ingest that follows its input, over a disk that is full for a while."""

from __future__ import annotations

import os
import time
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final, TypeVar

from tailrace.errors import LogFull

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace_server.pipeline.progress import ProgressReporter

_T = TypeVar("_T")

_ROOM_BYTES: Final = 16 << 20
"""Size of a file that must fit: with less room a commit would soon fail again."""
_LOOK_S: Final = 1.0
_PAUSE_S: Final = 5.0
"""The shortest time between two runs: one may need more room than there is, and takes seconds to start."""


def run_with_room(
    run: Callable[[], _T], log: Path, reporter: ProgressReporter, *, follow: bool
) -> _T:
    """Run an ingest to its end, and again each time that it has ended because the disk was full.

    A run that begins anew reads from the log where the last one has ended, as after a kill.

    Args:
        run: Runs the ingest, from opening the log on.
        log: The log root.
        reporter: Says what is waited for.
        follow: True if the ingest follows its input; otherwise a full disk ends it.

    Raises:
        LogFull: The disk is full, and the ingest does not follow.
    """
    while True:
        try:
            return run()
        except LogFull as error:
            if not follow:
                raise
            reporter.complain(f"{error}; the ingest waits for room")
        until = time.monotonic() + _PAUSE_S
        while time.monotonic() < until or not _has_room(log):
            time.sleep(_LOOK_S)
        reporter.note("there is room again: the ingest continues")


def _has_room(folder: Path) -> bool:
    """Return True if a file of some size can be written; quotas and inodes count as well."""
    try:
        with TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, _ROOM_BYTES)
    except OSError:
        return False
    return True
