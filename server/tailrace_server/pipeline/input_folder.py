"""The folder that an ingest reads."""

from __future__ import annotations

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
