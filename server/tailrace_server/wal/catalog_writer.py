"""The writer of one catalog: epochs, fences, entries, publications.

A commit is durable once its entry exists; readers see it once a publication names the entry. An entry can also
publish itself, so that one object does both. entry_writer.py decides which writer may create an entry.

Two fences protect a catalog against several live writers:

* The epoch: opening a catalog creates an OPEN entry with a new epoch, which every older writer reads, and
  stops.
* The name: a writer whose name the catalog does not know (its checkpoint was deleted, for example) is refused.
  With ``take_over`` it may write, and learns from the log how far the source has been consumed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from tailrace.clock import SystemClock
from tailrace.errors import CatalogUnknown, InvalidRequest, LogError
from tailrace_server.failpoints import reach
from tailrace_server.wal.entry_writer import EntryWriter, create_publication
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.catalog_folder import (
    SYSTEM_WRITER,
    has_folder,
    list_catalogs,
    refuse_system,
)
from tailrace_server.wal.files.documents import (
    FORMAT_VERSION,
    SCHEMAS,
    SEGMENTS,
    CommitEntry,
    KnownCommit,
    PendingSegment,
    PublicationDocument,
)
from tailrace_server.wal.files.schema_documents import SchemaDocument
from tailrace_server.wal.source_batches import ids_note
from tailrace_server.wal.state.batch_table import carried_records, place_segments
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.state.state import BatchKey, LogState
from tailrace_server.wal.upkeep.compaction import Compaction, compact
from tailrace_server.wal.upkeep.retention import trim
from tailrace_server.wal.upkeep.trigger import UpkeepTrigger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from uuid import UUID

    from tailrace.clock import Clock
    from tailrace.position import Position
    from tailrace.schema import Schema
    from tailrace_server.wal.segment.carried import CarriedSegment
    from tailrace_server.wal.segment.writer import SegmentReceipt
    from tailrace_server.wal.source_batches import Notes, SourceBatch

Publication = PublicationDocument

_WRITER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)


@dataclass(frozen=True, slots=True)
class CommitReceipt:
    """The result of a commit."""

    entry: int
    first_version: int | None
    """First version of the commit; None if the commit has no transactions."""
    last_version: int | None
    timestamp: int
    """Commit timestamp, in microseconds since 1970."""
    already_committed: bool
    """True if the log had this batch already, so that nothing was written."""


class CatalogWriter:
    """A writer of one catalog. Not thread-safe. If several writers live, only the newest can commit."""

    def __init__(self, log: CommitLog, *, epoch: int, writer: str, clock: Clock) -> None:
        """Wrap an opened log; call ``open`` or ``attach`` instead."""
        self.path = log.path
        self.writer = writer
        self._log = log
        self._store = log.store
        self._entries = EntryWriter(log, epoch=epoch, writer=writer, clock=clock)
        self._clock = clock
        self._upkeep = UpkeepTrigger(log.path, clock)

    @classmethod
    def open(
        cls,
        root: Path,
        catalog: str,
        *,
        writer: str,
        run_id: str | None = None,
        take_over: bool = False,
        may_be_fenced: bool = False,
        publish_left: bool = True,
        stream: str = "",
        clock: Clock | None = None,
    ) -> CatalogWriter:
        """Open a catalog for writing, and fence every writer that opened the catalog before.

        Args:
            root: The log root.
            catalog: Name of the catalog.
            writer: The writer's stable name; a restart under the same name needs no permission.
            run_id: Name of this run, for the errors of fenced writers.
            take_over: Permission to write under a name that the catalog does not know.
                ``state.source_positions`` and ``state.pending`` then say how far the source has been consumed.
            may_be_fenced: True if a run opens the catalog again. It is fenced if a writer of another name has
                taken the catalog over meanwhile, even with ``take_over``.
            publish_left: Publish the commits that a dead writer did not publish.
            stream: Id of the stream that feeds this writer, if known (source_batches.py). A stream that must
                not write is then refused before it fences the stream that may.
            clock: Source of commit timestamps.

        Raises:
            InvalidRequest: The writer's name is malformed.
            CatalogUnknown: The catalog does not exist; ``catalog.open_writer`` creates it.
            UnknownWriter: The catalog belongs to other names or another stream, and ``take_over`` is False.
            WriterFenced: ``may_be_fenced`` is True, and a writer of another name holds the catalog.
            LogUnreadable: Not a catalog, the system log, without permission, or of a newer format.
            LogCorrupted: An object of the log is damaged.
            LogFull: The file system is full.
        """
        check_writer_name(writer)
        if writer != SYSTEM_WRITER:
            refuse_system(catalog)
        clock = clock or SystemClock()
        if not has_folder(root, catalog):
            raise CatalogUnknown(catalog, list_catalogs(root))
        opened = cls(CommitLog.open(root / catalog), epoch=0, writer=writer, clock=clock)
        run_id = run_id or uuid4().hex
        opened._entries.open_epoch(
            run_id, take_over=take_over, may_be_fenced=may_be_fenced, stream=stream
        )
        if publish_left:
            opened.publish()
        return opened

    @classmethod
    def attach(
        cls, root: Path, catalog: str, *, epoch: int, writer: str, clock: Clock | None = None
    ) -> CatalogWriter:
        """Write under an epoch that another process of the same writer has opened.

        Raises:
            WriterFenced: The log has a newer epoch.
        """
        log = CommitLog.open(root / catalog)
        attached = cls(log, epoch=epoch, writer=writer, clock=clock or SystemClock())
        attached._entries.check_fence()
        return attached

    def __enter__(self) -> CatalogWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(hurried=kind is not None)

    @property
    def epoch(self) -> int:
        """The epoch under which this writer commits."""
        return self._entries.epoch

    @property
    def uuid(self) -> UUID:
        """The uuid of the catalog."""
        return self._log.uuid

    def now(self) -> int:
        """Return the time of the clock that stamps commits, in microseconds. It may step back."""
        return self._clock.now()

    @property
    def state(self) -> LogState:
        """The log as far as this writer has read it."""
        return self._log.state

    @property
    def upkeep_failure(self) -> str:
        """Machine code of the error that stopped the last upkeep; empty if upkeep works."""
        return self._upkeep.failure

    @property
    def log(self) -> CommitLog:
        """The log that this writer appends to."""
        return self._log

    def refresh(self) -> LogState:
        """Read the log to its end and return its state.

        Raises:
            WriterFenced: The log has a newer epoch.
        """
        self._log.advance()
        self._entries.check_fence()
        return self.state

    def segment_path(self, batch_id: int, name: str) -> Path:
        """Return the path for a new segment of a batch; ``name`` must be unique among the batch's attempts."""
        return self.path / SEGMENTS / str(self.epoch) / f"{self.writer}-{batch_id}-{name}.arrow"

    def commit(
        self,
        *,
        batch_id: int | None = None,
        k: int = 0,
        source: SourceBatch | None = None,
        segments: Sequence[SegmentReceipt | CarriedSegment] = (),
        pending: Sequence[PendingSegment] | None = None,
        source_positions: Mapping[str, str | int] | None = None,
        schema_changes: Sequence[tuple[int, Schema]] = (),
        publish: bool = False,
    ) -> CommitReceipt:
        """Make the transactions of some segments durable, as the next versions.

        A commit is identified by (writer, batch id, k), or by the source's batch. A repeat writes nothing: it
        returns the receipt of the first commit with ``already_committed`` set.

        Args:
            batch_id: Number of the batch, above those of this writer's earlier batches. None: the next number.
            k: 0 for the batch itself; 1, 2, … for the flushes within the batch.
            source: The source's batch, if the source numbers its batches.
            segments: Segments in the order of their transactions. Only the first may be a carried segment.
            pending: All files with rows of incomplete transactions after this commit; None: unchanged.
            source_positions: The source positions that this commit changes.
            schema_changes: Pairs of a transaction's place, from 0, and the schema that begins there.
            publish: Also release this and all earlier commits to readers, with the same entry: this costs half
                as much as a commit and a publication. If the log has a gate, the gate publishes later.

        Raises:
            WriterFenced: A newer writer holds the catalog.
            UnknownWriter: The log refuses the source's batch (`SourceBatch.admit`).
            InvalidRequest: The log refuses the source's batch, or the batch id does not rise.
            LogFull: The file system is full; repeat the call once there is room.
            LogError: A segment is missing or has another size.
        """
        state = self.state
        while True:
            # 1. Do not read new entries before the first attempt: step 4 detects that the number is taken.
            self._log.check_folder()
            self._entries.check_fence()
            # 2. A repeat writes nothing. Its first attempt may have failed once visible, so sync its entry.
            last = state.writers.get(self.writer, BatchKey(-1, 0)).batch_id
            key = BatchKey(last + 1 if batch_id is None else batch_id, k)
            notes, repeated = self._find(source, None if batch_id is None else key)
            if repeated is not None:
                self._log.make_durable()
                if publish:
                    self.publish()
                return repeated
            carried, receipts = carried_records(segments)
            self._check_files(receipts[bool(carried) :], pending or ())
            # 3. Versions, rows, timestamp and gate depend on the state, so each attempt computes them again.
            entry = self._commit_entry(
                state,
                key,
                [receipt for receipt in receipts if receipt.rows],
                state.pending if pending is None else pending,
                {**(source_positions or {}), **notes},
                schema_changes,
                publish=publish and state.gate is None,
            )
            # 4. Exclusive creation decides. The loser reads the winner's entry; it is fenced, or tries again.
            if self._entries.create(entry, carried):
                if publish:
                    self._run_upkeep()
                return _receipt(entry, already_committed=False)
            self.refresh()

    def publish(self) -> Publication | None:
        """Release all committed versions to readers; return None if none is new, or if the log has a gate.

        Raises:
            WriterFenced: A newer writer holds the catalog.
            LogFull: The file system is full; call again once there is room.
        """
        state = self.state
        while True:
            # 1. Read entries that another process of this writer may have committed: they are released too.
            self._log.check_folder()
            self._log.follow_entries()
            self._entries.check_fence()
            if state.last_version == state.published:
                return None
            # 2. Only the gate publishes, if there is one. A later gate does not cover these versions.
            publication = None
            if state.gate is not None:
                break
            # 3. ``create`` returns only once an entry is durable, so the last entry with versions is durable.
            publication = create_publication(self._log, now=self._clock.now())
            if publication is not None:
                break
            # 4. Another process created this publication: read it, then check what remains to be released.
            self.refresh()
        self._run_upkeep()
        return publication

    def compact(self) -> Compaction | None:
        """Compact small neighbouring segments now; return None if there are none. See compaction.py."""
        return compact(self.path, self._clock.now())

    def trim(self, *, before: int) -> Position:
        """Drop all versions below ``before``; return the oldest retained position. See retention.py."""
        return trim(self.path, before, self._clock.now())

    def close(self, *, hurried: bool = False) -> None:
        """Wait until running upkeep ends: at most a minute, or 2 s if ``hurried``."""
        self._upkeep.close(hurried=hurried)

    def _run_upkeep(self) -> None:
        """Start upkeep if it is due. Call this after publications: upkeep works on published versions only."""
        self._log.follow_checkpoints()
        self._upkeep.run_if_due(self._log)

    def find_source(self, source: SourceBatch) -> CommitReceipt | None:
        """Return the receipt of a source's batch; None if the log, as far as it has been read, lacks the batch.

        Raises:
            UnknownWriter, InvalidRequest: As ``commit``.
        """
        return self._find(source, None)[1]

    def _find(
        self, source: SourceBatch | None, key: BatchKey | None
    ) -> tuple[Notes, CommitReceipt | None]:
        """Return the notes of a new commit and None; or, for a repeat, no notes and the first receipt."""
        if source is None:
            if key is None:
                return ids_note(self.state, self.writer), None
            return {}, self._find_key(key)
        notes = source.admit(self.state, self.writer)
        if notes is not None:
            return notes, None
        if (known := source.newest_repeated(self.state, self.writer)) is not None:
            return {}, _receipt(known, already_committed=True)
        # Its stream may have had another writer before, so all entries are searched.
        for entry in self._commits_before(self.state.last_entry):
            if source.repeats(entry, self.state, self.writer):
                return {}, _receipt(entry, already_committed=True)
        raise InvalidRequest(
            f"{source.name(self.writer)} is not in the log, but a later batch is: the batch "
            f"numbers of a source must rise{self._deleted_before()}"
        )

    def _commits_before(self, number: int) -> Iterator[CommitEntry]:
        """Yield the commits up to an entry, newest first, back to the oldest entry that still exists."""
        for each in range(number, 0, -1):
            found = self._log.read_entry(each)
            if found is None:
                return
            if isinstance(found.entry, CommitEntry):
                yield found.entry

    def _find_key(self, key: BatchKey) -> CommitReceipt | None:
        """Return the receipt of a batch key; None if the key is new.

        Raises:
            InvalidRequest: The key was not committed, but a later key was: batch ids of one writer must rise.
        """
        last = self.state.writers.get(self.writer)
        if last is None or (key.batch_id, key.k) > (last.batch_id, last.k):
            return None
        # The state has the commits of each writer's last batch. Entries are read backwards for an older one.
        for known in self.state.known_commits.get(self.writer, ()):
            if (known.batch_id, known.k) == (key.batch_id, key.k):
                return _receipt(known, already_committed=True)
        for entry in self._commits_before(last.entry):
            if entry.writer == self.writer and (entry.batch_id, entry.k) == (key.batch_id, key.k):
                return _receipt(entry, already_committed=True)
        raise InvalidRequest(
            f"batch {key.batch_id} (k {key.k}) of writer {self.writer!r} is not in the log, but batch "
            f"{last.batch_id} (k {last.k}) is: the batch ids of a writer must rise{self._deleted_before()}"
        )

    def _deleted_before(self) -> str:
        """Return a suffix for an error message if old entries, which may have had the batch, are deleted."""
        advice = "; it may have been in an entry that is already deleted: begin with a newer batch"
        return "" if self._log.read_entry(1) is not None else advice

    def _check_files(
        self, segments: Sequence[SegmentReceipt], pending: Sequence[PendingSegment]
    ) -> None:
        # An entry must never name a missing or truncated file: readers would report a damaged log.
        files = [(file.path, file.bytes) for file in segments]
        files += [(file.path, file.bytes) for file in pending]
        for path, expected in files:
            size = self._store.size(path)
            if size is None:
                self.refresh()  # raises WriterFenced if it is a newer writer that has deleted it
                raise LogError(f"segment {path} is missing, so nothing was committed")
            if size != expected:
                raise LogError(
                    f"segment {path} has {size} bytes instead of {expected}, so nothing was "
                    "committed"
                )
        reach("commit.checked")

    def _commit_entry(
        self,
        state: LogState,
        key: BatchKey,
        segments: Sequence[SegmentReceipt],
        pending: Sequence[PendingSegment],
        source_positions: Mapping[str, str | int],
        schema_changes: Sequence[tuple[int, Schema]],
        *,
        publish: bool,
    ) -> CommitEntry:
        number = state.last_entry + 1
        placed = place_segments(segments, state.last_version, state.end_row, entry=number)
        first_version = state.last_version + 1 if placed else None
        last_version = placed[-1].last[0] if placed else None
        return CommitEntry(
            format_version=FORMAT_VERSION,
            number=number,
            uuid=state.uuid,
            previous_crc32c=state.last_entry_crc,
            epoch=self.epoch,
            timestamp=self._entries.next_timestamp(),
            writer=self.writer,
            batch_id=key.batch_id,
            k=key.k,
            first_version=first_version,
            last_version=last_version,
            schemas=self._create_schemas(state, schema_changes),
            source_positions=dict(source_positions),
            pending=list(pending),
            segments=placed,
            published=publish,
        )

    def _create_schemas(
        self, state: LogState, schema_changes: Sequence[tuple[int, Schema]]
    ) -> list[tuple[int, int]]:
        """Create the schema files of a commit; return pairs of a schema's first version and its id."""
        created: list[tuple[int, int]] = []
        if not schema_changes:
            return created
        history = self._log.read_schemas()  # those of the writer's own commits are not read by then
        before, room = history.newest, history.whole_bytes - history.difference_bytes
        next_id = max((id for _, id in state.schemas), default=0) + 1
        # Differences are bounded by the size of the last whole schema, and so is what a reader has to load.
        for place, schema in schema_changes:
            id, size, is_whole = self._create_schema(before, schema, next_id, room)
            created.append((state.last_version + 1 + place, id))
            before, next_id = replace(schema, id=id), id + 1
            room = size if is_whole else room - size
        return created

    def _create_schema(
        self, before: Schema, schema: Schema, id: int, room: int
    ) -> tuple[int, int, bool]:
        """Create a schema file under the first free id, from ``id`` on; ids of failed commits stay unused.

        Write the whole schema if its difference exceeds ``room`` bytes. Return id, bytes, and True if whole.
        """
        while True:
            path = f"{SCHEMAS}/{id}.json"
            document = SchemaDocument.after(before, schema, id)
            data = documents.sealed(document)[0] if document is not None else b""
            is_whole = document is None or len(data) > room
            if is_whole:
                data, _ = documents.sealed(SchemaDocument.of(schema, id))
            if self._store.create(path, data, failpoint="schema"):
                return id, len(data), is_whole
            # An earlier attempt may have created this file. Other bytes are another commit's: try the next id.
            found = self._store.read(path)
            if found is not None and found.data == data:
                return id, len(data), is_whole
            id += 1


def check_writer_name(writer: str) -> None:
    """Refuse a malformed writer name.

    Raises:
        InvalidRequest: The name is malformed.
    """
    if _WRITER.fullmatch(writer) is None:
        allowed = "use up to 128 letters, digits, underscores, dots and hyphens"
        raise InvalidRequest(f"{writer!r} is not a valid name of a writer: {allowed}")


def _receipt(entry: CommitEntry | KnownCommit, *, already_committed: bool) -> CommitReceipt:
    return CommitReceipt(
        entry=entry.number if isinstance(entry, CommitEntry) else entry.entry,
        first_version=entry.first_version,
        last_version=entry.last_version,
        timestamp=entry.timestamp,
        already_committed=already_committed,
    )
