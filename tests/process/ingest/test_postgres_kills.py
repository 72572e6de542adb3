"""The ingest of PostgreSQL is killed, and so is the server: the catalog still has each transaction once."""

from __future__ import annotations

import random
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tailrace.criteria import Area
from tailrace_server.wal.state.commit_log import CommitLog
from tests.process.ingest.killable import Killable, end
from tests.process.ingest.postgres_server import Postgres, postgres
from tests.process.ingest.reading import records
from tests.process.ingest.test_postgres import state_of
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

TABLES = ("account", "ledger")


class Writer:
    """Writes random transactions until the block ends; each adds one row to the ledger."""

    def __init__(self, server: Postgres, seed: int, database: str = "postgres") -> None:
        self._server = server
        self._database = database
        self._random = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.written = 0

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def wait_for_more(self, transactions: int) -> None:
        """Wait until it has written some more transactions."""
        target = self.written + transactions
        wait_until(lambda: self.written >= target)

    def _run(self) -> None:
        while not self._stopping.is_set():
            # The server is killed at times; whether the last transaction was committed is then unknown.
            with (
                suppress(psycopg.OperationalError),
                psycopg.connect(self._server.dsn(self._database)) as connection,
            ):
                while not self._stopping.is_set():
                    self._write(connection)
                    self._stopping.wait(0.004)  # slower than the ingest on a busy machine
            self._stopping.wait(0.02)

    def _write(self, connection: psycopg.Connection) -> None:
        rolls = self._random
        with connection.transaction():
            connection.execute("INSERT INTO ledger (note) VALUES (%s)", ("n" * rolls.randrange(9),))
            for _ in range(rolls.randrange(4)):
                key, value = rolls.randrange(60), rolls.randrange(1_000)
                statement: Any = rolls.choice(
                    (
                        "INSERT INTO account VALUES (%(key)s, %(value)s, repeat('b', 5000)) "
                        "ON CONFLICT (id) DO UPDATE SET balance = %(value)s",
                        "UPDATE account SET balance = %(value)s WHERE id = %(key)s",
                        "DELETE FROM account WHERE id = %(key)s",
                        "UPDATE account SET id = id + 100 WHERE id = %(key)s AND NOT EXISTS "
                        "(SELECT 1 FROM account WHERE id = %(key)s + 100)",
                    )
                )
                connection.execute(statement, {"key": key, "value": value})
        self.written += 1


def test_each_transaction_is_in_the_catalog_once_whatever_is_killed(tmp_path: Path) -> None:
    """Kills within the snapshot, around commits and confirmations, of the server, and of both."""
    chosen = random.Random(7)
    with postgres() as server:
        command = Killable(
            *(tmp_path, "tailrace_server", "ingest", "postgres", "--dsn", server.dsn()),
            *("--log", tmp_path, "--catalog", "shop", "--slot", "shop", "--batch-rows", 5_000),
            *("--table", "account", "--table", "ledger", "--follow"),
        )
        server.execute(
            "CREATE TABLE account (id int PRIMARY KEY, balance int, body text)",
            "ALTER TABLE account ALTER body SET STORAGE EXTERNAL",
            "CREATE TABLE ledger (n serial PRIMARY KEY, note text)",
            "INSERT INTO account SELECT i, 0, repeat('a', 3000) FROM generate_series(1, 40) i",
            "INSERT INTO ledger (note) SELECT 'old' FROM generate_series(1, 25000)",
        )
        with Writer(server, seed=3) as writer:
            for place in (
                "feed.after_commit=kill@2",
                "feed.before_commit=kill@3",
                "feed.after_commit=kill@9",
                "feed.before_acknowledge=kill@3",
            ):
                process = command.start(place)
                try:
                    assert process.wait(60) == -signal.SIGKILL, command.said()
                finally:
                    end(process)
            for victims in ("server", "ingest", "both"):
                process = command.start()
                try:
                    wait_until(lambda: _is_followed(server))
                    writer.wait_for_more(chosen.randrange(5, 60))
                    if victims in ("server", "both"):
                        server.kill()
                    if victims in ("ingest", "both"):
                        process.kill()
                    if victims != "ingest":
                        server.start()
                    if victims == "server":
                        wait_until(lambda: _is_followed(server))
                        writer.wait_for_more(5)
                finally:
                    end(process)
        # The server shuts down although the ingest follows it: all that it has sent is confirmed.
        process = command.start()
        try:
            wait_until(lambda: _is_followed(server))
            server.stop()
            server.start()
            [(last,)] = server.execute("SELECT max(n) FROM ledger")
            wait_until(lambda: _newest(tmp_path) == last)
            process.terminate()
            assert process.wait(30) == 128 + signal.SIGTERM
        finally:
            end(process)
        rows = {table: server.execute(f"SELECT to_jsonb(t) FROM {table} t") for table in TABLES}
    found = [each for each in records(tmp_path / "shop") if each.area == Area.DATA]
    expected = {
        (table, str(row["id" if table == "account" else "n"])): row
        for table, each in rows.items()
        for (row,) in each
    }
    assert state_of(found) == expected
    ledger = [each.primary_key for each in found if each.entity_type == "ledger"]
    assert len(ledger) == len({*ledger}) == len(rows["ledger"])


def _is_followed(server: Postgres) -> bool:
    with suppress(psycopg.OperationalError):
        return bool(server.execute("SELECT 1 FROM pg_stat_replication"))
    return False


def _newest(root: Path) -> int:
    log = CommitLog.open(root / "shop")
    found = [
        each for each in records(log.path) if each.entity_type == "ledger" and each.primary_key
    ]
    return max((int(each.primary_key or 0) for each in found), default=0)
