"""What may be read of a log by whoever asks: the one place where grants come into a statement.

What is hidden is not there: a hidden entity type is an unknown table, a hidden column an unknown column, and
neither is among the names that errors and hints have. What is shown of some rows only is left out of the
others, before DuckDB sees them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.schema import Column, Schema
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.segment.reader import BatchHead
    from tailrace_server.wal.state.view import LogView


class ShownRows(Protocol):
    """What may be read of one entity type; threads may share it."""

    def columns(self, columns: Iterable[Column]) -> tuple[Column, ...]:
        """Return those of some columns that are shown of any row."""

    def state(self, rows: StateRows) -> StateRows:
        """Return those of some rows of a state that are shown."""

    def changes(self, head: BatchHead, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of some records of a batch that are shown."""

    def hidden(self, column: str, keys: pa.StringArray) -> pa.BooleanArray | None:
        """Return in which of the rows that have some keys a shown column is hidden; None: in none."""


class ShownTables(Protocol):
    """What may be read of a log; threads may share it."""

    def schema(self, schema: Schema) -> Schema:
        """Return a schema without what is hidden of every row."""

    def rows(
        self, entity_type: str, view: LogView, version: int, *, changes: bool
    ) -> ShownRows | None:
        """Return what is shown of an entity type that is not hidden; None: all of it.

        Args:
            entity_type: Its name.
            view: The log.
            version: Of the state, or the last one of the changes, that is read.
            changes: Whether changes are read, and not a state.

        Raises:
            NotPermitted: What is granted of its rows cannot be told from others.
        """
