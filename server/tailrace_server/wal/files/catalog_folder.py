"""Catalog folders: created by one rename, identified by their catalog.json, dropped by another rename.

::

    <root>/<name>/catalog.json             its presence makes the folder a catalog
                  log/  published/  checkpoints/  schemas/     numbered objects
                  segments/<epoch>/  segments/compact/         files of records
                  quarantine/  ingest/  state/                 the pipeline's
                  settings/  bases/                            made when they are needed
                  tmp/                                         objects that are being written
    <root>/system/                         a catalog of the same form: the log of catalogs
    <root>/.new-…                          a catalog that is being made
    <root>/.dropped-<uuid>                 a dropped catalog: emptied at once, deleted after a week

The folder ``.dropped-<uuid>`` distinguishes a drop from a loss. A catalog whose folder is missing was dropped
only if that folder exists. Otherwise its volume is not mounted, or somebody moved or deleted the folder, and it
may come back.

A name that begins with a dot is never a catalog.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from tailrace.clock import SystemClock
from tailrace.errors import CatalogReplaced, InvalidRequest, LogMissing, LogUnreadable
from tailrace_server.failpoints import reach
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.documents import CATALOG_FILE, FORMAT_VERSION, CatalogDocument
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.files.new_file import TEMPORARY_FOLDER, sync_folder, write_durably
from tailrace_server.wal.files.sealed import object_name
from tailrace_server.wal.files.sequence_documents import SETTINGS, SettingsDocument
from tailrace_server.wal.files.system_errors import os_errors, translated

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from pathlib import Path

    from tailrace.clock import Clock
    from tailrace_server.wal.files.sequence_documents import Settings

SYSTEM_CATALOG: Final = "system"
"""Name of the system log, which records catalogs as created, dropped and replaced."""

SYSTEM_WRITER: Final = "system"
"""Name of the system log's only writer."""

DROPPED_PREFIX: Final = ".dropped-"

_DROP_MARK_S: Final = 7 * 86_400.0
"""Time for which the empty folder of a dropped catalog remains; running servers see it within seconds."""

_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]+:", re.ASCII)
_NEW_PREFIX: Final = ".new-"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_INGEST: Final = "ingest"
"""Folder of the Spark checkpoints of the streams that feed a catalog."""
_LOG_FOLDERS: Final = (
    documents.ENTRIES,
    documents.PUBLICATIONS,
    documents.CHECKPOINTS,
    documents.SCHEMAS,
    documents.SEGMENTS,
)
_FOLDERS: Final = (
    *_LOG_FOLDERS,
    f"{documents.SEGMENTS}/compact",
    "quarantine",
    _INGEST,
    "state",
    TEMPORARY_FOLDER,
)


def check_name(name: str) -> None:
    """Refuse a malformed catalog name.

    Raises:
        InvalidRequest: The name is malformed.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name!r} is not a valid name of a catalog: use up to 128 letters, digits, "
            "underscores, dots and hyphens, and begin with a letter, digit or underscore"
        )


def create_folder(
    root: Path, name: str, clock: Clock | None = None, settings: Settings | None = None
) -> UUID | None:
    """Create a catalog's folder atomically; return the catalog's uuid, or None if the catalog exists already.

    ``settings`` are the first catalog settings.

    Raises:
        InvalidRequest: The name is malformed, or the root is a URL.
        LogFull: The file system is full.
        LogUnreadable: Permission is missing, the root is not a folder, or the folder of that name is not a
            catalog.
    """
    check_name(name)
    if not os.path.exists(root) and (scheme := next(filter(_SCHEME.fullmatch, root.parts), None)):
        # ``Path`` turns s3://bucket into s3:/bucket, and a local folder of that name would be created.
        raise InvalidRequest(
            f"{root}: a log root must be a folder of a local file system, not a URL ({scheme}); "
            "mount the storage, and give its folder"
        )
    if os.path.exists(root) and not os.path.isdir(root):
        raise LogUnreadable(f"{root} is not a folder; --log names a folder of catalogs")
    with os_errors(f"cannot read {root}"):
        (root / name).exists()
    with os_errors(f"cannot read {root / name}"):
        if (root / name / CATALOG_FILE).exists():
            return None
    uuid = uuid4()
    folder = root / f"{_NEW_PREFIX}{uuid.hex}"
    descriptor = CatalogDocument(FORMAT_VERSION, name, uuid, (clock or SystemClock()).now())
    with os_errors(f"cannot create catalog {name!r} in {root}"):
        root.mkdir(parents=True, exist_ok=True)
        try:
            # Fill the folder under a temporary name and fsync it: a crash leaves a whole catalog or none.
            _fill_folder(folder, descriptor)
            if settings:
                _write_settings(folder, descriptor, settings)
            _set_remains_aside(root / name)
            try:
                # A rename onto a folder with content fails, so this decides between two processes that create
                # one catalog.
                folder.rename(root / name)
            except OSError:
                if (root / name / CATALOG_FILE).exists():
                    return None
                if (root / name).exists():
                    raise LogUnreadable(
                        f"{root / name} exists, but is not a catalog; move it away, or choose "
                        "another name"
                    ) from None
                raise
            sync_folder(root)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return uuid


@contextmanager
def copied_folder(root: Path, document: CatalogDocument) -> Iterator[Path]:
    """Yield a temporary folder for a copy of a catalog; the end of the block gives it the catalog's name.

    If the block raises, the folder is deleted.

    Raises:
        LogUnreadable: A file or folder of the catalog's name exists already, or as ``create_folder``.
        LogFull: The file system is full.
    """
    path = root / document.name
    if path.exists():
        raise LogUnreadable(f"{path} already exists; move it away, or give another folder")
    folder = root / f"{_NEW_PREFIX}{uuid4().hex}"
    try:
        with os_errors(f"cannot copy to {root}"):
            root.mkdir(parents=True, exist_ok=True)
            _fill_folder(folder, document)
        yield folder
        with os_errors(f"cannot copy to {path}"):
            folder.rename(path)
            sync_folder(root)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_catalog(path: Path) -> CatalogDocument:
    """Return the catalog.json of a folder.

    Raises:
        LogUnreadable: The folder is not a catalog, may not be read, or has a newer format.
        LogCorrupted: The catalog.json is damaged.
    """
    found = documents.read(LocalFiles(path), CATALOG_FILE, CatalogDocument)
    if found is None:
        if not os.path.isdir(path):
            what = f"{path} is a file" if os.path.exists(path) else f"there is no folder {path}"
            raise LogUnreadable(f"{what}; check the log root and the catalog's name")
        raise LogUnreadable(
            f"{path} is not a catalog: it has no {CATALOG_FILE}; give the folder of a catalog, "
            "below the log root"
        )
    return found[0]


def read_named(root: Path, name: str) -> CatalogDocument:
    """Return the catalog.json of a folder whose catalog must have the folder's name.

    This refuses copies: a copy next to the original would be a second log of the same name and uuid.

    Raises:
        LogUnreadable: The folder has another catalog's name; or as ``read_catalog``.
        LogCorrupted: As ``read_catalog``.
    """
    document = read_catalog(root / name)
    if document.name != name:
        raise LogUnreadable(
            f"{root / name} is not catalog {name!r}: its {CATALOG_FILE} names catalog "
            f"{document.name!r}; the folder is a copy or was renamed: move it out of {root}, or "
            "rename it back"
        )
    return document


def check_folders(path: Path) -> None:
    """Refuse a catalog that lacks a folder of its log, because it was copied in part or damaged by hand.

    Raises:
        LogUnreadable: Folders are missing; the message names them and the remedy.
    """
    missing = [each for each in _LOG_FOLDERS if not os.path.isdir(path / each)]
    if missing and os.access(path, os.X_OK):
        raise LogUnreadable(
            f"{path} is incomplete: it has no folder {' and no '.join(missing)}; restore the "
            "folder from the original of the copy, or create it if it is empty there"
        )


def refuse_system(name: str) -> None:
    """Refuse the name of the system log for a catalog.

    Raises:
        LogUnreadable: The name is the system log's.
    """
    if name == SYSTEM_CATALOG:
        raise LogUnreadable(
            f"{SYSTEM_CATALOG!r} is reserved for the log of catalogs; choose another name"
        )


def list_catalogs(root: Path, known: Container[str] = ()) -> tuple[str, ...]:
    """Return the sorted names of the catalogs below a log root, without the system log.

    A root that does not exist has none. Folders of ``known`` names are not looked into: a server lists a
    thousand catalogs twice a second.

    Raises:
        LogUnreadable: The root may not be read, or is not a folder.
    """
    return tuple(name for name in _folders(root, known) if name != SYSTEM_CATALOG)


def is_catalog(path: Path) -> bool:
    """Return True if a folder is a catalog, or if missing permission hides its content.

    In the second case opening the catalog reports the missing permission, not an unknown catalog.
    """
    try:
        os.stat(path / CATALOG_FILE)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def has_folder(root: Path, name: str) -> bool:
    """Return True if a folder of a catalog's name exists; the folder need not be a catalog."""
    return os.path.isdir(root / name)


def _folders(root: Path, known: Container[str]) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.name in known
                or (_NAME.fullmatch(entry.name) and is_catalog(root / entry.name))
            )
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        raise LogUnreadable(f"{root} is not a folder; --log names a folder of catalogs") from error
    except OSError as error:
        raise translated(error, f"cannot read {root}") from error


def rename_dropped(root: Path, name: str) -> Path:
    """Rename a catalog's folder to its name as a dropped catalog; return the new path."""
    uuid = read_catalog(root / name).uuid
    dropped = root / f"{DROPPED_PREFIX}{uuid.hex}"
    with os_errors(f"cannot drop catalog {name!r} in {root}"):
        (root / name).rename(dropped)
        sync_folder(root)
    reach("drop.after_rename")
    return dropped


def mark_dropped(root: Path, uuid: UUID) -> None:
    """Mark a catalog as dropped after its folder has disappeared."""
    with os_errors(f"cannot drop a catalog in {root}"):
        (root / f"{DROPPED_PREFIX}{uuid.hex}").mkdir(exist_ok=True)
        sync_folder(root)


def is_dropped(root: Path, uuid: UUID) -> bool:
    """Return True if the catalog was dropped; False if its folder exists or is missing for another reason."""
    return os.path.isdir(root / f"{DROPPED_PREFIX}{uuid.hex}")


def missing_catalog(path: Path, uuid: UUID) -> CatalogReplaced | LogMissing:
    """Return the error for a catalog whose folder is missing: dropped, or missing for another reason."""
    if is_dropped(path.parent, uuid):
        return CatalogReplaced(path.name, uuid, None)
    return LogMissing(path.name)


def _set_remains_aside(folder: Path) -> None:
    """Rename a folder that has only a Spark checkpoint to a dropped catalog.

    Spark creates such a folder again if a catalog is dropped while an ingest feeds it. The checkpoint is
    useless then. A folder with any other content stays.
    """
    try:
        found = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    if found != [_INGEST]:
        return
    aside = folder.with_name(f"{DROPPED_PREFIX}{uuid4().hex}")
    # Check after the rename, not before: between a check and a rename another process could create the catalog.
    folder.rename(aside)
    if is_catalog(aside):  # another process has created the catalog first
        aside.rename(folder)


def delete_dropped(root: Path) -> None:
    """Empty the folders of dropped catalogs, and delete old empty ones; the next call retries failures."""
    for folder in root.glob(f"{DROPPED_PREFIX}*"):
        with suppress(OSError):
            if not (held := list(folder.iterdir())):
                if time.time() - folder.stat().st_mtime > _DROP_MARK_S:
                    folder.rmdir()
                continue
            # Keep the folder itself: without it the catalog would count as lost, not as dropped.
            for each in held:
                if each.is_dir() and not each.is_symlink():
                    shutil.rmtree(each, ignore_errors=True)
                else:
                    each.unlink()


def _fill_folder(folder: Path, document: CatalogDocument) -> None:
    """Create the folder of an empty catalog durably."""
    for each in _FOLDERS:
        (folder / each).mkdir(parents=True)
    write_durably(folder / CATALOG_FILE, documents.sealed(document)[:1], new=True)
    for each in _FOLDERS:
        sync_folder(folder / each)
    # Without one of these names after a power cut, the catalog would be refused as incomplete.
    sync_folder(folder)


def _write_settings(folder: Path, descriptor: CatalogDocument, settings: Settings) -> None:
    """Write the first settings of a new catalog; durable once the catalog folder's own name is."""
    document = SettingsDocument(
        format_version=FORMAT_VERSION,
        number=1,
        uuid=descriptor.uuid,
        previous_crc32c=0,
        timestamp=descriptor.created,
        settings=dict(settings),
        entity_types=[],
    )
    (folder / SETTINGS).mkdir()
    write_durably(folder / SETTINGS / object_name(1), documents.sealed(document)[:1], new=True)
    sync_folder(folder / SETTINGS)
    sync_folder(folder)
