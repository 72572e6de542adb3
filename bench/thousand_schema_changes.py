"""What do schema changes cost a server that GraphQL clients are connected to?

::

    a writer, 1,000 commits, a new column each ──▶ log ──▶ tailrace ──▶ 50 GraphQL sockets
                                                                ▲
                                                     GET /health, every 5 ms

Each client has a typed subscription, and asks a query of the newest schema after every tenth change. Growth is
that of anonymous memory, from before the first change to a few seconds after the last. A pause is what an
answer of ``/health`` takes. On a machine that has other work it counts that too: a quiet phase stands beside.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import tempfile
import threading
import time
from pathlib import Path

from bench._harness import Server, http_server, machine, table
from bench._log import CATALOG
from bench._stalled_readers import GRAPHQL, frame, upgrade
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation

CHANGES = 1_000
CLIENTS = 50
PACE_S = 0.03
QUIET_S = 5.0
AFTER_S = 5.0
TYPES = 20
"""The new columns belong to so many entity types in turn."""
_ASK_EVERY = 10
_QUERY = {"query": "{ type_0Changes(last: 1) { edges { node { version } } } }"}
_SUBSCRIPTION = {"query": "subscription { onCatalogChange { version } }"}


def image(number: int) -> Mutation:
    """Return a row with a column that its entity type has not had."""
    row = json.dumps({"id": number, f"column_{number}": number}).encode()
    return Mutation(f"type_{number % TYPES}", str(number), after=row)


async def client(address: str, ready: asyncio.Semaphore, seen: list[int]) -> None:
    """Follow the changes and ask of the newest schema; ``seen`` counts messages in its only item."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(upgrade(address, GRAPHQL.path, "graphql-transport-ws"))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(frame({"type": "connection_init"}))
        writer.write(frame({"type": "subscribe", "id": "live", "payload": _SUBSCRIPTION}))
        ready.release()
        asked = 0
        while data := await reader.read(1 << 16):
            seen[0] += data.count(b'"type":"next"')
            if seen[0] // _ASK_EVERY > asked:
                asked = seen[0] // _ASK_EVERY
                writer.write(frame({"type": "subscribe", "id": f"q{asked}", "payload": _QUERY}))
    finally:
        writer.close()


def watch(address: str, pauses: list[float], stop: threading.Event) -> None:
    """Ask for the health again and again, and note how long each answer takes, seconds."""
    connection = http.client.HTTPConnection(address)
    while not stop.wait(0.005):
        begun = time.perf_counter()
        connection.request("GET", "/health")
        connection.getresponse().read()
        pauses.append(time.perf_counter() - begun)
    connection.close()


def write(root: Path, writer: LogWriter) -> None:
    """Make the changes, at a pace."""
    for number in range(1, CHANGES + 1):
        writer.append([image(number)])
        writer.commit()
        writer.publish()
        time.sleep(PACE_S)


def main() -> None:
    """Measure and print."""
    print(machine())
    with tempfile.TemporaryDirectory() as folder, LogWriter.open(Path(folder), CATALOG) as writer:
        writer.append([image(0)])
        writer.commit()
        writer.publish()
        with http_server(Path(folder)) as subject:
            found = asyncio.run(measure(subject.address, Path(folder), writer, subject))
    table(
        f"{CHANGES:,} schema changes, {CLIENTS} GraphQL clients",
        ["messages", "growth", "longest answer", "longest when quiet"],
        [found],
    )


async def measure(address: str, root: Path, writer: LogWriter, subject: Server) -> list[str]:
    """Return a row of the table."""
    quiet: list[float] = []
    busy: list[float] = []
    ready, seen = asyncio.Semaphore(0), [[0] for _ in range(CLIENTS)]
    clients = [asyncio.ensure_future(client(address, ready, each)) for each in seen]
    for _ in clients:
        await ready.acquire()
    stop = threading.Event()
    watching = asyncio.ensure_future(asyncio.to_thread(watch, address, quiet, stop))
    await asyncio.sleep(QUIET_S)
    stop.set()
    await watching
    before = subject.anonymous_bytes()
    stop = threading.Event()
    watching = asyncio.ensure_future(asyncio.to_thread(watch, address, busy, stop))
    await asyncio.to_thread(write, root, writer)
    await asyncio.sleep(AFTER_S)
    stop.set()
    await watching
    growth = subject.anonymous_bytes() - before
    for each in clients:
        each.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    messages = sum(each[0] for each in seen)
    assert messages >= CLIENTS * CHANGES
    return [
        f"{messages:,}",
        f"{growth / (1 << 20):.0f} MiB",
        f"{max(busy) * 1000:.0f} ms",
        f"{max(quiet) * 1000:.0f} ms",
    ]


if __name__ == "__main__":
    main()
