"""The catalogs below a log root: create, open, list and drop them.

The system log records each creation, replacement and drop.
"""

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
    """Create a catalog unless one of that name exists; return the uuid of the catalog of that name.

    Either way, bring the system log up to date.

    Args:
        root: The log root; created if it is missing.
        name: Name of the catalog.
        settings: Catalog settings that hold from the first version on.
        clock: Source of the time of creation.

    Raises:
        InvalidRequest: The name is malformed; or ``settings`` are given and the catalog exists already.
        LogFull: The file system is full.
        LogUnreadable: Permission is missing; the name is the system log's; or the folder of that name is not a
            catalog, or is a copy of another catalog.
    """
    refuse_system(name)
    created = create_folder(root, name, clock, settings)
    if settings and created is None:
        raise InvalidRequest(
            f"catalog {name!r} already exists; use tailrace catalog set to change its settings"
        )
    uuid = read_named(root, name).uuid
    record_changes(root, clock=clock)
    return uuid


def open_catalog(root: Path, name: str) -> CommitLog:
    """Open the log of a catalog for reading only.

    Raises:
        LogUnreadable: The folder is a copy of another catalog's folder; or as ``CommitLog.open``.
        LogCorrupted: As ``CommitLog.open``.
    """
    read_named(root, name)
    return CommitLog.open(root / name, reads_only=True)


class WriterOptions(TypedDict, total=False):
    """The optional arguments of ``CatalogWriter.open``."""

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
    """Open a catalog for writing; create the catalog if it does not exist.

    Arguments and errors are those of ``CatalogWriter.open``, except CatalogUnknown.
    """
    check_writer_name(writer)  # before the catalog is created for it
    create_catalog(root, catalog, clock=clock)
    return CatalogWriter.open(root, catalog, writer=writer, clock=clock, **options)


def drop_catalog(root: Path, name: str, *, clock: Clock | None = None) -> UUID:
    """Drop a catalog and delete its content; return the catalog's uuid.

    If the catalog's folder is gone already, this marks the catalog as dropped, so that its readers stop waiting
    for the folder to come back.

    Raises:
        CatalogUnknown: No catalog of that name exists, and the system log has none.
        LogUnreadable: Permission is missing.
    """
    # The rename ends readers and writers at once, and is durable before the system log records the drop. Files
    # are deleted last: a crash in between leaves a folder that the next drop empties.
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
