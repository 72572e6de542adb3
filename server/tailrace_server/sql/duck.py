"""A DuckDB that can compute, and do nothing else: no files, no network, no extensions, no other settings."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import duckdb

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.errors import TailraceError

_LOCKED: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    # A name that is no table may not be looked for among the variables of our own code.
    "python_enable_replacements": "false",
    # What does not fit in memory is refused, not put into files.
    "max_temp_directory_size": "0KiB",
}
_INTERRUPTED: Final = "Query interrupted"
"""How DuckDB says that it has seen Ctrl-C, by an error that is none of its own."""
_LINES_MAX: Final = 3
_IDLE_MAX: Final = 2
"""Databases that are kept for the statements to come, a few MB each."""


@contextmanager
def heeding_ctrl_c() -> Iterator[None]:
    """Run DuckDB in the main thread; Ctrl-C is KeyboardInterrupt, as everywhere."""
    try:
        yield
    except RuntimeError as error:
        if str(error) == _INTERRUPTED:
            raise KeyboardInterrupt from None
        raise


class Databases:
    """Empty databases in memory, one for each statement at work; a few idle ones. Any thread may call it.

    To begin one takes 20 ms, longer than to look a key up. A statement changes nothing in it but by a
    transaction that is rolled back, so the next one finds it empty.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._idle: list[Database] = []

    def take(self, memory_bytes: int, threads: int) -> Database:
        """Return a database that nobody else has.

        Args:
            memory_bytes: What a statement may take; nothing is put into files, so it ends there.
            threads: How many it may use beside the one that asks.
        """
        with self._lock:
            for place, each in enumerate(self._idle):
                if (each.memory_bytes, each.threads) == (memory_bytes, threads):
                    return self._idle.pop(place)
        return Database(memory_bytes, threads, _opened(memory_bytes, threads))

    def give_back(self, database: Database) -> None:
        """Let others have a database, whose statement has ended well, in a transaction."""
        database.connection.execute("ROLLBACK")
        with self._lock:
            self._idle.append(database)
            surplus = self._idle.pop(0) if len(self._idle) > _IDLE_MAX else None
        if surplus is not None:
            surplus.connection.close()


@dataclass(frozen=True, slots=True, eq=False)
class Database:
    """An empty database, and what a statement in it may take."""

    memory_bytes: int
    threads: int
    connection: duckdb.DuckDBPyConnection
    """The only one to it."""


DATABASES: Final = Databases()
"""Those of the process."""


def _opened(memory_bytes: int, threads: int) -> duckdb.DuckDBPyConnection:
    config: dict[str, str | bool | int | float | list[str]] = {
        **_LOCKED,
        "memory_limit": f"{memory_bytes >> 10}KiB",
        "threads": str(threads),
    }
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("SET TimeZone = 'UTC'")
    # What is computed ahead of whoever reads the answer: its first rows come soon, and little is kept.
    connection.execute("SET streaming_buffer_size = '256KiB'")
    connection.execute("SET lock_configuration = true")
    return connection


def told(error: Exception) -> TailraceError:
    """Return what DuckDB or Arrow says of a statement, in one paragraph."""
    text = str(error)
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory Error" in text:
        return InvalidRequest(
            "the statement needs more memory than it may have: read less, sort or group less at once, or raise "
            "the bound"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = [line for line in lines if not line.startswith(("LINE ", "^"))][:_LINES_MAX]
    return InvalidRequest(" ".join(shown))
