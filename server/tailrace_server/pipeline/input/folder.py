"""The input folder of an ingest: its checks, and its files that the log does not have yet."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.errors import InvalidRequest
from tailrace_server.option_fields import FOLDER
from tailrace_server.pipeline.spark.checkpoint import local_path

if TYPE_CHECKING:
    from collections.abc import Callable

_INPUT: Final = "--input"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def local_folder(flag: str, given: Path) -> Path:
    """Return the absolute path of a folder that an option names by a path or a ``file:`` URI.

    Raises:
        InvalidRequest: The URI has another scheme.
    """
    scheme = _SCHEME.match(str(given))
    if scheme is None:
        return given.absolute()
    if scheme[1].lower() == "file":
        return Path(local_path(f"file:{str(given)[len('file:') :]}"))
    read = (
        ", or read it with spark.readStream and write with ForeachBatchSink"
        if flag == _INPUT
        else ""
    )
    raise InvalidRequest(
        f"{flag} {scheme[1]}:…: tailrace itself lists and opens these files, so the folder must be "
        f"a path or a file: URI; mount it on the driver and all workers{read}"
    )


INPUT: Final = replace(FOLDER, parse=local_folder)
"""The form of the option for the input folder."""


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
