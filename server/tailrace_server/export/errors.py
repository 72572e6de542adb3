"""Errors of an export.

::

    InvalidRequest
    └── FolderTaken       the folder holds the output of another export
    ImagesMissing         (tailrace.errors) a record lacks an image that the export needs
    ImageUnfit            an image does not fit the schema of the stream
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest, TailraceError

if TYPE_CHECKING:
    from pathlib import Path


class FolderTaken(InvalidRequest):
    """The folder holds something else. Two streams in it would be read as one. A retry does not help."""

    code = "FOLDER_TAKEN"

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"{folder} {reason}; choose another folder")
        self.folder = str(folder)

    def figures(self) -> dict[str, str]:
        """Return the folder."""
        return {"folder": self.folder}


class ImageUnfit(TailraceError):
    """A row does not fit the stream's schema. Nothing of its version is written. A retry does not help."""

    code = "IMAGE_UNFIT"

    def __init__(self, version: int, key: str | None, reason: str) -> None:
        super().__init__(
            f"version {version}, key {key!r}: {reason}; go on in a new folder, with "
            f"--since {version}, whose stream takes types that hold the whole history"
        )
        self.version = version
        self.key = key

    def figures(self) -> dict[str, str]:
        """Return version and key."""
        return {"version": str(self.version), "key": str(self.key)}
