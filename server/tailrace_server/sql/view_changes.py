"""The effect of a change on a view: its row enters, stays or leaves, by the row before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.filters.binding import bind
from tailrace_server.filters.parsing import parse
from tailrace_server.filters.truth import truth_of
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.typed.reader import ColumnReader, with_nulls
from tailrace_server.wal.schema.restating import first_stated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tailrace.schema import Schema
    from tailrace_server.wal.files.sequence_documents import ViewDocument
    from tailrace_server.wal.segment.reader import BatchHead
    from tailrace_server.wal.state.entity_names import EntityNames
    from tailrace_server.wal.state.view import LogView


class RowsInView(NamedTuple):
    """Whether the rows of some records are in a view, each of shape (records,)."""

    before: NDArray[np.bool_]
    after: NDArray[np.bool_]


class ViewChanges:
    """Judges the records of one entity type. Use it from one thread at a time."""

    def __init__(self, view: LogView, names: EntityNames, schema: Schema, asked: ViewDocument):
        """Prepare the conditions.

        Args:
            view: The log.
            names: The entity type.
            schema: The newest one.
            asked: The view; it has all of its columns.
        """
        self._view, self._names, self._asked = view, names, asked
        columns = view.schema_of(asked.version).columns(asked.entity_type)
        self.columns = {each.id: each.name for each in columns if each.name in asked.columns}
        """Id of each column that it shows → its name there; empty: all."""
        self.asked: frozenset[int] = frozenset()
        """Ids of the columns in its condition."""
        tree = parse(asked.where) if asked.where else None
        self._filter = None if tree is None else bind(tree, columns, {})
        if self._filter is not None:
            self.asked = frozenset(each.id for each in self._filter.columns)
        self._reader = ColumnReader(
            self._filter.columns if self._filter else (),
            stated=first_stated(view.schemas()),
            placeholders=schema.placeholders,
            on_misfit=OnMisfit.NULL,
        )

    def judged(
        self,
        head: BatchHead,
        rows: NDArray[np.int64],
        bodies: Mapping[str, pa.BinaryArray],
        operations: NDArray[np.uint8],
    ) -> RowsInView:
        """Return whether rows are in, before and after; a truncate is neither.

        Args:
            head: The head of a batch.
            rows: Records of it.
            bodies: Its bodies.
            operations: Of its records, as the log has them; a row that leaves what is granted was not removed.

        Raises:
            InvalidRequest: The log does not hold what has to be known.
        """
        places = pa.array(rows)
        before, after = (bodies[name].take(places) for name in ("before", "after"))
        keyed = head.primary_keys.take(places).is_valid().to_numpy(zero_copy_only=False)
        upsert = head.operations[rows] == Operation.UPSERT
        updated = head.changed.take(places).is_valid().to_numpy(zero_copy_only=False)
        for images, needed, which in (
            (before, keyed & (~upsert | updated), "before"),
            (after, keyed & upsert, "after"),
        ):
            missing = np.flatnonzero(needed & images.is_null().to_numpy(zero_copy_only=False))
            if len(missing) and self._filter is not None:
                raise self._refused(head, int(rows[missing[0]]), f"send the row {which}")
        was_there = keyed & (~upsert | updated)
        if self._filter is None:
            return RowsInView(was_there, keyed & upsert)
        # Of a removal perhaps the key alone was sent: NULL means nothing then, unless the log says otherwise.
        lacking = keyed & (operations[rows] == Operation.REMOVE) & ~self._whole(head, rows)
        was_in = self._truth(head, rows, before, was_there, lacking, "before")
        is_in = self._truth(head, rows, after, keyed & upsert, np.zeros_like(lacking), "after")
        return RowsInView(was_in, is_in)

    def _whole(self, head: BatchHead, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return those of some records whose image is known to be whole, if they are removals."""
        found = np.zeros(len(rows), np.bool_)
        codes, known = head.type_codes[rows], self._view.whole_removals
        for code in np.unique(codes).tolist():
            mine = codes == code
            found[mine] = known.of(head.entity_types[code], head.versions[rows[mine]])
        return found

    def _truth(
        self,
        head: BatchHead,
        rows: NDArray[np.int64],
        images: pa.BinaryArray,
        there: NDArray[np.bool_],
        lacking: NDArray[np.bool_],
        which: str,
    ) -> NDArray[np.bool_]:
        """Return which images meet the condition.

        Args:
            head: The head of a batch.
            rows: Records of it.
            images: One image of each.
            there: The records that have a row in this place.
            lacking: The records in whose image null means nothing.
            which: The image, for the error.

        Raises:
            InvalidRequest: The condition is undecided for one of them.
        """
        assert self._filter is not None
        schemas, which_schema = self._view.schemas_of(head.versions[rows])
        written = [*map(self._names.columns_in, schemas)]
        found = self._reader.read_mixed(images, written, which_schema)
        unknown = {
            name: values
            for name, array in zip(found.batch.schema.names, found.batch.columns, strict=True)
            if (values := with_nulls(found.unknown.get(name), array, lacking)) is not None
        }
        truth = truth_of(self._filter.mask, found.batch, unknown)
        undecided = np.flatnonzero(truth.is_undecided & there)
        if len(undecided):
            row = int(undecided[0])
            column = next(name for name, values in unknown.items() if values.rows[row])
            if unknown[column].exists[row]:
                raise self._unfit(head, int(rows[row]), column, which)
            what = "the whole row before" if lacking[row] else f"{column!r} of the row {which}"
            raise self._refused(head, int(rows[row]), f"send {what}")
        return truth.is_true & there

    def _at(self, head: BatchHead, row: int) -> str:
        return f"{head.versions[row]}:{head.indexes[row]}"

    def _refused(self, head: BatchHead, row: int, what: str) -> InvalidRequest:
        return InvalidRequest(
            f"view {self._asked.name}, {self._at(head, row)}: its source did not {what}, so nobody knows "
            "whether the row was in; ingest with --images full, which keeps it"
        )

    def _unfit(self, head: BatchHead, row: int, column: str, which: str) -> InvalidRequest:
        return InvalidRequest(
            f"view {self._asked.name}, {self._at(head, row)}: the type that {column!r} has now cannot hold its "
            f"value in the row {which}, so nobody knows whether the row was in; read later changes, or define "
            "the view without the column"
        )
