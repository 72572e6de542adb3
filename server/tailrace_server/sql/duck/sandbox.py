"""A DuckDB that can compute, and do nothing else: no files, no network, no extensions, no other settings.

Nothing of ours is imported here: a process that computes statements begins with it, and should begin soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import duckdb

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

_BATCH_ROWS: Final = 2_048
"""Of an answer: what DuckDB computes at once, so that the first rows wait for no others."""
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


class LockedDatabase:
    """An empty database in memory, with the only connection to it. Statements have it one after the other."""

    def __init__(self, memory_bytes: int, threads: int) -> None:
        """Open it.

        Args:
            memory_bytes: What sorts, groups and joins may take. The result of one function call is not counted.
            threads: How many it may use.
        """
        self.connection = _opened(memory_bytes, threads)
        self._aliases: list[str] = []

    def begin(self) -> None:
        """Let a statement have it."""
        # now() is the start of a transaction: all parts of a statement have the same.
        self.connection.execute("BEGIN TRANSACTION")

    def register(self, alias: str, reader: pa.RecordBatchReader) -> None:
        """Add a table, whose batches are read as they are needed."""
        self.connection.register(alias, reader)
        self._aliases.append(alias)

    def run(self, text: str, values: Mapping[str, object] | None) -> pa.RecordBatchReader:
        """Return an answer, which is computed as it is read.

        Raises:
            duckdb.Error: The statement is wrong, or takes too much; while the answer is read, too.
        """
        found = self.connection.sql(text, params=values)
        reader: pa.RecordBatchReader = found.to_arrow_reader(_BATCH_ROWS)
        return reader

    def empty(self) -> None:
        """Take back all that a statement did: the next one finds nothing of it."""
        # First, as what failed has stopped the transaction; it takes the tables with it, not their readers.
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
    # What is computed ahead of whoever reads the answer: its first rows come soon, and little is kept.
    connection.execute("SET streaming_buffer_size = '256KiB'")
    connection.execute("SET lock_configuration = true")
    return connection
