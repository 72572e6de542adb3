"""Real databases and Debezium's connectors, each a process that a test starts and ends."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from abc import abstractmethod
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tests.support.polling import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT: Final = Path(__file__).parents[3]
PACKAGES: Final = ROOT / ".venv" / "connector"
"""Debezium as `make connector` installs it, apart from the other packages as it is large."""
_PROGRAM: Final = Path(__file__).with_name("connector_program.py")


class Database:
    """A database server with data of its own, on a free port, and the properties of its connector."""

    kind: ClassVar[str]
    user: ClassVar[str]
    """The system user that runs the server if the test runs as root."""
    end: ClassVar[signal.Signals]
    """The signal that ends the server at once, with its children and its shared memory."""
    properties: ClassVar[dict[str, str]]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = 0

    @abstractmethod
    def prepare(self) -> list[str]:
        """Create an empty database; return the command that serves it."""

    @abstractmethod
    def client(self) -> list[str]:
        """Return the command that runs the statements of its standard input and prints their rows."""

    def run(self, statements: str) -> list[list[str]]:
        """Run statements; return the rows of their results."""
        done = subprocess.run(
            self.client(), input=statements, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr
        return [line.split("\t") for line in done.stdout.splitlines()]

    def is_ready(self) -> bool:
        """Return True if the server takes statements."""
        done = subprocess.run(self.client(), input="SELECT 1", capture_output=True, text=True)
        return done.returncode == 0

    def as_user(self) -> dict[str, Any]:
        """Return the arguments that start a process as the server's user, if the test runs as root."""
        if os.geteuid():
            return {}
        entry = pwd.getpwnam(self.user)
        # Only root may write to the tests' folder for temporary files.
        env = os.environ | {"TMPDIR": str(self.folder)}
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "env": env}


class PostgreSQL(Database):
    """PostgreSQL of Debian, which refuses to run as root."""

    kind = "postgresql"
    user = "postgres"
    end = signal.SIGQUIT
    properties: ClassVar = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.user": "postgres",
        "database.password": "none",
        "database.dbname": "postgres",
        "plugin.name": "pgoutput",
        "table.include.list": "public.*",
    }

    def prepare(self) -> list[str]:
        binaries = _binaries_of_postgres()
        make = [
            str(binaries / "initdb"),
            "-D",
            str(self.data),
            "-U",
            "postgres",
            "-A",
            "trust",
            "-N",
        ]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, **self.as_user())
        given = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "wal_level": "logical",
            "fsync": "off",
            "dynamic_shared_memory_type": "mmap",  # in its folder, not in /dev/shm, when it is killed
        }
        settings = [f"--{name}={value}" for name, value in given.items()]
        return [str(binaries / "postgres"), "-D", str(self.data), *settings]

    def client(self) -> list[str]:
        where = ["-h", str(self.folder), "-p", str(self.port), "-U", "postgres"]
        return ["psql", "-X", "-q", "-t", "-A", "-F", "\t", "-v", "ON_ERROR_STOP=1", *where]


class MariaDB(Database):
    """MariaDB of Debian, read by the connector for MySQL.

    For versions above 8 the connector uses statements that MariaDB does not have. So this server reports an
    older version.
    """

    kind = "mysql"
    user = "mysql"
    end = signal.SIGKILL
    properties: ClassVar = {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.user": "reader",
        "database.password": "reader",
        "database.server.id": "5401",
        "database.include.list": "shop",
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
    }

    def prepare(self) -> list[str]:
        data = f"--datadir={self.data}"
        make = ["mariadb-install-db", "--no-defaults", data, "--skip-test-db"]
        make += ["--auth-root-authentication-method=normal"]
        done = subprocess.run(make, capture_output=True, text=True, **self.as_user())
        assert done.returncode == 0, done.stdout + done.stderr
        given = {
            "version": "5.7.19-log",
            "socket": self.folder / "socket",
            "pid-file": self.folder / "pid",
            "port": self.port,
            "bind-address": "127.0.0.1",
            "log-bin": "binlog",
            "server-id": 1,
            "binlog-format": "ROW",
            "innodb-flush-log-at-trx-commit": 0,
        }
        settings = [f"--{name}={value}" for name, value in given.items()]
        server = shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert server, "apt-get install mariadb-server"
        return [server, "--no-defaults", data, *settings]

    def client(self) -> list[str]:
        where = ["-S", str(self.folder / "socket"), "-u", "root"]
        return ["mariadb", "--no-defaults", "--batch", "--skip-column-names", *where]


def _binaries_of_postgres() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    path = str(found[-1]) if found else shutil.which("postgres")
    assert path, "apt-get install postgresql"
    return Path(path).resolve().parent


@contextmanager
def served(kind: type[Database]) -> Iterator[Database]:
    """Run a server until the block ends.

    The server's user cannot enter the folders of pytest, so this folder is another.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        database = kind(folder)
        if not os.geteuid():
            shutil.chown(folder, database.user, database.user)
        database.port = free_port()
        output = stack.enter_context((folder / "output").open("wb"))
        process = subprocess.Popen(
            database.prepare(), stdout=output, stderr=output, **database.as_user()
        )
        try:
            wait_until(lambda: database.is_ready() or process.poll() is not None)
            assert process.poll() is None, (folder / "output").read_text()
            yield database
        finally:
            process.send_signal(database.end)
            process.wait()


def free_port() -> int:
    """Return a port that nobody listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Connector:
    """Debezium's connector of a database; each run continues where the last one ended."""

    def __init__(self, database: Database, folder: Path, into: Path, **more: str) -> None:
        self._into = into
        self._output = folder / "connector.log"
        self._properties = folder / "connector.json"
        self._offsets = folder / "offsets"
        properties = {
            "name": "connector",
            "topic.prefix": "shop",
            "database.hostname": "127.0.0.1",
            "database.port": str(database.port),
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(self._offsets),
            "offset.flush.interval.ms": "0",
            "schema.history.internal.file.filename": str(folder / "history"),
            "provide.transaction.metadata": "true",
            "skipped.operations": "none",
            "poll.interval.ms": "10",
            **database.properties,
            **more,
        }
        self._properties.write_text(json.dumps(properties))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it until the block ends."""
        assert PACKAGES.is_dir(), "make connector"
        command = [sys.executable, str(_PROGRAM), str(self._properties), str(self._into)]
        with self._output.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=os.environ | {"PYTHONPATH": str(PACKAGES)},
                cwd=self._into.parent,
            )
        self._process = process
        try:
            yield
        finally:
            process.communicate(timeout=PATIENCE_S)

    def kill(self) -> None:
        """Kill the connector, so that its next run repeats messages.

        It empties its file of offsets and then writes it anew: a kill in between would lose its place.
        """

        def is_whole() -> bool:
            self._process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # until then it may still write
            if self._offsets.stat().st_size:
                return True
            self._process.send_signal(signal.SIGCONT)
            return False

        self._wait_until(is_whole)
        self._process.kill()

    def wait_for(self, text: str) -> None:
        """Wait until a file of messages contains a text."""
        self._wait_until(
            lambda: any(text in file.read_text() for file in self._into.glob("[!.]*.json"))
        )

    def wait_for_offset(self, text: str) -> None:
        """Wait until the offset at which the next run continues contains a text."""
        self._wait_until(
            lambda: self._offsets.exists() and text.encode() in self._offsets.read_bytes()
        )

    def _wait_until(self, has_come: Callable[[], bool]) -> None:
        def is_done() -> bool:
            assert self._process.poll() is None, self._output.read_text()[-4000:]
            return has_come()

        wait_until(is_done)
