"""How fast does one log reach many subscribers, beside Redis Streams on the same work in the same run?

::

    log of captures ──▶ tailrace ──▶ 1, 10, 50 raw subscribers    stream ──▶ Redis ──▶ 1, 10, 50 raw readers
    one commit      ──▶ tailrace ──▶ the same, attached before    MULTI … EXEC ──▶ Redis ──▶ the same, waiting

Payloads are as large as our captures on the wire. Redis is read with ``XREAD COUNT 1000``, three times what a
message of ours holds, and keeps everything in memory only; we read a durable log and check its CRCs. Each
server has the first core alone, subscribers and writers the second; nobody decodes. Live, a server's CPU
includes taking the commit in.

It does not show latency, where a server that waits for no disk is ahead, nor filters, which Redis has none of:
its readers take all there is.

Needs ``redis-server`` (Debian: ``apt-get install redis-server``).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

import psutil

from bench._beside import beside
from bench._harness import SERVER_CPU, Server, ended, free_port, redis_readers, result
from bench._redis_readers import STREAM, command, entry_id
from bench.one_log_hundred_subscribers import CAPTURES, rates

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def redis() -> Iterator[Server]:
    """Run a Redis without persistence on a free port of loopback."""
    port = free_port()
    process = psutil.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, SERVER_CPU),
    )
    with ended(process):
        server = Server(process, str(port))
        server.wait_for(b"Ready to accept connections")
        yield server


def fill(connection: socket.socket, entries: int, payload_bytes: int) -> None:
    """Add entries in one transaction; they are there when this returns."""
    payload = b"x" * payload_bytes
    connection.sendall(command(b"CLIENT", b"REPLY", b"OFF") + command(b"MULTI"))
    for start in range(0, entries, 10_000):
        connection.sendall(
            b"".join(
                command(b"XADD", STREAM, entry_id(number), b"d", payload)
                for number in range(start, min(entries, start + 10_000))
            )
        )
    end = command(b"EXEC"), command(b"CLIENT", b"REPLY", b"ON"), command(b"XLEN", STREAM)
    connection.sendall(b"".join(end))
    wanted = b"+OK\r\n:%d\r\n" % entries
    answer = b""
    while len(answer) < len(wanted) and (more := connection.recv(len(wanted))):
        answer += more
    assert answer == wanted, answer


def redis_rates(streams: int, size: int, *, is_live: bool) -> tuple[float, float]:
    """Return entries a second and server CPU µs a delivery."""
    entries = CAPTURES[streams]
    with (
        redis() as server,
        socket.create_connection(("127.0.0.1", int(server.address))) as connection,
    ):
        if not is_live:
            fill(connection, entries, size)
        before = server.cpu_s()
        options = {"entry_bytes": size, "live": is_live}
        with redis_readers(server.address, streams, entries, **options) as process:
            if is_live:
                fill(connection, entries, size)
            report = result(process)
        return rates(report, server.cpu_s() - before)


def main() -> None:
    """Measure and print."""
    if shutil.which("redis-server") is None:
        raise SystemExit("redis-server is missing: apt-get install redis-server")
    beside("Redis", redis_rates)


if __name__ == "__main__":
    main()
