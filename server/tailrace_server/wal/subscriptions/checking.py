"""Checks that a reader can resume from the newest objects of named subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest, LogCorrupted, LogError
from tailrace_server.wal.files.sealed import object_name
from tailrace_server.wal.files.subscription_documents import SUBSCRIPTIONS
from tailrace_server.wal.subscriptions.sequence import SubscriptionSequences

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID


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
