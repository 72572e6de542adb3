"""The small objects of the log as typed values: catalog, entries, publications, checkpoints.

Fields are written in the order of this module, every number as a plain integer, every time in microseconds
since 1970. Readers ignore unknown fields; a change that they must not ignore raises ``format_version``.
docs/wal-format.md describes each field for readers in other languages.
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
"""Format version of all objects except schema differences and the kinds below."""
GATED: Final = 2
"""Format version of the entries that set and remove a gate, and of checkpoints of a log with a gate. A writer
that does not know gates would publish past the gate, so it must stop reading there."""
BODIES_VERSION: Final = 2
"""Format version of checkpoints of logs whose old bodies are deleted. A reader that does not know this would
take the missing bodies for nulls."""

CATALOG_FILE: Final = "catalog.json"
ENTRIES: Final = "log"
PUBLICATIONS: Final = "published"
CHECKPOINTS: Final = "checkpoints"
SCHEMAS: Final = "schemas"
SEGMENTS: Final = "segments"

FieldLists = dict[str, list[int]]
"""A table by columns: field name → values; all lists have one length."""

PackedLists = dict[str, msgspec.Raw]
"""A table by columns in a checkpoint, with undecoded columns: each is decoded when it is needed, as a column
may have millions of numbers."""


class CatalogDocument(Struct, frozen=True):
    """catalog.json: the identity of a catalog; its presence makes a folder a catalog."""

    format_version: int
    name: str
    uuid: UUID
    created: int


class PendingSegment(Struct, frozen=True):
    """A file with rows of incomplete transactions. The pipeline defines its content."""

    path: str
    """Path relative to the catalog's folder."""
    rows: int
    bytes: int
    crc32c: int
    """CRC-32C of the whole file."""


class SegmentDocument(Struct, frozen=True):
    """The description of a segment in its commit entry."""

    path: str
    rows: int
    bytes: int
    base_version: int
    first: tuple[int, int]
    """Position of the first record."""
    last: tuple[int, int]
    """Position of the last record."""
    counts: dict[str, int]
    prefix: list[tuple[int, int, int]]
    """Offset, length and CRC-32C of the schema and dictionary messages."""
    batches: FieldLists
    """The record batches, by columns; the fields are batch_table.BATCH_FIELDS."""


class OpenEntry(Struct, frozen=True, tag="open", tag_field="kind"):
    """An entry by which a writer opens the catalog: all lower epochs are fenced from here on."""

    format_version: int
    number: int
    uuid: UUID
    previous_crc32c: int
    """CRC-32C of the previous entry; 0 in the first."""
    epoch: int
    timestamp: int
    writer: str
    run_id: str
    host: str
    take_over: bool


class CommitEntry(Struct, frozen=True, tag="commit", tag_field="kind"):
    """An entry that makes versions durable. A publication releases them, unless the entry publishes itself."""

    format_version: int
    number: int
    uuid: UUID
    previous_crc32c: int
    epoch: int
    timestamp: int
    """Commit timestamp of all versions of the entry; rises strictly from entry to entry."""
    writer: str
    batch_id: int
    k: int
    """0 for the batch itself; 1, 2, … for the flushes within the batch."""
    first_version: int | None
    """First version of the commit; None if the commit has no versions."""
    last_version: int | None
    schemas: list[tuple[int, int]]
    """First version and id of each schema that begins here."""
    source_positions: dict[str, int | str]
    """The source positions that the commit changed."""
    pending: list[PendingSegment]
    """All files with rows of incomplete transactions after the commit."""
    segments: list[SegmentDocument]
    published: bool = False
    """True if the entry publishes itself: it releases everything up to its end, like a publication."""


class GateDocument(Struct, frozen=True):
    """A gate: external tables must show a version before the version is published."""

    name: str
    """Kind of the tables: ``delta``."""
    place: str
    """Place of the tables."""
    entity_types: list[str]
    """The entity types that the tables show; empty: all."""
    since: int
    """Newest committed version when the gate was set; only the gate publishes versions above it."""


class GateEntry(Struct, frozen=True, tag="gate", tag_field="kind"):
    """An entry that sets or removes the gate. Any process may create it, under the current epoch."""

    format_version: int
    number: int
    uuid: UUID
    previous_crc32c: int
    epoch: int
    timestamp: int
    gate: GateDocument | None
    """The gate from here on; None: the gate is removed."""


Entry = OpenEntry | CommitEntry | GateEntry


class PublicationDocument(Struct, frozen=True):
    """A publication: releases everything up to the end of one entry to readers."""

    format_version: int
    number: int
    uuid: UUID
    previous_crc32c: int
    """CRC-32C of the previous publication; 0 in the first."""
    epoch: int
    entry: int
    version: int
    """Last version of the released entry; never falls from publication to publication."""
    timestamp: int
    state_versions: dict[str, int]
    """State table → its version that shows the catalog at ``version``."""


class CheckpointHeader(Struct, frozen=True):
    """The first line of a checkpoint: from it a reader of the entries knows if it needs the rest."""

    format_version: int
    number: int
    uuid: UUID
    previous_crc32c: int
    """CRC-32C of the previous checkpoint; 0 in the first."""
    revision: int
    """Number that rises with every compaction and trim, which a reader cannot derive from the entries."""
    last_entry: int
    oldest: tuple[int, int]
    timestamp: int
    last_publication: int = 0
    """Number of the newest publication that the checkpoint covers; 0: none."""


class KnownCommit(NamedTuple):
    """A summary of a commit, retained to recognise a repeat of its batch after its entry is deleted."""

    batch_id: int
    k: int
    entry: int
    first_version: int | None
    last_version: int | None
    timestamp: int


class SegmentLists(Struct, frozen=True):
    """The segments of a checkpoint, by columns: each list has one item per segment."""

    path: list[str]
    rows: list[int]
    bytes: list[int]
    base_version: list[int]
    counts: list[msgspec.Raw]
    """For each segment a dict[str, int], undecoded."""
    prefix: list[msgspec.Raw]
    """For each segment a list[tuple[int, int, int]], undecoded."""
    batches: list[int]
    """Number of record batches of each segment, in order."""


RemovedFiles = list[tuple[str, int]]
"""Files that no object names any more, with the time of removal in microseconds; deleted after
``delete_grace``."""


class CheckpointBody(Struct, frozen=True):
    """The second line of a checkpoint: the complete state of the log after ``last_entry``."""

    last_entry_crc32c: int
    last_version: int
    last_timestamp: int
    """Timestamp of the newest entry of any kind."""
    last_commit_entry: int
    """Number of the newest entry with versions; 0: none."""
    end_row: int
    epoch: int
    writer: str
    run_id: str
    host: str
    writers: dict[str, tuple[int, int, int]]
    """Writer → batch id, k and entry of its last commit; batch id -1 if it has opened but not committed."""
    source_positions: dict[str, int | str]
    pending: list[PendingSegment]
    schemas: list[tuple[int, int]]
    publication: PublicationDocument | None
    publication_crc32c: int
    removed: msgspec.Raw
    """The RemovedFiles, undecoded until they are to be deleted."""
    segments: SegmentLists
    batches: PackedLists
    commits: PackedLists
    """``first_version`` and ``timestamp`` of every commit that has versions at or after ``oldest``."""
    published_by_entry: int = 0
    """Highest version whose entry published itself; 0: none."""
    gate: GateDocument | None = None
    """The gate; None: the log has no gate."""
    bodies_from: list[tuple[str, int]] = []
    """Pairs of an entity type and a version: the bodies of its records below the version are deleted. The
    entity type has its name in that version's schema."""
    known_commits: dict[str, list[KnownCommit]] = {}
    """Writer or source position → its newest commits; see state/commit_notes.py."""


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
"""Decoder of each kind of document. Made at import, because logs are opened in threads: msgspec (0.22)
publishes its type information of a struct before it is complete, and a thread that decodes meanwhile ends the
process with a memory fault."""


def sealed(*documents: Struct) -> tuple[bytes, int]:
    """Return the bytes and the CRC of an object with one line per document."""
    return seal(*(_encoder.encode(document) for document in documents))


def load(path: str, data: bytes, kind: type[_D]) -> tuple[_D, int]:
    """Return the document in an object of one line, and the object's CRC.

    Args:
        path: Path relative to the catalog, for error messages.
        data: The whole file.
        kind: Expected kind of document.

    Raises:
        LogCorrupted: The object is invalid, or of another kind.
        LogUnreadable: The object has a newer format version.
    """
    text, crc = unseal(path, data)
    return parse(path, text, kind), crc


def parse(path: str, text: bytes | memoryview | msgspec.Raw, kind: type[_D], offset: int = 0) -> _D:
    """Return a document from its JSON text, which begins at byte ``offset`` of the file. Errors as ``load``."""
    try:
        document: _D = _DECODERS[kind].decode(text)
    except msgspec.MsgspecError as error:
        # A newer format may have other fields: report its version instead of a damage.
        _refuse_newer(path, text, kind)
        raise LogCorrupted(path, offset, f"its checksum is right, but {error}") from error
    # The fields may fit even if the version is newer.
    if getattr(document, "format_version", FORMAT_VERSION) > _newest(kind):
        _refuse_newer(path, text, kind)
    return document


def read(store: ObjectStore, path: str, kind: type[_D]) -> tuple[_D, int] | None:
    """Return the document in an object of one line, and its CRC; None if no object exists.

    Errors as ``load``.
    """
    found = store.read(path)
    return None if found is None else load(path, found.data, kind)


def previous_crc(path: str, data: bytes) -> int:
    """Return the CRC of the previous object, as an entry, publication or checkpoint states it."""
    line = without_records(data) if path.startswith(f"{ENTRIES}/") else data
    link: _Link = parse(path, line.partition(b"\n")[0], _Link)
    return link.previous_crc32c


def carries_records(store: ObjectStore, path: str) -> bool:
    """Return True if an entry exists and carries records: it then does not begin with the brace of JSON."""
    found = store.read(path, 1)
    return found is not None and found.data != b"{"


def read_schema(store: ObjectStore, id: int) -> tuple[SchemaDocument, int] | None:
    """Return the schema file of an id and its size in bytes; None if it is missing.

    Raises:
        LogCorrupted: As ``load``, or the file has the schema of another id.
        LogUnreadable: As ``load``.
    """
    path = f"{SCHEMAS}/{id}.json"
    found = store.read(path)
    if found is None:
        return None
    document: SchemaDocument = load(path, found.data, SchemaDocument)[0]
    if document.id != id:
        raise LogCorrupted(path, 0, f"its checksum is right, but it is schema {document.id}")
    return document, len(found.data)


class ReadEntry(NamedTuple):
    """An entry with the bytes from which it was read."""

    path: str
    """Path relative to the catalog."""
    entry: Entry
    crc: int
    data: bytes
    """The whole file, including the records that the entry carries."""
    marked: bool
    """True if the writer had marked the entry's name as durable when the entry was read."""


def read_entry(store: ObjectStore, number: int) -> ReadEntry | None:
    """Return an entry; None if it does not exist. Errors as ``load``."""
    path = f"{ENTRIES}/{object_name(number)}"
    found = store.read(path)
    return None if found is None else entry_in(path, found)


def entry_in(path: str, content: ObjectContent) -> ReadEntry:
    """Return the entry in an object. Errors as ``load``.

    Args:
        path: Present or future path of the object, relative to the catalog.
        content: The content of the object.
    """
    found: tuple[Entry, int] = load(path, without_records(content.data), Entry)  # type: ignore[arg-type]
    entry, crc = found
    return ReadEntry(path, entry, crc, content.data, content.mark == entry.timestamp)


def _newest(kind: Any) -> int:
    """Return the newest supported format version of a kind of document."""
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
            f"{path} has format version {found}, but this tailrace reads only up to "
            f"{_newest(kind)}; upgrade it"
        )
