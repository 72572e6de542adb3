"""A DuckDB that can only compute: it has no files, no network, no extensions, and its settings are locked.

The module imports nothing of tailrace: a process that computes statements loads it first, and should start
fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import duckdb

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

_BATCH_ROWS: Final = 2_048
"""Rows in a batch of an answer: as many as DuckDB computes at once, so that the first rows come soon."""
_LOCKED: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    # Else DuckDB would look an unknown table name up among the Python variables of our code.
    "python_enable_replacements": "false",
    # A statement that does not fit in memory fails; nothing spills to files.
    "max_temp_directory_size": "0KiB",
}


class LockedDatabase:
    """An empty database in memory and its only connection. Statements use it one after the other."""

    def __init__(self, memory_bytes: int, threads: int) -> None:
        """Open the database.

        Args:
            memory_bytes: Memory for sorts, groups and joins. The result of one function call is not counted.
            threads: The number of threads that it may use.
        """
        self.connection = _opened(memory_bytes, threads)
        self._aliases: list[str] = []

    def begin(self) -> None:
        """Start the transaction of a statement."""
        # now() returns the start of the transaction, so it is the same in all queries of a statement.
        self.connection.execute("BEGIN TRANSACTION")

    def register(self, alias: str, reader: pa.RecordBatchReader) -> None:
        """Add a table whose batches are read when they are needed."""
        self.connection.register(alias, reader)
        self._aliases.append(alias)

    def run(self, text: str, values: Mapping[str, object] | None) -> pa.RecordBatchReader:
        """Return an answer, which is computed while it is read.

        Raises:
            duckdb.Error: The statement is wrong, or needs too many resources. Reading the answer raises it too.
        """
        found = self.connection.sql(text, params=values)
        reader: pa.RecordBatchReader = found.to_arrow_reader(_BATCH_ROWS)
        return reader

    def empty(self) -> None:
        """Undo everything that a statement did."""
        # Roll back first: after an error the transaction accepts nothing else. This removes the tables, but
        # not the readers that were registered.
        self.connection.execute("ROLLBACK")
        for alias in self._aliases:
            self.connection.unregister(alias)
        self._aliases.clear()


def _opened(memory_bytes: int, threads: int) -> duckdb.DuckDBPyConnection:
    config: dict[str, str | bool | int | float | list[str]] = {
        **_LOCKED,
        "memory_limit": f"{memory_bytes >> 10}KiB",
        "threads": str(threads),
    }
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("SET TimeZone = 'UTC'")
    # DuckDB computes this far ahead of the reader: a small buffer gives early first rows and saves memory.
    connection.execute("SET streaming_buffer_size = '256KiB'")
    connection.execute("SET lock_configuration = true")
    return connection
