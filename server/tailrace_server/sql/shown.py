"""The part of a log that a caller may read: the one place where grants come into a statement.

Hidden things do not exist: a hidden entity type is an unknown table, a hidden column an unknown column, and
neither is among the names that errors and hints have. A value that is visible in some rows only is removed from
the others, before DuckDB sees them.
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
"""Under this key the place in a statement that reads changes carries the view whose they are."""
THROUGH: Final = "tailrace.through_view"
"""Under this key a place in a statement that reads an entity type carries the name of the view that it is."""
ROWS_MET: Final = "tailrace.rows_met"
"""Under this key a place in a statement that reads a state carries the condition of the view that it is."""
ROW_TIMESTAMP: Final = "PHOENIX_ROW_TIMESTAMP()"
"""Name of its first column: when the change was committed."""
SHOWN: Final = "tailrace.shown_changes"
"""Under this key the place in a statement that reads changes carries how a change table shows them."""
CDC_JSON: Final = "CDC JSON"
"""Name of its last column."""


class RowsMet(NamedTuple):
    """The condition of a view, at a place in a statement."""

    view: str
    """The view's name, for errors."""
    condition: Condition
    """By the names that the columns have at the version that is read."""


class ShownRows(Protocol):
    """The visible part of one entity type; threads may share it."""

    @property
    def rights(self) -> Sequence[Right]:
        """The rights to its rows, at least one."""

    def columns(self, columns: Iterable[Column]) -> tuple[Column, ...]:
        """Return those of some columns that are shown of any row."""

    def granted_names(self, head: BatchHead, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of some records that have a granted name of the entity type.

        Raises:
            NotPermitted: One has a former name that has another grant.
        """

    def hidden(self, column: str, keys: pa.StringArray) -> pa.BooleanArray | None:
        """Return in which of the rows that have some keys a shown column is hidden; None: in none."""


class ViewShown(NamedTuple):
    """A view as it is to who is granted it by its name."""

    document: ViewDocument
    """The columns; the rows are chosen by ``tables``."""
    tables: ShownTables
    """The part of its entity type that is visible through the view."""
    schema_of: Callable[[int], Schema]
    """Returns what may be looked up through the view in the schema of a version."""
    ids: frozenset[int] | None
    """The columns, by their ids; None: all, also those that come later."""

    def columns(self, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        """Return those of some columns of its entity type that it shows."""
        return (
            columns if self.ids is None else (*(each for each in columns if each.id in self.ids),)
        )


class ShownTables(Protocol):
    """The visible part of a log; threads may share it."""

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
            NotPermitted: Its granted rows cannot be distinguished from others.
        """

    def view(self, document: ViewDocument, view: LogView) -> ViewShown | None:
        """Return how a view is shown by grants that name it; None: it is shown as its entity type is."""


def hidden_in(
    shown: ShownRows,
    columns: Iterable[Column],
    keys: pa.StringArray,
    written: Sequence[Sequence[Column]],
    which: NDArray[np.int64],
) -> dict[str, pa.BooleanArray]:
    """Return, by the name of a column that some rows hide, the rows that hide it.

    Grants are of names as each version has them, so each row is looked at by its own name for the column.

    Args:
        shown: What may be read.
        columns: The columns.
        keys: The key of each row.
        written: The table's columns, in each schema that rows were written with.
        which: The place of each row's schema in ``written``.
    """
    found = {}
    for column in columns:
        mask = np.zeros(len(keys), np.bool_)
        names = [_name_in(each, column) for each in written]
        for name in dict.fromkeys(names):
            hidden = shown.hidden(name, keys)
            if hidden is not None:
                mine = np.array([each == name for each in names], np.bool_)[which]
                mask |= mine & hidden.to_numpy(zero_copy_only=False)
        if mask.any():
            found[column.name] = pa.array(mask)
    return found


def _name_in(written: Sequence[Column], column: Column) -> str:
    """Return the name of a column in a schema; its own where the schema does not have it."""
    return next((each.name for each in written if each.id == column.id and each.id), column.name)


@dataclass(frozen=True, slots=True)
class ShownChanges:
    """The form in which a scan gives the changes of a change table, beside place and time."""

    table: str
    """Its name, for errors."""
    keys: tuple[str, ...]
    """Names of the key's columns; empty where they are not known: then the key is a text."""
    images: tuple[str, ...]
    """Of its JSON, some of ``ddl.IMAGES``."""
    names: frozenset[str]
    """Columns that are read, in lower case."""
    view: ViewDocument | None = None
    """The view that it is on; None: an entity type."""
    oldest_us: int = 0
    """Time, µs, before which it has no changes; 0: it has all that the log keeps."""
    lookback_us: int = 0
    """The ``MAX_LOOKBACK`` of its definition, µs; 0: none."""
    salt_buckets: int = 1
    """Threads that read the log for it."""

    @property
    def has_json(self) -> bool:
        """True if the JSON is read."""
        return CDC_JSON.lower() in self.names
