"""How fast do the rows and changes of PostgreSQL come into a log, and to a subscriber?

::

    COPY … TO STDOUT, to nowhere        against   ingest postgres --once, of a new catalog
    pg_recvlogical, to nowhere          against   ingest postgres --once, of the same changes
    NOTIFY in the same transaction      against   ingest --follow ──▶ serve ──▶ subscriber

Ours is a process from its start to its end, with its imports. PostgreSQL is Debian's, on the same machine.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

import psycopg

import tailrace
from bench._harness import machine, server, table, tailrace_server
from tailrace.criteria import Content
from tests.process.ingest.postgres_server import postgres

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.process.ingest.postgres_server import Postgres

ROWS = 2_000_000
TRANSACTIONS = 400
CHANGES = 1_000
"""Updates in a transaction."""
COMMITS = 200
PAUSE_S = 0.02
SLOT = "recvlogical"
_SETUP = (
    "CREATE TABLE product (id int PRIMARY KEY, name text, price numeric(10,2), at timestamptz)",
    "ALTER TABLE product REPLICA IDENTITY FULL",
    f"INSERT INTO product SELECT i, 'name of ' || i, i * 1.5, now() FROM generate_series(1, {ROWS}) i",
    "VACUUM ANALYZE product",
)


def ingest(database: Postgres, root: Path, *more: str) -> list[str]:
    """Return the command."""
    command = [sys.executable, "-m", "tailrace_server", "ingest", "postgres", "--quiet"]
    return [*command, "--dsn", database.dsn(), "--log", str(root), "--catalog", "shop", *more]


def timed(command: Sequence[str]) -> tuple[float, float]:
    """Run a command; return its time and its CPU time, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    subprocess.run(command, check=True)
    wall = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def copied(database: Postgres) -> float:
    """Return the time of reading the table to nowhere, in seconds."""
    begun = time.perf_counter()
    with (
        psycopg.connect(database.dsn()) as connection,
        connection.cursor().copy("COPY product TO STDOUT") as rows,
    ):
        for _ in rows:
            pass
    return time.perf_counter() - begun


def received(database: Postgres) -> float:
    """Return the time of reading the changes to nowhere, in seconds."""
    end = database.execute("SELECT pg_current_wal_flush_lsn()")[0][0]
    program = which("pg_recvlogical") or ""
    where = ["-h", "127.0.0.1", "-p", str(database.port), "-U", "postgres", "-d", "postgres"]
    options = ["-o", "proto_version=1", "-o", "publication_names=tailrace_shop"]
    read = [program, *where, "--slot", SLOT, "--start", *options, "-E", str(end), "-f", os.devnull]
    return timed(read)[0]


async def latencies(database: Postgres, address: str) -> tuple[list[float], list[float]]:
    """Return the times from commits to captures, and to notifications, in ms."""
    committed: dict[int, float] = {}
    captured: list[float] = []
    notified: list[float] = []

    async def capture() -> None:
        async with (
            tailrace.connect(address) as client,
            client.subscribe("shop", content=Content.AFTER) as changes,
        ):
            ready.set()
            async for each in changes:
                if each.entity_type == "product":
                    captured.append(time.perf_counter())
                    if len(captured) == COMMITS:
                        return

    async def listen() -> None:
        connection = await psycopg.AsyncConnection.connect(database.dsn(), autocommit=True)
        async with connection:
            await connection.execute("LISTEN told")
            notices = connection.notifies(stop_after=COMMITS)
            notified.extend([time.perf_counter() async for _ in notices])

    ready = asyncio.Event()
    readers = [asyncio.create_task(each()) for each in (capture, listen)]
    await ready.wait()
    await asyncio.sleep(1)
    async with await psycopg.AsyncConnection.connect(database.dsn()) as connection:
        for number in range(COMMITS):
            await connection.execute(
                "UPDATE product SET price = price + 1 WHERE id = %s", [number + 1]
            )
            await connection.execute("NOTIFY told")
            await connection.commit()
            committed[number] = time.perf_counter()
            await asyncio.sleep(PAUSE_S)
    await asyncio.gather(*readers)
    ours, theirs = (
        [(at - committed[n]) * 1e3 for n, at in enumerate(found)] for found in (captured, notified)
    )
    return ours, theirs


def _row(
    what: str, against: str, count: int, baseline: float, wall: float, cpu: float, aim: str
) -> list[str]:
    speeds = (f"{count / each:,.0f}" for each in (baseline, wall, cpu))
    return [what, against, *speeds, f"{baseline / wall:.2f}", aim]


def main() -> None:
    """Measure and print."""
    print(machine())
    with postgres() as database, tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        root = Path(folder)
        database.execute(*_SETUP)
        baseline = min(copied(database) for _ in range(2))
        wall, cpu = timed(ingest(database, root))
        rows = [_row("snapshot", "COPY", ROWS, baseline, wall, cpu, "0.4 × COPY")]
        database.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
        with psycopg.connect(database.dsn(), autocommit=True) as connection:
            for number in range(TRANSACTIONS):
                first = number * CHANGES
                connection.execute(
                    "UPDATE product SET price = price + 1 WHERE id > %s AND id <= %s",
                    [first, first + CHANGES],
                )
        count = TRANSACTIONS * CHANGES
        baseline = received(database)
        wall, cpu = timed(ingest(database, root))
        rows.append(_row("updates", "pg_recvlogical", count, baseline, wall, cpu, "60,000 rows/s"))
        head = ["", "compared with", "its rows/s", "rows/s", "rows/CPU s", "ratio", "aim"]
        table(f"{ROWS:,} rows, then {count:,} updates of {CHANGES:,} a transaction", head, rows)
        follow = subprocess.Popen(ingest(database, root, "--follow"))
        try:
            with server(tailrace_server(root)) as subject:
                ours, theirs = asyncio.run(latencies(database, subject.address))
        finally:
            follow.terminate()
            follow.wait(60)
        found = [
            _quantiles(name, each)
            for name, each in (("capture at a subscriber", ours), ("NOTIFY", theirs))
        ]
        table(f"after a commit, ms, {COMMITS} commits", ["", "p50", "p90", "p99"], found)


def _quantiles(name: str, times: list[float]) -> list[str]:
    cuts = statistics.quantiles(times, n=100)
    return [name, *(f"{cuts[share - 1]:.1f}" for share in (50, 90, 99))]


if __name__ == "__main__":
    main()
