"""The last objects that a log has read, and the checkpoint to continue from once they are deleted.

Upkeep deletes entries, publications and checkpoints in the order of their numbers, after a durable checkpoint
covers them and a grace period is over. So while the last object that was read exists, its successor has not
been deleted: any object under the next number is the first one with that number. If the last object that was
read is gone, this process was paused for longer than the grace period. Then the next number may have been used
and deleted already. Only the newest checkpoint shows what the log holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.errors import CatalogReplaced, LogCorrupted
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.documents import (
    CHECKPOINTS,
    ENTRIES,
    PUBLICATIONS,
    CheckpointBody,
    CheckpointHeader,
    RemovedFiles,
)
from tailrace_server.wal.files.numbered import newest_number, numbered_path
from tailrace_server.wal.files.sealed import (
    object_name,
    object_number,
    object_numbers,
    read_crc,
    unseal,
)
from tailrace_server.wal.state.state import LogState

if TYPE_CHECKING:
    from uuid import UUID

    from numpy.typing import NDArray

    from tailrace_server.wal.files.object_store import ObjectStore

_HEADER_BYTES_MAX: Final = 4_096
"""Bytes to read for a checkpoint's header, which is shorter than this."""


def checkpoint_path(number: int) -> str:
    """Return the path of the checkpoint with a number."""
    return f"{CHECKPOINTS}/{object_name(number)}"


def read_header(store: ObjectStore, number: int) -> CheckpointHeader | None:
    """Return a checkpoint's header without reading the rest; None if the checkpoint does not exist.

    The checksum is not checked: it is checked when the body is read.

    Raises:
        LogCorrupted: The header is damaged, or has another number.
    """
    path = checkpoint_path(number)
    found = store.read(path, _HEADER_BYTES_MAX)
    if found is None:
        return None
    header = documents.parse(path, found.data.partition(b"\n")[0], CheckpointHeader)
    if header.number != number:
        raise LogCorrupted(path, 0, f"it has the number {header.number} in it")
    return header


def read_checkpoint(
    store: ObjectStore, number: int, name: str, uuid: UUID
) -> tuple[CheckpointHeader, CheckpointBody, int]:
    """Return a checkpoint's header, body and CRC.

    Raises:
        LogCorrupted: The checkpoint is missing or damaged.
        CatalogReplaced: The checkpoint belongs to another log.
    """
    path = checkpoint_path(number)
    found = store.read(path)
    if found is None:
        raise LogCorrupted(path, 0, "the checkpoint is missing")
    text, crc = unseal(path, memoryview(found.data))  # a large one is not copied
    end = found.data.find(b"\n") + 1
    header = documents.parse(path, text[:end], CheckpointHeader)
    body = documents.parse(path, text[end:], CheckpointBody, end)
    if header.uuid != uuid:
        raise CatalogReplaced(name, uuid, header.uuid)
    return header, body, crc


def read_state(store: ObjectStore, number: int, name: str, uuid: UUID) -> LogState:
    """Return the state that a checkpoint holds; raises the same errors as ``read_checkpoint``."""
    header, body, crc = read_checkpoint(store, number, name, uuid)
    state = LogState.from_checkpoint(checkpoint_path(number), name, header, body, crc)
    state.removed = removed_files(number, body)
    return state


def removed_files(number: int, body: CheckpointBody) -> dict[str, int]:
    """Return the files that a checkpoint lists for deletion, and since when each is unnamed, µs."""
    return dict(documents.parse(checkpoint_path(number), body.removed, RemovedFiles))


class LastObject(NamedTuple):
    """The last object that a log has read from one folder of numbered objects."""

    folder: str
    number: int
    """Number of the object; 0 if none was read."""

    @property
    def path(self) -> str:
        """The path of the object."""
        return numbered_path(self.folder, self.number)


def last_objects(state: LogState) -> tuple[LastObject, ...]:
    """Return the last entry, publication and checkpoint that a state includes."""
    return (
        LastObject(ENTRIES, state.last_entry),
        LastObject(PUBLICATIONS, state.last_publication),
        LastObject(CHECKPOINTS, state.checkpoint),
    )


def is_there(store: ObjectStore, state: LogState, folder: str) -> bool:
    """Return True if the last object that a state has read from a folder still exists with the same content."""
    number = dict(last_objects(state))[folder]
    # If nothing was read yet, the first object must not have been deleted: either the folder still begins with
    # it, or no checkpoint allows to delete it.
    if not number:
        begins_dense = object_numbers(store.names(folder))[:2] in ([], [1], [1, 2])
        return begins_dense or not _covers(store, folder)
    if folder == CHECKPOINTS:  # the state may not know its CRC, if only its header was read
        header = read_header(store, number)
        return header is not None and header.timestamp == state.checkpoint_time
    crc = state.last_entry_crc if folder == ENTRIES else state.publication_crc
    return read_crc(store, numbered_path(folder, number)) == crc


def withdraw_repeated(store: ObjectStore, path: str, crc: int) -> bool:
    """Delete an object that was just created if its number had been used before; return True if it was deleted.

    The creator calls this if ``is_there`` returns False after the creation. The reason may also be that the
    creator was paused between the two calls. Then the object is the newest one, or the next object continues it
    by its CRC, and the object stays.

    Args:
        store: The catalog's objects.
        path: Path of the object that was created.
        crc: CRC of that object. The next object, if it continues this one, contains this number.
    """
    folder, _, name = path.partition("/")
    number = object_number(name) or 0
    if newest_number(store, folder) == number:
        return False
    following = numbered_path(folder, number + 1)
    found = store.read(following)
    if found is not None and documents.previous_crc(following, found.data) == crc:
        return False
    store.delete(path)
    return True


def _covers(store: ObjectStore, folder: str) -> bool:
    """Return True if the newest checkpoint covers objects in a folder, so that they may have been deleted."""
    newest = newest_number(store, CHECKPOINTS)
    header = read_header(store, newest) if newest else None
    return header is not None and (folder != PUBLICATIONS or header.last_publication > 0)


def continues(newer: LogState, older: LogState, last: LastObject) -> bool:
    """Return True if a checkpoint's state is a later state of the same log and includes objects after ``last``.

    A log that was restored from a copy and then written to has other commits under the same versions. So this
    compares the timestamps of the newest commit that both states can have. If one of them has trimmed that
    commit, the comparison is left out.

    Args:
        newer: The checkpoint's state.
        older: The state of this process.
        last: The last object that this process has read from one folder.
    """
    if dict(last_objects(newer))[last.folder] <= last.number:
        return False
    # The older of both newest commits: both states have it unless it was trimmed.
    first, second = ((each.columns, len(each)) for each in (newer.commits, older.commits))
    if not first[1] or not second[1]:
        return True
    version = min(columns.item(0, length - 1) for columns, length in (first, second))
    found = [_timestamp(*each, version) for each in (first, second)]
    return None in found or found[0] == found[1]


def _timestamp(columns: NDArray[np.int64], length: int, version: int) -> int | None:
    """Return the timestamp of the commit whose first version is ``version``.

    None if that commit was trimmed; 0 if no commit begins with the version.
    """
    place = int(np.searchsorted(columns[0, :length], version))
    if place == 0 and columns[0, 0] != version:
        return None
    return columns.item(1, place) if place < length and columns[0, place] == version else 0
