"""The demo with a real database: PostgreSQL, its ingest, a server and a subscriber, each a process.

::

    statements ──▶ PostgreSQL ──replication──▶ ingest postgres --follow ──log──▶ serve ──gRPC──▶ watch

At the end, the rows of the catalog must be those of the database.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from tailrace.errors import TailraceError
from tailrace_server.demo.check import read_log
from tailrace_server.demo.processes import CATALOG, DemoFailed, Processes, start_server, stop
from tailrace_server.demo.screen import Screen
from tailrace_server.wal.catalog import open_catalog

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Callable

_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.05
_PRODUCTS: Final = 1_000
_TRANSACTIONS: Final = 40
_PAUSE_S: Final = 0.1
_SETUP: Final = (
    "CREATE TABLE product (id int PRIMARY KEY, name text NOT NULL, price numeric(10,2), stock int)",
    "CREATE TABLE purchase (id serial PRIMARY KEY, product int, pieces int, at timestamptz)",
    f"INSERT INTO product SELECT i, 'product ' || i, i * 0.25, 100 FROM generate_series(1, {_PRODUCTS}) i",
)
_COLUMNS: Final = {"product": "*", "purchase": "id, product, pieces, at::text"}
_ROWS: Final = "SELECT to_jsonb(t) FROM (SELECT {} FROM {}) t"


async def run_postgres_demo(folder: Path, *, stay: bool = False) -> int:
    """Run the demo in a folder and return the exit status.

    Args:
        folder: Folder for the log.
        stay: True keeps database and server running at the end, until Ctrl-C.

    Raises:
        DemoFailed: PostgreSQL is not installed, a process died, or the catalog is not equal to the database.
    """
    log = folder / "log"
    log.mkdir(parents=True, exist_ok=True)
    with Screen() as screen:
        async with Processes() as processes:
            database = await _Database.start(processes)
            try:
                await _run(database, log, screen, processes, stay=stay)
            except* TailraceError as group:
                raise group.exceptions[0] from None
            finally:
                await database.stop()
    return 0


async def _run(
    database: _Database, log: Path, screen: Screen, processes: Processes, *, stay: bool
) -> None:
    screen.step("database", f"{database.version}, with {_PRODUCTS:,} products; {database.dsn}")
    server = await start_server(processes, log, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
    running = [server.process]
    async with asyncio.TaskGroup() as tasks:
        # 1. The ingest makes slot and publication, and copies the tables.
        command = ("ingest", "postgres", "--dsn", database.dsn, "--log", log, "--catalog", CATALOG)
        screen.step("ingest", "tailrace ingest postgres --dsn … --follow")
        running.append(await processes.start(*command, "--follow"))
        guards = [tasks.create_task(_guard(each)) for each in running]
        await _until(lambda: _published(log) > 0, "the ingest published nothing")
        first = _published(log)
        screen.step("ingest", f"has published a snapshot in {first:,} versions")
        # 2. The subscriber shows what happens from now on.
        watch = await processes.start(
            "watch", CATALOG, "--server", server.grpc, "--since", first + 1
        )
        running.append(watch)
        guards.append(tasks.create_task(_guard(watch)))
        showing = tasks.create_task(_show(watch, screen))
        async for statement in database.work():
            screen.step("database", statement)
        # 3. Compare.
        expected = await asyncio.to_thread(database.rows)
        await _until(lambda: _rows(log) == expected, "the catalog did not become equal")
        screen.step(
            "demo",
            f"the catalog has the {len(expected):,} rows of the database, after "
            f"{_published(log) - first:,} live transactions",
            "bold green",
        )
        if stay:
            screen.addresses("the server goes on, until Ctrl-C; look at", server.places())
            await asyncio.get_running_loop().create_future()
        for guard in (*guards, showing):
            guard.cancel()
    for each in reversed(running):
        await stop(each, signal.SIGINT if each is watch else signal.SIGTERM)


async def _guard(process: Process) -> None:
    """Read a process's stderr until it ends, which is an error."""
    assert process.stderr is not None
    last = b""
    async for line in process.stderr:
        last = line
    raise DemoFailed(f"a process ended with status {await process.wait()}: {last.decode().strip()}")


async def _show(watch: Process, screen: Screen) -> None:
    assert watch.stdout is not None
    async for line in watch.stdout:
        screen.step("subscriber", line.decode().rstrip(), "cyan")


async def _until(condition: Callable[[], bool], fault: str) -> None:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - other processes
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise DemoFailed(f"{fault} within {_PATIENCE_S:g} s") from None


def _published(log: Path) -> int:
    try:
        return open_catalog(log, CATALOG).state.published
    except (OSError, TailraceError):  # the ingest has not made it yet
        return 0


def _rows(log: Path) -> dict[tuple[str, str], Any]:
    """Return the newest rows of the catalog."""
    rows: dict[tuple[str, str], Any] = {}
    for each in read_log(log / CATALOG).rows:
        if each.entity_type is None or each.primary_key is None:
            continue
        if each.after is None:
            rows.pop((each.entity_type, each.primary_key), None)
        else:
            rows[each.entity_type, each.primary_key] = json.loads(each.after)
    return rows


class _Database:
    """A PostgreSQL server in a temporary folder."""

    def __init__(self, folder: Path, process: Process, dsn: str) -> None:
        self.dsn = dsn
        self.version = ""
        self._folder = folder
        self._process = process

    @classmethod
    async def start(cls, processes: Processes) -> _Database:
        """Make and start a server on a free port, with tables.

        Raises:
            DemoFailed: PostgreSQL is not installed, or does not start.
        """
        binary, folder, port, user = await asyncio.to_thread(_made)
        process = await processes.start_program(
            *(binary, "-D", folder / "data", "-c", "wal_level=logical", "-c", f"port={port}"),
            *("-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}"),
            **user,
        )
        database = cls(folder, process, f"postgresql://postgres@127.0.0.1:{port}/postgres")
        await _until(database._is_ready, "PostgreSQL did not start")
        return database

    def _is_ready(self) -> bool:
        try:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                self.version = f"PostgreSQL {connection.info.server_version // 10_000}"
                for each in _SETUP:
                    connection.execute(each.encode())
        except psycopg.OperationalError:
            return False
        return True

    async def work(self) -> AsyncIterator[str]:
        """Run transactions; yield a text about each after its commit."""
        chosen = random.Random(7)
        connection = await psycopg.AsyncConnection.connect(self.dsn)
        async with connection:
            for number in range(_TRANSACTIONS):
                product, pieces = chosen.randint(1, _PRODUCTS), chosen.randint(1, 5)
                async with connection.transaction():
                    if number % 10 == 9:
                        await connection.execute("DELETE FROM product WHERE id = %s", (product,))
                        text = f"DELETE product {product}"
                    else:
                        await connection.execute(
                            "INSERT INTO purchase (product, pieces, at) VALUES (%s, %s, now())",
                            (product, pieces),
                        )
                        await connection.execute(
                            "UPDATE product SET stock = stock - %s WHERE id = %s",
                            (pieces, product),
                        )
                        text = f"INSERT purchase, UPDATE product {product}"
                yield text
                await asyncio.sleep(_PAUSE_S)

    def rows(self) -> dict[tuple[str, str], Any]:
        """Return all rows of the tables, in the form of the catalog."""
        found = {}
        with psycopg.connect(self.dsn) as connection:
            connection.execute("SET timezone = 'UTC'")
            for table, columns in _COLUMNS.items():
                for (row,) in connection.execute(_ROWS.format(columns, table).encode()):
                    found[table, str(row["id"])] = row
        return found

    async def stop(self) -> None:
        """Stop the server, and remove its folder."""
        await stop(self._process, signal.SIGINT)
        shutil.rmtree(self._folder, ignore_errors=True)


def _made() -> tuple[str, Path, int, dict[str, Any]]:
    """Make the files of a server; return its program, folder and port, and options of its processes."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    binary = str(found[-1]) if found else shutil.which("postgres")
    if binary is None:
        raise DemoFailed("PostgreSQL is not installed: apt-get install postgresql")
    binaries = Path(binary).resolve().parent
    # Its user must be able to enter the folder, and it must not run as root.
    folder = Path("/tmp") / f"tailrace-postgres-{os.getpid()}"
    folder.mkdir(mode=0o700)
    user: dict[str, Any] = {"cwd": "/tmp"}
    if not os.geteuid():
        shutil.chown(folder, "postgres", "postgres")
        user |= {"user": "postgres", "group": "postgres", "extra_groups": []}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    make = ("initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-N")
    subprocess.run([binaries / make[0], *make[1:]], check=True, stdout=subprocess.DEVNULL, **user)
    return binary, folder, port, user
