"""The part of a log that a caller may read: the one module that applies grants to statements.

To a caller a hidden thing does not exist: a hidden entity type is an unknown table, and a hidden column is an
unknown column. Errors and hints name neither. If a value is visible in some rows only, it is removed from the
other rows before DuckDB sees them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Column, Schema
    from tailrace_server.filters.tree import Condition
    from tailrace_server.rows.judging import Right
    from tailrace_server.wal.files.sequence_documents import ViewDocument
    from tailrace_server.wal.segment.reader import BatchHead
    from tailrace_server.wal.state.view import LogView

OF_VIEW: Final = "tailrace.changes_of_view"
"""Key in a node's ``meta``, at a place that reads changes: the view whose changes these are."""
THROUGH: Final = "tailrace.through_view"
"""Key in a node's ``meta``, at a place that reads an entity type: the name of the view written there."""
ROWS_MET: Final = "tailrace.rows_met"
"""Key in a node's ``meta``, at a place that reads a state: the condition of the view written there."""
ROW_TIMESTAMP: Final = "PHOENIX_ROW_TIMESTAMP()"
"""Name of the first column of a change table: the commit time of the change."""
SHOWN: Final = "tailrace.shown_changes"
"""Key in a node's ``meta``, at a place that reads changes: the form in which a change table returns them."""
CDC_JSON: Final = "CDC JSON"
"""Name of the last column of a change table: the change as JSON."""


class RowsMet(NamedTuple):
    """The condition of a view, at one place in a statement."""

    view: str
    """The view's name, for errors."""
    condition: Condition
    """The condition, with the column names of the version that is read."""


class ShownRows(Protocol):
    """The visible part of one entity type; threads may share it."""

    @property
    def rights(self) -> Sequence[Right]:
        """The rights that grant rows of the entity type, at least one."""

    def columns(self, columns: Iterable[Column]) -> tuple[Column, ...]:
        """Return the columns, among the given ones, that are visible in at least one row."""

    def granted_names(self, head: BatchHead, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the records, among the given ones, that were written under a granted name of the entity type.

        Raises:
            NotPermitted: A record has a former name of the entity type that has another grant.
        """

    def hidden(self, column: str, keys: pa.StringArray) -> pa.BooleanArray | None:
        """Return a mask of the rows in which a column is hidden; None if no row hides the column.

        Args:
            column: The name of a column that is visible in at least one row.
            keys: The primary keys of the rows.
        """


class ViewShown(NamedTuple):
    """The visible part of a view that is granted by its own name, and not through its entity type."""

    document: ViewDocument
    """The definition of the view, with its columns. The rows are chosen by ``tables``."""
    tables: ShownTables
    """The part of the entity type that is visible through the view."""
    schema_of: Callable[[int], Schema]
    """Returns the part of a version's schema that can be looked up through the view."""
    ids: frozenset[int] | None
    """The ids of the visible columns; None: all columns, also future ones."""

    def columns(self, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        """Return the columns, among the given ones of the entity type, that the view shows."""
        return (
            columns if self.ids is None else (*(each for each in columns if each.id in self.ids),)
        )


class ShownTables(Protocol):
    """The visible part of a log; threads may share it."""

    def schema(self, schema: Schema) -> Schema:
        """Return a schema without the entity types and columns that are hidden in every row."""

    def rows(
        self, entity_type: str, view: LogView, version: int, *, changes: bool
    ) -> ShownRows | None:
        """Return the visible part of an entity type; None if all of it is visible.

        Args:
            entity_type: The name of an entity type that is not hidden.
            view: The log.
            version: The version of the state, or the last version of the changes, that is read.
            changes: True if changes are read; False for a state.

        Raises:
            NotPermitted: The granted rows cannot be distinguished from the others.
        """

    def view(self, document: ViewDocument, view: LogView) -> ViewShown | None:
        """Return what grants on a view itself make visible; None: the grants of its entity type apply."""


def hidden_in(
    shown: ShownRows,
    columns: Iterable[Column],
    keys: pa.StringArray,
    written: Sequence[Sequence[Column]],
    which: NDArray[np.int64],
) -> dict[str, pa.BooleanArray]:
    """Return masks of the rows that hide a column, by column name.

    Only columns that some row hides are included.

    Grants name columns as each version calls them. So each row is checked by the name that the column had when
    the row was written.

    Args:
        shown: The visible part of the entity type.
        columns: The columns.
        keys: The primary key of each row.
        written: The table's columns in each schema that rows were written with.
        which: For each row, the index of its schema in ``written``.
    """
    found = {}
    for column in columns:
        mask = np.zeros(len(keys), np.bool_)
        names = [_name_in(each, column) for each in written]
        # A grant may hide an old name of the column and show the new one: check each name on its own rows.
        for name in dict.fromkeys(names):
            hidden = shown.hidden(name, keys)
            if hidden is not None:
                mine = np.array([each == name for each in names], np.bool_)[which]
                mask |= mine & hidden.to_numpy(zero_copy_only=False)
        if mask.any():
            found[column.name] = pa.array(mask)
    return found


def _name_in(written: Sequence[Column], column: Column) -> str:
    """Return the name of a column in a schema; its present name if the schema does not have the column."""
    return next((each.name for each in written if each.id == column.id and each.id), column.name)


@dataclass(frozen=True, slots=True)
class ShownChanges:
    """The columns and images that a scan returns for a change table, in addition to positions and times."""

    table: str
    """The change table's name, for errors."""
    keys: tuple[str, ...]
    """Names of the key's columns; empty if they are unknown: the key is one text then."""
    images: tuple[str, ...]
    """The images in the JSON, some of ``ddl.IMAGES``."""
    names: frozenset[str]
    """Names of the columns that are read, in lower case."""
    view: ViewDocument | None = None
    """The view that the change table is on; None: it is on an entity type."""
    oldest_us: int = 0
    """Commit time, in µs, of the oldest change that it may return; 0: all changes that the log retains."""
    lookback_us: int = 0
    """The ``MAX_LOOKBACK`` of the change table's definition, in µs; 0: none."""
    salt_buckets: int = 1
    """The number of threads that read the log for the change table."""

    @property
    def has_json(self) -> bool:
        """True if the statement reads the JSON column."""
        return CDC_JSON.lower() in self.names
