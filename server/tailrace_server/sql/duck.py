"""A DuckDB that can compute, and do nothing else: no files, no network, no extensions, no other settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import duckdb

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
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
_LINES_MAX: Final = 3


def connect(memory_bytes: int, threads: int) -> duckdb.DuckDBPyConnection:
    """Return a connection to an empty database in memory.

    Args:
        memory_bytes: What a statement may take; nothing is put into files, so it ends there.
        threads: How many it may use beside the one that asks.
    """
    config: dict[str, str | bool | int | float | list[str]] = {
        **_LOCKED,
        "memory_limit": f"{memory_bytes >> 10}KiB",
        "threads": str(threads),
    }
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("SET TimeZone = 'UTC'")
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
