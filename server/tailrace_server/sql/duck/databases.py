"""Databases that compute statements in this process: for who runs a statement of their own.

The result of one function call, as ``repeat('x', 1000000000)``, is not counted by DuckDB, and not interrupted.
A server has processes for that: `processes.py`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

import duckdb

from tailrace.errors import InvalidRequest, ServerFull
from tailrace_server.sql.duck.sandbox import LockedDatabase

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from tailrace.errors import TailraceError

_UNLIKE: Final = (
    "Cannot compare values of type",
    "No function matches the given name and argument types",
    "when casting from source column",
)
"""DuckDB's error for a value of another type than the statement takes it for."""
_UNLIKE_HINT: Final = (
    "; a column has the type that was declared for it, or that its values have, and DESCRIBE shows it: cast "
    "it, as price::DECIMAL(10,2), or declare it for the ingest (--schema)"
)
_LINES_MAX: Final = 3
_IDLE_MAX: Final = 2
"""Databases that are kept for the statements to come, a few MB each."""


class DatabaseGone(duckdb.Error):
    """The process that computed a statement has ended, and its caller did not end it. Another may be."""


class Database(Protocol):
    """An empty database, which one statement has for itself. Threads may take turns with it."""

    def begin(self) -> None:
        """Make it ready, before anything else is asked of it. ``interrupt`` ends that, too.

        Raises:
            duckdb.Error: It cannot be made ready.
            ServerFull: The machine has no room for another one.
        """

    def register(self, alias: str, reader: pa.RecordBatchReader) -> None:
        """Add a table, whose batches are read as they are needed."""

    def computed(self, text: str, values: Mapping[str, object] | None) -> Any:
        """Return the first value of an answer; None where it has no rows.

        Raises:
            duckdb.Error: The statement is wrong, or takes too much.
        """

    def run(self, text: str, values: Mapping[str, object] | None) -> pa.RecordBatchReader:
        """Return an answer, which is computed as it is read; raises as ``computed``, then too."""

    def interrupt(self) -> None:
        """End what is being computed; any thread may call it, and again."""

    def give_back(self, *, is_clean: bool) -> None:
        """Let others have it, if its answer was read to the end; else it is not used again."""


class Databases(Protocol):
    """The source of databases for statements. Any thread may call it."""

    def take(self, memory_bytes: int, threads: int) -> Database:
        """Return a database for one caller, which has to ``begin`` it.

        Args:
            memory_bytes: What a statement may take; nothing is put into files, so it ends there.
            threads: How many it may use.

        Raises:
            ServerFull: The machine has no room for another one.
        """


class DatabasesHere:
    """Databases in this process, one for each statement at work; a few idle ones.

    To begin one takes 20 ms, longer than to look a key up. A statement changes nothing in it but by a
    transaction that is rolled back, so the next one finds it empty.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._idle: list[_DatabaseHere] = []

    def take(self, memory_bytes: int, threads: int) -> Database:
        """Return one, as the Protocol says."""
        with self._lock:
            for place, each in enumerate(self._idle):
                if each.bounds == (memory_bytes, threads):
                    found = self._idle.pop(place)
                    break
            else:
                found = None
        return found or _DatabaseHere(self, memory_bytes, threads)

    def put(self, database: _DatabaseHere) -> None:
        """Keep a database that is empty, in place of one that has waited for longer."""
        with self._lock:
            self._idle.append(database)
            surplus = self._idle.pop(0) if len(self._idle) > _IDLE_MAX else None
        if surplus is not None:
            surplus.close()


class _DatabaseHere:
    def __init__(self, home: DatabasesHere, memory_bytes: int, threads: int) -> None:
        self._home = home
        self.bounds = (memory_bytes, threads)
        self._database = LockedDatabase(memory_bytes, threads)
        self.begin = self._database.begin
        self.register = self._database.register
        self.run = self._database.run
        self.interrupt = self._database.connection.interrupt
        self.close = self._database.connection.close

    def computed(self, text: str, values: Mapping[str, object] | None) -> Any:
        rows = self._database.connection.execute(text, values).fetchall()
        return rows[0][0] if rows else None

    def give_back(self, *, is_clean: bool) -> None:
        if not is_clean:
            self.close()
            return
        self._database.empty()
        self._home.put(self)


HERE: Final = DatabasesHere()
"""Those of the process."""


def told(error: Exception) -> TailraceError:
    """Return what DuckDB or Arrow says of a statement, in one paragraph."""
    text = str(error)
    if isinstance(error, DatabaseGone):
        return ServerFull(f"{text}; ask again")
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory Error" in text:
        return InvalidRequest(
            "the statement needs more memory than it may have: read less, sort or group less at once, or raise "
            "the bound (sql_memory_bytes of a server, --memory of `tailrace sql`)"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = [line for line in lines if not line.startswith(("LINE ", "^"))][:_LINES_MAX]
    hint = _UNLIKE_HINT if any(each in text for each in _UNLIKE) else ""
    return InvalidRequest(" ".join(shown) + hint)
