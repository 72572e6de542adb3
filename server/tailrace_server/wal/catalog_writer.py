"""The writer of one catalog: epochs, fences, entries, publications.

Commit and publish are two steps. A commit is durable once its entry exists; readers see it once a
publication names it. If nothing happens in between, one object does both: an entry that publishes itself.
entry_writer.py decides which writer may create an entry.

Two fences keep a catalog right whatever writers are alive:

* the epoch: opening writes an OPEN entry, and from then on every older writer finds a higher epoch than its
  own;
* the source positions: a writer under a name that the catalog does not know (a deleted checkpoint) is
  refused, or with ``take_over`` told how far the source has been consumed.
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
    """None where it had no transactions."""
    last_version: int | None
    timestamp: int
    """Commit timestamp, µs."""
    already_committed: bool
    """The same (writer, batch id, k) was in the log already; nothing was written now."""


class CatalogWriter:
    """One writer of one catalog. Not thread-safe; several may be alive, the newest one holds."""

    def __init__(self, log: CommitLog, *, epoch: int, writer: str, clock: Clock) -> None:
        """Use ``open`` or ``attach``."""
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
        """Open a catalog for writing and fence every writer that had it before.

        Args:
            root: The log's root.
            catalog: Name of the catalog below it.
            writer: The writer's stable name; a restart under the same name needs no permission.
            run_id: Name of this run, for the messages of those it fences.
            take_over: Permission for a name that the catalog does not know; ``state.source_positions`` and
                ``state.pending`` then say what has been consumed.
            may_be_fenced: A run that had the catalog opens again, and looks like a new one: a name
                that another has taken over from is fenced, whatever else is permitted.
            publish_left: Publish what a dead writer has committed and not published.
            stream: Id of the stream whose batches follow, if it is known (source_batches.py): one that must not
                write is refused before it fences the one that may.
            clock: Where commit timestamps come from.

        Raises:
            InvalidRequest: The writer's name is not of the form.
            CatalogUnknown: There is none; ``catalog.open_writer`` creates it.
            UnknownWriter: The catalog belongs to other names or another stream, and ``take_over`` is False.
            WriterFenced: ``may_be_fenced``, and another name holds the catalog.
            LogUnreadable: Not a catalog, the log of catalogs, no permission, or a newer format.
            LogCorrupted: An object of the log is damaged.
            LogFull: No room.
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
            WriterFenced: A newer epoch exists.
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
        """The epoch that it writes under."""
        return self._entries.epoch

    @property
    def uuid(self) -> UUID:
        """The catalog's identity."""
        return self._log.uuid

    def now(self) -> int:
        """Return the time by the clock that stamps commits, µs; unlike their timestamps it may step back."""
        return self._clock.now()

    @property
    def state(self) -> LogState:
        """The log as far as this writer has read it."""
        return self._log.state

    @property
    def upkeep_failure(self) -> str:
        """Machine code of the error that keeps upkeep from being done, as last heard; empty if none does."""
        return self._upkeep.failure

    @property
    def log(self) -> CommitLog:
        """The log that it writes to."""
        return self._log

    def refresh(self) -> LogState:
        """Read the log to its end and return its state.

        Raises:
            WriterFenced: A newer epoch exists.
        """
        self._log.advance()
        self._entries.check_fence()
        return self.state

    def segment_path(self, batch_id: int, name: str) -> Path:
        """Return where a segment of a batch goes; ``name`` makes it unique among the batch's attempts."""
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
        """Make the transactions of some segments durable, as the versions that come next.

        Idempotent by (writer, batch id, k), or by the source's batch: a repeat returns the first receipt,
        marked, and writes nothing.

        Args:
            batch_id: Number of the batch; those of one writer rise. None: the next one.
            k: 0 for the batch, from 1 for its flushes.
            source: The source's batch, if the source numbers them.
            segments: In the order of their transactions; at most the first is for the entry to carry.
            pending: All files that are pending after it; None = as before.
            source_positions: Those that it advances.
            schema_changes: Place of a transaction in the commit, from 0, and the schema that begins there.
            publish: Release it to readers with the same entry, and all that was committed before it: what
                ``publish`` would do next, for half the price. If there is a gate it is only committed: the gate
                publishes it.

        Raises:
            WriterFenced: A newer writer holds the catalog.
            UnknownWriter: The log refuses the source's batch (`SourceBatch.admit`).
            InvalidRequest: So it does, or the batch id does not rise.
            LogFull: No room; call again with the same arguments once there is.
            LogError: A segment is missing or has another size.
        """
        state = self.state
        while True:
            # 1. The log is not read before the first attempt: step 4 finds out if the number is taken.
            self._log.check_folder()
            self._entries.check_fence()
            # 2. A repeat of a known batch writes nothing. Its first attempt may have failed once visible.
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
            # 3. Versions, rows, timestamp and gate follow from the state, so they are new in each attempt.
            entry = self._commit_entry(
                state,
                key,
                [receipt for receipt in receipts if receipt.rows],
                state.pending if pending is None else pending,
                {**(source_positions or {}), **notes},
                schema_changes,
                publish=publish and state.gate is None,
            )
            # 4. The creation decides. The loser reads the winner's entry, is fenced by it or goes on after it.
            if self._entries.create(entry, carried):
                if publish:
                    self._run_upkeep()
                return _receipt(entry, already_committed=False)
            self.refresh()

    def publish(self) -> Publication | None:
        """Release everything committed so far; None when there is nothing new, or there is a gate.

        Raises:
            WriterFenced: A newer writer holds the catalog.
            LogFull: No room; call again once there is.
        """
        state = self.state
        while True:
            # 1. What another process of this writer has committed is released too.
            self._log.check_folder()
            self._log.follow_entries()
            self._entries.check_fence()
            if state.last_version == state.published:
                return None
            # 2. Where a gate stands, it publishes. One that is put up later does not cover these versions.
            publication = None
            if state.gate is not None:
                break
            # 3. The last entry with versions is durable, as entries are when ``create`` returns.
            publication = create_publication(self._log, now=self._clock.now())
            if publication is not None:
                break
            # 4. Another publication has the number: read it, then see what is left to release.
            self.refresh()
        self._run_upkeep()
        return publication

    def compact(self) -> Compaction | None:
        """Compact small neighbouring segments now; None when there are none. See compaction.py."""
        return compact(self.path, self._clock.now())

    def trim(self, *, before: int) -> Position:
        """Give up all versions below ``before``; return the oldest position kept. See retention.py."""
        return trim(self.path, before, self._clock.now())

    def close(self, *, hurried: bool = False) -> None:
        """Wait for upkeep that has begun, a minute at most, ``hurried`` 2 s."""
        self._upkeep.close(hurried=hurried)

    def _run_upkeep(self) -> None:
        """Have upkeep done if it is due; called after publications, since it deals with what is published."""
        self._log.follow_checkpoints()
        self._upkeep.run_if_due(self._log)

    def find_source(self, source: SourceBatch) -> CommitReceipt | None:
        """Return what a source's batch came to, if the log as far as it has been read has it.

        Raises:
            UnknownWriter, InvalidRequest: As ``commit``.
        """
        return self._find(source, None)[1]

    def _find(
        self, source: SourceBatch | None, key: BatchKey | None
    ) -> tuple[Notes, CommitReceipt | None]:
        """Return what a commit notes of its source, or what its repeat came to the first time."""
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
            f"{source.name(self.writer)} is not in the log, but a later one is: the batch numbers of a source "
            f"must rise{self._deleted_before()}"
        )

    def _commits_before(self, number: int) -> Iterator[CommitEntry]:
        """Yield the commits up to an entry, the newest first, as far as the log has them."""
        for each in range(number, 0, -1):
            found = self._log.read_entry(each)
            if found is None:
                return
            if isinstance(found.entry, CommitEntry):
                yield found.entry

    def _find_key(self, key: BatchKey) -> CommitReceipt | None:
        """Return what a key came to, if it was committed.

        Raises:
            InvalidRequest: It was not, but a later one was: batch ids of one writer rise.
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
        """Return what an error adds where the batch may have been in an entry that was deleted."""
        advice = "; it may have been in an entry that is deleted by now: begin with a newer batch"
        return "" if self._log.read_entry(1) is not None else advice

    def _check_files(
        self, segments: Sequence[SegmentReceipt], pending: Sequence[PendingSegment]
    ) -> None:
        files = [(file.path, file.bytes) for file in segments]
        files += [(file.path, file.bytes) for file in pending]
        for path, expected in files:
            size = self._store.size(path)
            if size is None:
                self.refresh()  # raises WriterFenced if it is a newer writer that has deleted it
                raise LogError(f"segment {path} is missing; the commit was refused")
            if size != expected:
                raise LogError(
                    f"segment {path} has {size} bytes, not {expected}; the commit was refused"
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
        """Create the schemas of a commit; return the version from which each holds, and its id."""
        created: list[tuple[int, int]] = []
        if not schema_changes:
            return created
        history = self._log.read_schemas()  # those of the writer's own commits are not read by then
        before, room = history.newest, history.whole_bytes - history.difference_bytes
        next_id = max((id for _, id in state.schemas), default=0) + 1
        for place, schema in schema_changes:
            id, size, is_whole = self._create_schema(before, schema, next_id, room)
            created.append((state.last_version + 1 + place, id))
            before, next_id = replace(schema, id=id), id + 1
            room = size if is_whole else room - size
        return created

    def _create_schema(
        self, before: Schema, schema: Schema, id: int, room: int
    ) -> tuple[int, int, bool]:
        """Create a schema under the first free id from one on; ids of commits that never came stay unused.

        It is written whole where its difference from the schema before has more bytes than there is room for.
        Returns the id, the bytes of the file, and whether it is whole.
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
            found = self._store.read(path)
            if found is not None and found.data == data:
                return id, len(data), is_whole
            id += 1


def check_writer_name(writer: str) -> None:
    """Refuse what cannot name a writer.

    Raises:
        InvalidRequest: It is not of the form.
    """
    if _WRITER.fullmatch(writer) is None:
        allowed = "use up to 128 letters, digits, underscores, dots and hyphens"
        raise InvalidRequest(f"{writer!r} cannot name a writer: {allowed}")


def _receipt(entry: CommitEntry | KnownCommit, *, already_committed: bool) -> CommitReceipt:
    return CommitReceipt(
        entry=entry.number if isinstance(entry, CommitEntry) else entry.entry,
        first_version=entry.first_version,
        last_version=entry.last_version,
        timestamp=entry.timestamp,
        already_committed=already_committed,
    )
