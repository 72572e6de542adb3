"""Reading checkpoints: their paths, headers and bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.errors import CatalogReplaced, LogCorrupted
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.documents import (
    CHECKPOINTS,
    CheckpointBody,
    CheckpointHeader,
    RemovedFiles,
)
from tailrace_server.wal.files.sealed import object_name, unseal
from tailrace_server.wal.state.state import LogState

if TYPE_CHECKING:
    from uuid import UUID

    from tailrace_server.wal.files.object_store import ObjectStore

_HEADER_BYTES_MAX: Final = 4_096
"""A checkpoint's header is shorter than this."""


def checkpoint_path(number: int) -> str:
    """Return the path of a checkpoint."""
    return f"{CHECKPOINTS}/{object_name(number)}"


def read_header(store: ObjectStore, number: int) -> CheckpointHeader | None:
    """Return a checkpoint's header without reading the rest; the checksum is checked when the body is read.

    Raises:
        LogCorrupted: The header is damaged, or has another number.
    """
    path = checkpoint_path(number)
    found = store.read(path, _HEADER_BYTES_MAX)
    if found is None:
        return None
    header = documents.parse(path, found.data.partition(b"\n")[0], CheckpointHeader)
    if header.number != number:
        raise LogCorrupted(path, 0, f"it says that it is number {header.number}")
    return header


def read_checkpoint(
    store: ObjectStore, number: int, name: str, uuid: UUID
) -> tuple[CheckpointHeader, CheckpointBody, int]:
    """Return a checkpoint's header, body and CRC.

    Raises:
        LogCorrupted: It is missing or damaged.
        CatalogReplaced: It belongs to another log.
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
    """Return the state that a checkpoint holds; errors as ``read_checkpoint``."""
    header, body, crc = read_checkpoint(store, number, name, uuid)
    state = LogState.from_checkpoint(checkpoint_path(number), name, header, body, crc)
    state.removed = removed_files(number, body)
    return state


def removed_files(number: int, body: CheckpointBody) -> dict[str, int]:
    """Return the files that a checkpoint lists for deletion, and since when nothing names them."""
    return dict(documents.parse(checkpoint_path(number), body.removed, RemovedFiles))
