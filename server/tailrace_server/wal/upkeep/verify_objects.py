"""Verification of the small objects of a log: entries, publications, checkpoints, and the numbered sequences.

The chains of entries and publications begin with the oldest objects that still exist (retention.py). The state
that results from the entries is compared with the state that a reader gets from the newest checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest, LogCorrupted, LogError
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.catalog_folder import check_folders
from tailrace_server.wal.files.documents import (
    CHECKPOINTS,
    ENTRIES,
    PUBLICATIONS,
    CheckpointHeader,
    CommitEntry,
    OpenEntry,
    PublicationDocument,
)
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.files.sealed import object_name, object_numbers, unseal
from tailrace_server.wal.files.sequence_documents import (
    SUBSCRIPTIONS,
)
from tailrace_server.wal.sequences.definitions import definition_sequence
from tailrace_server.wal.sequences.settings import setting_sequence
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.state.state import LogState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID

    from tailrace_server.wal.files.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Fault:
    """Damage in a file of the log."""

    path: str
    """Path of the file, relative to the catalog's folder."""
    offset: int
    """Offset of the damaged part in the file, in bytes."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.offset}: {self.reason}"


@dataclass(slots=True)
class Verification:
    """The result of a verification: how many objects were read, and their faults."""

    entries: int = 0
    publications: int = 0
    checkpoints: int = 0
    segments: int = 0
    batches: int = 0
    rows: int = 0
    transactions: int = 0
    bytes: int = 0
    bases: int = 0
    """Number of current bases."""
    base_rows: int = 0
    key_files: int = 0
    key_files_missing: int = 0
    """Number of key files that could exist and do not. This is no fault: readers then read heads."""
    faults: list[Fault] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """True if there is no fault."""
        return not self.faults


def verify_objects(path: Path, result: Verification) -> LogState:
    """Read all entries, publications and checkpoints; return the state that results from the entries.

    Faults are added to ``result``. After a fault in a chain, each later object is checked alone.
    """
    store = LocalFiles(path)
    document = documents.read(store, documents.CATALOG_FILE, documents.CatalogDocument)
    if document is None:
        return CommitLog.open(path).state  # raises the error for a folder that is not a catalog
    check_folders(path)
    # 1. Apply all entries, as a reader does. At the first fault, check the later ones alone.
    state = LogState(document[0].name, document[0].uuid)
    try:
        _begin_at_oldest(store, state)
        while True:
            found = documents.read_entry(store, state.last_entry + 1)
            if found is None:
                break
            state.apply(found.path, found.entry, found.crc)
            result.entries += 1
    except LogCorrupted as error:
        note_fault(result, error)
        _verify_behind(store, ENTRIES, state.last_entry + 1, result)
    # 2. The same for publications. A missing publication is noticed here, a missing entry by ``compare``.
    try:
        while True:
            name = f"{PUBLICATIONS}/{object_name(state.last_publication + 1)}"
            publication = documents.read(store, name, PublicationDocument)
            if publication is None:
                _refuse_hole(store, state.last_publication)
                break
            state.apply_publication(name, *publication)
            result.publications += 1
    except LogCorrupted as error:
        note_fault(result, error)
        _verify_behind(store, PUBLICATIONS, state.last_publication + 1, result)
    _verify_checkpoints(store, result)
    return state


def _verify_behind(store: ObjectStore, folder: str, number: int, result: Verification) -> None:
    """Note the damaged objects of a sequence after the number at which its chain is broken."""
    for later in object_numbers(store.names(folder, after=object_name(number))):
        try:
            if folder == ENTRIES:
                documents.read_entry(store, later)
            else:
                documents.read(store, f"{folder}/{object_name(later)}", PublicationDocument)
        except LogCorrupted as error:
            note_fault(result, error)


def _begin_at_oldest(store: ObjectStore, state: LogState) -> None:
    """Set a state to what it was before the oldest objects that still exist, as far as these say.

    Upkeep deletes objects in the order of their numbers, once a checkpoint covers them.
    """
    # 1. The oldest entry says what the chain was before it: the CRC of the entry before, and the epoch.
    number = first = min(object_numbers(store.names(ENTRIES)), default=1)
    while first > 1 and (found := documents.read_entry(store, number)) is not None:
        entry = found.entry
        if number == first:
            state.last_entry, state.last_entry_crc = first - 1, entry.previous_crc32c
            state.epoch = entry.epoch - isinstance(entry, OpenEntry)
        # The first commit with records shows how many versions and records come before it.
        if isinstance(entry, CommitEntry) and entry.first_version is not None:
            state.last_version = entry.first_version - 1
            state.end_row = entry.segments[0].batches["first_row"][0]
            break
        number += 1
    # 2. The oldest publication is taken without a check of its predecessor, which is deleted.
    first = min(object_numbers(store.names(PUBLICATIONS)), default=1)
    oldest = f"{PUBLICATIONS}/{object_name(first)}"
    if first > 1 and (found_publication := documents.read(store, oldest, PublicationDocument)):
        state.publication, state.publication_crc = found_publication


def _refuse_hole(store: ObjectStore, last: int) -> None:
    """Check that no publication exists after the last one of the chain.

    Raises:
        LogCorrupted: Later publications exist, so the next one is missing.
    """
    later = object_numbers(store.names(PUBLICATIONS, after=object_name(last)))
    if later:
        missing = f"{PUBLICATIONS}/{object_name(last + 1)}"
        fault = f"the publication is missing, but there are later ones up to {later[-1]}"
        raise LogCorrupted(missing, 0, fault)


def _verify_checkpoints(store: ObjectStore, result: Verification) -> None:
    numbers = object_numbers(store.names(CHECKPOINTS))
    for number in range(numbers[0], numbers[-1] + 1) if numbers else ():
        name = f"{CHECKPOINTS}/{object_name(number)}"
        found = store.read(name)
        result.checkpoints += 1
        try:
            if found is None:
                raise LogCorrupted(name, 0, "the checkpoint is missing")
            text, _ = unseal(name, found.data)
            documents.parse(name, text.partition(b"\n")[0], CheckpointHeader)
        except LogCorrupted as error:
            note_fault(result, error)


def compare(store: ObjectStore, opened: LogState, chain: LogState, result: Verification) -> None:
    """Compare the state that a reader gets (``opened``) with the state from the entries alone (``chain``)."""
    missing = f"{ENTRIES}/{object_name(chain.last_entry + 1)}"
    if chain.last_entry < opened.last_entry and not store.exists(missing):
        fault = f"the entry is missing, but the log has entries up to {opened.last_entry}"
        note_fault(result, LogCorrupted(missing, 0, fault))
    name = f"{CHECKPOINTS}/{object_name(opened.checkpoint)}"
    names = ["last_entry", "last_entry_crc", "last_version", "end_row", "epoch"]
    if store.exists(f"{ENTRIES}/{object_name(1)}"):
        names += ["schemas", "published_by_entry"]  # otherwise deleted entries may have set these
    elif not chain.last_commit_entry:
        names = [each for each in names if each not in ("last_version", "end_row")]
    for what in names:
        found, wanted = getattr(opened, what), getattr(chain, what)
        if found != wanted and opened.last_entry == chain.last_entry:
            note_fault(
                result, LogCorrupted(name, 0, f"{what} is {found}, but the entries give {wanted}")
            )


def note_fault(result: Verification, error: LogError, path: str = "", offset: int = 0) -> None:
    """Add an error to the faults, unless it is among them.

    Args:
        result: The verification.
        error: The error.
        path: Path of the damaged file, used if the error has none.
        offset: Offset of the damaged part, used if the error has none.
    """
    fault = Fault(path, offset, str(error))
    if isinstance(error, LogCorrupted):
        fault = Fault(error.path, error.offset, error.reason)
    if fault not in result.faults:
        result.faults.append(fault)


_REMEDY: Final = (
    "move the newest object out of the folder; then the previous one is valid; {} it again"
)


def check_sequences(store: ObjectStore, uuid: UUID) -> Iterator[LogCorrupted]:
    """Yield the faults in the settings and definitions of a catalog; continue after each."""
    yield from setting_sequence(store, uuid).check(_REMEDY.format("set"))
    yield from definition_sequence(store, uuid).check(_REMEDY.format("define"))


def check_subscriptions(path: Path, uuid: UUID) -> Iterator[LogError]:
    """Yield the faults of a catalog's named subscriptions; only the newest object of each is checked.

    Args:
        path: The catalog's folder.
        uuid: The log's uuid.
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
            yield LogCorrupted(where, 0, f"{found.cursor[:80]!r} is not a cursor")
            continue
        if cursor.catalog_uuid != uuid:
            yield LogCorrupted(where, 0, f"its cursor is of log {cursor.catalog_uuid}")
