"""The folder that an ingest reads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path


def check_input(folder: Path) -> None:
    """Check that an input is a folder that may be read.

    Raises:
        InvalidRequest: It is not.
    """
    try:
        if folder.is_file():
            raise InvalidRequest(f"--input {folder}: a file; name the folder that it is in")
        if not folder.is_dir():
            raise InvalidRequest(f"--input {folder}: there is no such folder")
        next(iter(folder.iterdir()), None)
    except OSError as error:
        raise InvalidRequest(f"--input {folder}: {error.strerror}") from error


def unreadable_names(folder: Path) -> list[bytes]:
    """Return the files below an input that Spark passes over, since their names are not UTF-8."""
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
