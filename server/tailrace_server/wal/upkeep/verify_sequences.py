"""Checks of the objects beside the log: definitions, settings and named subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest, LogCorrupted, LogError
from tailrace_server.wal.files.numbered import check_numbered
from tailrace_server.wal.files.sealed import object_name
from tailrace_server.wal.files.sequence_documents import (
    DEFINITIONS,
    SETTINGS,
    SUBSCRIPTIONS,
    DefinitionsDocument,
    SettingsDocument,
)
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID

    from tailrace_server.wal.files.object_store import ObjectStore

_DEFINITIONS_REMEDY: Final = (
    "take the newest object out of the folder, then what the one before says holds; define it again"
)


def check_definitions(store: ObjectStore, uuid: UUID) -> Iterator[LogCorrupted]:
    """Yield the faults in the definitions of a catalog; continue behind each."""
    return check_numbered(store, DEFINITIONS, uuid, DefinitionsDocument, _DEFINITIONS_REMEDY)


_SETTINGS_REMEDY: Final = (
    "take the newest object out of the folder, then what the one before says holds; set it again"
)


def check_settings(store: ObjectStore, uuid: UUID) -> Iterator[LogCorrupted]:
    """Yield the faults in the settings of a catalog; continue behind each."""
    return check_numbered(store, SETTINGS, uuid, SettingsDocument, _SETTINGS_REMEDY)


def check_subscriptions(path: Path, uuid: UUID) -> Iterator[LogError]:
    """Yield what is wrong with the named subscriptions of a catalog; superseded objects say nothing any more.

    Args:
        path: The catalog's folder.
        uuid: The log's.
    """
    sequences = SubscriptionSequences(path, uuid)
    for name in sequences.names():
        try:
            found = sequences.newest(name)
        except LogError as error:
            yield error
            continue
        if found is None or found.deleted:
            continue
        where = f"{SUBSCRIPTIONS}/{name}/{object_name(found.number)}"
        try:
            cursor = Cursor.parse(found.cursor)
        except InvalidRequest:
            yield LogCorrupted(where, 0, f"{found.cursor[:80]!r} is no cursor")
            continue
        if cursor.catalog_uuid != uuid:
            yield LogCorrupted(where, 0, f"its cursor is of log {cursor.catalog_uuid}")
