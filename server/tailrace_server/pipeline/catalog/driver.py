"""The common driver of all sources: commits a batch with its schema, and names its quarantine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace_server.failpoints import reach
from tailrace_server.pipeline.catalog.quarantine import adopt_parts, write_quarantine
from tailrace_server.pipeline.run.progress import IngestCounters
from tailrace_server.wal.schema.records import insert_schema_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tailrace.schema import Schema
    from tailrace_server.pipeline.input.change import Change
    from tailrace_server.wal.catalog_writer import CatalogWriter, CommitReceipt
    from tailrace_server.wal.files.documents import PendingSegment
    from tailrace_server.wal.segment.writer import SegmentReceipt
    from tailrace_server.wal.source_batches import SourceBatch


class CatalogDriver:
    """Commits batches to one catalog, as its only writer."""

    def __init__(self, writer: CatalogWriter, publish_window_s: float = 0.0) -> None:
        """Begin with the newest schema of the log.

        Args:
            writer: The catalog's writer.
            publish_window_s: Minimum time between two publications, in seconds; 0 publishes each commit at
                once.
        """
        self._publish_window_s = publish_window_s
        self._publish_due: float | None = None
        """Time of the next publication, by the monotonic clock; None if all commits are published."""
        self.writer = writer
        self.numbered: SourceBatch | None = None
        """The source's id of the next batch; None if the source does not number its batches."""
        self.counters = IngestCounters()
        writer.log.refresh()
        self.schema: Schema = writer.log.view.schema_of(writer.state.last_version)
        """The schema after the newest commit."""

    def delete_strays(self) -> None:
        """Delete what a task that outlived its batch, or a killed check of a cluster, has left.

        Only the run of an ingest may call this, at its start: no other task of the catalog runs then.
        """
        for stray in (
            *self.writer.path.glob("quarantine/*.part"),
            *self.writer.path.glob(".probe-*"),
        ):
            stray.unlink(missing_ok=True)

    @property
    def last_batch(self) -> int:
        """The id of this writer's last batch in the log; -1 if there is none."""
        return self.writer.state.writers[self.writer.writer].batch_id

    def commit_entry(
        self,
        *,
        batch_id: int | None = None,
        k: int = 0,
        segments: Sequence[SegmentReceipt],
        schemas: Sequence[tuple[int, Schema]],
        pending: Sequence[PendingSegment] | None = None,
        source_positions: Mapping[str, int | str] | None = None,
        publish: bool = False,
    ) -> CommitReceipt:
        """Insert the records of new schemas into the segments, and commit these; see `CatalogWriter.commit`.

        A repeated commit, identified by (writer, batch id, k) or by the source's batch, changes nothing.
        """
        # No task can know which task saw a column first. So the records of a schema are inserted here, after
        # all tasks have reported. Not in a repeat: its segments are not named by an entry, and may be deleted.
        source = self.numbered if k == 0 else None  # a flush is not a batch of the source
        last = self.writer.state.writers[self.writer.writer]
        if source is not None:
            is_new = self.writer.find_source(source) is None
        else:
            is_new = batch_id is None or (batch_id, k) > (last.batch_id, last.k)
        if is_new:
            segments = insert_schema_records(self.writer.path, segments, self.schema, schemas)
        reach("pipeline.before_commit")
        begun = time.monotonic()
        receipt = self.writer.commit(
            batch_id=batch_id,
            k=k,
            source=source,
            segments=segments,
            pending=pending,
            source_positions=source_positions,
            schema_changes=schemas,
            publish=publish,
        )
        self.counters.commits.observe(time.monotonic() - begun)
        reach("pipeline.after_commit")
        if schemas:
            self.schema = schemas[-1][1]
        self.counters.committed = self.writer.state.last_version
        self.counters.records += sum(segment.rows for segment in segments)
        self.counters.written_bytes += sum(segment.bytes for segment in segments)
        return receipt

    def quarantine_path(self, batch_id: int, k: int = 0) -> Path:
        """Return the path of the quarantine of a batch, or of its k-th flush."""
        name = f"{self.writer.writer}-{batch_id:020}" + (f"-{k}" if k else "")
        return self.writer.path / "quarantine" / f"{name}.jsonl"

    def quarantine(
        self,
        batch_id: int,
        k: int,
        lines: Iterable[Change],
        blocks: Mapping[tuple[str, int], int],
        parts: Sequence[Path] = (),
    ) -> None:
        """Write the quarantine of a batch, or of its k-th flush.

        Args:
            batch_id: Id of the batch.
            k: Number of the flush; 0 for the batch.
            lines: The QUARANTINED changes, if this process writes them.
            blocks: As in `write_quarantine`.
            parts: The files to which tasks wrote all lines, instead of ``lines``.

        Raises:
            LogFull: The disk is full.
        """
        path = self.quarantine_path(batch_id, k)
        if not parts:
            write_quarantine(path, sorted(lines, key=lambda change: change.place), blocks)
        adopt_parts(path, parts)

    @property
    def publishes_at_once(self) -> bool:
        """True if each commit is published at once, because there is no publish window."""
        return not self._publish_window_s

    def publish_committed(self) -> None:
        """Publish the new commit now, or schedule it for the end of the publish window."""
        self._note_versions()
        # The window begins with the first unpublished commit. Later commits do not extend it.
        if not self.publishes_at_once and self._publish_due is None:
            self._publish_due = time.monotonic() + self._publish_window_s
        self.publish()

    def publish(self, *, force: bool = False) -> None:
        """Publish all commits if the publish window has passed, or at once with ``force``."""
        if self._publish_due is None or not (force or time.monotonic() >= self._publish_due):
            return
        self.publish_now()
        self._publish_due = None

    def publish_now(self) -> None:
        """Publish all commits, so that readers see them."""
        reach("pipeline.before_publish")
        self.writer.publish()
        self._note_versions()

    def _note_versions(self) -> None:
        """Update the counters of the newest committed and the newest published version."""
        self.counters.committed = self.writer.state.last_version
        self.counters.published = self.writer.state.published
