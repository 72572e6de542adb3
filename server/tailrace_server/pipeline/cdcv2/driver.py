"""The driver's side of an ingest of CDCv2: batch after batch becomes a commit.

::

    files ─▶ messages ─┬─▶ updates ─▶ distinct ─┬─▶ still open ──────────────────────┐
                       │        state ──▲       └─▶ finished ─▶ fold ─▶ segments ────┤
                       ├─▶ progress ─▶ times ──▶ frontier ─┘     index ──▲           ├─▶ entry ─▶ publication
                       └─▶ refused ─▶ quarantine            files consumed, frontier ┘

The log is the checkpoint. One entry names the versions, the consumed files, the frontier and all state files,
so a batch is in the log as a whole or not at all. After a crash the next batch need not be the same one.

Small batches run here. Large ones run as Spark jobs (`spark_frames`), which use the same functions on shares
of the updates, of the times and of the keys. Both leave the same state and the same log.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from tailrace.cdcv2 import CountExceeded, CountsDisagree, DiffsDisagree
from tailrace.errors import InvalidRequest, TailraceError
from tailrace_server.cdcv2 import AvroForm
from tailrace_server.pipeline.catalog.columns import Sighting, evolve
from tailrace_server.pipeline.catalog.driver import CatalogDriver, LineRefused
from tailrace_server.pipeline.catalog.pending import write_pending
from tailrace_server.pipeline.cdcv2.files import FilePart, read_part
from tailrace_server.pipeline.cdcv2.folding import (
    EFFECTS,
    INDEX,
    Folded,
    finished_rows,
    fold,
    write_segment,
)
from tailrace_server.pipeline.cdcv2.seeding import seed_index
from tailrace_server.pipeline.cdcv2.state import (
    CONTROL_NAME,
    INDEX_KIND,
    TIMES_KIND,
    UPDATES_KIND,
    Control,
    KeyIndex,
    StateFile,
    count_messages,
    merged,
    ordinals_in,
    read_control,
    read_rows,
    tiers,
    tiers_to_merge,
)
from tailrace_server.pipeline.cdcv2.times import (
    TIMES,
    Contradiction,
    counts_table,
    coverage_after,
    frontier_after,
    intervals_table,
    joined_coverage,
    received_table,
    update_times,
    why_waiting,
)
from tailrace_server.pipeline.cdcv2.updates import (
    UPDATES,
    before,
    distinct,
    joined,
    place,
    since,
)
from tailrace_server.pipeline.input.change import QUARANTINED, Change

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from tailrace.cdcv2 import Waiting
    from tailrace_server.pipeline.cdcv2.cutting import CutMessages, RefusedMessage
    from tailrace_server.pipeline.cdcv2.folding import Folding
    from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.files.documents import PendingSegment
    from tailrace_server.wal.segment.writer import SegmentReceipt

FRONTIER: Final = "cdcv2:frontier"
"""Name of the source position that holds the finished frontier, an antichain in JSON."""

_MERGED_ROWS_MAX: Final = 1_000_000
"""Index rows that the driver merges by itself; larger tiers are merged in tasks."""
_BYTES_PER_ROW: Final = 32
"""Assumed size of an update, to estimate the rows of a batch from the sizes of its files."""


class SourceFile(NamedTuple):
    """A file of the input folder."""

    name: str
    """Its path below the folder."""
    path: str
    bytes: int
    modified_ns: int


class BatchResult(NamedTuple):
    """The result of a batch, before it is committed."""

    control: Control
    """The control after the batch, with its state files."""
    segments: list[SegmentReceipt]
    sightings: list[Sighting]
    refused: list[RefusedMessage]
    messages: Mapping[int, int]
    """Ordinal of a file → number of messages in it."""
    versions: int


class LargeBatchRunner(Protocol):
    """Runs a batch on Spark; see `spark_frames`."""

    def __call__(
        self, driver: Cdcv2Driver, batch_id: int, files: Sequence[SourceFile], control: Control
    ) -> BatchResult:
        """Return the result of a batch; ``control`` has the ordinals of its files."""


class Cdcv2Driver(CatalogDriver):
    """Commits batches to one catalog."""

    def __init__(self, writer: CatalogWriter, settings: Cdcv2Settings) -> None:
        """Go on from the state in the log.

        Raises:
            InvalidRequest: The catalog holds another stream, or this one with other columns or another
                start.
            LogCorrupted: The state is damaged.
        """
        super().__init__(writer)
        self.settings = settings
        self.run_large: LargeBatchRunner | None = None
        """Runs batches that are too large for this process; None while there is no Spark."""
        found = read_control(writer.path, writer.state.pending)
        self._begins = found is None
        self.control = self._check_stream(found)
        self._index = KeyIndex(writer.path)
        self._note_versions()

    @property
    def folding(self) -> Folding:
        """How rows become records."""
        return self.settings.folding

    @property
    def closed(self) -> bool:
        """Whether the stream is complete."""
        return self.control.frontier is None

    def is_consumed(self, name: str) -> bool:
        """Whether the log holds the messages of a file."""
        return f"file:{name}" in self.writer.state.source_positions

    def is_small(self, files: Sequence[SourceFile]) -> bool:
        """Whether a batch and the state that it meets are small enough for this process."""
        rows = self.settings.small_batch_rows
        size = sum(file.bytes for file in files)
        return size <= rows * _BYTES_PER_ROW and self.control.rows(UPDATES_KIND) <= 10 * rows

    def why_waiting(self, limit: int = 20) -> list[Waiting[Any]]:
        """Return what the frontier waits for, ``limit`` reasons at most."""
        control = self.control
        times = read_rows(self.writer.path, control.of_kind(TIMES_KIND), TIMES)
        return why_waiting(control.frontier, control.coverage, times, limit)

    def batch(self, files: Sequence[SourceFile]) -> None:
        """Read some files, and commit the times that they finish.

        Raises:
            CdcError: Messages contradict each other; nothing of the batch was kept.
            KeyConflict: A time changes a key in a way that no row can follow.
            LineRefused: A message cannot be used, and the settings are strict.
            SchemaDiffers: A file has another schema.
            SchemaConflict: The catalog's columns cannot hold the stream's.
            WriterFenced: Another writer holds the catalog.
            LogFull: No room.
            PositionCompacted: See `seed_index`; only in the first batch of a stream.
        """
        batch_id = self.last_batch + 1
        control = _copied(self.control)
        if self._begins:
            control.files = seed_index(self.writer, self.folding, batch_id)
        # A place has room for eight million files, so numbers that the state no longer needs are used again.
        control.next_ordinal = max(control.names, default=0) + 1
        for file in files:
            control.names[control.next_ordinal] = file.name
            control.next_ordinal += 1
        if self.run_large is None or self.is_small(files):
            result = self._run_here(batch_id, files, control)
        else:
            result = self.run_large(self, batch_id, files, control)
        self._commit(batch_id, files, result)

    # A batch in this process.

    def _run_here(
        self, batch_id: int, files: Sequence[SourceFile], control: Control
    ) -> BatchResult:
        # 1. Read all files, then drop updates below the frontier: their times are versions already.
        ordinals = self.ordinals(files, control)
        read: list[CutMessages] = []
        messages: dict[int, int] = {}
        for ordinal, file in zip(ordinals, files, strict=True):
            split = FilePart(file.path, ordinal, 0, file.bytes, file.bytes)
            found = list(read_part(split, self.folding.schema))
            messages[ordinal] = sum(each.messages for each in found)
            read.extend(found)
        frontier = self.control.frontier
        old = read_rows(self.writer.path, control.of_kind(UPDATES_KIND), UPDATES)
        came = joined([batch for each in read for batch in each.updates])
        news = since(came, frontier)
        # 2. Old updates first, then new ones in the order of reading: the first of equal ones is kept, so the
        #    new updates stand behind the old ones, and the message that was heard first stands.
        known = distinct(joined([old, news]) if old.num_rows else news)
        if known.conflict is not None:
            both = joined([old, news])
            pair = (both.slice(row, 1).to_pylist()[0] for row in known.conflict)
            self.note_conflicts(control, known.conflicts, *pair)
        fresh = known.updates.slice(old.num_rows)
        progress = [each for some in read for each in some.progress]
        refused = [each for some in read for each in some.refused]
        count_messages(
            control.statistics,
            messages=sum(messages.values()),
            updates=came.num_rows,
            duplicates=known.duplicates - known.conflicts,
            dropped=came.num_rows - news.num_rows,
            refused=len(refused),
        )
        # 3. Update the times, and move the frontier as far as all announced updates have come. Counts are
        #    compared with distinct updates, hence after step 2. A contradiction raises before anything is
        #    written.
        effects, index = EFFECTS.empty_table(), INDEX.empty_table()
        kept = known.updates
        times = read_rows(self.writer.path, control.of_kind(TIMES_KIND), TIMES)
        if frontier is not None:
            intervals = intervals_table(progress)
            updated = update_times(
                times,
                control.coverage,
                intervals,
                counts_table(progress),
                received_table(fresh),
                frontier,
                first=self.settings.first_stands,
            )
            if updated.contradiction is not None:
                raise self.error_of(control, updated.contradiction)
            coverage = joined_coverage(control.coverage, intervals, frontier)
            control.frontier = frontier_after(frontier, coverage, [updated.lowest])
            control.coverage = coverage_after(coverage, control.frontier)
            # 4. What lies below the new frontier is finished and becomes versions; the rest stays open.
            finished = before(kept, control.frontier)
            kept, times = since(kept, control.frontier), since(updated.times, control.frontier)
            folded = self._fold(finished, control)
            effects, index = folded.effects, folded.index
            control.statistics.finished_updates += finished.num_rows
        # 5. Write. No entry names these files yet, so a crash from here on leaves orphans only.
        segments, versions = self._write_segment(batch_id, effects)
        control.files = [
            *self._state_files(batch_id, control, kept, times),
            *self._index_files(batch_id, control, index),
        ]
        self._keep_names_of(control, kept, times)
        return BatchResult(control, segments, self.sightings(versions), refused, messages, versions)

    def ordinals(self, files: Sequence[SourceFile], control: Control) -> range:
        """Return the ordinals of the files of a batch."""
        return range(control.next_ordinal - len(files), control.next_ordinal)

    def note_conflicts(
        self,
        control: Control,
        conflicts: int,
        first: Mapping[str, Any],
        second: Mapping[str, Any],
    ) -> None:
        """Count updates that contradict each other, or raise the first two, which are rows of `UPDATES`."""
        if self.settings.first_stands:
            control.statistics.conflicts += conflicts
            return
        image = self.folding.schema.image(first["data"])[0].decode()
        sides = ((row["diff"], self._origin(control, row["message"])) for row in (first, second))
        raise DiffsDisagree(image, first["time"], *sides)

    def error_of(self, control: Control, found: Contradiction) -> TailraceError:
        """Return the error for counts that contradict each other or the received updates."""
        first, second = (
            (count, self._origin(control, message))
            for count, message in (found.first, found.second)
        )
        if found.exceeded:
            return CountExceeded(found.time, first, second, "the last of them")
        return CountsDisagree(found.time, first, second)

    def sightings(self, versions: int) -> list[Sighting]:
        """Return the columns for a commit of so many versions: all those of the stream's schema, at once."""
        folding = self.folding
        if not versions:
            return []
        listing = folding.schema.listing(folding.key)
        return [Sighting(0, folding.entity_type, None, None, listing)]

    def _fold(self, finished: pa.RecordBatch, control: Control) -> Folded:
        rows = finished_rows(finished, self.folding)
        last_rows = self._index.last_rows(
            control.of_kind(INDEX_KIND),
            rows.column("hash").to_numpy(),
            rows.column("key").to_pylist(),
        )
        return fold(rows, last_rows, keyed=bool(self.folding.key))

    def _write_segment(
        self, batch_id: int, effects: pa.RecordBatch
    ) -> tuple[list[SegmentReceipt], int]:
        if not effects.num_rows:
            return [], 0
        return write_segment(
            self.writer.segment_path(batch_id, "cdcv2"), effects, self.folding.entity_type
        )

    def _state_files(
        self, batch_id: int, control: Control, kept: pa.RecordBatch, times: pa.RecordBatch
    ) -> list[StateFile]:
        """Write the open updates and times."""
        return [
            StateFile(kind, self.write_state(batch_id, kind, rows))
            for kind, rows in ((UPDATES_KIND, kept), (TIMES_KIND, times))
            if rows.num_rows
        ]

    def _index_files(
        self, batch_id: int, control: Control, index: pa.RecordBatch
    ) -> list[StateFile]:
        """Write the new rows of the index, merged with the newest tiers that are not much larger."""
        files = control.of_kind(INDEX_KIND)
        if not index.num_rows:
            return files
        found = tiers(files)
        count = tiers_to_merge(found, index.num_rows, _MERGED_ROWS_MAX)
        left, taken = found[: len(found) - count], found[len(found) - count :]
        tables = [read_rows(self.writer.path, tier.files, INDEX) for tier in taken]
        rows = merged([*tables, joined([index], INDEX)], oldest=not left)
        kept = [each for tier in left for each in tier.files]
        if rows.num_rows:
            file = self.write_state(batch_id, INDEX_KIND, rows)
            kept.append(StateFile(INDEX_KIND, file, tier=batch_id))
        return kept

    def write_state(self, batch_id: int, kind: str, rows: pa.RecordBatch) -> PendingSegment:
        """Write a state file."""
        path = self.writer.segment_path(batch_id, f"pending-cdcv2-{kind}")
        return write_pending(path, rows)

    def _keep_names_of(self, control: Control, kept: pa.RecordBatch, times: pa.RecordBatch) -> None:
        """Keep only the names of files that the state points to."""
        named = ordinals_in(kept) | ordinals_in(times)
        control.names = {n: name for n, name in control.names.items() if n in named}

    def _origin(self, control: Control, message: int) -> str | None:
        if message < 0:
            return None
        where = place(message)
        return f"{control.names.get(where.ordinal, '?')} byte {where.offset}"

    # The commit.

    def _commit(self, batch_id: int, files: Sequence[SourceFile], result: BatchResult) -> None:
        # 1. Refuse first: with ``--strict`` nothing of the batch may stay, and a schema that cannot be held
        #    ends the ingest without a quarantine file.
        control = result.control
        self._check_refused(result.refused, control, files)
        schemas = evolve(self.schema, result.sightings)
        if result.refused:
            self._quarantine(batch_id, control, result.refused, files)
        # 2. The control file, then the entry that names it with everything else.
        path = self.writer.segment_path(batch_id, f"pending-{CONTROL_NAME}")
        written = write_pending(path, control.table())
        ordinals = self.ordinals(files, control)
        positions: dict[str, int | str] = {
            f"file:{file.name}": result.messages.get(ordinal, 0)
            for ordinal, file in zip(ordinals, files, strict=True)
        }
        frontier = [] if control.frontier is None else [control.frontier]
        positions[FRONTIER] = json.dumps(control.antichain or frontier)
        state = self.writer.state
        # A row that goes is sent whole, as it was when it came.
        positions |= state.whole_removals.notes_after(
            {name: False for segment in result.segments for name in segment.counts},
            state.last_version + 1,
        )
        self.commit_entry(
            batch_id=batch_id,
            segments=result.segments,
            schemas=schemas,
            pending=[written, *(each.file for each in control.files)],
            source_positions=positions,
        )
        # 3. Only now does this object change: had the commit failed, it would still agree with the log.
        rows = control.statistics.finished_updates - self.control.statistics.finished_updates
        self.control, self._begins = control, False
        self._index.keep(control.files)
        self.counters.lines += sum(result.messages.values())
        self.counters.rows += rows
        self.counters.count_set_aside(each.reason for each in result.refused)
        self.counters.input_files += len(files)
        self.counters.input_bytes += sum(file.bytes for file in files)
        self.counters.versions += result.versions
        self.publish_now()

    def _check_refused(
        self, refused: Sequence[RefusedMessage], control: Control, files: Sequence[SourceFile]
    ) -> None:
        if self.settings.strict and refused:
            first = min(refused, key=lambda each: each.message)
            where = place(first.message)
            name = files[self.ordinals(files, control).index(where.ordinal)].name
            raise LineRefused(name, where.offset, first.reason)

    def _quarantine(
        self,
        batch_id: int,
        control: Control,
        refused: Sequence[RefusedMessage],
        files: Sequence[SourceFile],
    ) -> None:
        names = dict(zip(self.ordinals(files, control), (file.name for file in files), strict=True))
        lines = []
        for each in refused:
            where = place(each.message)
            lines.append(
                Change(
                    QUARANTINED,
                    each.message.to_bytes(8, "big"),
                    reason=each.reason,
                    raw=each.raw,
                    file=names[where.ordinal],
                    block=0,
                    line=where.offset,
                )
            )
        self.quarantine(batch_id, lines, {})

    def _check_stream(self, found: Control | None) -> Control:
        """Check that the stream of the catalog is that of the settings; begin one if there is none."""
        folding, start = self.folding, self.settings.start
        if found is None:
            begin = start or 0
            return Control(
                folding.entity_type, list(folding.key), folding.schema.text, begin, begin
            )
        catalog = self.writer.path.name
        for what, was, given in (
            ("--entity-type", found.entity_type, folding.entity_type),
            ("--key", ",".join(found.key), ",".join(folding.key)),
            ("--start-time", found.start, found.start if start is None else start),
        ):
            if was != given:
                raise InvalidRequest(
                    f"{what} {given or 'none'}: catalog {catalog} was begun with {was or 'none'}"
                )
        adopted = AvroForm.of(found.schema, product_times=True)
        folding.schema.check_same(adopted, f"catalog {catalog}")
        return found


def _copied(control: Control) -> Control:
    copy: Control = msgspec.json.decode(msgspec.json.encode(control), type=Control)
    return copy


__all__ = ["BatchResult", "Cdcv2Driver", "LargeBatchRunner", "SourceFile"]
