"""The driver of an ingest of CDCv2: it commits one batch after the other.

::

    files ─▶ messages ─┬─▶ updates ─▶ distinct ─┬─▶ still open ──────────────────────┐
                       │        state ──▲       └─▶ finished ─▶ fold ─▶ segments ────┤
                       ├─▶ progress ─▶ times ──▶ frontier ─┘     index ──▲           ├─▶ entry ─▶ publication
                       └─▶ refused ─▶ quarantine            files consumed, frontier ┘

The log is the checkpoint. One entry names the versions, the consumed files, the frontier and all state files.
So a batch is in the log as a whole or not at all. After a crash the next batch may consist of other files.

`batch` has the steps of a batch. Small batches run in this process, large batches on Spark.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace.errors import InvalidRequest
from tailrace_server.cdcv2 import AvroForm
from tailrace_server.pipeline.catalog.columns import evolve
from tailrace_server.pipeline.catalog.driver import CatalogDriver
from tailrace_server.pipeline.catalog.pending import write_pending
from tailrace_server.pipeline.catalog.quarantine import LineRefused
from tailrace_server.pipeline.cdcv2.batch import Batch, BatchResult, LocalRunner, SourceFile
from tailrace_server.pipeline.cdcv2.seeding import seed_index
from tailrace_server.pipeline.cdcv2.state import (
    CONTROL_NAME,
    TIMES_KIND,
    UPDATES_KIND,
    Control,
    KeyIndex,
    read_control,
    read_rows,
)
from tailrace_server.pipeline.cdcv2.times import (
    TIMES,
    why_waiting,
)
from tailrace_server.pipeline.cdcv2.updates import (
    place,
)
from tailrace_server.pipeline.input.change import QUARANTINED, Change
from tailrace_server.pipeline.run.set_aside import SetAside
from tailrace_server.wal.source_offsets import offsets_after

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.cdcv2 import Waiting
    from tailrace_server.pipeline.cdcv2.cutting import RefusedMessage
    from tailrace_server.pipeline.cdcv2.folding import Folding
    from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.source_offsets import OffsetRange

FRONTIER: Final = "cdcv2:frontier"
"""Name of the source position that stores the finished frontier: an antichain in JSON."""

_BYTES_PER_ROW: Final = 32
"""Assumed size of an update, to estimate the rows of a batch from the sizes of its files."""


class Cdcv2Driver(CatalogDriver):
    """Commits the batches of one stream to one catalog."""

    def __init__(self, writer: CatalogWriter, settings: Cdcv2Settings) -> None:
        """Continue from the state in the log.

        Raises:
            InvalidRequest: The catalog holds another stream, or this stream with other columns or another
                start.
            LogCorrupted: The state is damaged.
        """
        super().__init__(writer)
        self.delete_strays()
        self.settings = settings
        self.run_large: Callable[[Batch], BatchResult] | None = None
        """Runs batches that are too large for this process; None until Spark is started."""
        found = read_control(writer.path, writer.state.pending)
        self._begins = found is None
        self.control = self._check_stream(found)
        self._index = KeyIndex(writer.path)
        self._note_versions()

    @property
    def folding(self) -> Folding:
        """The rules that turn rows into records."""
        return self.settings.folding

    @property
    def closed(self) -> bool:
        """True if the stream is complete."""
        return self.control.frontier is None

    def is_consumed(self, name: str) -> bool:
        """Return True if the log holds the messages of a file."""
        return f"file:{name}" in self.writer.state.source_positions

    def is_small(self, files: Sequence[SourceFile]) -> bool:
        """Return True if a batch and the open updates in the state are few enough for this process."""
        rows = self.settings.small_batch_rows
        size = sum(file.bytes for file in files)
        return size <= rows * _BYTES_PER_ROW and self.control.rows(UPDATES_KIND) <= 10 * rows

    def why_waiting(self, limit: int = 20) -> list[Waiting[Any]]:
        """Return the reasons why the frontier does not advance, at most ``limit``."""
        control = self.control
        times = read_rows(self.writer.path, control.of_kind(TIMES_KIND), TIMES)
        return why_waiting(control.frontier, control.coverage, times, limit)

    def batch(self, files: Sequence[SourceFile], offsets: Sequence[OffsetRange] = ()) -> None:
        """Read some files, and commit the times that are finished then.

        Args:
            files: The files, or the messages of partitions.
            offsets: The offsets of the messages; the commit has them instead of names.

        Raises:
            CdcError: Messages contradict each other; nothing of the batch is stored.
            KeyConflict: One time changes a key in a way that no single row can represent.
            LineRefused: A message cannot be used, and the settings are strict.
            InvalidRequest: A file has another schema.
            SchemaConflict: The catalog's columns cannot hold the stream's columns.
            WriterFenced: Another writer holds the catalog.
            LogFull: There is no space for the commit.
            PositionCompacted: See `seed_index`; only in the first batch of a stream.
        """
        batch_id = self.last_batch + 1
        # The batch changes a copy: if it fails, this object still agrees with the log.
        control = _copied(self.control)
        if self._begins:
            control.files = seed_index(self.writer, self.folding, batch_id)
        # A place can number eight million files, so reuse ordinals that the state no longer refers to.
        control.next_ordinal = max(control.names, default=0) + 1
        for file in files:
            control.names[control.next_ordinal] = file.name
            control.next_ordinal += 1
        batch = Batch(self.writer, self.settings, self._index, batch_id, files, control)
        self._commit(batch, self._run(batch), offsets)

    def _run(self, batch: Batch) -> BatchResult:
        """Run a batch in this process, or on Spark if it is large and Spark runs."""
        if self.run_large is None or self.is_small(batch.files):
            return batch.run(LocalRunner())
        return self.run_large(batch)

    # The commit.

    def _commit(self, batch: Batch, result: BatchResult, offsets: Sequence[OffsetRange]) -> None:
        # 1. Check first: with ``--strict`` nothing of the batch may be stored, and a schema that the catalog
        #    cannot hold ends the ingest before a quarantine file is written.
        control = result.control
        self._check_refused(batch, result.refused)
        schemas = evolve(self.schema, result.sightings)
        lines = self._quarantined(batch, result.refused)
        if lines:
            self.quarantine(batch.number, 0, lines, {})
        # 2. The control file, then the entry that names this file and all others.
        path = self.writer.segment_path(batch.number, f"pending-{CONTROL_NAME}")
        written = write_pending(path, control.table())
        positions: dict[str, int | str] = {
            f"file:{file.name}": result.messages.get(ordinal, 0)
            for ordinal, file in zip(batch.ordinals, batch.files, strict=True)
            if file.messages is None
        }
        frontier = [] if control.frontier is None else [control.frontier]
        positions[FRONTIER] = json.dumps(control.antichain or frontier)
        state = self.writer.state
        positions |= offsets_after(offsets, state.source_positions, "")
        # A removal in CDCv2 has the whole row, so its image before is complete.
        positions |= state.whole_removals.notes_after(
            {name: False for segment in result.segments for name in segment.counts},
            state.last_version + 1,
        )
        self.commit_entry(
            batch_id=batch.number,
            segments=result.segments,
            schemas=schemas,
            pending=[written, *(each.file for each in control.files)],
            source_positions=positions,
        )
        # 3. Change this object only now: if the commit fails, the object still agrees with the log.
        rows = control.statistics.finished_updates - self.control.statistics.finished_updates
        self.control, self._begins = control, False
        self._index.keep(control.files)
        self.counters.lines += sum(result.messages.values())
        self.counters.rows += rows
        self.counters.count_set_aside(SetAside.of(lines, lambda _: False))
        self.counters.input_files += sum(file.messages is None for file in batch.files)
        self.counters.input_bytes += sum(file.bytes for file in batch.files)
        self.counters.versions += result.versions
        self.publish_now()

    def _check_refused(self, batch: Batch, refused: Sequence[RefusedMessage]) -> None:
        if self.settings.strict and refused:
            first = min(refused, key=lambda each: each.message)
            where = place(first.message)
            file = batch.files[batch.ordinals.index(where.ordinal)]
            raise LineRefused(*file.place(where.offset), first.reason)

    def _quarantined(self, batch: Batch, refused: Sequence[RefusedMessage]) -> list[Change]:
        """Return refused messages as QUARANTINED changes."""
        files = dict(zip(batch.ordinals, batch.files, strict=True))
        lines = []
        for each in refused:
            where = place(each.message)
            file, line = files[where.ordinal].place(where.offset)
            lines.append(
                Change(
                    QUARANTINED,
                    each.message.to_bytes(8, "big"),
                    reason=each.reason,
                    raw=each.raw,
                    file=file,
                    block=0,
                    line=line,
                )
            )
        return lines

    def _check_stream(self, found: Control | None) -> Control:
        """Check that the catalog's stream is the one in the settings; if the catalog has none, begin one."""
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
                    f"{what} {given or 'none'}: catalog {catalog} was created with "
                    f"{was or 'none'}; use that, or another catalog"
                )
        adopted = AvroForm.of(found.schema, product_times=True)
        folding.schema.check_same(adopted, f"catalog {catalog}")
        return found


def _copied(control: Control) -> Control:
    copy: Control = msgspec.json.decode(msgspec.json.encode(control), type=Control)
    return copy
