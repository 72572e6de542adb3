"""The input folder of an ingest: its checks, and its files that the log does not have yet."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def check_input(folder: Path) -> None:
    """Check that an input is a readable folder.

    Raises:
        InvalidRequest: It is not a folder, or cannot be read.
    """
    try:
        if folder.is_file():
            raise InvalidRequest(f"--input {folder}: a file; give the folder that contains it")
        if not folder.is_dir():
            raise InvalidRequest(f"--input {folder}: there is no such folder")
        next(iter(folder.iterdir()), None)
    except OSError as error:
        raise InvalidRequest(f"--input {folder}: {error.strerror}") from error


def unreadable_names(folder: Path) -> list[bytes]:
    """Return the files below an input that Spark skips because their names are not UTF-8."""
    return sorted(
        path
        for place, _, names in os.walk(os.fsencode(folder))
        for name in names
        if not _is_text(path := os.path.join(place, name)) and not name.startswith((b".", b"_"))
    )


def _is_text(path: bytes) -> bool:
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True


class WaitingFiles(NamedTuple):
    """The number and total size of input files that the log does not have yet."""

    files: int
    nbytes: int


def waiting_files(folder: Path, is_held: Callable[[str], bool]) -> WaitingFiles:
    """Return the files of a folder that the log does not have yet; empty files do not count.

    Args:
        folder: The input folder.
        is_held: Returns True if the log has lines of a file, given its path below the folder.
    """
    files = nbytes = 0
    for place, folders, names in os.walk(folder):
        # Skip hidden files and folders, as Spark does.
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
