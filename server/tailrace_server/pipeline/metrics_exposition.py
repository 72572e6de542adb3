"""Exposes the metrics of an ingest at its outlets, until it ends.

The file is what node_exporter's textfile collector reads: it is replaced as a whole, every few seconds and at
the end. It has no ``process_`` metrics, since node_exporter has its own under the same names.
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, write_to_textfile
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from tailrace_server.errors import CannotStart
from tailrace_server.hosts import Hosts
from tailrace_server.units import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tailrace_server.pipeline.ingest_metrics import IngestMetrics
    from tailrace_server.pipeline.metrics_outlets import MetricsOutlets

_WRITE_EVERY_S: Final = 5.0
_REQUEST_S: Final = 5
"""How long a peer may take to send a part of a request, or to take the answer; meanwhile others wait."""
_SHUTDOWN_S: Final = 0.1


@contextmanager
def exposed(
    metrics: IngestMetrics, outlets: MetricsOutlets, complain: Callable[[str], None]
) -> Iterator[Address | None]:
    """Expose metrics until left, and note in them how that came; yields the address that is bound, if any.

    Args:
        metrics: Of the run within.
        outlets: Where they go.
        complain: Writes an error line, from another thread.

    Raises:
        CannotStart: The address cannot be bound, or the file cannot be written.
    """
    file, leaving, threads = outlets.file, threading.Event(), []
    registry = CollectorRegistry()
    registry.register(metrics)
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
    """Write the file at intervals, and once more at the end. A disk without room ends no ingest."""
    told = ""
    while True:
        ended = leaving.wait(_WRITE_EVERY_S)
        try:
            write_to_textfile(str(file), registry)
        except OSError as error:
            if told != (told := str(error.strerror)):
                complain(f"cannot write --metrics-file {file}: {told}")
        if ended:
            return


class _Handler(BaseHTTPRequestHandler):
    """Answers ``GET /metrics``; one request a connection."""

    timeout = _REQUEST_S
    server: _Listener

    def do_GET(self) -> None:
        """Answer with the metrics, or say where they are."""
        if not self.server.hosts.has(self.headers.get("Host", "")):
            self._answer(421, b"Host is no name of this machine; ask by its address\n")
        elif self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"the metrics are at /metrics\n")
        else:
            self._answer(200, generate_latest(self.server.registry))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):  # gone, or did not read within the time
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: stderr has the progress."""


class _Listener(TCPServer):
    """Takes one request after the other, so that peers, however many, hold one thread and one answer."""

    allow_reuse_address = True

    def __init__(self, address: Address, metrics: IngestMetrics) -> None:
        """Bind; those of the process are added.

        Raises:
            CannotStart: The address is in use, not ours, or not to be resolved.
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
        """Write nothing: a peer that does not finish is no fault of the ingest."""
