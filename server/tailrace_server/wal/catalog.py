"""The catalogs of a log's root: create, open, list, drop. The system log records what happens to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from tailrace.errors import CatalogUnknown, InvalidRequest
from tailrace_server.wal.catalog_writer import CatalogWriter, check_writer_name
from tailrace_server.wal.files.catalog_folder import (
    SYSTEM_CATALOG,
    create_folder,
    delete_dropped,
    list_catalogs,
    mark_dropped,
    read_catalog,
    read_named,
    refuse_system,
    rename_dropped,
)
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.system_log import record_changes, recorded_uuid

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Unpack
    from uuid import UUID

    from tailrace.clock import Clock
    from tailrace_server.wal.files.sequence_documents import Settings


def create_catalog(
    root: Path, name: str, *, settings: Settings | None = None, clock: Clock | None = None
) -> UUID:
    """Create a catalog, if there is none of that name, and record it; return its uuid.

    Args:
        root: The log's root, which is made if it is missing.
        name: The catalog's.
        settings: What is set of it from its beginning on.
        clock: Says when it was created.

    Raises:
        InvalidRequest: The name is not of the form, or is that of the system log; or there is a catalog of that
            name, and ``settings`` were given.
        LogFull: No room.
        LogUnreadable: No permission, or a folder of that name that is not a catalog, or is another's.
    """
    refuse_system(name)
    created = create_folder(root, name, clock, settings)
    if settings and created is None:
        raise InvalidRequest(
            f"catalog {name!r} is there already; tailrace catalog set changes what is set of it"
        )
    uuid = read_named(root, name).uuid
    record_changes(root, clock=clock)
    return uuid


def open_catalog(root: Path, name: str) -> CommitLog:
    """Open the log of a catalog below a root, for reading only.

    Raises:
        LogUnreadable: Its folder is another catalog's, or as ``CommitLog.open``.
        LogCorrupted: As ``CommitLog.open``.
    """
    read_named(root, name)
    return CommitLog.open(root / name, reads_only=True)


class WriterOptions(TypedDict, total=False):
    """Arguments of ``CatalogWriter.open`` that may be left out."""

    run_id: str | None
    take_over: bool
    may_be_fenced: bool
    publish_left: bool
    stream: str


def open_writer(
    root: Path,
    catalog: str,
    *,
    writer: str,
    clock: Clock | None = None,
    **options: Unpack[WriterOptions],
) -> CatalogWriter:
    """Open a catalog for writing, created if there is none.

    Arguments and errors as ``CatalogWriter.open``, but CatalogUnknown.
    """
    check_writer_name(writer)  # before the catalog is created for it
    create_catalog(root, catalog, clock=clock)
    return CatalogWriter.open(root, catalog, writer=writer, clock=clock, **options)


def drop_catalog(root: Path, name: str, *, clock: Clock | None = None) -> UUID:
    """Drop a catalog with all that it holds; return the uuid that it had.

    Its folder is renamed first, which ends its readers and writers; then the drop is recorded; then the
    folder is emptied. A catalog whose folder is gone is dropped too: its readers do not wait for it any more.

    Raises:
        CatalogUnknown: There is none of that name.
        LogUnreadable: No permission.
    """
    if name in list_catalogs(root):
        uuid = read_catalog(root / name).uuid
        rename_dropped(root, name)
    elif (missing := recorded_uuid(root, name)) is not None:
        uuid = missing
        mark_dropped(root, uuid)
    else:
        raise CatalogUnknown(name, list_catalogs(root))
    record_changes(root, clock=clock)
    delete_dropped(root)
    return uuid


__all__ = [
    "SYSTEM_CATALOG",
    "create_catalog",
    "drop_catalog",
    "list_catalogs",
    "open_catalog",
    "open_writer",
    "read_catalog",
]
