"""A PostgreSQL server that a test kills and starts again."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from os import geteuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg

from tests.process.ingest.connectors import PostgreSQL, free_port
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Postgres(PostgreSQL):
    """The server; its superuser is postgres."""

    def __init__(self, folder: Path, copied: Postgres | None = None) -> None:
        """Make the server in a folder; with ``copied`` as a standby of another server."""
        super().__init__(folder)
        self.port = free_port()
        if copied is None:
            self._command = self.prepare()
        else:
            program = str(Path(copied._command[0]).with_name("pg_basebackup"))
            where = ["-h", "127.0.0.1", "-p", str(copied.port), "-U", "postgres"]
            copy = [program, "-D", str(self.data), *where, "-R", "-c", "fast"]
            subprocess.run(copy, check=True, **self.as_user())
            given = {"port": self.port, "unix_socket_directories": folder}
            own = [f"--{name}={value}" for name, value in given.items()]
            self._command = [copied._command[0], "-D", str(self.data), *copied._command[3:], *own]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **settings: str) -> None:
        """Start the server with further settings, and wait until it takes statements."""
        more = [f"--{name}={value}" for name, value in settings.items()]
        with (self.folder / "output").open("ab") as output:
            self._process = process = subprocess.Popen(
                [*self._command, *more], stdout=output, stderr=output, **self.as_user()
            )
        wait_until(lambda: self.is_ready() or process.poll() is not None)
        assert process.poll() is None, (self.folder / "output").read_text()

    def kill(self) -> None:
        """Kill the server and its children at once, as a crash of the machine would."""
        process, self._process = self._process, None
        if process is None:
            return
        family = [psutil.Process(process.pid)]
        family += family[0].children(recursive=True)
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()
        psutil.wait_procs(family, timeout=30)

    def stop(self) -> None:
        """Shut the server down, and wait for it; it ends sessions, and waits for replication."""
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(signal.SIGINT)
        process.wait(60)

    def dsn(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"host=127.0.0.1 port={self.port} user={user} dbname={database}"

    def execute(self, *statements: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run statements, each a transaction by itself; return the rows of the last."""
        rows: list[tuple[Any, ...]] = []
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            for each in statements:
                cursor = connection.execute(each.encode())
                rows = cursor.fetchall() if cursor.description else []
        return rows


@contextmanager
def postgres(copied: Postgres | None = None) -> Iterator[Postgres]:
    """Yield a server that runs, in a folder that its user can enter; a standby if ``copied``."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        if not geteuid():
            shutil.chown(folder, Postgres.user, Postgres.user)
        server = Postgres(folder, copied)
        server.start()
        try:
            yield server
        finally:
            server.kill()
