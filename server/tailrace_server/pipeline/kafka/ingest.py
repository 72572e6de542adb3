"""The ingest of Kafka's topics: messages become batches of lines, and each commit has their offsets.

::

    brokers ──▶ Partitions.take ──▶ lines ──▶ driver of transactions ──▶ entry with the next offsets
       └──▶ OffsetRangeReader in Spark tasks ─────────▲    if more than ``batch_rows`` messages wait

The offsets in the log are the only memory of what was read (`wal.source_offsets`): a run begins at them, and so
does a new connection. Messages that were taken and not committed are read again.

Idle time, by which transactions without END are complete, needs a proof that nothing waits. So each turn asks
the brokers for the ends of all partitions before it takes messages.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tailrace_server.extras import installed
from tailrace_server.pipeline.feed.reconnection import Reconnection
from tailrace_server.pipeline.feed.source import SourceUnreachable
from tailrace_server.pipeline.kafka.partitions import NAME, Partitions
from tailrace_server.pipeline.kafka.ranges import file_of, lines_batch
from tailrace_server.pipeline.run.stop_signals import stop_signals
from tailrace_server.pipeline.run.summary import IngestSummary
from tailrace_server.pipeline.transactions.driver import Driver
from tailrace_server.pipeline.transactions.foreach_batch import commit_lines, run_if_due
from tailrace_server.pipeline.transactions.lines import LINES_SCHEMA
from tailrace_server.units import counted
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.source_batches import BatchContent, SourceBatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_server.pipeline.kafka.options import KafkaOptions
    from tailrace_server.pipeline.kafka.partitions import Offsets, Partition
    from tailrace_server.pipeline.kafka.spark_batches import SparkBatches
    from tailrace_server.pipeline.run.metrics import IngestMetrics
    from tailrace_server.pipeline.run.progress import ProgressReporter
    from tailrace_server.pipeline.run.stop_signals import Stopping
    from tailrace_server.pipeline.transactions.settings import IngestSettings

_BATCH_BYTES: Final = 64 << 20
"""Size of messages from which this process commits them, in bytes."""
_WAIT_S: Final = 0.1
"""Time of a turn without messages, in seconds."""


def run_kafka(
    settings: IngestSettings,
    options: KafkaOptions,
    reporter: ProgressReporter,
    metrics: IngestMetrics,
    stopping: Stopping | None = None,
) -> IngestSummary:
    """Write topics to a catalog until their present ends; with ``follow``, until a signal.

    Args:
        settings: The settings of the ingest; ``input`` is the root folder.
        options: The topics and their brokers.
        reporter: Prints the progress.
        metrics: Exports the figures of the run.
        stopping: Set when the ingest must end; None: at SIGINT and SIGTERM.

    Raises:
        InvalidRequest: There is no such topic, or librdkafka does not take a setting.
        SourceCompacted: Messages that follow the log's offsets are deleted.
        SourceLost: A topic was deleted or created again.
        SourceUnreachable: The brokers do not answer; with ``follow`` only at the start.
        SourceRefused: The brokers refuse this client.
        LineRefused: A line cannot be used, and the settings are strict.
        JavaMissing, SparkNotStarted, SparkFailed: A large batch needs Spark, which does not run.
        UnknownWriter, WriterFenced, LogFull, LogCorrupted: As ``CatalogWriter.open`` and ``commit``.
    """
    with stop_signals() as signalled:
        stopping = stopping or signalled
        # A wrong name or address must not create a catalog.
        with closing(Partitions(options, reporter.complain)) as partitions:
            partitions.find({})
        with open_writer(
            settings.log, settings.catalog, writer=NAME, take_over=settings.take_over
        ) as writer:
            driver = Driver(writer, settings)
            metrics.follow(driver)
            with closing(_KafkaIngest(settings, options, reporter, driver, stopping)) as ingest:
                ingest.run()
            if stopping.is_set():
                writer.close(hurried=True)
    return IngestSummary(driver.counters, stopping.signal, driver.bindings)


class _KafkaIngest:
    """One run of an ingest of topics."""

    def __init__(
        self,
        settings: IngestSettings,
        options: KafkaOptions,
        reporter: ProgressReporter,
        driver: Driver,
        stopping: Stopping,
    ) -> None:
        self._settings = settings
        self._options = options
        self._reporter = reporter
        self._driver = driver
        self._stopping = stopping
        self._batches: SparkBatches | None = None
        if installed("spark"):
            from tailrace_server.pipeline.kafka.spark_batches import SparkBatches

            self._batches = SparkBatches(settings, options, stopping)

    def close(self) -> None:
        """Stop Spark."""
        if self._batches is not None:
            self._batches.close()

    def run(self) -> None:
        """Read until the present ends, or until ``stopping`` is set; connect again if the brokers were away."""
        reconnection = Reconnection(self._reporter, self._stopping, follow=self._settings.follow)
        with self._driver.lock:
            while not self._stopping.is_set():
                try:
                    with closing(Partitions(self._options, self._reporter.complain)) as partitions:
                        self._read(partitions, reconnection)
                    break
                except SourceUnreachable as error:
                    # The producers may not reach the brokers either, so the outage is no idle time.
                    self._driver.idle.batch_began(time.monotonic(), whole=False)
                    self._driver.publish(force=True)
                    reconnection.failed(error)
            self._driver.publish(force=True)

    def _read(self, partitions: Partitions, reconnection: Reconnection) -> None:
        driver, settings = self._driver, self._settings
        partitions.find(driver.writer.state.source_positions)
        target = partitions.ends()
        left: set[str] | None = None
        """Transactions that were open when the target was reached, and still are; None before."""
        while not self._stopping.is_set():
            # 1. Messages that arrive after this moment may be behind these ends.
            at = time.monotonic()
            ends = partitions.ends()
            # 2. Take all that waits, or a batch of it.
            if self._batches and partitions.waiting(ends) > self._options.batch_rows:
                partitions.skip_to(partitions.share(ends, self._options.batch_rows))
                if not self._batches.commit(driver, self._begun(partitions, ends, at), partitions):
                    return
                partitions.committed = dict(partitions.next)
            elif lines := partitions.take(settings.small_batch_rows, _BATCH_BYTES, _WAIT_S):
                self._commit(partitions, self._begun(partitions, ends, at), lines)
            elif partitions.has(ends):
                driver.idle.source_idle(at)
            reconnection.reached()
            # 3. Do what is due.
            run_if_due(driver)
            self._show(partitions, ends)
            if partitions.is_listing_old:
                self._commit_moved(partitions, ends, at)
                if new := partitions.find(driver.writer.state.source_positions):
                    self._reporter.note(f"{counted(len(new), 'new partition')}, first {new[0]}")
            # 4. Once all that was there at the start is read, wait only for the transactions that it opened.
            if not settings.follow and partitions.has(target):
                left = driver.open_tallies.keys() & (
                    driver.open_tallies.keys() if left is None else left
                )
                if not left:
                    self._commit_moved(partitions, ends, at)
                    driver.compare_snapshots(ended=partitions.has(ends))
                    driver.expire(whole=True)
                    return

    def _begun(self, partitions: Partitions, ends: Offsets, at: float) -> int:
        """Begin a batch up to the next offsets; return its id."""
        driver = self._driver
        # Before its rows are tallied: each tally stores the clock's time.
        driver.idle.batch_began(at, whole=partitions.has(ends))
        batch_id = driver.last_batch + 1
        accept = self._options.accept_gaps
        driver.numbered = SourceBatch(
            "", batch_id, BatchContent(), offsets=partitions.moved(), accept_gaps=accept
        )
        return batch_id

    def _commit(
        self, partitions: Partitions, batch_id: int, lines: Mapping[Partition, list[bytes]]
    ) -> None:
        batches = [
            lines_batch(file_of(each, partitions.committed[each]), 0, texts, batch_id)
            for each, texts in lines.items()
        ]
        table = pa.Table.from_batches(batches, LINES_SCHEMA)
        commit_lines(self._driver, self._settings, table, batch_id)
        partitions.committed = dict(partitions.next)

    def _commit_moved(self, partitions: Partitions, ends: Offsets, at: float) -> None:
        """Commit offsets that have moved without messages.

        Otherwise the brokers might delete the messages before them, and the next run would miss those.
        """
        if partitions.next != partitions.committed:
            self._commit(partitions, self._begun(partitions, ends, at), {})

    def _show(self, partitions: Partitions, ends: Offsets) -> None:
        driver = self._driver
        driver.counters.sources[NAME] = partitions.figures(ends, driver.counters)
        self._reporter.progress(driver.counters, "waiting for messages …", driver.idle_left())
        if self._settings.follow:
            self._reporter.following(driver.counters, str(self._settings.quarantine))
