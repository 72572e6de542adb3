"""The changes of an entity type as they are to one of its views: ``CHANGES('view', from, to)``.

A row that enters is an insert and one that leaves is gone, as in a subscription by the view's name; without the
images that are outside of it and the columns that it does not show. A caller with a grant of some rows sees
rows enter and leave these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace_server.sql.shown import ChangesShown, refuse_hidden
from tailrace_server.sql.view_changes import ViewChanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from tailrace.schema import Column, Schema
    from tailrace_server.sql.shown import ShownRows
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.files.sequence_documents import ViewDocument
    from tailrace_server.wal.segment.reader import BatchHead
    from tailrace_server.wal.state.entity_names import EntityNames
    from tailrace_server.wal.state.view import LogView

OF_VIEW: Final = "tailrace.changes_of_view"
"""Under this key the place in a statement that reads changes carries the view whose they are."""


class ChangesOfView:
    """The visible part of one entity type in the changes of a view; for one scan."""

    judges = True
    """Changes are shown by the values of their rows."""

    def __init__(
        self,
        view: LogView,
        names: EntityNames,
        schema: Schema,
        asked: ViewDocument,
        granted: ShownRows | None,
    ) -> None:
        """Prepare the conditions.

        Args:
            view: The log.
            names: The entity type.
            schema: Whose names the columns have.
            asked: The view; it has all of its columns.
            granted: What may be read of the entity type; None: all of it.
        """
        self._view, self._names, self._asked, self._granted = view, names, asked, granted
        self._changes = ViewChanges(view, names, schema, asked)
        self._columns = {each.id: each.name for each in names.columns_in(schema)}
        """Id of each column → its name in the log."""

    def columns(self, columns: Iterable[Column]) -> tuple[Column, ...]:
        """Return those of some columns that the view has."""
        if self._granted is not None:
            columns = self._granted.columns(columns)
        shown = self._changes.columns
        return tuple(each for each in columns if not shown or each.id in shown)

    def named(self, columns: Iterable[Column]) -> tuple[Column, ...]:
        """Return those of some columns that the view has, under its names for them."""
        shown = self._changes.columns
        if not shown:
            return tuple(columns)
        return tuple(replace(each, name=shown[each.id]) for each in columns if each.id in shown)

    def state(self, rows: StateRows) -> StateRows:
        """Return rows of a state as they are granted; whose they are in a view is asked in SQL."""
        return rows if self._granted is None else self._granted.state(rows)

    def changes(self, head: BatchHead, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of some records that are granted."""
        return rows if self._granted is None else self._granted.changes(head, rows)

    def hidden(self, column: str, keys: pa.StringArray) -> pa.BooleanArray | None:
        """Return in which rows a column of the view is hidden."""
        if self._granted is None:
            return None
        ids = {name: id for id, name in self._changes.columns.items()}
        return self._granted.hidden(self._columns[ids[column]] if ids else column, keys)

    def judged(
        self, head: BatchHead, rows: NDArray[np.int64], bodies: Mapping[str, pa.BinaryArray]
    ) -> ChangesShown:
        """Return a batch as some of its records are to the view.

        Raises:
            InvalidRequest: The log does not say whether the row of one of them was in.
        """
        operations = head.operations  # as the log has them
        if self._granted is not None and self._granted.judges:
            head, bodies, rows = self._granted.judged(head, rows, bodies)
        # 1. Before a value is looked at: what is wrong with one that is hidden would tell it.
        if self._granted is not None:
            asked = [self._columns[each] for each in self._changes.asked]
            keys = head.primary_keys.take(pa.array(rows))
            refuse_hidden(self._granted, asked, keys, self._asked.name)
        was, is_in = np.zeros((2, len(head.versions)), np.bool_)
        was[rows], is_in[rows] = self._changes.judged(head, rows, bodies, operations)
        # 2. What enters has no row before and nothing that changed; what leaves is removed.
        enters, leaves = is_in & ~was, was & ~is_in
        shown = head.operations.copy()
        shown[leaves & (shown == Operation.UPSERT)] = Operation.REMOVE
        names = head.names.without(enters)
        outside = {"before": ~was, "after": ~is_in}
        images = {
            name: pc.if_else(pa.array(~outside[name]), body, pa.scalar(None, body.type))
            if name in outside
            else body
            for name, body in bodies.items()
        }
        # 3. An update of other columns alone is none of the view's. A truncate ends its rows as well.
        truncates = head.key_hashes[rows] == 0
        kept = rows[was[rows] | is_in[rows] | truncates]
        stays = kept[was[kept] & is_in[kept]]
        gone = stays[~self._concern(head, stays)]
        kept = np.setdiff1d(kept, gone, assume_unique=True) if len(gone) else kept
        return ChangesShown(replace(head, operations=shown, names=names), images, kept)

    def _concern(self, head: BatchHead, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of some updates changed a column of the view, or do not say what they changed."""
        if not self._changes.columns:
            return np.ones(len(rows), np.bool_)
        schemas, which = self._view.schemas_of(head.versions[rows])
        mine = [
            {
                each.name
                for each in self._names.columns_in(schema)
                if each.id in self._changes.columns
            }
            for schema in schemas
        ]
        changed = head.names.values(tuple(rows.tolist()))
        found = [
            not names or not mine[place].isdisjoint(names)
            for names, place in zip(changed, which.tolist(), strict=True)
        ]
        return np.array(found, np.bool_)
