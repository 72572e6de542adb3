"""Databases that compute statements in this process, for programs that run only their own statements.

DuckDB neither counts nor can interrupt the result of one function call, such as ``repeat('x', 1000000000)``. So
a server computes the statements of its callers in other processes: `processes.py`.
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
"""Texts in DuckDB's errors about a value whose type does not suit the statement."""
_UNLIKE_HINT: Final = (
    "; a column has the type that was declared for it, or that its values have, and DESCRIBE shows it: cast "
    "it, as price::DECIMAL(10,2), or declare it for the ingest (--schema)"
)
_LINES_MAX: Final = 3
_IDLE_MAX: Final = 2
"""The most idle databases that are kept for reuse; each takes a few MB."""


class DatabaseGone(duckdb.Error):
    """The process that computed a statement ended, and its caller did not end it. A retry may succeed."""


class Database(Protocol):
    """An empty database that one statement uses exclusively. Threads may take turns with it."""

    def begin(self) -> None:
        """Make the database ready; the first call of all. ``interrupt`` ends this call too.

        Raises:
            duckdb.Error: The database cannot be made ready.
            ServerFull: The machine has no room for another database.
        """

    def register(self, alias: str, reader: pa.RecordBatchReader) -> None:
        """Add a table whose batches are read when they are needed."""

    def computed(self, text: str, values: Mapping[str, object] | None) -> Any:
        """Return the first value of an answer; None if the answer has no rows.

        Raises:
            duckdb.Error: The statement is wrong, or needs too many resources.
        """

    def run(self, text: str, values: Mapping[str, object] | None) -> pa.RecordBatchReader:
        """Return an answer, which is computed while it is read.

        Raises:
            duckdb.Error: The statement is wrong, or needs too many resources. Reading the answer raises it too.
        """

    def interrupt(self) -> None:
        """Interrupt the running computation. Any thread may call this, also repeatedly."""

    def give_back(self, *, is_clean: bool) -> None:
        """Release the database.

        It is reused if its answer was read to the end (``is_clean``); otherwise it is closed.
        """


class Databases(Protocol):
    """A source of databases for statements. Any thread may call it."""

    def take(self, memory_bytes: int, threads: int) -> Database:
        """Return a database for one caller, which has to ``begin`` it.

        Args:
            memory_bytes: Memory for one statement. Nothing is written to files, so a statement that needs more
                fails.
            threads: The number of threads that it may use.

        Raises:
            ServerFull: The machine has no room for another database.
        """


class DatabasesHere:
    """Databases in this process: one for each running statement, and a few idle ones.

    To open a database takes 20 ms, longer than to look up a key. A statement changes a database only in a
    transaction, which is rolled back: the next statement finds it empty.
    """

    def __init__(self) -> None:
        """Start without databases."""
        self._lock = threading.Lock()
        self._idle: list[_DatabaseHere] = []

    def take(self, memory_bytes: int, threads: int) -> Database:
        """Return an idle database with the same bounds, or a new one."""
        with self._lock:
            for place, each in enumerate(self._idle):
                # Bounds are fixed when a database is opened, so only one with equal bounds can be reused.
                if each.bounds == (memory_bytes, threads):
                    found = self._idle.pop(place)
                    break
            else:
                found = None
        return found or _DatabaseHere(self, memory_bytes, threads)

    def put(self, database: _DatabaseHere) -> None:
        """Keep an empty database for reuse.

        Close the one that has been idle for longest if there are too many.
        """
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
        # Its answer was not read to the end, or an interrupt may still be pending.
        if not is_clean:
            self.close()
            return
        self._database.empty()
        self._home.put(self)


HERE: Final = DatabasesHere()
"""The databases of this process."""


def told(error: Exception) -> TailraceError:
    """Return the error to raise for an error of DuckDB or Arrow, with its text as one paragraph."""
    text = str(error)
    if isinstance(error, DatabaseGone):
        return ServerFull(f"{text}; try again")
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory Error" in text:
        return InvalidRequest(
            "the statement needs more memory than its limit: read less, sort or group less at once, or raise "
            "the limit (sql_memory_bytes of a server, --memory of `tailrace sql`)"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = [line for line in lines if not line.startswith(("LINE ", "^"))][:_LINES_MAX]
    hint = _UNLIKE_HINT if any(each in text for each in _UNLIKE) else ""
    return InvalidRequest(" ".join(shown) + hint)
