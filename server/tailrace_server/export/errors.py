"""Errors of an export, as a CDCv2 stream or as Delta tables.

::

    InvalidRequest
    ├── FolderTaken         the folder holds something that this export did not write
    ├── LakeColumnUnfit     a column cannot be one of a Delta table
    └── LakeTableChanged    another writer has changed the Delta table
    ImagesMissing           (tailrace.errors) a record lacks an image that the export needs
    ImageUnfit              an image does not fit the schema of the stream
    LakeValueUnfit          the column of a Delta table cannot hold a value
    LakeUnwritable          the Delta table cannot be written; a retry may help
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest, TailraceError

if TYPE_CHECKING:
    from pathlib import Path


class FolderTaken(InvalidRequest):
    """The folder holds something else. Readers would take two streams in it for one. A retry does not help."""

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
            f"version {version}, key {key!r}: {reason}; continue in a new folder, with --since "
            f"{version}, whose stream uses types that hold the whole history"
        )
        self.version = version
        self.key = key

    def figures(self) -> dict[str, str]:
        """Return version and key."""
        return {"version": str(self.version), "key": str(self.key)}


class LakeColumnUnfit(InvalidRequest):
    """A column's name is not possible in a Delta table. A retry does not help."""

    code = "LAKE_COLUMN_UNFIT"

    def __init__(self, entity_type: str, reason: str) -> None:
        super().__init__(
            f"entity type {entity_type!r}: {reason}; rename the column at its source, or leave the "
            "entity type out with --type"
        )
        self.entity_type = entity_type

    def figures(self) -> dict[str, str]:
        """Return the entity type."""
        return {"entity_type": self.entity_type}


class LakeTableChanged(InvalidRequest):
    """Another writer has changed a table of this export, so its contents are unknown. A retry does not help."""

    code = "LAKE_TABLE_CHANGED"

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(
            f"the Delta table {folder} is not as this export left it: {reason}; move the folder away, "
            "and the next run creates the table again"
        )
        self.folder = str(folder)

    def figures(self) -> dict[str, str]:
        """Return the folder."""
        return {"folder": self.folder}


class LakeValueUnfit(TailraceError):
    """A column cannot hold a value. Nothing of the value's version is written. A retry does not help."""

    code = "LAKE_VALUE_UNFIT"

    def __init__(self, entity_type: str, version: int, key: str, reason: str) -> None:
        super().__init__(
            f"entity type {entity_type!r}, version {version}, key {key!r}: {reason}; --misfits null "
            "writes such values as NULL"
        )
        self.entity_type = entity_type
        self.version = version
        self.key = key

    def figures(self) -> dict[str, str]:
        """Return entity type, version and key."""
        return {"entity_type": self.entity_type, "version": str(self.version), "key": self.key}


class LakeUnwritable(TailraceError):
    """A table cannot be read or written: no space, no permission, or a missing file.

    Nothing is lost: earlier commits remain, and the next run continues after them.
    """

    code = "LAKE_UNWRITABLE"
    retriable = True

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"cannot write the Delta table {folder}: {reason}")
        self.folder = str(folder)

    def figures(self) -> dict[str, str]:
        """Return the folder."""
        return {"folder": self.folder}
