"""The Spark stream of an ingest: it gives new input files to the driver, batch by batch.

Before a batch runs, Spark writes the list of its files to a checkpoint below ``<catalog>/ingest``. Spark
repeats the batch until its body returns. Each commit carries the batch id, so a repeated batch changes
nothing. The checkpoint's query id is the writer's name in the log. A new checkpoint has another query id,
so the log rejects the ingest if its checkpoint was lost.
"""

from __future__ import annotations

import os
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from tailrace.errors import LogUnreadable, TailraceError, UnknownWriter
from tailrace_server.pipeline.input.folder import check_input, unreadable_names, waiting_files
from tailrace_server.pipeline.run.stop_signals import Stopping, stop_signals
from tailrace_server.pipeline.run.summary import IngestSummary
from tailrace_server.pipeline.spark.checkpoint import ANOTHER_SOURCE, Checkpoint, is_query_id
from tailrace_server.pipeline.spark.idle_listener import IdleListener, listening
from tailrace_server.pipeline.spark.session import (
    SparkFailed,
    StartInterrupted,
    ensure_startable,
    reason_of,
    started,
)
from tailrace_server.pipeline.transactions.driver import Driver
from tailrace_server.pipeline.transactions.foreach_batch import commit_frame, run_if_due
from tailrace_server.pipeline.transactions.large_batch import distribution
from tailrace_server.wal.catalog import create_catalog
from tailrace_server.wal.catalog_writer import CatalogWriter

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tailrace_server.pipeline.run.metrics import IngestMetrics
    from tailrace_server.pipeline.run.progress import ProgressReporter
    from tailrace_server.pipeline.transactions.settings import IngestSettings

_BYTES_PER_ROW: Final = 400
"""Assumed minimum size of a line, in bytes; it converts the size of files to a number of rows."""
_LARGE_BYTES: Final = 1 << 30
"""Input size above which a JVM that starts more slowly and compiles better is faster overall."""
_WAIT_MAX_S: Final = 0.1
"""Maximum time between two checks of the query and the clock by the main thread."""
_CHECK_EVERY_S: Final = 1.0
"""Time between two checks that the checkpoint still exists."""
_BODY_ENDS_S: Final = 10.0
"""Time limit for a running batch to fail after Spark has ended."""


def run_ingest(
    settings: IngestSettings,
    reporter: ProgressReporter,
    spark: SparkSession | None = None,
    metrics: IngestMetrics | None = None,
) -> IngestSummary:
    """Run an ingest until its input ends; with ``follow``, until SIGINT or SIGTERM.

    Args:
        settings: The settings of the ingest.
        reporter: Prints the progress.
        spark: The Spark session to use; None starts a session, and stops it at the end.
        metrics: Receives the figures of the run; None records no metrics.

    Raises:
        InvalidRequest: The input is not a folder that can be read.
        UnknownWriter: The log belongs to another writer, or the checkpoint is lost.
        LineRefused: A line cannot be used, and the settings are strict.
        WriterFenced: A newer writer holds the catalog.
        JavaMissing: There is no Java to run Spark on; the log is unchanged.
        SparkNotStarted: The JVM did not start.
        SparkFailed: The Spark query failed.
    """
    # 1. First run the checks that have no side effects. Opening the catalog creates it and fences its writer.
    check_input(settings.input)
    reporter.unreadable(unreadable_names(settings.input))
    if spark is None:
        ensure_startable()
    checkpoint = Checkpoint(checkpoint_folder(settings))
    # 2. Open the log before Spark starts: if the log rejects this checkpoint, the user learns it in a second.
    #    The writer's name must also be fixed before the query takes it from the checkpoint.
    with open_writer(settings, checkpoint) as writer:
        driver = Driver(writer, settings)
        if metrics is not None:
            metrics.follow(
                driver,
                lambda: waiting_files(settings.input, lambda name: driver.consumed(name) > 0),
                checkpoint.changed_files,
            )
        reporter.wait("starting Spark, which takes some seconds …")
        name = f"tailrace ingest {settings.catalog}"
        quick = not _is_large(settings.input)
        session = (
            nullcontext(spark)
            if spark
            else started(settings.spark, name, settings.log / settings.catalog, quick=quick)
        )
        # 3. Handle signals before Spark starts, so that Ctrl-C also ends the start of Spark.
        with stop_signals() as stopping, suppress(StartInterrupted), session as running:
            Ingest(running, driver, checkpoint, settings, reporter).run(stopping)
        if stopping.is_set():
            writer.close(hurried=True)
    return IngestSummary(
        driver.counters, stopping.signal, driver.bindings, checkpoint.changed_files()
    )


class Ingest:
    """A running query, and the timed work of the main thread: idle flushes, publications, progress."""

    def __init__(
        self,
        spark: SparkSession,
        driver: Driver,
        checkpoint: Checkpoint,
        settings: IngestSettings,
        reporter: ProgressReporter,
    ) -> None:
        """Store the parts of the ingest; `run` starts the query."""
        self._spark = spark
        self._driver = driver
        self._checkpoint = checkpoint
        self._settings = settings
        self._reporter = reporter
        self._failure: BaseException | None = None
        self._marks = checkpoint.marks()
        self._began = time.monotonic()
        """Start time of the last batch, by the monotonic clock."""
        driver.distribute = distribution(spark)

    def run(self, stopping: Stopping) -> None:
        """Run the query until the input ends or ``stopping`` is set."""
        try:
            with listening(self._spark, self._start) as (query, listener):
                self._watch(query, listener, stopping)
        except (PySparkException, Py4JError, OSError) as error:
            self._await_body()
            # Spark reports an exception of the batch body only as text, so raise the original exception.
            failure = self._failure
            if isinstance(failure, TailraceError):
                raise failure from None
            if not stopping.is_set():  # a signal to the process group also ends Java
                # If a part of the checkpoint is missing, that is the cause, and its name helps the user.
                self._checkpoint.check_kept(self._marks)
                raise SparkFailed(reason_of(failure or error)) from error
        with self._driver.lock:
            if not self._settings.follow and not stopping.is_set():
                # Flush first: it can commit the last rows of a snapshot, which the comparison must see.
                self._driver.flush(ended=True)
                self._driver.compare_snapshots(ended=True)
                self._driver.expire(whole=True)
            self._driver.publish(force=True)

    def _start(self) -> StreamingQuery:
        settings = self._settings
        lines = settings.source.read(self._spark, settings.input, settings.batch_bytes)
        writer = (
            lines.writeStream.queryName(f"tailrace-{settings.catalog}")
            .option("checkpointLocation", str(self._checkpoint.folder))
            .foreachBatch(self._body)
        )
        return (writer if settings.follow else writer.trigger(availableNow=True)).start()

    def _body(self, lines: DataFrame, batch_id: int) -> None:
        """Handle a batch, in a thread of the Py4J gateway. An exception ends the query."""
        at = time.monotonic()
        try:
            # The main thread flushes under the same lock. Without the lock, a flush could run between the
            # decision and the commit of a batch, and both would release the same transaction.
            with self._driver.lock:
                self._began = at
                plan = self._checkpoint.plan(batch_id)
                if plan.files is None:
                    self._checkpoint.check()
                size = plan.bytes()
                if self._settings.follow:
                    # Move the idle clock before the rows are tallied: each tally stores the clock's time.
                    self._driver.idle.batch_began(at, whole=self._is_whole(size))
                if batch_id > self._driver.last_batch:
                    # Spark silently skips a deleted file, and its rows would be lost unnoticed.
                    plan.check()
                    small = self._is_small(size)
                    commit_frame(self._driver, self._settings, lines, batch_id, small=small)
                    self._driver.counters.input_files += len(plan.files or ())
                    self._driver.counters.input_bytes += plan.size()
                    if self._settings.follow:
                        # If one batch follows the other without a pause, the main thread rarely gets the lock.
                        self._driver.compare_snapshots()
                        self._driver.expire()
        except BaseException as error:
            self._failure = error
            raise

    def _await_body(self) -> None:
        """Wait until the running batch has ended; it fails soon after the JVM has died.

        The interpreter must not exit while a batch reads from Spark: Arrow's native code calls Python for
        each chunk, and aborts the process if the interpreter is gone.
        """
        if self._driver.lock.acquire(timeout=_BODY_ENDS_S):
            self._driver.lock.release()

    def _watch(self, query: StreamingQuery, listener: IdleListener, stopping: Stopping) -> None:
        check_at = 0.0
        while not stopping.is_set():
            if not query.isActive:
                break
            stopping.wait(self._wait_s())
            if (now := time.monotonic()) >= check_at:
                self._marks = self._checkpoint.check_kept(self._marks)
                check_at = now + _CHECK_EVERY_S
            # A batch holds the lock as long as it runs. If this thread waited for the lock, it would not see a
            # signal. So it skips the turn; a due flush runs one turn later.
            if self._settings.follow and self._driver.lock.acquire(blocking=False):
                try:
                    # Spark's idle event can arrive late, after the next batch has begun; then it is ignored.
                    if listener.idle_at is not None and listener.idle_at > self._began:
                        self._driver.idle.source_idle(listener.idle_at)
                    run_if_due(self._driver)
                finally:
                    self._driver.lock.release()
            self._show(listener)
            if self._settings.follow:
                self._reporter.following(self._driver.counters, str(self._settings.quarantine))
        # Raise the batch's own exception first: Spark's exception contains it only as text.
        if isinstance(self._failure, TailraceError):
            raise self._failure
        error = query.exception()
        if error is not None and not stopping.is_set():
            raise error

    def _show(self, listener: IdleListener) -> None:
        follow = self._settings.follow
        found_nothing = listener.idle_at is not None and listener.idle_at > self._began
        self._reporter.progress(
            self._driver.counters,
            f"no new files in {self._settings.input}; waiting for some …"
            if follow and found_nothing
            else "reading the first files …",
            self._driver.idle_left() if follow else None,
        )

    def _is_whole(self, size: int | None) -> bool:
        """Return True if a batch probably has every file that was waiting in the folder.

        Spark does not report this. If a batch is at most half full, no file was left out, except possibly
        one that alone fills more than half of a batch.
        """
        return size is not None and 2 * size <= self._settings.batch_bytes

    def _is_small(self, size: int | None) -> bool:
        return size is not None and size <= self._settings.small_batch_rows * _BYTES_PER_ROW

    def _wait_s(self) -> float:
        left = self._driver.idle_left()
        if left is None or left <= 0:
            # Either nothing is open, or the due flush was tried and released nothing: what is open waits for
            # an earlier transaction.
            return _WAIT_MAX_S
        return min(max(left, 0.005), _WAIT_MAX_S)


def checkpoint_folder(settings: IngestSettings) -> Path:
    """Return the folder of Spark's checkpoint; each source of a catalog has its own."""
    return settings.log / settings.catalog / "ingest" / settings.source.name


def _is_large(folder: Path) -> bool:
    """Return True if the total size of a folder's files is above `_LARGE_BYTES`; stop at the first excess."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
            if total > _LARGE_BYTES:
                return True
    return False


def open_writer(settings: IngestSettings, checkpoint: Checkpoint) -> CatalogWriter:
    """Open the catalog with the checkpoint's query id as the writer's name; create an absent catalog.

    Raises:
        UnknownWriter: The log was written with another checkpoint.
        LogUnreadable: The checkpoint is damaged.
    """
    advice = (
        f"the checkpoint in {checkpoint.folder} is new or lost, and reading the input from its "
        "beginning would write its rows a second time; --take-over continues: lines that are in "
        "the log are skipped"
    )
    create_catalog(settings.log, settings.catalog)
    if settings.take_over:
        _set_aside_stale(settings, checkpoint)
    writer_id = checkpoint.query_id()
    checkpoint.check()
    try:
        writer = CatalogWriter.open(
            settings.log, settings.catalog, writer=writer_id, take_over=settings.take_over
        )
    except UnknownWriter as error:
        if not any(map(is_query_id, error.known)):
            advice = ANOTHER_SOURCE
        raise UnknownWriter(error.writer, error.known, advice) from None
    # A restored copy of the checkpoint has the right name, but lacks batches that the log has.
    if checkpoint.last_batch() < writer.state.writers[writer_id].batch_id:
        raise UnknownWriter(writer_id, sorted(writer.state.writers), advice)
    return writer


def _set_aside_stale(settings: IngestSettings, checkpoint: Checkpoint) -> None:
    """Move the checkpoint away if it is damaged or lacks batches of the log, so that a new one begins.

    Used only with ``--take-over``.
    """
    from tailrace_server.wal.state.commit_log import CommitLog

    try:
        writer_id = checkpoint.query_id()
        checkpoint.check()
    except LogUnreadable:
        checkpoint.set_aside()
        return
    known = CommitLog.open(settings.log / settings.catalog).state.writers.get(writer_id)
    if known is not None and checkpoint.last_batch() < known.batch_id:
        checkpoint.set_aside()
