"""The common part of all sources: commit a batch with its schema, and count its rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace_server.failpoints import reach
from tailrace_server.pipeline.progress import IngestCounters
from tailrace_server.pipeline.quarantine import write_quarantine
from tailrace_server.wal.schema.records import insert_schema_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tailrace.schema import Schema
    from tailrace_server.pipeline.changes import Change
    from tailrace_server.wal.catalog_writer import CatalogWriter, CommitReceipt
    from tailrace_server.wal.files.documents import PendingSegment
    from tailrace_server.wal.segment.writer import SegmentReceipt
    from tailrace_server.wal.source_batches import SourceBatch


class CatalogDriver:
    """Commits batches to one catalog, as its only writer."""

    def __init__(self, writer: CatalogWriter, publish_window_s: float = 0.0) -> None:
        """Read the catalog's schema as the log has it now.

        Args:
            writer: The catalog's.
            publish_window_s: How often to publish at most, seconds; 0: with each commit.
        """
        self._publish_window_s = publish_window_s
        self._publish_due: float | None = None
        """When what is committed is to be published, by the monotonic clock; None where all is."""
        self.writer = writer
        self.numbered: SourceBatch | None = None
        """The source's own number of the batch that comes next, if the source numbers its batches."""
        self.counters = IngestCounters()
        writer.log.refresh()
        self.schema: Schema = writer.log.view.schema_of(writer.state.last_version)
        """The schema after the newest commit."""

    @property
    def last_batch(self) -> int:
        """The last batch of this writer that the log knows; -1 for none."""
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
        """Make segments durable with the records of the schemas that begin in them; see `CatalogWriter.commit`.

        A repeat, by (writer, batch id, k) or by the source's batch, changes nothing.
        """
        # While tasks wrote, none could know which of them saw a column first. So the records of the schema go
        # into the segments now, when all have reported. A repeat's segments may be gone, and are not named.
        source = self.numbered if k == 0 else None  # a flush is no batch of the source
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
        self.counters.records += sum(segment.rows for segment in segments)
        self.counters.written_bytes += sum(segment.bytes for segment in segments)
        return receipt

    def quarantine(
        self,
        batch_id: int,
        lines: Iterable[Change],
        blocks: Mapping[tuple[str, int], int],
        k: int = 0,
    ) -> None:
        """Write the lines of a batch that cannot be used; ``blocks`` as in `write_quarantine`."""
        name = f"{self.writer.writer}-{batch_id:020}" + (f"-{k}" if k else "")
        write_quarantine(self.writer.path / "quarantine", name, lines, blocks)

    @property
    def publishes_at_once(self) -> bool:
        """Whether a commit publishes itself."""
        return not self._publish_window_s

    def publish_committed(self) -> None:
        """Publish what was committed, now or when the publish window has passed."""
        self._note_versions()
        if not self.publishes_at_once and self._publish_due is None:
            self._publish_due = time.monotonic() + self._publish_window_s
        self.publish()

    def publish(self, *, force: bool = False) -> None:
        """Publish what is committed, if the publish window has passed or must not be waited for."""
        if self._publish_due is None or not (force or time.monotonic() >= self._publish_due):
            return
        self.publish_now()
        self._publish_due = None

    def publish_now(self) -> None:
        """Release everything committed to readers."""
        reach("pipeline.before_publish")
        self.writer.publish()
        self._note_versions()

    def _note_versions(self) -> None:
        """Note in the counters how far the log is committed and published."""
        self.counters.committed = self.writer.state.last_version
        self.counters.published = self.writer.state.published
