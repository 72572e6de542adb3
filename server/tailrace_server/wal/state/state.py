"""The state of a log: the content of its checkpoint and of all entries after it. Pure; no I/O.

Readers and writers have the same state and advance it by the same rules. An entry is applied if and only if it
continues the chain: it has the next number, the same uuid, the CRC of the entry before, and the newest epoch
(an OPEN has the newest epoch plus one).
"""

# Long: entries, publications and checkpoints change the same fields, by rules that are read together.

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from tailrace.errors import CatalogReplaced, LogCorrupted
from tailrace.position import FIRST, Position
from tailrace_server.wal.files.documents import (
    BODIES_VERSION,
    FORMAT_VERSION,
    GATED,
    CheckpointBody,
    CheckpointHeader,
    CommitEntry,
    Entry,
    FieldLists,
    GateDocument,
    GateEntry,
    OpenEntry,
    PackedLists,
    PendingSegment,
    PublicationDocument,
    ReadEntry,
    SegmentDocument,
    SegmentLists,
)
from tailrace_server.wal.segment.refs import BatchRef, SegmentRef
from tailrace_server.wal.state.batch_table import (
    BATCH_FIELDS,
    FIRST_ROW,
    LAST_VERSION,
    SEGMENT,
    BatchTable,
    CommitTable,
    ref_of,
)
from tailrace_server.wal.state.commit_notes import KnownCommits, note_commit, unknown_changes_after
from tailrace_server.wal.state.whole_removals import WholeRemovals

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    import numpy.typing as npt

    from tailrace_server.wal.state.batch_table import Shape
    from tailrace_server.wal.state.expired_bodies import BodiesFrom

COMMIT_FIELDS: Final = ("first_version", "timestamp")
_INT64_END: Final = 1 << 63
_unpacked_numbers: Final = msgspec.json.Decoder(list[int]).decode
_unpacked_prefix: Final = msgspec.json.Decoder(tuple[tuple[int, int, int], ...]).decode
_unpacked_counts: Final = msgspec.json.Decoder(dict[str, int]).decode


@dataclass(frozen=True, slots=True)
class Holder:
    """The writer of the newest epoch."""

    writer: str = ""
    run_id: str = ""
    host: str = ""

    def __str__(self) -> str:
        return f"{self.writer} on {self.host}, run {self.run_id}"


@dataclass(frozen=True, slots=True, order=True)
class BatchKey:
    """The key by which a repeated commit of a writer is recognised."""

    batch_id: int
    k: int
    """0 for the batch itself; from 1 on, the number of a flush after it."""
    entry: int = 0
    """Number of the entry of the commit."""


class LogState:
    """The state of a log after its entry ``last_entry``."""

    def __init__(self, name: str, uuid: UUID) -> None:
        """Create the state of an empty log."""
        self.name = name
        self.uuid = uuid
        self.last_entry = 0
        self.last_entry_crc = 0
        self.last_version = 0
        """Newest committed version."""
        self.last_timestamp = 0
        self.last_commit_entry = 0
        self.end_row = 0
        """Number of committed records, lead records included: the running number of the next record."""
        self.epoch = 0
        self.holder = Holder()
        self.writers: dict[str, BatchKey] = {}
        self.known_commits: KnownCommits = {}
        self.source_positions: dict[str, int | str] = {}
        self.unknown_changes: tuple[str, ...] = ()
        """Entity types whose newest updates had no ``before``, by the notes in the source positions."""
        self.whole_removals = WholeRemovals()
        self.pending: tuple[PendingSegment, ...] = ()
        self.schemas: list[tuple[int, int]] = []
        """First version and id of each schema, in the order of the versions."""
        self.publication: PublicationDocument | None = None
        self.publication_crc = 0
        self.published_by_entry = 0
        """Highest version that its own entry published, without a publication; 0 for none."""
        self.gate: GateDocument | None = None
        """The gate of publication; None if there is none."""
        self.checkpoint = 0
        """Number of the newest known checkpoint; 0 for none."""
        self.checkpoint_crc: int | None = 0
        """CRC of that checkpoint; None until CommitLog.read_newest_checkpoint has read it."""
        self.checkpoint_entry = 0
        """Last entry that the checkpoint covers."""
        self.checkpoint_time = 0
        """Time at which the checkpoint was made, µs. It distinguishes two checkpoints with the same number."""
        self.revision = 0
        self.oldest = FIRST
        self.bodies_from: BodiesFrom = ()
        """Entity types with expired bodies, each with the version below which its records have no bodies."""
        self.removed: dict[str, int] = {}
        """Maps each file that is to be deleted to the time since which no object names it, µs."""
        self.batches = BatchTable()
        self.commits = CommitTable()

    @property
    def published(self) -> int:
        """Highest version that readers may see.

        It was published by the newest publication, as far as the entries are read, or by its own entry.
        """
        released = 0 if self.publication is None else self.publication.version
        return max(self.published_by_entry, min(released, self.last_version))

    @property
    def last_publication(self) -> int:
        """Number of the newest publication; 0 for none."""
        return 0 if self.publication is None else self.publication.number

    def apply(self, path: str, entry: Entry, crc: int) -> None:
        """Apply the next entry.

        Raises:
            CatalogReplaced: The entry belongs to another log.
            LogCorrupted: The entry does not continue this log.
        """
        # Check first: a state must not be changed by an entry that does not belong to it.
        self._check_chain(path, entry)
        if isinstance(entry, OpenEntry):
            self.epoch = entry.epoch
            self.holder = Holder(entry.writer, entry.run_id, entry.host)
            self.writers.setdefault(entry.writer, BatchKey(-1, 0))
        elif isinstance(entry, GateEntry):
            self.gate = entry.gate
        else:
            self._apply_commit(path, entry)
        self.last_entry = entry.number
        self.last_entry_crc = crc
        self.last_timestamp = entry.timestamp

    def _check_chain(self, path: str, entry: Entry) -> None:
        if entry.uuid != self.uuid:
            raise CatalogReplaced(self.name, self.uuid, entry.uuid)
        # A fenced writer has an older epoch, and its entry must not be applied.
        wanted_epoch = self.epoch + 1 if isinstance(entry, OpenEntry) else self.epoch
        for what, found, wanted in (
            ("number", entry.number, self.last_entry + 1),
            ("previous_crc32c", entry.previous_crc32c, self.last_entry_crc),
            ("epoch", entry.epoch, wanted_epoch),
        ):
            if found != wanted:
                raise LogCorrupted(path, 0, f"{what} is {found}, but the chain requires {wanted}")
        if entry.timestamp <= self.last_timestamp:
            raise LogCorrupted(
                path, 0, f"timestamp {entry.timestamp} is not above the previous one"
            )

    def _apply_commit(self, path: str, entry: CommitEntry) -> None:
        # 1. Add the segments and the commit. A commit without versions has only pending rows or notes.
        if entry.first_version is not None and entry.last_version is not None:
            if (
                entry.first_version != self.last_version + 1
                or entry.last_version < entry.first_version
            ):
                raise LogCorrupted(
                    path, 0, f"version {entry.first_version} follows {self.last_version}"
                )
            only = _only_batch(entry)
            # Small commits have one batch and are the most frequent: they are added without numpy arrays.
            if only is not None:
                self._check_row(path, entry.segments[0], only[FIRST_ROW])
                self.batches.append_batch(_segment_ref(entry.segments[0]), only)
                self.end_row += entry.segments[0].rows
            else:
                self._append_segments(path, entry.segments)
            self.commits.add(entry.first_version, entry.timestamp)
            self.last_version = entry.last_version
            self.last_commit_entry = entry.number
        if entry.published:
            self.published_by_entry = self.last_version
        # 2. Take over the notes: schemas, source positions and what is derived from them.
        self.schemas.extend(entry.schemas)
        self.source_positions.update(entry.source_positions)
        self.unknown_changes = unknown_changes_after(self.unknown_changes, entry.source_positions)
        self.whole_removals = self.whole_removals.after(entry.source_positions)
        # 3. Each commit lists all files of pending rows. A file that is not listed any more can be deleted.
        kept = {pending.path for pending in entry.pending}
        for spent in self.pending:
            if spent.path not in kept:
                self.removed[spent.path] = entry.timestamp
        self.pending = tuple(entry.pending)
        self.writers[entry.writer] = BatchKey(entry.batch_id, entry.k, entry.number)
        note_commit(self.known_commits, entry)

    def _append_segments(self, path: str, segments: Sequence[SegmentDocument]) -> None:
        # Convert all tables before the first is appended, so that damaged ones leave the state unchanged.
        tables = [batch_columns(path, segment.batches, BATCH_FIELDS) for segment in segments]
        for segment, columns in zip(segments, tables, strict=True):
            self._check_row(path, segment, int(columns[FIRST_ROW, 0]))
            self.batches.append_segment(_segment_ref(segment), columns)
            self.end_row += segment.rows

    def _check_row(self, path: str, segment: SegmentDocument, first_row: int) -> None:
        if first_row != self.end_row:
            raise LogCorrupted(path, 0, f"{segment.path} does not begin at row {self.end_row}")

    def apply_publication(self, path: str, publication: PublicationDocument, crc: int) -> None:
        """Apply the next publication.

        Raises:
            CatalogReplaced: The publication belongs to another log.
            LogCorrupted: The publication does not follow the newest one.
        """
        if publication.uuid != self.uuid:
            raise CatalogReplaced(self.name, self.uuid, publication.uuid)
        before = self.publication
        for what, found, wanted in (
            ("number", publication.number, self.last_publication + 1),
            ("previous_crc32c", publication.previous_crc32c, self.publication_crc),
        ):
            if found != wanted:
                raise LogCorrupted(path, 0, f"{what} is {found}, but the chain requires {wanted}")
        # A later publication may repeat the version, but must not take versions back.
        if before is not None and (publication.version, publication.epoch) < (
            before.version,
            before.epoch,
        ):
            raise LogCorrupted(path, 0, f"version {publication.version} is below {before.version}")
        self.publication = publication
        self.publication_crc = crc

    def note_checkpoint(self, header: CheckpointHeader, crc: int | None) -> None:
        """Note a checkpoint as the newest known one; its tables must equal those of this state.

        Args:
            header: The checkpoint's header.
            crc: The checkpoint's CRC; None if only its header was read.
        """
        self.checkpoint, self.checkpoint_crc = header.number, crc
        self.checkpoint_entry, self.checkpoint_time = header.last_entry, header.timestamp

    @property
    def _format_version(self) -> int:
        """The lowest format version that can express a checkpoint of this state."""
        gated = FORMAT_VERSION if self.gate is None else GATED
        return max(gated, BODIES_VERSION if self.bodies_from else FORMAT_VERSION)

    def to_checkpoint(self, *, timestamp: int) -> tuple[CheckpointHeader, CheckpointBody]:
        """Return header and body of checkpoint k + 1 with this state, where k is the newest checkpoint.

        Args:
            timestamp: Current time, µs since the epoch.
        """
        assert self.checkpoint_crc is not None, "read_newest_checkpoint comes first"
        length = len(self.batches)
        columns = self.batches.columns[:, :length]
        segments = list(self.batches.segments)
        header = CheckpointHeader(
            format_version=self._format_version,
            number=self.checkpoint + 1,
            uuid=self.uuid,
            previous_crc32c=self.checkpoint_crc,
            revision=self.revision,
            last_entry=self.last_entry,
            oldest=self.oldest,
            timestamp=timestamp,
            last_publication=self.last_publication,
        )
        body = CheckpointBody(
            last_entry_crc32c=self.last_entry_crc,
            last_version=self.last_version,
            last_timestamp=self.last_timestamp,
            last_commit_entry=self.last_commit_entry,
            end_row=self.end_row,
            epoch=self.epoch,
            writer=self.holder.writer,
            run_id=self.holder.run_id,
            host=self.holder.host,
            writers={name: (key.batch_id, key.k, key.entry) for name, key in self.writers.items()},
            source_positions=self.source_positions,
            pending=list(self.pending),
            schemas=self.schemas,
            publication=self.publication,
            publication_crc32c=self.publication_crc,
            removed=_packed(list(self.removed.items())),
            segments=SegmentLists(
                path=[segment.path for segment in segments],
                rows=[segment.rows for segment in segments],
                bytes=[segment.bytes for segment in segments],
                base_version=[segment.base_version for segment in segments],
                counts=[_packed(dict(segment.counts or {})) for segment in segments],
                prefix=[_packed(segment.prefix) for segment in segments],
                batches=np.bincount(columns[SEGMENT], minlength=len(segments)).tolist(),
            ),
            batches=_packed_columns(columns[:SEGMENT], BATCH_FIELDS),
            commits=_packed_columns(self.commits.columns[:, : len(self.commits)], COMMIT_FIELDS),
            published_by_entry=self.published_by_entry,
            gate=self.gate,
            bodies_from=list(self.bodies_from),
            known_commits={name: list(commits) for name, commits in self.known_commits.items()},
        )
        return header, body

    @classmethod
    def from_checkpoint(
        cls, path: str, name: str, header: CheckpointHeader, body: CheckpointBody, crc: int
    ) -> LogState:
        """Return the state that a checkpoint holds, without the files that wait for their deletion.

        Raises:
            LogCorrupted: The lengths of the checkpoint's tables do not match.
        """
        state = cls(name, header.uuid)
        state.last_entry = header.last_entry
        state.last_entry_crc = body.last_entry_crc32c
        state.last_version = body.last_version
        state.last_timestamp = body.last_timestamp
        state.last_commit_entry = body.last_commit_entry
        state.end_row = body.end_row
        state.epoch = body.epoch
        state.holder = Holder(body.writer, body.run_id, body.host)
        state.writers = {writer: BatchKey(*key) for writer, key in body.writers.items()}
        state.known_commits = {name: tuple(each) for name, each in body.known_commits.items()}
        state.source_positions = dict(body.source_positions)
        state.unknown_changes = unknown_changes_after((), state.source_positions)
        state.whole_removals = WholeRemovals().after(state.source_positions)
        state.pending = tuple(body.pending)
        state.schemas = list(body.schemas)
        state.publication = body.publication
        state.publication_crc = body.publication_crc32c
        state.published_by_entry = body.published_by_entry
        state.gate = body.gate
        state.note_checkpoint(header, crc)
        state.revision = header.revision
        state.oldest = Position(*header.oldest)
        state.bodies_from = tuple(body.bodies_from)
        try:
            state._fill_tables(body)
        except (msgspec.MsgspecError, KeyError, ValueError, OverflowError) as error:
            raise LogCorrupted(path, 0, f"its tables contradict each other: {error!r}") from error
        return state

    def _fill_tables(self, body: CheckpointBody) -> None:
        lists = body.segments
        self.batches.segments.add(
            SegmentRef(path, base_version, prefix, rows, size, counts)
            for path, base_version, rows, size, (prefix, counts) in zip(
                lists.path,
                lists.base_version,
                lists.rows,
                lists.bytes,
                map(_unpacked_shape, map(bytes, lists.prefix), map(bytes, lists.counts)),
                strict=True,
            )
        )
        places = np.repeat(np.arange(len(lists.batches)), lists.batches)
        self.batches.append([*_unpacked_columns(body.batches, BATCH_FIELDS), places])
        self.commits.append([*_unpacked_columns(body.commits, COMMIT_FIELDS)])

    def adopt(self, newer: LogState, *, past_commits_max: int = 0) -> None:
        """Replace the tables of this state by those of a checkpoint, and retain what was read after it.

        A compaction or a trim changes no position and no running number. So this state's rows after the end of
        the checkpoint can follow the checkpoint's rows.

        Args:
            newer: The checkpoint's state; it must not be used afterwards.
            past_commits_max: The most commits below the checkpoint's first one to retain, the newest ones.
                A log that retains any must not make checkpoints.
        """
        if past_commits_max:
            newer._begin_commits_with(self.commits, past_commits_max)
        # 1. The checkpoint is ahead of this state: take it whole, but keep a newer publication of this state.
        if newer.last_entry > self.last_entry:
            publication, publication_crc = self.publication, self.publication_crc
            read_further = self.last_publication > newer.last_publication
            self.__dict__.update(newer.__dict__)
            if read_further:
                self.publication, self.publication_crc = publication, publication_crc
            return
        # 2. This state is ahead: append its later batches and commits to the checkpoint's tables.
        start = int(
            np.searchsorted(self.batches.columns[FIRST_ROW, : len(self.batches)], newer.end_row)
        )
        newer.batches.extend(self.batches.slice(start))
        past = self.commits.columns[:, : len(self.commits)]
        newer.commits.append(past[:, past[0] > newer.last_version])
        self.batches, self.commits = newer.batches, newer.commits
        # 3. Take what only checkpoints have: a trim, expired bodies, files to delete.
        if newer.last_publication > self.last_publication:
            self.publication, self.publication_crc = newer.publication, newer.publication_crc
        self.checkpoint, self.checkpoint_crc = newer.checkpoint, newer.checkpoint_crc
        self.checkpoint_entry, self.checkpoint_time = newer.checkpoint_entry, newer.checkpoint_time
        self.revision = newer.revision
        self.oldest, self.bodies_from = newer.oldest, newer.bodies_from
        # Files of pending rows that this state has seen used up since the checkpoint are to be deleted, too.
        newer_pending = {pending.path for pending in newer.pending}
        still = {pending.path for pending in self.pending}
        spent = {path: self.last_timestamp for path in newer_pending - still}
        self.removed = newer.removed | spent

    def _begin_commits_with(self, older: CommitTable, count_max: int) -> None:
        """Prepend the newest ``count_max`` commits of an older table that precede this state's commits."""
        if not len(self.commits):
            return
        known = older.columns[:, : len(older)]
        count = int(known[0].searchsorted(self.commits.columns.item(0, 0), "left"))
        joined = CommitTable()
        joined.append(known[:, max(0, count - count_max) : count])
        joined.append(self.commits.columns[:, : len(self.commits)])
        self.commits = joined

    def published_batches(self) -> int:
        """Return the number of published batches."""
        return self.batches.count_up_to(LAST_VERSION, self.published)


def carried_batch(read: ReadEntry) -> BatchRef | None:
    """Return the batch whose records an entry carries, as a view has it; None if there is not exactly one."""
    entry = read.entry
    if not isinstance(entry, CommitEntry):
        return None
    numbers = _only_batch(entry)
    if numbers is None or entry.segments[0].path != read.path:
        return None
    return ref_of(_segment_ref(entry.segments[0]), numbers)


def _segment_ref(document: SegmentDocument) -> SegmentRef:
    return SegmentRef(
        path=document.path,
        base_version=document.base_version,
        prefix=tuple(document.prefix),
        rows=document.rows,
        bytes=document.bytes,
        counts=document.counts,
    )


def _only_batch(entry: CommitEntry) -> list[int] | None:
    """Return the numbers of a commit's batch if it has exactly one; else None.

    None also if the numbers are incomplete or exceed 64 bits: then the general path raises the error.
    """
    if len(entry.segments) != 1:
        return None
    lists = entry.segments[0].batches
    numbers = [lists[field][0] for field in BATCH_FIELDS if len(lists.get(field, ())) == 1]
    if (
        len(numbers) < len(BATCH_FIELDS)
        or not -_INT64_END <= min(numbers) <= max(numbers) < _INT64_END
    ):
        return None
    return numbers


def _packed_columns(columns: npt.NDArray[np.int64], fields: tuple[str, ...]) -> PackedLists:
    """Return a table's columns, named by ``fields`` in their order, each as JSON text."""
    return {field: _packed(column.tolist()) for field, column in zip(fields, columns, strict=True)}


def _packed(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


@lru_cache(maxsize=256)
def _unpacked_shape(prefix: bytes, counts: bytes) -> Shape:
    return _unpacked_prefix(prefix), _unpacked_counts(counts)


def _unpacked_columns(lists: PackedLists, fields: tuple[str, ...]) -> list[npt.NDArray[np.int64]]:
    """Return the columns of a checkpoint's table. One column at a time takes memory as Python numbers."""
    return [np.array(_unpacked_numbers(lists[field]), np.int64) for field in fields]


def batch_columns(path: str, lists: FieldLists, fields: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """Return the columns of an entry's table as an array of shape (fields, n).

    Raises:
        LogCorrupted: A column is missing, or the columns have different lengths.
    """
    try:
        columns: npt.NDArray[Any] = np.array([lists[field] for field in fields], np.int64)
    except (KeyError, ValueError, OverflowError) as error:
        raise LogCorrupted(path, 0, f"a table's columns: {error!r}") from error
    return columns.reshape(len(fields), -1)
