"""The writing of a commit's records in the driver, in the order of the versions.

Tasks write the versions of a large batch in parallel. They cannot do so if a version depends on all versions
before it: to count equal rows, to fill images, and to find changes that are older than the last change of their
row. Then the driver writes the versions one by one. It gets them in chunks, so that it never has all rows of a
large batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace_server.pipeline.catalog.record_table import ROWS_PER_WRITE
from tailrace_server.pipeline.run.set_aside import SetAside
from tailrace_server.pipeline.transactions.records import RecordBuilder, WrittenPlan
from tailrace_server.wal.segment.writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tailrace_server.pipeline.catalog.columns import ColumnInference
    from tailrace_server.pipeline.catalog.older_rows import OlderRows
    from tailrace_server.pipeline.catalog.whole_images import Filling
    from tailrace_server.pipeline.input.change import Change
    from tailrace_server.pipeline.input.source import Source
    from tailrace_server.pipeline.transactions.grouping import Released
    from tailrace_server.pipeline.transactions.row_counts import Counting
    from tailrace_server.wal.schema.mapping import SchemaMapping

    Chunk = list[tuple[Released, list[Change]]]
    """Some transactions in version order, each with its changes in any order."""


@dataclass(frozen=True)
class DriverWriter:
    """Writes the segment of one commit."""

    path: Path
    columns: ColumnInference
    source: Source
    mapping: SchemaMapping | None
    counting: Counting | None
    """Counts the rows of tables without a key; None if there is no such table."""
    filling: Filling | None
    """Fills images; None leaves them as they were sent."""
    older: OlderRows | None
    """Finds older changes; None accepts them."""

    def write(
        self, chunks: Iterable[Chunk], set_aside: Callable[[list[Change]], None]
    ) -> WrittenPlan:
        """Write all transactions of a commit.

        Args:
            chunks: The transactions. A chunk is emptied while it is written.
            set_aside: Receives the rows that go to quarantine, chunk by chunk.

        Raises:
            LogCorrupted: A part of the log that is read is damaged.
            SegmentMissing: Upkeep replaced the segments in each of several attempts.
            LogFull: The disk is full.
        """
        builder = RecordBuilder(
            self.columns, self.source, self.mapping, self.counting, self.filling, self.older
        )
        aside = SetAside()
        with SegmentWriter(self.path) as segment:
            for chunk in chunks:
                self._look_up(chunk)
                chunk.reverse()
                while chunk:
                    # Pop, so that the rows of a transaction are freed as soon as they are written.
                    builder.add(*chunk.pop())
                    if builder.rows >= ROWS_PER_WRITE:
                        segment.write(builder.take())
                if builder.set_aside:
                    aside.add(SetAside.of(builder.set_aside, self.source.tells_shape))
                    set_aside(builder.set_aside)
                    builder.set_aside = []
            segment.write(builder.take())
            receipt = segment.close()
        return WrittenPlan(
            [receipt],
            self.columns.sightings,
            [],
            self.counting,
            aside,
            updates=builder.updates,
            removals=builder.removals,
            filling=self.filling,
        )

    def _look_up(self, chunk: Chunk) -> None:
        """Read from the log, in one pass each, what the transactions of a chunk need."""
        if self.counting is not None:
            counts = self.source.counts
            self.counting.look_up(
                row for _, rows in chunk for row in rows if counts(row.entity_type or "")
            )
        if self.filling is not None:
            self.filling.look_up(row for _, rows in chunk for row in rows)
        if self.older is not None:
            self.older.look_up(row for _, rows in chunk for row in rows)
