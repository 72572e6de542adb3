"""What the benches share: pinned processes, their CPU time, raw subscribers, tables.

The server under test runs alone on the first core; writers and subscribers share the second. Subscribers are
bare grpc.aio streams without decoding, the same for every server, so that a ratio speaks of servers only.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

SERVER_CPU = {0}
CLIENT_CPU = {max(os.sched_getaffinity(0))}


@dataclass(frozen=True, slots=True)
class Server:
    """A server process and where it listens."""

    process: psutil.Popen
    address: str
    said: list[bytes] = field(default_factory=list)
    """The lines of its log that have been read."""

    def cpu_s(self) -> float:
        """Return the CPU seconds that it has used so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def anonymous_bytes(self) -> int:
        """Return its anonymous resident memory (RssAnon)."""
        with open(f"/proc/{self.process.pid}/status") as status:
            for line in status:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
        raise AssertionError("no RssAnon in /proc/…/status")

    def wait_for(self, event: bytes) -> None:
        """Return once its log says so, or has said so."""
        if any(event in line for line in self.said):
            return
        for line in self.process.stdout:
            self.said.append(line)
            if event in line:
                return
        raise AssertionError(f"the server ended before it said {event!r}")


@contextlib.contextmanager
def server(command: Sequence[str], address: str = "grpc") -> Iterator[Server]:
    """Run a server that prints JSON lines with its address under a key, the last once it serves."""
    process = psutil.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: os.sched_setaffinity(0, SERVER_CPU),
    )
    with ended(process):
        subject = Server(process, "")
        subject.wait_for(json.dumps(address).encode())
        if b'"starting"' in subject.said[-1]:
            subject.wait_for(b'"serving"')
        yield replace(subject, address=json.loads(subject.said[-1])[address])


@contextlib.contextmanager
def ended(process: psutil.Popen) -> Iterator[None]:
    """End a process on the way out."""
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)
        if process.stdout is not None:
            process.stdout.close()


def free_port() -> int:
    """Return a port of loopback that nobody has, for servers that cannot be told to take one."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def pin_to_the_server() -> None:
    """Keep this process, which is what is measured, on the server's core."""
    os.sched_setaffinity(0, SERVER_CPU)


def stay_with_the_subscribers() -> None:
    """Keep this process, which writes, off the server's core."""
    os.sched_setaffinity(0, CLIENT_CPU)


def bare_server(messages: int, captures: int, capture_bytes: int, *tls: str) -> list[str]:
    """Return the command of the baseline: grpc.aio that sends constant bytes of the same size.

    ``tls`` is the files of a certificate and its key; without them it speaks plain text.
    """
    return ["bench._bare_server", str(messages), str(captures), str(capture_bytes), *tls]


def tailrace_server(root: os.PathLike[str] | str, *options: str, http: str = "off") -> list[str]:
    """Return the command of our server on a log root."""
    serve = ["tailrace_server", "serve", "--log", str(root), "--grpc", "127.0.0.1:0"]
    return [*serve, "--http", http, *options]


def http_server(root: os.PathLike[str] | str, *options: str) -> AbstractContextManager[Server]:
    """Run our server on a log root with its HTTP listener, whose address is the server's here."""
    command = tailrace_server(root, "--log-format", "json", *options, http="127.0.0.1:0")
    return server(command, "http")


def subscribers(
    address: str, count: int, captures: int, **options: Any
) -> AbstractContextManager[psutil.Popen]:
    """Start raw subscribers that each wait for ``captures`` captures; read their result with ``result``."""
    return _clients("bench._subscribers", address, str(count), str(captures), json.dumps(options))


def http_subscribers(
    address: str, path: str, wanted: int, **options: Any
) -> AbstractContextManager[psutil.Popen]:
    """Start raw subscribers over HTTP that each wait for so many markers; see _socket_clients."""
    return _clients("bench._socket_clients", address, path, str(wanted), json.dumps(options))


def readers(
    kind: str, address: str, count: int, events: int, **options: Any
) -> AbstractContextManager[psutil.Popen]:
    """Start raw readers of another server, "redis", "rabbitmq" or "etcd"; see _reading."""
    command = f"bench._{kind}_readers", address, str(count), str(events), json.dumps(options)
    return _clients(*command)


@contextlib.contextmanager
def _clients(*command: str) -> Iterator[psutil.Popen]:
    process = psutil.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, CLIENT_CPU),
    )
    try:
        assert process.stdout.readline() == b"subscribed\n"
        yield process
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()


def result(process: psutil.Popen) -> dict[str, Any]:
    """Wait for subscribers to have everything and return what they measured."""
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def machine() -> str:
    """Return one line about machine and versions, for the head of a result."""
    names = ("grpcio", "protobuf", "pyarrow", "numpy", "uvloop")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {versions}"


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n")
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(str(each) for each in row) + " |")
    sys.stdout.flush()
