"""The metrics of an ingest for Prometheus, and their outlets: an HTTP port and a file.

All metrics have the label ``catalog``, because several ingests may write their files to one folder. Each value
is read from `IngestCounters` at the scrape, from any thread.

The file is for node_exporter's textfile collector. It is replaced atomically, every few seconds and at the end.
It has no ``process_`` metrics, because node_exporter exports its own under the same names.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, write_to_textfile
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from tailrace.errors import InternalError, TailraceError
from tailrace_server.errors import CannotStart
from tailrace_server.hosts import Hosts
from tailrace_server.pipeline.run.progress import IngestCounters
from tailrace_server.pipeline.run.source_figures import SourceFigures
from tailrace_server.units import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from prometheus_client.metrics_core import Metric

    from tailrace_server.pipeline.input.folder import WaitingFiles
    from tailrace_server.pipeline.run.metrics_outlets import MetricsOutlets
    from tailrace_server.wal.catalog_writer import CatalogWriter

_Found = TypeVar("_Found")

_LOOK_EVERY_S: Final = 10.0
_LOOK_SHARE: Final = 50
"""Minimum interval of looks at files, as a multiple of a look's duration: they take 1/50 of the time."""


class _Answer(Generic[_Found]):
    """The cached result of a look at files, which may take long. Several threads may read it at once."""

    def __init__(self, look: Callable[[], _Found]) -> None:
        """Store the function that looks; it is not called yet."""
        self._look = look
        self._found: _Found | None = None
        self._again_at = float("-inf")

    def expire(self) -> None:
        """Make the next call of `found` look again."""
        self._again_at = float("-inf")

    def found(self) -> _Found | None:
        """Return the cached result; look again first if the result is too old."""
        begun = time.monotonic()
        if begun >= self._again_at:
            # Wait longer after a slow look, so that a folder of many files does not keep the machine busy.
            self._found = self._look()
            took_s = time.monotonic() - begun
            self._again_at = begun + max(_LOOK_EVERY_S, _LOOK_SHARE * took_s)
        return self._found


class Counted(Protocol):
    """A run of an ingest, with its counts."""

    counters: IngestCounters

    @property
    def writer(self) -> CatalogWriter | None:
        """The writer; None if each commit opens the catalog anew."""


class IngestMetrics(Collector):
    """The metrics of one run of an ingest. Before `follow` is called, all counts are zero."""

    def __init__(self, catalog: str, source: str, *, version: str) -> None:
        """Begin a run.

        Args:
            catalog: Name of the catalog.
            source: Name of the source.
            version: Version of this distribution.
        """
        self._catalog = catalog
        self._info = {"source": source, "version": version}
        self.counters = IngestCounters()
        self._writer: CatalogWriter | None = None
        self._waiting: _Answer[WaitingFiles] | None = None
        self._changed: _Answer[list[str]] | None = None
        self._done = (0, 0, 0)
        self._moved_at = time.monotonic()
        """Time at which `_done` last changed or no file waited, by the monotonic clock."""
        self._started = time.time()
        self._ended: float | None = None
        self._failure = ""

    def follow(
        self,
        driver: Counted,
        waiting: Callable[[], WaitingFiles] | None = None,
        changed: Callable[[], list[str]] | None = None,
    ) -> None:
        """Export the counts of a driver from now on.

        Args:
            driver: The driver of the run.
            waiting: Returns the waiting files of the input, which may take long; None if they are unknown.
            changed: Returns the input files that changed after they were read, which may take long; None if
                they are unknown.
        """
        self.counters, self._writer = driver.counters, driver.writer
        self._waiting = None if waiting is None else _Answer(waiting)
        self._changed = None if changed is None else _Answer(changed)

    def end(self, error: BaseException | None = None) -> None:
        """Record that the run has ended; ``error`` is None if it succeeded."""
        self._ended = time.time()
        if error is not None:
            self._failure = error.code if isinstance(error, TailraceError) else InternalError.code
        if self._waiting is not None:
            self._waiting.expire()

    def standstill_s(self) -> float:
        """Return the seconds without any line read or committed although files wait; 0 if none wait."""
        now, counters = time.monotonic(), self.counters
        # Any change of these counts is progress.
        done = (counters.lines, counters.input_files, counters.committed)
        quiet = done == self._done and self._waiting is not None and self._ended is None
        # Look for waiting files only if there was no progress for a while: a look is slow if there are many.
        if quiet and now - self._moved_at >= _LOOK_EVERY_S:
            waits = self.waiting()
            quiet = waits is not None and waits.files > 0
        elif quiet:
            return 0.0
        if not quiet:
            self._done, self._moved_at = done, now
        return now - self._moved_at

    def collect(self) -> Iterable[Metric]:
        """Yield the metric families with their present values."""
        counters = self.counters
        info = InfoMetricFamily("tailrace_ingest", "Program that runs.", labels=["catalog"])
        info.add_metric([self._catalog], self._info)
        yield info
        yield self._counter("lines", "Lines read, or messages of CDCv2.", counters.lines)
        yield self._counter("input_files", "Input files read.", counters.input_files)
        yield self._counter("input_bytes", "Bytes of the input files read.", counters.input_bytes)
        yield self._counter(
            "versions", "Transactions committed, each as a version.", counters.versions
        )
        yield self._counter("records", "Records committed, leads included.", counters.records)
        yield self._counter(
            "written_bytes", "Bytes of the segments committed.", counters.written_bytes
        )
        yield self._counter(
            "late_versions",
            "Versions of rows that arrived after their transaction was closed.",
            counters.late,
        )
        yield self._counter(
            "incomplete_images",
            "Records with an image that should be whole, but could not be filled.",
            counters.incomplete_images,
        )
        yield self._counter(
            "expired", "Rows removed because their time to live was over.", counters.expired
        )
        yield self._gauge(
            "overdue_seconds",
            "Seconds since the oldest due row that has not expired yet was due; 0 if there is "
            "none. Absent if no row expires.",
            counters.overdue_s(time.time_ns() // 1_000),
        )
        yield self._gauge(
            "missing_from_snapshot",
            "Rows that are missing from the last snapshot of their table and that this run did "
            "not remove.",
            sum(each.count for each in dict(counters.lacking).values()),
        )
        yield self._gauge(
            "unread_times",
            "Rows that never expire because their time to live cannot be read.",
            sum(each.count for each in dict(counters.unread_times).values()),
        )
        effects = CounterMetricFamily(
            "tailrace_ingest_unapplied_statements",
            "Statements such as DROP TABLE that changed rows at the source; the log still has "
            "the former rows.",
            labels=["catalog", "table"],
        )
        for table, each in sorted(dict(counters.effects).items()):
            effects.add_metric([self._catalog, table], each.count)
        yield effects
        aside = CounterMetricFamily(
            "tailrace_ingest_set_aside",
            "Lines set aside in quarantine, by the beginning of the reason.",
            labels=["catalog", "reason"],
        )
        for reason, count in sorted(dict(counters.set_aside).items()):
            aside.add_metric([self._catalog, reason], count)
        yield aside
        yield self._gauge(
            "open_transactions",
            "Transactions that wait for the rest of their rows.",
            counters.pending,
        )
        yield self._gauge("committed_version", "Newest version committed.", counters.committed)
        yield self._gauge(
            "published_version",
            "Newest version published, which subscribers can read.",
            counters.published,
        )
        commits = HistogramMetricFamily(
            "tailrace_ingest_commit_seconds",
            "Seconds to make a batch durable in the log after its segments are written.",
            labels=["catalog"],
        )
        commits.add_metric([self._catalog], counters.commits.cumulative(), counters.commits.sum_s)
        yield commits
        yield from self._source(counters)
        yield from self._run()

    def _source(self, counters: IngestCounters) -> Iterable[Metric]:
        """Yield the metrics of the ingest's lag behind its source."""
        waits = self.waiting()
        yield self._gauge(
            "waiting_files",
            "Input files that are not in the log yet; counted at most every 10 s.",
            None if waits is None else waits.files,
        )
        yield self._gauge(
            "waiting_bytes",
            "Bytes of input files that are not in the log yet.",
            None if waits is None else waits.nbytes,
        )
        changed = self.changed()
        yield self._gauge(
            "changed_files",
            "Input files that changed after they were read; the new contents are not read.",
            None if changed is None else len(changed),
        )
        yield self._gauge(
            "standstill_seconds",
            "Seconds since the last line was read or committed while files wait; else 0.",
            self.standstill_s(),
        )
        yield from self._sources(counters)

    def _sources(self, counters: IngestCounters) -> Iterable[Metric]:
        """Yield position, lag and rate of each source."""
        whole = SourceFigures("", rows=counters.rows, newest_us=counters.newest_us)
        sources = sorted((dict(counters.sources) or {self._info["source"]: whole}).items())
        parts = ["catalog", "source", "partition", "unit"]
        position = GaugeMetricFamily(
            "tailrace_ingest_source_position",
            "Position up to which the log has everything: LSN, next offset, or version of a table.",
            labels=parts,
        )
        backlog = GaugeMetricFamily(
            "tailrace_ingest_source_backlog",
            "What the source has and the ingest has not acknowledged, in the unit; absent if unknown.",
            labels=parts,
        )
        rows = CounterMetricFamily(
            "tailrace_ingest_rows",
            "Changes of rows read, or finished updates.",
            labels=["catalog", "source"],
        )
        newest = GaugeMetricFamily(
            "tailrace_ingest_newest_source_timestamp_seconds",
            "Newest source time of a committed row, Unix time.",
            labels=["catalog", "source"],
        )
        lag = GaugeMetricFamily(
            "tailrace_ingest_source_lag_seconds",
            "Seconds since the newest source time of a committed row; also grows while the "
            "source has no changes.",
            labels=["catalog", "source"],
        )
        now_us = time.time_ns() // 1_000
        for name, each in sources:
            labels = [self._catalog, name]
            for family, values in ((position, each.positions), (backlog, each.lags)):
                for partition, value in sorted(values.items()):
                    family.add_metric([*labels, partition, each.unit], value)
            rows.add_metric(labels, each.rows)
            if each.newest_us is not None:
                newest.add_metric(labels, each.newest_us / 1e6)
                lag.add_metric(labels, max(0.0, (now_us - each.newest_us) / 1e6))
        yield from (position, backlog, rows, newest, lag)

    def _run(self) -> Iterable[Metric]:
        """Yield the metrics of the run itself: epoch, times, and failure."""
        yield self._gauge(
            "epoch",
            "Epoch of the writer; each start that opens the catalog for writing adds 1.",
            0 if self._writer is None else self._writer.epoch,
        )
        yield self._gauge(
            "started_timestamp_seconds", "Start time of the ingest, Unix time.", self._started
        )
        yield self._gauge(
            "running", "1 while the ingest runs, 0 after its end.", self._ended is None
        )
        yield self._gauge(
            "ended_timestamp_seconds",
            "End time of the ingest, Unix time; absent before.",
            self._ended,
        )
        yield self._failing(
            "failed",
            "1 if an error ended the ingest, with the machine code, else 0.",
            self._failure,
        )
        yield self._failing(
            "upkeep_failed",
            "1 if an error prevents compaction and cleaning of the log, with the machine code, "
            "else 0.",
            "" if self._writer is None else self._writer.upkeep_failure,
        )

    def waiting(self) -> WaitingFiles | None:
        """Return the number and size of the waiting files as of the last look; None if they are unknown."""
        return None if self._waiting is None else self._waiting.found()

    def changed(self) -> list[str] | None:
        """Return the input files that changed after they were read, as of the last look; None if unknown."""
        return None if self._changed is None else self._changed.found()

    def _failing(self, name: str, help_text: str, code: str) -> Metric:
        labels = ["catalog", "code"]
        made = GaugeMetricFamily(f"tailrace_ingest_{name}", help_text, labels=labels)
        made.add_metric([self._catalog, code], bool(code))
        return made

    def _counter(self, name: str, help_text: str, value: float) -> Metric:
        made = CounterMetricFamily(f"tailrace_ingest_{name}", help_text, labels=["catalog"])
        made.add_metric([self._catalog], value)
        return made

    def _gauge(self, name: str, help_text: str, value: float | None) -> Metric:
        """Return a gauge; it has no sample if the value is None, which means unknown."""
        made = GaugeMetricFamily(f"tailrace_ingest_{name}", help_text, labels=["catalog"])
        if value is not None:
            made.add_metric([self._catalog], value)
        return made


_WRITE_EVERY_S: Final = 5.0
_REQUEST_S: Final = 5
"""Time limit for a peer to send a part of a request or to read the answer, in seconds. Other peers wait."""
_SHUTDOWN_S: Final = 0.1


@contextmanager
def exposed(
    metrics: IngestMetrics, outlets: MetricsOutlets, complain: Callable[[str], None]
) -> Iterator[Address | None]:
    """Expose the metrics of the run inside the context, and record in them how the run ended.

    Yields the bound address of the port; None without a port.

    Args:
        metrics: The metrics of the run.
        outlets: The port and the file.
        complain: Prints an error line; called from another thread.

    Raises:
        CannotStart: The address cannot be bound, or the file cannot be written.
    """
    file, leaving, threads = outlets.file, threading.Event(), []
    registry = CollectorRegistry()
    registry.register(metrics)
    # Fail before the run begins if the file cannot be written; later errors only print a line.
    if file is not None:
        _write_first(file, registry)
    listener = None if outlets.address is None else _Listener(outlets.address, metrics)
    if listener is not None:
        threads.append(_started(lambda: listener.serve_forever(_SHUTDOWN_S), "metrics port"))
    if file is not None:
        threads.append(_started(lambda: _keep(file, registry, leaving, complain), "metrics file"))
    try:
        yield None if listener is None else listener.address
    except BaseException as error:
        metrics.end(error)
        raise
    else:
        metrics.end()
    finally:
        # The end of the run is recorded already, so the last write of the file shows it.
        leaving.set()
        if listener is not None:
            listener.shutdown()
            listener.server_close()
        for thread in threads:
            thread.join()


def _started(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def _write_first(file: Path, registry: CollectorRegistry) -> None:
    try:
        write_to_textfile(str(file), registry)
    except OSError as error:
        raise CannotStart(f"--metrics-file {file}: {error.strerror}") from error


def _keep(
    file: Path,
    registry: CollectorRegistry,
    leaving: threading.Event,
    complain: Callable[[str], None],
) -> None:
    """Write the file at intervals, and once more at the end; report errors without ending the ingest."""
    told = ""
    while True:
        ended = leaving.wait(_WRITE_EVERY_S)
        try:
            write_to_textfile(str(file), registry)
        except OSError as error:
            # Report an error once, not at each interval; another error is reported again.
            if told != (told := str(error.strerror)):
                complain(f"cannot write --metrics-file {file}: {told}")
        if ended:
            return


class _Handler(BaseHTTPRequestHandler):
    """The handler of ``GET /metrics``; each connection has one request."""

    timeout = _REQUEST_S
    server: _Listener

    def do_GET(self) -> None:
        """Answer with the metrics, or with an error that names their path."""
        if not self.server.hosts.has(self.headers.get("Host", "")):
            self._answer(421, b"Host is not a name of this machine; ask by its address\n")
        elif self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"the metrics are at /metrics\n")
        else:
            self._answer(200, generate_latest(self.server.registry))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):  # the peer has gone, or did not read in time
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: stderr is used for the progress line."""


class _Listener(TCPServer):
    """A listener that handles one request at a time: many peers together use one thread and one answer."""

    allow_reuse_address = True

    def __init__(self, address: Address, metrics: IngestMetrics) -> None:
        """Bind the address; add the process's own metrics to those of the run.

        Raises:
            CannotStart: The address is in use, is not of this machine, or cannot be resolved.
        """
        self.registry = CollectorRegistry()
        self.registry.register(metrics)
        ProcessCollector(registry=self.registry)
        self.hosts = Hosts(address.host, ())
        try:
            family, *_, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
            self.address_family = family
            super().__init__((str(place[0]), int(place[1])), _Handler)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise CannotStart(f"--metrics {address}: {reason}") from error
        self.address = Address(address.host, self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing: a peer that does not finish its request is not an error of the ingest."""
