"""Room on the disk of the log: an ingest that follows its source waits for it and continues."""

from __future__ import annotations

import os
import time
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final, TypeVar

from tailrace.errors import LogFull

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace_server.pipeline.run.progress import ProgressReporter

_T = TypeVar("_T")

_ROOM_BYTES: Final = 16 << 20
"""Free space that a new run needs, in bytes: with less, a commit would soon fail again."""
_LOOK_S: Final = 1.0
_PAUSE_S: Final = 5.0
"""Minimum wait between two runs, in seconds: a run takes seconds to start, and may need more space than there
is."""


def run_with_room(
    run: Callable[[], _T], log: Path, reporter: ProgressReporter, *, follow: bool
) -> _T:
    """Run an ingest; while it follows its input, restart it each time that the disk was full.

    A new run continues where the log ends, as after a kill.

    Args:
        run: Function that runs the ingest, from opening the log on.
        log: The log root.
        reporter: Reports the wait to the user.
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
            reporter.complain(f"{error}; the ingest waits for free space")
        # Wait for space before a restart: a run takes seconds to start, and would fail at its first commit.
        until = time.monotonic() + _PAUSE_S
        while time.monotonic() < until or not _has_room(log):
            time.sleep(_LOOK_S)
        reporter.note("there is free space again: the ingest continues")


def _has_room(folder: Path) -> bool:
    """Return True if a file of `_ROOM_BYTES` can be created; this also checks quotas and inodes."""
    try:
        with TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, _ROOM_BYTES)
    except OSError:
        return False
    return True
