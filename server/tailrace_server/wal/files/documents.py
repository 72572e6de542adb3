"""The small objects of the log, as typed values: catalog, entries, publications, checkpoints.

Fields are written in the order of this module, every number a plain integer, every time µs since
the Unix epoch. Readers ignore fields that they do not know; a change that they must not ignore raises
``format_version``. docs/wal-format.md describes each field for readers in another language.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct

from tailrace.errors import LogCorrupted, LogUnreadable
from tailrace_server.wal.files.schema_documents import DIFFERENCE, SchemaDocument
from tailrace_server.wal.files.sealed import object_name, seal, unseal, without_records
from tailrace_server.wal.files.sequence_documents import (
    BasesDocument,
    DefinitionsDocument,
    SettingsDocument,
    SubscriptionDocument,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_server.wal.files.object_store import ObjectContent, ObjectStore

FORMAT_VERSION: Final = 1
"""Version of everything in a catalog's folder but schemas that are differences, and what is below."""
GATED: Final = 2
"""Version of the entries that set and remove a gate, and of checkpoints in between. A writer that
does not know gates would publish past them, so it must not read on."""
BODIES_VERSION: Final = 2
"""Version of checkpoints of logs in which bodies are gone: a reader that does not know that would show none."""

CATALOG_FILE: Final = "catalog.json"
ENTRIES: Final = "log"
PUBLICATIONS: Final = "published"
CHECKPOINTS: Final = "checkpoints"
SCHEMAS: Final = "schemas"
SEGMENTS: Final = "segments"

FieldLists = dict[str, list[int]]
"""A table by columns: name of the field → its values, all of one length."""

PackedLists = dict[str, msgspec.Raw]
"""The same in a checkpoint, which may have millions of numbers: each column is decoded when its turn comes."""


class CatalogDocument(Struct, frozen=True):
    """catalog.json: what makes a folder a catalog."""

    format_version: int
    name: str
    uuid: UUID
    created: int


class PendingSegment(Struct, frozen=True):
    """A file of change rows whose transactions are not complete. Its content is the pipeline's business."""

    path: str
    """Relative to the catalog's folder."""
    rows: int
    bytes: int
    crc32c: int
    """Of the whole file."""


class SegmentDocument(Struct, frozen=True):
    """A segment as its commit entry names it."""

    path: str
    rows: int
    bytes: int
    base_version: int
    first: tuple[int, int]
    """Position of its first record."""
    last: tuple[int, int]
    counts: dict[str, int]
    prefix: list[tuple[int, int, int]]
    """Offset, length and CRC-32C of the schema and dictionary messages."""
    batches: FieldLists
    """By batch_table.BATCH_FIELDS."""


class OpenEntry(Struct, frozen=True, tag="open", tag_field="kind"):
    """A writer has opened the catalog: every lower epoch is fenced from here on."""

    format_version: int
    number: int
    uuid: UUID
    previous_crc32c: int
    """CRC-32C of the entry before; 0 for the first."""
    epoch: int
    timestamp: int
    writer: str
    run_id: str
    host: str
    take_over: bool


class CommitEntry(Struct, frozen=True, tag="commit", tag_field="kind"):
    """Versions have become durable; a publication releases them, unless the entry does so itself."""

    format_version: int
    number: int
    uuid: UUID
    previous_crc32c: int
    epoch: int
    timestamp: int
    """The commit timestamp of all its versions; rises strictly from entry to entry."""
    writer: str
    batch_id: int
    k: int
    """0 the batch, from 1 its flushes."""
    first_version: int | None
    """None where the commit has no versions."""
    last_version: int | None
    schemas: list[tuple[int, int]]
    """First version and id of each schema that begins here."""
    source_positions: dict[str, int | str]
    """Those that the commit advanced."""
    pending: list[PendingSegment]
    """All files still pending after it."""
    segments: list[SegmentDocument]
    published: bool = False
    """It releases everything up to its end to readers, as a publication of it would."""


class GateDocument(Struct, frozen=True):
    """A gate: tables that are to show a version before it is published."""

    name: str
    """The kind of the tables: ``delta``."""
    place: str
    """The place of the tables."""
    entity_types: list[str]
    """Those that it shows; empty: all."""
    since: int
    """Newest committed version when the gate was put up: what is above it, the gate alone publishes."""


class GateEntry(Struct, frozen=True, tag="gate", tag_field="kind"):
    """A gate has been put up, or taken away. Any process may add it, under the epoch of the day."""

    format_version: int
    number: int
    uuid: UUID
    previous_crc32c: int
    epoch: int
    timestamp: int
    gate: GateDocument | None
    """The gate from here on; None: none."""


Entry = OpenEntry | CommitEntry | GateEntry


class PublicationDocument(Struct, frozen=True):
    """Everything up to the end of one entry is released to readers."""

    format_version: int
    number: int
    uuid: UUID
    previous_crc32c: int
    """CRC-32C of the publication before; 0 for the first."""
    epoch: int
    entry: int
    version: int
    """That entry's last version; never falls."""
    timestamp: int
    state_versions: dict[str, int]
    """Version of each state table that shows the catalog at ``version``."""


class CheckpointHeader(Struct, frozen=True):
    """First line of a checkpoint: whether a reader that has read the entries needs the rest."""

    format_version: int
    number: int
    uuid: UUID
    previous_crc32c: int
    """CRC-32C of the checkpoint before; 0 for the first."""
    revision: int
    """Rises with every compaction and trim: what a reader cannot know from the entries."""
    last_entry: int
    oldest: tuple[int, int]
    timestamp: int
    last_publication: int = 0
    """Number of the newest publication that it covers; 0 for none."""


class KnownCommit(NamedTuple):
    """A commit by which a repeat of its batch is recognised once its entry is deleted."""

    batch_id: int
    k: int
    entry: int
    first_version: int | None
    last_version: int | None
    timestamp: int


class SegmentLists(Struct, frozen=True):
    """The segments of a checkpoint, by columns."""

    path: list[str]
    rows: list[int]
    bytes: list[int]
    base_version: list[int]
    counts: list[msgspec.Raw]
    """Of each: dict[str, int]."""
    prefix: list[msgspec.Raw]
    """Of each: list[tuple[int, int, int]]."""
    batches: list[int]
    """How many of the batches belong to each, in order."""


RemovedFiles = list[tuple[str, int]]
"""Files that nothing names any more, and since when, µs; they go after ``delete_grace``."""


class CheckpointBody(Struct, frozen=True):
    """Second line of a checkpoint: the state of the log after ``last_entry``, whole."""

    last_entry_crc32c: int
    last_version: int
    last_timestamp: int
    """Of the newest entry of any kind."""
    last_commit_entry: int
    """Newest entry with versions; 0 for none."""
    end_row: int
    epoch: int
    writer: str
    run_id: str
    host: str
    writers: dict[str, tuple[int, int, int]]
    """Writer → batch id, k and entry of its last commit; batch id -1 where it has only opened."""
    source_positions: dict[str, int | str]
    pending: list[PendingSegment]
    schemas: list[tuple[int, int]]
    publication: PublicationDocument | None
    publication_crc32c: int
    removed: msgspec.Raw
    """RemovedFiles; decoded only to delete them."""
    segments: SegmentLists
    batches: PackedLists
    commits: PackedLists
    """``first_version`` and ``timestamp`` of every commit that has versions at or after ``oldest``."""
    published_by_entry: int = 0
    """Highest version that an entry has published itself; 0 for none."""
    gate: GateDocument | None = None
    """The gate; None: none."""
    bodies_from: list[tuple[str, int]] = []
    """Name of an entity type and version: its records below that have no bodies any more. The name is that of
    the version's schema."""
    known_commits: dict[str, list[KnownCommit]] = {}
    """See state/commit_notes.py."""


class _AnyVersion(Struct):
    format_version: int = 0


class _Link(Struct):
    previous_crc32c: int


_D = TypeVar("_D")
_encoder = msgspec.json.Encoder()


_DECODERS: Final[Mapping[Any, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (
        *(CatalogDocument, Entry, PublicationDocument, CheckpointHeader, CheckpointBody),
        *(RemovedFiles, SchemaDocument, BasesDocument, SettingsDocument, SubscriptionDocument),
        DefinitionsDocument,
        _AnyVersion,
        _Link,
    )
}
"""By kind. Made at import, because logs are opened in threads. msgspec (0.22) publishes its type information of
a struct before it is complete; a thread that decodes meanwhile ends the process with a memory fault."""


def sealed(*documents: Struct) -> tuple[bytes, int]:
    """Return the bytes and the CRC of an object made of documents, a line each."""
    return seal(*(_encoder.encode(document) for document in documents))


def load(path: str, data: bytes, kind: type[_D]) -> tuple[_D, int]:
    """Return an object of one line, and its CRC.

    Args:
        path: What to call it in an error, relative to the catalog.
        data: The whole file.
        kind: What it must be.

    Raises:
        LogCorrupted: It is not valid, or not of that kind.
        LogUnreadable: It has a newer format version.
    """
    text, crc = unseal(path, data)
    return parse(path, text, kind), crc


def parse(path: str, text: bytes | memoryview | msgspec.Raw, kind: type[_D], offset: int = 0) -> _D:
    """Return a document from its JSON, which begins at ``offset`` of the file."""
    try:
        document: _D = _DECODERS[kind].decode(text)
    except msgspec.MsgspecError as error:
        _refuse_newer(path, text, kind)
        raise LogCorrupted(path, offset, f"the checksum is right, but {error}") from error
    if getattr(document, "format_version", FORMAT_VERSION) > _newest(kind):
        _refuse_newer(path, text, kind)
    return document


def read(store: ObjectStore, path: str, kind: type[_D]) -> tuple[_D, int] | None:
    """Return an object of one line and its CRC, or None where there is none. Errors as ``load``."""
    found = store.read(path)
    return None if found is None else load(path, found.data, kind)


def previous_crc(path: str, data: bytes) -> int:
    """Return the CRC of the object before, as an entry, publication or checkpoint states it."""
    line = without_records(data) if path.startswith(f"{ENTRIES}/") else data
    link: _Link = parse(path, line.partition(b"\n")[0], _Link)
    return link.previous_crc32c


def carries_records(store: ObjectStore, path: str) -> bool:
    """Return whether an object exists and carries records: JSON begins with a brace, a message does not."""
    found = store.read(path, 1)
    return found is not None and found.data != b"{"


def read_schema(store: ObjectStore, id: int) -> tuple[SchemaDocument, int] | None:
    """Return the schema file of an id and its size in bytes, or None where it is missing.

    Raises:
        LogCorrupted: As ``load``, or the file holds the schema of another id.
        LogUnreadable: As ``load``.
    """
    path = f"{SCHEMAS}/{id}.json"
    found = store.read(path)
    if found is None:
        return None
    document: SchemaDocument = load(path, found.data, SchemaDocument)[0]
    if document.id != id:
        raise LogCorrupted(path, 0, f"the checksum is right, but it is schema {document.id}")
    return document, len(found.data)


class ReadEntry(NamedTuple):
    """An entry as it was read."""

    path: str
    """Relative to the catalog."""
    entry: Entry
    crc: int
    data: bytes
    """The whole file, with the records that it carries."""
    marked: bool
    """True if its writer had said by then that its name is durable."""


def read_entry(store: ObjectStore, number: int) -> ReadEntry | None:
    """Return an entry, or None where there is none. Errors as ``load``."""
    path = f"{ENTRIES}/{object_name(number)}"
    found = store.read(path)
    return None if found is None else entry_in(path, found)


def entry_in(path: str, content: ObjectContent) -> ReadEntry:
    """Return the entry that an object holds. Errors as ``load``.

    Args:
        path: Where it is or will be, relative to the catalog.
        content: The object as it was read.
    """
    found: tuple[Entry, int] = load(path, without_records(content.data), Entry)  # type: ignore[arg-type]
    entry, crc = found
    return ReadEntry(path, entry, crc, content.data, content.mark == entry.timestamp)


def _newest(kind: Any) -> int:
    """Return the newest format version of a kind that is read."""
    if kind is SchemaDocument:
        return DIFFERENCE
    if kind is CheckpointHeader:
        return max(GATED, BODIES_VERSION)
    return GATED if kind == Entry else FORMAT_VERSION


def _refuse_newer(path: str, text: bytes | memoryview | msgspec.Raw, kind: Any) -> None:
    try:
        found = _DECODERS[_AnyVersion].decode(text).format_version
    except msgspec.MsgspecError:
        return
    if found > _newest(kind):
        raise LogUnreadable(
            f"{path} has format version {found}, and this tailrace reads up to {_newest(kind)}; upgrade it"
        )
