"""How many files of an input folder the log does not hold yet."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class WaitingFiles(NamedTuple):
    """Input that is still to come into the log."""

    files: int
    nbytes: int


def waiting_files(folder: Path, is_held: Callable[[str], bool]) -> WaitingFiles:
    """Return what waits in a folder; files without a byte hold nothing, and never wait.

    Args:
        folder: The input.
        is_held: Whether the log holds lines of a file, by its path below the folder.
    """
    files = nbytes = 0
    for place, folders, names in os.walk(folder):
        # As Spark, which passes over hidden files.
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        for name in names:
            path = os.path.join(place, name)
            if name.startswith((".", "_")) or is_held(os.path.relpath(path, folder)):
                continue
            with suppress(OSError):
                size = os.stat(path).st_size
                files += size > 0
                nbytes += size
    return WaitingFiles(files, nbytes)
