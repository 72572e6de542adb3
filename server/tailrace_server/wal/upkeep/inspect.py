"""Reports on the parts of a log, as plain records for a person or a program. Nothing is changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from tailrace.clock import SystemClock
from tailrace.criteria import Area, Operation
from tailrace.errors import PositionCompacted
from tailrace.position import END, Position
from tailrace.schema import Schema
from tailrace_server.wal.base.bases import newest_bases
from tailrace_server.wal.files.catalog_folder import read_catalog
from tailrace_server.wal.files.documents import ENTRIES, CommitEntry, GateEntry, OpenEntry
from tailrace_server.wal.record.columns import BODY_COLUMNS
from tailrace_server.wal.schema.records import column_members, schema_records
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.sequences.definitions import newest_definitions
from tailrace_server.wal.sequences.settings import newest_settings
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
from tailrace_server.wal.state.batch_table import SEGMENT, batch_ref
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.keeping import excess_of
from tailrace_server.wal.upkeep.retention import first_in, orphans, unnamed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID

    from tailrace_server.wal.files.sequence_documents import BaseDocument
    from tailrace_server.wal.segment.refs import BatchRef
    from tailrace_server.wal.state.state import Holder, LogState


@dataclass(frozen=True, slots=True)
class BaseSummary:
    """A base: the state of all entity types as of one version, in files."""

    version: int
    rows: dict[str, int]
    """Number of rows, by entity type."""
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LogSummary:
    """A summary of a catalog and its log."""

    name: str
    uuid: UUID
    created: int
    """Time of creation, in µs since the epoch like all times in this module."""
    committed: int
    """Newest durable version; 0 for none."""
    published: int
    """Newest published version; 0 for none."""
    gate: str
    """Name and place of the gate for which publication waits; empty without a gate."""
    oldest: Position
    """First retained position."""
    oldest_timestamp: int
    """Commit timestamp of the oldest retained version; 0 if there is none."""
    settings: dict[str, int]
    """Settings of the catalog, by name: durations in µs, sizes in bytes."""
    excess: str
    """By how much the records exceed ``max_bytes``, and why they are retained; empty if they do not exceed
    it."""
    type_settings: dict[str, dict[str, int]]
    """Settings of entity types, by entity type and name; units as in ``settings``."""
    views: tuple[str, ...]
    """Names of the defined views."""
    change_tables: tuple[str, ...]
    """Names of the defined change tables."""
    bodies_from: dict[str, int]
    """Maps each entity type with expired bodies to the first version that has bodies."""
    newest_timestamp: int
    """Commit timestamp of the newest published version; 0 for none."""
    epoch: int
    holder: Holder
    entries: int
    publications: int
    """Number of publications. An entry that publishes itself needs none."""
    checkpoint: int
    """Number of the newest checkpoint; 0 for none."""
    checkpoint_entry: int
    """Last entry that the newest checkpoint covers."""
    segments: int
    batches: int
    rows: int
    """Number of records in the segments, with lead records, also of unpublished versions."""
    bytes: int
    counts: dict[str, int]
    """Number of records in the segments by entity type, the largest first; without lead records."""
    holds_trimmed: bool
    """True if the segments still have trimmed versions: a segment is deleted after all its versions are
    trimmed."""
    schemas: int
    pending: tuple[str, ...]
    """Paths of the files with rows of incomplete transactions."""
    source_positions: dict[str, int | str]
    unnamed: int
    """Number of files that no object names any more and that wait for their deletion."""
    orphans: int
    """Number of files that no object has ever named and none can name any more."""
    bases: tuple[BaseSummary, ...]
    state_from: int | None
    """First version whose state can be read; None if no state can be read."""


@dataclass(frozen=True, slots=True)
class EntrySummary:
    """One entry of the log."""

    number: int
    kind: str
    """``open``, ``commit`` or ``gate``."""
    epoch: int
    timestamp: int
    writer: str
    batch_id: int | None
    """Batch of a commit. None in entries of other kinds, like ``k``, both versions and ``rows``."""
    k: int | None
    first_version: int | None
    last_version: int | None
    rows: int | None
    counts: dict[str, int]
    segments: int
    pending: int
    published: bool
    """True if the entry's versions are published. For an entry without versions, those of the entry before."""
    publishes: bool
    """True if the entry itself publishes its versions and all versions before, without a publication."""


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """One retained segment of the log."""

    path: str
    first: Position
    last: Position
    rows: int
    bytes: int
    batches: int
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """The changes that a new schema made to one entity type."""

    first_version: int
    schema_id: int
    entity_type: str
    changes: tuple[dict[str, Any], ...]
    """The changes as the SCHEMA record contains them (schema/records.py)."""


@dataclass(frozen=True, slots=True)
class RecordDetail:
    """One record with all its columns."""

    version: int
    index: int
    row: int
    """Running number of the record."""
    commit_timestamp: int
    area: str
    operation: str
    entity_type: str | None
    primary_key: str | None
    key_hash: int
    changed: tuple[str, ...] | None
    change: bytes | None
    before: bytes | None
    after: bytes | None
    bodies_expired: bool
    """True if the record's bodies have expired; it may have had none."""
    segment: str
    """Path of the segment that has the record."""
    batch_offset: int
    """Byte offset of the record's batch in the segment."""


def summarize(path: Path) -> LogSummary:
    """Return a summary of a catalog.

    Raises:
        LogUnreadable: The folder is not a catalog, lacks read permission, or has a newer format.
        LogCorrupted: An object that is read when the log is opened is damaged.
    """
    created = read_catalog(path).created
    log = CommitLog.open(path)
    log.read_newest_checkpoint()
    state, view = log.state, log.view
    known = newest_bases(log.store, log.uuid)
    definitions = newest_definitions(log.store, log.uuid)
    known_settings = newest_settings(log.store, log.uuid)
    named = SubscriptionSequences(path, log.uuid).all()
    excess = excess_of(view, known_settings.settings, named, SystemClock().now())
    counts: Counter[str] = Counter()
    for segment in state.batches.segments:
        counts.update(segment.counts or {})
    return LogSummary(
        name=state.name,
        uuid=state.uuid,
        created=created,
        committed=state.last_version,
        published=state.published,
        gate=log.gate,
        oldest=state.oldest,
        oldest_timestamp=view.known_timestamp_of(state.oldest.version) or 0,
        settings=dict(known_settings.settings),
        excess="" if excess is None else str(excess),
        type_settings={name: dict(of) for name, of in known_settings.by_type(view).items()},
        views=tuple(definitions.views),
        change_tables=tuple(definitions.change_tables),
        bodies_from=view.bodies.by_name(view.published),
        newest_timestamp=view.newest_timestamp,
        epoch=state.epoch,
        holder=state.holder,
        entries=state.last_entry,
        publications=state.last_publication,
        checkpoint=state.checkpoint,
        checkpoint_entry=state.checkpoint_entry,
        segments=len(state.batches.segments),
        batches=len(state.batches),
        rows=sum(segment.rows for segment in state.batches.segments),
        bytes=sum(segment.bytes for segment in state.batches.segments),
        counts=dict(counts.most_common()),
        holds_trimmed=bool(len(state.batches)) and _batch(state, 0).first < state.oldest,
        schemas=len(state.schemas),
        pending=tuple(pending.path for pending in state.pending),
        source_positions=dict(state.source_positions),
        unnamed=len(unnamed(log)),
        orphans=len(orphans(log)),
        bases=tuple(map(_base_summary, known.bases)),
        state_from=known.first_readable(state.oldest),
    )


def _base_summary(base: BaseDocument) -> BaseSummary:
    files = [file for table in base.tables for file in table.files]
    return BaseSummary(
        base.version,
        {table.entity_type: table.rows for table in base.tables},
        len(files),
        sum(file.bytes for file in files),
    )


def entries(path: Path, *, first: int = 1) -> Iterator[EntrySummary]:
    """Yield the entries from ``first`` on. Errors as in ``summarize``."""
    log = CommitLog.open(path)
    published = log.state.published
    version = _version_before(log, first)
    stop = log.state.last_entry
    for number in range(max(first_in(log, ENTRIES, stop), first), stop + 1):
        found = log.read_entry(number)
        if found is None:
            return
        entry = found.entry
        if isinstance(entry, CommitEntry):
            version = entry.last_version or version
        yield _entry_summary(entry, published=version <= published)


def segments(path: Path) -> list[SegmentSummary]:
    """Return the retained segments in log order, also unpublished ones. Errors as in ``summarize``."""
    state = CommitLog.open(path).state
    columns = state.batches.columns[:, : len(state.batches)]
    starts = np.searchsorted(columns[SEGMENT], np.arange(len(state.batches.segments) + 1)).tolist()
    return [
        SegmentSummary(
            path=segment.path,
            first=_batch(state, starts[place]).first,
            last=_batch(state, starts[place + 1] - 1).last,
            rows=segment.rows,
            bytes=segment.bytes,
            batches=starts[place + 1] - starts[place],
            counts=dict(segment.counts or {}),
        )
        for place, segment in enumerate(state.batches.segments)
    ]


def schema(path: Path) -> tuple[dict[str, list[dict[str, Any]]], list[SchemaChange]]:
    """Return the newest committed schema, and the history of changes that led to it.

    This compares the schemas and reads no records, so the history includes trimmed versions. Errors as in
    ``summarize``.
    """
    log = CommitLog.open(path)
    newest = Schema()
    history = []
    for first_version, id in log.state.schemas:
        begun = log.view.schema_of(first_version)
        for each in schema_records(newest, begun):
            changes = orjson.loads(each.change)["changes"]
            history.append(SchemaChange(first_version, id, each.entity_type, tuple(changes)))
        newest = begun
    types = {
        name: [column_members(column) for column in columns]
        for name, columns in newest.entity_types.items()
    }
    return types, history


def record(path: Path, position: Position) -> RecordDetail | None:
    """Return the published record at a position, with all its columns; None if there is none.

    Raises:
        PositionCompacted: The position was trimmed.
        LogCorrupted: The record's batch is damaged.
    """
    view = CommitLog.open(path).view
    if position < view.oldest:
        raise PositionCompacted(position, view.oldest, Position(view.published, END))
    place = view.find(position)
    if place == len(view):
        return None
    with BatchReader(path) as reader:
        ref = view.batch(place)
        head = reader.head(ref)
        rows = np.flatnonzero(
            (head.versions == position.version) & (head.indexes == position.index)
        )
        if not len(rows):
            return None
        row = int(rows[0])
        body = {
            name: column[row].as_py() for name, column in reader.body(ref, BODY_COLUMNS).items()
        }
    gone = view.bodies.rows_in(head)
    code = int(head.type_codes[row])
    changed = head.changed[row].as_py()
    return RecordDetail(
        version=position.version,
        index=position.index,
        row=ref.first_row + row,
        commit_timestamp=view.timestamp_of(position.version),
        area=Area(int(head.areas[row])).name,
        operation=Operation(int(head.operations[row])).name,
        entity_type=head.entity_types[code] if code >= 0 else None,
        primary_key=head.primary_keys[row].as_py(),
        key_hash=int(head.key_hashes[row]),
        changed=None if changed is None else tuple(changed),
        bodies_expired=gone is not None and bool(gone[row]),
        segment=ref.segment.path,
        batch_offset=ref.offset,
        **body,
    )


def _batch(state: LogState, place: int) -> BatchRef:
    """Return the batch at a place among all committed batches."""
    return batch_ref(state.batches.segments, state.batches.columns, place)


def _version_before(log: CommitLog, entry: int) -> int:
    """Return the newest version committed before an entry; 0 if no retained entry before it has a version."""
    for number in range(entry - 1, 0, -1):
        found = log.read_entry(number)
        if found is None:
            break
        if isinstance(found.entry, CommitEntry) and found.entry.last_version:
            return found.entry.last_version
    return 0


def _entry_summary(entry: OpenEntry | CommitEntry | GateEntry, *, published: bool) -> EntrySummary:
    if not isinstance(entry, CommitEntry):
        return EntrySummary(
            number=entry.number,
            kind="open" if isinstance(entry, OpenEntry) else "gate",
            epoch=entry.epoch,
            timestamp=entry.timestamp,
            writer=entry.writer if isinstance(entry, OpenEntry) else "",
            batch_id=None,
            k=None,
            first_version=None,
            last_version=None,
            rows=None,
            counts={},
            segments=0,
            pending=0,
            published=published,
            publishes=False,
        )
    counts: Counter[str] = Counter()
    for segment in entry.segments:
        counts.update(segment.counts)
    return EntrySummary(
        number=entry.number,
        kind="commit",
        epoch=entry.epoch,
        timestamp=entry.timestamp,
        writer=entry.writer,
        batch_id=entry.batch_id,
        k=entry.k,
        first_version=entry.first_version,
        last_version=entry.last_version,
        rows=sum(segment.rows for segment in entry.segments),
        counts=dict(counts),
        segments=len(entry.segments),
        pending=len(entry.pending),
        published=published,
        publishes=entry.published,
    )
