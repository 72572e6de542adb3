"""`tailrace ingest cdcv2` from start to end: it chooses the files of each batch, and decides when to stop.

The first batch that needs Spark starts it. A small input is done before a JVM would have started.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace.errors import UnknownWriter
from tailrace_server.pipeline.cdcv2.batch import SourceFile
from tailrace_server.pipeline.cdcv2.driver import Cdcv2Driver
from tailrace_server.pipeline.cdcv2.files import AVRO, LINES
from tailrace_server.pipeline.cdcv2.product_times import ProductDriver
from tailrace_server.pipeline.input.folder import WaitingFiles, check_input
from tailrace_server.pipeline.spark.checkpoint import ANOTHER_SOURCE
from tailrace_server.wal.catalog import create_catalog
from tailrace_server.wal.catalog_writer import CatalogWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.cdcv2 import Waiting
    from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
    from tailrace_server.pipeline.run.metrics import IngestMetrics
    from tailrace_server.pipeline.run.progress import IngestCounters, ProgressReporter
    from tailrace_server.pipeline.run.stop_signals import Stopping

WRITER: Final = "cdcv2"
"""The writer's name in the log. It never changes: the log itself records the consumed files, so there is no
separate checkpoint that could be lost and that a new name would have to signal.
"""

_POLL_S: Final = 0.05
_REASONS_MAX: Final = 20
"""The most reasons in the outcome; a stream that lost a file has one reason for each of its times."""


class Cdcv2Outcome(NamedTuple):
    """The result of an ingest."""

    counters: IngestCounters
    waiting: list[Waiting[Any]]
    """The first twenty reasons why the stream waits."""
    waiting_more: int
    """Number of further reasons."""
    closed: bool
    """True if the stream is complete."""
    signal: int | None
    """The signal that ended the ingest; None if no signal did."""


def ingest_cdcv2(
    settings: Cdcv2Settings,
    reporter: ProgressReporter,
    *,
    stopping: Stopping,
    spark: SparkSession | None = None,
    metrics: IngestMetrics | None = None,
) -> Cdcv2Outcome:
    """Run an ingest until the input or the stream ends, or, with ``follow``, until a signal.

    Args:
        settings: The options of the ingest.
        reporter: Shows the progress.
        stopping: Ends the ingest when set.
        spark: A session for large batches; None starts a session when it is needed.
        metrics: Metrics to update during the run; None: none.

    Raises:
        InvalidRequest: The input is not a readable folder, or the catalog holds something else.
        UnknownWriter: The catalog belongs to another writer.
        CdcError: Messages contradict each other; `Cdcv2Driver.batch` has further errors.
    """
    check_input(settings.input)
    with open_writer(settings) as writer, ExitStack() as resources:
        driver = driver_of(writer, settings)
        if metrics is not None:
            metrics.follow(driver, lambda: _waiting(new_files(settings.input, driver)))
        if spark is not None:
            _give_spark(driver, spark)
        while not stopping.is_set() and not driver.closed:
            files = new_files(settings.input, driver)
            for batch in batches(files, settings.batch_bytes):
                if driver.run_large is None and not driver.is_small(batch):
                    _start_spark(driver, settings, reporter, resources, batch)
                # A signal may have come while Spark started, and the batch before may have completed the
                # stream.
                if stopping.is_set() or driver.closed:
                    break
                driver.batch(batch)
                reporter.progress(driver.counters)
            if not settings.follow:
                break
            # Wait only if the folder had nothing new: files may have come while the batches ran.
            if not files:
                stopping.wait(_POLL_S)
        return outcome_of(driver, stopping)


def driver_of(writer: CatalogWriter, settings: Cdcv2Settings) -> Cdcv2Driver:
    """Return the driver for the times of the stream."""
    products = settings.folding.schema.form.arity is not None
    return (ProductDriver if products else Cdcv2Driver)(writer, settings)


def outcome_of(driver: Cdcv2Driver, stopping: Stopping) -> Cdcv2Outcome:
    """Return the outcome at the end of an ingest; close the writer if a signal ended it."""
    if stopping.is_set():
        driver.writer.close(hurried=True)
    waiting = driver.why_waiting(sys.maxsize)
    return Cdcv2Outcome(
        driver.counters,
        waiting[:_REASONS_MAX],
        max(0, len(waiting) - _REASONS_MAX),
        driver.closed,
        stopping.signal,
    )


def open_writer(settings: Cdcv2Settings) -> CatalogWriter:
    """Open the catalog for writing; create it if it does not exist.

    Raises:
        UnknownWriter: The catalog belongs to another writer, and the settings do not allow to take it over.
    """
    create_catalog(settings.log, settings.catalog)
    try:
        return CatalogWriter.open(
            settings.log, settings.catalog, writer=WRITER, take_over=settings.take_over
        )
    except UnknownWriter as error:
        raise UnknownWriter(error.writer, error.known, ANOTHER_SOURCE) from None


def new_files(folder: Path, driver: Cdcv2Driver) -> list[SourceFile]:
    """Return the files that the log has not consumed yet, by modification time."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        for name in names:
            if name.startswith((".", "_")) or not name.endswith((AVRO, *LINES)):
                continue
            path = os.path.join(place, name)
            relative = os.path.relpath(path, folder)
            if driver.is_consumed(relative):
                continue
            # The file may have been removed since it was listed.
            with suppress(FileNotFoundError):
                status = os.stat(path)
                found.append(SourceFile(relative, path, status.st_size, status.st_mtime_ns))
    return sorted(found, key=lambda file: (file.modified_ns, file.name))


def _waiting(files: Sequence[SourceFile]) -> WaitingFiles:
    return WaitingFiles(len(files), sum(file.bytes for file in files))


def batches(files: Sequence[SourceFile], batch_bytes: int) -> Iterator[list[SourceFile]]:
    """Yield files in their order, in groups of at most ``batch_bytes``; a larger file is a group of its own."""
    batch: list[SourceFile] = []
    size = 0
    for file in files:
        if batch and size + file.bytes > batch_bytes:
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.bytes
    if batch:
        yield batch


def _start_spark(
    driver: Cdcv2Driver,
    settings: Cdcv2Settings,
    reporter: ProgressReporter,
    resources: ExitStack,
    batch: Sequence[SourceFile],
) -> None:
    from tailrace_server.pipeline.spark.session import StartInterrupted, started

    reporter.wait("starting Spark, which takes some seconds …")
    with suppress(StartInterrupted):
        session = resources.enter_context(
            started(settings.spark, f"tailrace ingest {settings.catalog}", driver.writer.path)
        )
        _give_spark(driver, session)


def _give_spark(driver: Cdcv2Driver, spark: SparkSession) -> None:
    from tailrace_server.pipeline.cdcv2.spark_runner import run_on_spark

    driver.run_large = partial(run_on_spark, spark)
