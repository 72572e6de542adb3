"""`tailrace ingest cdcv2` from start to end: which files are next, and when to stop.

Spark is started by the first batch that needs it. A small input is done before a JVM would have started.
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
"""The writer's name in the log. The log itself holds what was consumed, so there is no checkpoint whose loss
another name would have to show."""

_POLL_S: Final = 0.05
_REASONS_MAX: Final = 20
"""Reasons that are listed; a stream that lost a file has one for each of its times."""


class Cdcv2Outcome(NamedTuple):
    """How an ingest ended."""

    counters: IngestCounters
    waiting: list[Waiting[Any]]
    """The reasons why the stream waits; the first twenty at most."""
    waiting_more: int
    """Number of further reasons."""
    closed: bool
    """True if the stream is complete."""
    signal: int | None
    """The signal that ended it; None if none did."""


def ingest_cdcv2(
    settings: Cdcv2Settings,
    reporter: ProgressReporter,
    *,
    stopping: Stopping,
    spark: SparkSession | None = None,
    metrics: IngestMetrics | None = None,
) -> Cdcv2Outcome:
    """Run an ingest to its end: that of the input or of the stream, or with ``follow`` a signal.

    Args:
        settings: What to do.
        reporter: Shows the progress.
        stopping: Ends it when set.
        spark: A session for large batches; None starts one when it is needed.
        metrics: Follow the run, if given.

    Raises:
        InvalidRequest: The input is not a readable folder, or the catalog holds something else.
        UnknownWriter: The catalog belongs to another writer.
        CdcError: See `Cdcv2Driver.batch`, also for further errors.
    """
    check_input(settings.input)
    with open_writer(settings) as writer, ExitStack() as resources:
        products = settings.folding.schema.form.arity is not None
        driver = (ProductDriver if products else Cdcv2Driver)(writer, settings)
        if metrics is not None:
            metrics.follow(driver, lambda: _waiting(new_files(settings.input, driver)))
        if spark is not None:
            _give_spark(driver, spark)
        while not stopping.is_set() and not driver.closed:
            files = new_files(settings.input, driver)
            for batch in batches(files, settings.batch_bytes):
                if driver.run_large is None and not driver.is_small(batch):
                    _start_spark(driver, settings, reporter, resources, batch)
                if stopping.is_set() or driver.closed:
                    break
                driver.batch(batch)
                reporter.progress(driver.counters)
            if not settings.follow:
                break
            if not files:
                stopping.wait(_POLL_S)
        if stopping.is_set():
            writer.close(hurried=True)
        waiting = driver.why_waiting(sys.maxsize)
        return Cdcv2Outcome(
            driver.counters,
            waiting[:_REASONS_MAX],
            max(0, len(waiting) - _REASONS_MAX),
            driver.closed,
            stopping.signal,
        )


def open_writer(settings: Cdcv2Settings) -> CatalogWriter:
    """Open the catalog, made if absent.

    Raises:
        UnknownWriter: It belongs to another writer, and there is no leave to take over.
    """
    create_catalog(settings.log, settings.catalog)
    try:
        return CatalogWriter.open(
            settings.log, settings.catalog, writer=WRITER, take_over=settings.take_over
        )
    except UnknownWriter as error:
        raise UnknownWriter(error.writer, error.known, ANOTHER_SOURCE) from None


def new_files(folder: Path, driver: Cdcv2Driver) -> list[SourceFile]:
    """Return the files that the log has not consumed, by modification time."""
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
            with suppress(FileNotFoundError):
                status = os.stat(path)
                found.append(SourceFile(relative, path, status.st_size, status.st_mtime_ns))
    return sorted(found, key=lambda file: (file.modified_ns, file.name))


def _waiting(files: Sequence[SourceFile]) -> WaitingFiles:
    return WaitingFiles(len(files), sum(file.bytes for file in files))


def batches(files: Sequence[SourceFile], batch_bytes: int) -> Iterator[list[SourceFile]]:
    """Yield files in their order, as many together as fit; a larger file alone."""
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
    from tailrace_server.pipeline.spark.session import StartInterrupted, spark_session

    reporter.wait("starting Spark, which takes some seconds …")
    with suppress(StartInterrupted):
        session = resources.enter_context(
            spark_session(f"tailrace ingest {settings.catalog}", master=settings.master)
        )
        _give_spark(driver, session)


def _give_spark(driver: Cdcv2Driver, spark: SparkSession) -> None:
    from tailrace_server.pipeline.cdcv2.spark_runner import run_on_spark

    driver.run_large = partial(run_on_spark, spark)
