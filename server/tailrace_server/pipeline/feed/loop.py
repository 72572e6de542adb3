"""The loop that writes the transactions of sources to a catalog, exactly once and in the order of each source.

::

    source.items ──▶ append ──▶ commit with the position ──▶ publish ──▶ source.acknowledge
         ▲                       (one durable object)                          │
         └────────── the position of the log, after a restart ◀────────────────┘

`arrivals` merges several sources. No two of them may write one entity type.

A transaction is in the log together with its position, or neither is. So a kill at any moment loses and repeats
nothing: the next run asks the source for what follows the log's position. The source may forget only what is
published.

A commit takes all transactions that have arrived: it waits for more only while the source has more at once, and
at most `_COMMIT_AFTER_S` or ``batch_rows``.

Besides the positions, the log has these notes as source positions::

    feed:hidden        name of the source whose snapshot is committed in part, and hidden; empty if none is
    feed:types:SOURCE  entity types of one of several sources, as a JSON list
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import orjson
import pyarrow as pa

from tailrace_server.failpoints import reach
from tailrace_server.pipeline.feed.arrivals import FedSource, SourceItems
from tailrace_server.pipeline.feed.snapshot_difference import SnapshotDifference
from tailrace_server.pipeline.feed.source import (
    Interrupted,
    Moved,
    PartedTransaction,
    SnapshotEnd,
    SnapshotRows,
    SourceLost,
    SourceRefused,
    SourceUnreachable,
    Transaction,
    TransactionBatch,
)
from tailrace_server.pipeline.run.progress import IngestCounters
from tailrace_server.pipeline.run.source_figures import SourceFigures
from tailrace_server.process import freeze_collector
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.record.images import completed
from tailrace_server.wal.record.unavailable import DEFAULT
from tailrace_server.wal.transaction_writer import TransactionWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tailrace_server.pipeline.feed.settings import FeedSettings
    from tailrace_server.pipeline.feed.source import Item, TransactionSource
    from tailrace_server.pipeline.run.metrics import IngestMetrics
    from tailrace_server.pipeline.run.progress import ProgressReporter
    from tailrace_server.pipeline.run.stop_signals import Stopping
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.large_transaction import LargeTransaction
    from tailrace_server.wal.record.mutation import Mutation
    from tailrace_server.wal.schema.builder import Announced

_HIDDEN: Final = "feed:hidden"
_TYPES: Final = "feed:types:"
_COMMIT_AFTER_S: Final = 0.1
_BATCH_BYTES: Final = 64 << 20
"""Size of the buffered images from which they are committed, in bytes."""


def run_feed(
    sources: Sequence[TransactionSource],
    kind: str,
    settings: FeedSettings,
    reporter: ProgressReporter,
    *,
    stopping: Stopping,
    metrics: IngestMetrics,
) -> IngestCounters:
    """Write sources to their catalog until all of them end, or, with ``follow``, until a signal.

    An error of one source ends the run, once the transactions of the others that have arrived are committed.

    Args:
        sources: One source or more.
        kind: Name of the writer in the log.
        settings: The options.
        reporter: Prints the progress.
        stopping: Set when the feed must end.
        metrics: Exports the counts of the run.

    Returns:
        The counts of the run.

    Raises:
        SourceUnreachable: A source cannot be reached; with ``follow`` only at the start.
        SourceLost: As a source raises it.
        SourceRefused: As a source raises it; or two sources have one name or one entity type; or the catalog
            has an incomplete snapshot of another source.
        UnknownWriter, WriterFenced, LogFull, LogCorrupted: As ``CatalogWriter.open`` and ``commit``.
    """
    names = [each.name for each in sources]
    for each in sources:
        if names.count(each.name) > 1:
            raise SourceRefused(
                f"two sources are called {each.name}: a source is read once; give each PostgreSQL "
                "source its own slot, and each Python source its own name"
            )
        each.check()
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
        loop = _Loop(sources, settings, reporter, writer)
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
        sources: Sequence[TransactionSource],
        settings: FeedSettings,
        reporter: ProgressReporter,
        writer: CatalogWriter,
    ) -> None:
        self.writer = writer
        self.counters = IngestCounters()
        self._settings = settings
        self._reporter = reporter
        self._log = TransactionWriter(writer, images="full", announces=True)
        self._difference = SnapshotDifference(writer, self._log)
        self._feeds = [FedSource(each, SourceFigures("bytes")) for each in sources]
        self.counters.sources = {each.name: each.figures for each in self._feeds}
        positions = writer.state.source_positions
        self._owners: dict[str, str] = {}
        """Entity type → name of the one source that writes it; only of several sources."""
        for each in self._feeds:
            each.position = self._stored(each)
            if len(sources) > 1:
                types = orjson.loads(str(positions.get(_TYPES + each.name, "[]")))
                self._owners.update(dict.fromkeys(types, each.name))
        self._new_types = False
        """True if `_owners` has more than the log."""
        hidden = positions.get(_HIDDEN)
        self._hides = bool(hidden)
        """True while a snapshot is incomplete, so that readers must not see it."""
        self._is_left = self._hides
        """True until the source begins this snapshot again, after an earlier run was killed in it."""
        self._hidden = next((each for each in self._feeds if each.name == hidden), None)
        self._feed = self._hidden or self._feeds[0]
        """The source of the present item."""
        if hidden and self._hidden is None:
            raise SourceRefused(
                f"the snapshot of {hidden} is incomplete, and hidden in the catalog: ingest this source "
                "first, until its snapshot is complete"
            )
        self._has_new = False
        """True if new rows are buffered that only the log will find."""
        self.counters.committed = writer.state.last_version
        self.counters.published = writer.state.published
        self._rows = self._bytes = self._versions = 0
        """Counts of what is buffered: rows, bytes of their images, transactions."""
        self._waiting: list[Transaction] = []
        """Buffered transactions that are not appended yet."""
        self._since = 0.0
        """Time of the first buffered transaction, by the monotonic clock."""

    def run(self, stopping: Stopping) -> None:
        """Take items until all sources end or ``stopping`` is set."""
        settings = self._settings
        arrivals = SourceItems(
            *(self._feeds, self._stored, settings.log, self._reporter, stopping),
            follow=settings.follow,
        )
        with closing(arrivals.items(self._hidden, lambda: self._hides)) as items:
            try:
                for self._feed, item in items:
                    self._take(item)
                    if stopping.is_set():
                        break
            except (SourceUnreachable, SourceLost, SourceRefused):
                # What is buffered are whole transactions that came before the error.
                self._commit()
                self._acknowledge()
                raise
            self._commit()
            self._acknowledge()
        for each in self._feeds:
            each.acknowledge()

    def _stored(self, feed: FedSource) -> str | None:
        found = self.writer.state.source_positions.get(feed.name)
        return None if found is None else str(found)

    def _take(self, item: Item | None) -> None:
        if self._has_new and isinstance(item, Transaction | TransactionBatch):
            self._commit()
        match item:
            case None:
                self._commit()
                self._acknowledge()
                self._reporter.progress(self.counters, "waiting for the source …")
                return
            case Interrupted():
                self._commit()
                self.writer.refresh()
                self._difference = SnapshotDifference(self.writer, self._log)
            case Transaction():
                self._own(each.entity_type for each in item.mutations)
                self._show()
                self._waiting.append(item)
                self._count(len(item.mutations), _bytes_of(item.mutations), 1, item)
                self._feed.position = item.position
            case TransactionBatch():
                if len(self._feeds) > 1:
                    self._own(item.rows.column("entity_type").unique().to_pylist())
                self._show()
                self._append_waiting()
                self._announce(item.columns)
                for entity_type, keys in item.inserted.items():
                    self._log.expect_new(entity_type, keys)
                self._log.append_batch(item.rows)
                self._count(item.rows.num_rows, item.bytes, item.versions, item)
                self._feed.position = item.position
            case PartedTransaction():
                self._own(item.content.counts)
                self._show()
                self._commit()
                self._announce(item.columns)
                self._feed.position = item.position
                self._count(sum(item.content.counts.values()), 0, 1)
                self._commit(item.content)
                self._acknowledge()
            case SnapshotRows():
                self._own((item.entity_type,))
                if item.hidden:
                    self._hides, self._is_left = True, False
                    if item.columns is not None:
                        self._log.announce(item.entity_type, item.columns)
                else:
                    self._show()
                    self._append_waiting()
                    if item.columns is not None:
                        self._announce({item.entity_type: item.columns})
                self._append_snapshot(self._difference.of(item))
            case SnapshotEnd():
                if item.stays is not None:
                    self._commit()  # changes of the source are buffered
                for removals in self._difference.removals(item.entity_type, item.stays):
                    self._append_snapshot(removals)
            case Moved():
                if item.position != self._feed.position or not self._is_left:
                    self._show()
                self._feed.position = item.position
                self._commit()
                self._acknowledge()
        # Nobody waits for a part of a snapshot, which is not visible.
        is_awaited = self._versions and not self._hides
        due = is_awaited and time.monotonic() - self._since >= _COMMIT_AFTER_S
        many = self._rows >= self._settings.batch_rows and not self._has_new
        if due or many or self._bytes >= _BATCH_BYTES:
            self._commit()
            self._acknowledge()
            self._reporter.progress(self.counters)

    def _show(self) -> None:
        """Let readers see a snapshot, now that it is complete."""
        if self._is_left:
            raise SourceRefused(
                f"the snapshot of {self._feed.name} was interrupted, and its first rows are hidden in the "
                "catalog: the source must begin the snapshot again before it goes on"
            )
        self._hides = False

    def _own(self, entity_types: Iterable[str]) -> None:
        """Refuse entity types that another source writes."""
        if len(self._feeds) == 1:
            return
        name = self._feed.name
        for each in entity_types:
            owner = self._owners.get(each)
            if owner is None:
                self._owners[each], self._new_types = name, True
            elif owner != name:
                raise SourceRefused(
                    f"{name} has rows of {each}, which {owner} writes: leave the table out of one of "
                    "them, or write them to two catalogs"
                )

    def _announce(self, columns: Mapping[str, Announced]) -> None:
        """Announce columns for the rows that are appended next.

        Another key for a table is refused: the log has all of its rows under their old keys.
        """
        for entity_type, announced in columns.items():
            known = self._log.announce(entity_type, announced)
            if known and announced.key != known:
                raise SourceRefused(
                    f"the key of {entity_type} is now ({', '.join(announced.key)}), and was "
                    f"({', '.join(known)}): run with --resnapshot, which writes its rows with their "
                    "new keys"
                )

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
            self._announce(each.columns)
            for entity_type, key in each.inserted:
                self._log.expect_new(entity_type, (key,))
            self._log.append(
                self._completed(each.mutations, each.moved),
                transaction_id=each.transaction_id,
                source_timestamp=each.source_timestamp,
                **each.lead,
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

    def _append_snapshot(self, changes: Sequence[Mutation] | pa.RecordBatch) -> None:
        if isinstance(changes, pa.RecordBatch):
            self._log.append_batch(changes, new=True, snapshot=True)
            self._has_new = True
            self._count(len(changes), changes.nbytes, 1)
        elif changes:
            self._log.append(changes, snapshot=True)
            self._count(len(changes), _bytes_of(changes), 1)

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
        self._feed.rows += rows
        self._bytes += size
        if item is not None and item.source_timestamp is not None:
            newest = max(item.source_timestamp, self._feed.figures.newest_us or 0)
            self._feed.figures.newest_us = newest
            self.counters.newest_us = max(newest, self.counters.newest_us or 0)

    def _commit(self, large: LargeTransaction | None = None) -> None:
        """Commit what is buffered, or a large transaction, with the positions of the sources.

        Publish it unless it must be hidden.
        """
        positions = {
            each.name: each.position
            for each in self._feeds
            if each.position is not None and each.position != self._stored(each)
        }
        positions |= self._notes()
        if not self._versions and not positions:
            return
        self._append_waiting()
        reach("feed.before_commit")
        begun = time.monotonic()
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
        self._has_new = False
        for each in self._feeds:
            each.committed(counters.committed, hidden=self._hides)
        counters.published = self.writer.state.published

    def _notes(self) -> dict[str, str]:
        """Return the notes that change with a commit."""
        known, notes = self.writer.state.source_positions, {}
        hidden = self._feed.name if self._hides else ""
        if hidden != known.get(_HIDDEN, ""):
            notes[_HIDDEN] = hidden
        if self._new_types:
            for each in self._feeds:
                types = sorted(name for name, owner in self._owners.items() if owner == each.name)
                notes[_TYPES + each.name] = orjson.dumps(types).decode()
            self._new_types = False
        return notes

    def _acknowledge(self) -> None:
        """Acknowledge what readers can see. If the log has a gate, that may be less than what is committed."""
        waiting = [each.unacknowledged for each in self._feeds if each.unacknowledged]
        if not waiting:
            return
        if self.writer.state.published < min(each[0][0] for each in waiting):
            self._log.publish()
        published = self.counters.published = self.writer.state.published
        if any(each[0][0] <= published for each in waiting):
            reach("feed.before_acknowledge")
            for each in self._feeds:
                each.publish(published)


def _bytes_of(mutations: Sequence[Mutation]) -> int:
    return sum(len(each.after or b"") + len(each.before or b"") for each in mutations)


__all__ = ["run_feed"]
