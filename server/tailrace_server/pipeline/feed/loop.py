"""The loop that writes a source's transactions to a catalog, exactly once and in the source's order.

::

    source.items ──▶ append ──▶ commit with the position ──▶ publish ──▶ source.acknowledge
         ▲                       (one durable object)                          │
         └────────── the position of the log, after a restart ◀────────────────┘

A transaction is in the log together with its position, or neither is. So a kill at any moment loses and repeats
nothing: the next run asks the source for what follows the log's position. The source may forget only what is
published.

A commit takes all transactions that have arrived: it waits for more only while the source has more at once, and
at most `_COMMIT_AFTER_S` or ``batch_rows``.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tailrace_server.failpoints import reach
from tailrace_server.pipeline.feed.reconnection import Reconnection
from tailrace_server.pipeline.feed.snapshot_difference import SnapshotDifference
from tailrace_server.pipeline.feed.source import (
    Moved,
    PartedTransaction,
    SnapshotEnd,
    SnapshotRows,
    SourceRefused,
    SourceUnreachable,
    Transaction,
    TransactionBatch,
)
from tailrace_server.pipeline.run.progress import IngestCounters
from tailrace_server.process import freeze_collector
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.record.images import completed
from tailrace_server.wal.record.unavailable import DEFAULT
from tailrace_server.wal.transaction_writer import TransactionWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace_server.pipeline.feed.settings import FeedSettings
    from tailrace_server.pipeline.feed.source import Item, TransactionSource
    from tailrace_server.pipeline.run.metrics import IngestMetrics
    from tailrace_server.pipeline.run.progress import ProgressReporter
    from tailrace_server.pipeline.run.stop_signals import Stopping
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.large_transaction import LargeTransaction
    from tailrace_server.wal.record.mutation import Mutation
    from tailrace_server.wal.schema.builder import Announced

_COMMIT_AFTER_S: Final = 0.1
_BATCH_BYTES: Final = 64 << 20
"""Size of the buffered images from which they are committed, in bytes."""


def run_feed(
    source: TransactionSource,
    kind: str,
    settings: FeedSettings,
    reporter: ProgressReporter,
    *,
    stopping: Stopping,
    metrics: IngestMetrics,
) -> IngestCounters:
    """Write a source to its catalog until the source ends, or, with ``follow``, until a signal.

    Args:
        source: The source.
        kind: Kind of the source; it is the writer's name in the log.
        settings: The options.
        reporter: Prints the progress.
        stopping: Set when the feed must end.
        metrics: Exports the counts of the run.

    Returns:
        The counts of the run.

    Raises:
        SourceUnreachable: The source cannot be reached; with ``follow`` only at the start.
        SourceLost, SourceRefused: As the source raises them.
        UnknownWriter, WriterFenced, LogFull, LogCorrupted: As ``CatalogWriter.open`` and ``commit``.
    """
    source.check()
    freeze_collector()
    # Commits of a snapshot that a kill interrupted stay unpublished until a complete one follows them.
    writer = open_writer(
        settings.log,
        settings.catalog,
        writer=kind,
        take_over=settings.take_over,
        publish_left=False,
    )
    hurried = True
    try:
        loop = _Loop(source, settings, reporter, writer)
        metrics.follow(loop)
        loop.run(stopping)
        hurried = False
    finally:
        writer.close(hurried=hurried)
    return loop.counters


class _Loop:
    """One run of a feed."""

    def __init__(
        self,
        source: TransactionSource,
        settings: FeedSettings,
        reporter: ProgressReporter,
        writer: CatalogWriter,
    ) -> None:
        self.writer = writer
        self.counters = IngestCounters()
        self._source = source
        self._settings = settings
        self._reporter = reporter
        self._log = TransactionWriter(writer, images="full", announces=True)
        self._difference: SnapshotDifference
        self._position = self._stored()
        """Position of the newest item that was taken; None at the beginning of a new log."""
        self._hides = False
        """True while a snapshot is incomplete, so that readers must not see it."""
        self.counters.committed = writer.state.last_version
        self.counters.published = writer.state.published
        self._rows = self._bytes = self._versions = 0
        """Counts of what is buffered: rows, bytes of their images, transactions."""
        self._waiting: list[Transaction] = []
        """Buffered transactions that are not appended yet."""
        self._since = 0.0
        """Time of the first buffered transaction, by the monotonic clock."""
        self._unacknowledged: deque[tuple[int, str]] = deque()
        """Pairs of a committed version and the source's position behind it, oldest first."""

    def run(self, stopping: Stopping) -> None:
        """Take items until the source ends or ``stopping`` is set."""
        reconnection = Reconnection(self._reporter, stopping, follow=self._settings.follow)
        while True:
            try:
                self._difference = SnapshotDifference(self.writer, self._log)
                with closing(self._source.items(self._stored())) as items:
                    for item in items:
                        reconnection.reached()
                        self._take(item)
                        if stopping.is_set():
                            break
                    self._commit()
                    self._acknowledge()
                return
            except SourceUnreachable as error:
                # Only whole transactions are buffered, so they can be committed without the source.
                self._commit()
                reconnection.failed(error)
                if stopping.is_set():
                    return
                # Another run may have taken the catalog over. Then this one must not take the source back.
                self.writer.refresh()

    def _stored(self) -> str | None:
        found = self.writer.state.source_positions.get(self._source.name)
        return None if found is None else str(found)

    def _take(self, item: Item | None) -> None:
        match item:
            case None:
                self._commit()
                self._acknowledge()
                self.counters.source_lag_bytes = self._source.lag_bytes()
                self._reporter.progress(self.counters, "waiting for the source …")
                return
            case Transaction():
                self._hides = False
                self._announce(item.columns)
                self._waiting.append(item)
                self._count(len(item.mutations), _bytes_of(item.mutations), 1, item)
                self._position = item.position
            case TransactionBatch():
                self._hides = False
                self._append_waiting()
                self._announce(item.columns)
                for entity_type, keys in item.inserted.items():
                    self._log.expect_new(entity_type, keys)
                self._log.append_batch(item.rows)
                self._count(item.rows.num_rows, item.bytes, item.versions, item)
                self._position = item.position
            case PartedTransaction():
                self._hides = False
                self._announce(item.columns)
                self._commit()
                self._position = item.position
                self._count(sum(item.content.counts.values()), 0, 1)
                self._commit(item.content)
                self._acknowledge()
            case SnapshotRows():
                self._hides = True
                if item.columns is not None:
                    self._log.announce(item.entity_type, item.columns)
                self._append_snapshot(self._difference.of(item))
            case SnapshotEnd():
                self._commit()
                for removals in self._difference.removals(item.entity_type):
                    self._append_snapshot(removals)
            case Moved():
                self._hides = False
                self._position = item.position
                self._commit()
                self._acknowledge()
        due = self._versions and time.monotonic() - self._since >= _COMMIT_AFTER_S
        if due or self._rows >= self._settings.batch_rows or self._bytes >= _BATCH_BYTES:
            self._commit()
            self._acknowledge()
            self._reporter.progress(self.counters)

    def _announce(self, columns: Mapping[str, Announced]) -> None:
        if not columns:
            return
        self._check_keys(columns)
        for entity_type, announced in columns.items():
            self._log.announce(entity_type, announced)

    def _append_waiting(self) -> None:
        """Append the transactions that wait. The rows before are looked up at once, which is much faster."""
        waiting, self._waiting = self._waiting, []
        if len(waiting) > 1:
            wanted: dict[str, set[str]] = {}
            known = {name for each in waiting for name in each.inserted}
            for each in waiting:
                for mutation in each.mutations:
                    key = mutation.primary_key
                    if key is None or mutation.before is not None:
                        continue
                    if (mutation.entity_type, key) not in known:
                        key = each.moved.get((mutation.entity_type, key), key)
                        wanted.setdefault(mutation.entity_type, set()).add(key)
            for entity_type, keys in wanted.items():
                self._log.newest_images(entity_type, keys)
        for each in waiting:
            for entity_type, key in each.inserted:
                self._log.expect_new(entity_type, (key,))
            self._log.append(
                self._completed(each.mutations, each.moved),
                transaction_id=each.transaction_id,
                source_timestamp=each.source_timestamp,
            )

    def _check_keys(self, columns: Mapping[str, Announced]) -> None:
        """Refuse another key for a table: the log has all of its rows under their old keys."""
        self._commit()
        state = self.writer.state
        schema = self.writer.log.committed_view().schema_of(state.last_version)
        for entity_type, announced in columns.items():
            known = schema.key_columns(entity_type)
            if known and announced.key != known:
                raise SourceRefused(
                    f"the key of {entity_type} is now ({', '.join(announced.key)}), and was "
                    f"({', '.join(known)}): run with --resnapshot, which writes its rows with their "
                    "new keys"
                )

    def _completed(
        self, mutations: Sequence[Mutation], moved: Mapping[tuple[str, str], str]
    ) -> list[Mutation]:
        """Return mutations in which values that the source did not send are those of the row before."""
        found = []
        for each in mutations:
            if each.after is not None and DEFAULT.may_be_in(each.after):
                assert each.primary_key is not None
                earlier = each.before
                if earlier is None:
                    key = moved.get((each.entity_type, each.primary_key), each.primary_key)
                    earlier = self._log.newest_images(each.entity_type, (key,)).get(key)
                each = replace(each, after=completed(each.after, earlier))
                if each.after is not None and DEFAULT.may_be_in(each.after):
                    self.counters.incomplete_images += 1
            found.append(each)
        return found

    def _append_snapshot(self, mutations: Sequence[Mutation]) -> None:
        if mutations:
            self._log.append(mutations, snapshot=True)
            self._count(len(mutations), _bytes_of(mutations), 1)

    def _count(
        self,
        rows: int,
        size: int,
        versions: int,
        item: Transaction | TransactionBatch | None = None,
    ) -> None:
        if not self._versions:
            self._since = time.monotonic()
        self._versions += versions
        self._rows += rows
        self._bytes += size
        if item is not None and item.source_timestamp is not None:
            self.counters.newest_us = max(item.source_timestamp, self.counters.newest_us or 0)

    def _commit(self, large: LargeTransaction | None = None) -> None:
        """Commit what is buffered, or a large transaction, with the source's position.

        Publish it unless it must be hidden.
        """
        if not self._versions and self._position == self._stored():
            return
        self._append_waiting()
        reach("feed.before_commit")
        begun = time.monotonic()
        positions = {} if self._position is None else {self._source.name: self._position}
        if large is None:
            self._log.commit(publish=not self._hides, source_positions=positions)
        else:
            self._log.commit_large(large, source_positions=positions)
        reach("feed.after_commit")
        if not self._hides:
            self._log.publish()  # a snapshot that ends without a change of its own
        counters = self.counters
        counters.commits.observe(time.monotonic() - begun)
        counters.rows += self._rows
        counters.lines += self._versions
        counters.versions += self._versions
        counters.records += self._rows + self._versions
        counters.committed = self.writer.state.last_version
        self._rows = self._bytes = self._versions = 0
        if self._position is not None and not self._hides:
            self._unacknowledged.append((counters.committed, self._position))
        counters.published = self.writer.state.published

    def _acknowledge(self) -> None:
        """Acknowledge what readers can see. If the log has a gate, that may be less than what is committed."""
        if not self._unacknowledged:
            return
        if self.writer.state.published < self._unacknowledged[0][0]:
            self._log.publish()
        published = self.counters.published = self.writer.state.published
        position = None
        while self._unacknowledged and self._unacknowledged[0][0] <= published:
            position = self._unacknowledged.popleft()[1]
        if position is not None:
            reach("feed.before_acknowledge")
            self._source.acknowledge(position)


def _bytes_of(mutations: Sequence[Mutation]) -> int:
    return sum(len(each.after or b"") + len(each.before or b"") for each in mutations)


__all__ = ["run_feed"]
