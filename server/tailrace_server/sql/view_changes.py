"""What a change is to a view: its row enters, stays or leaves, as the row before and after says."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.filters.binding import bind
from tailrace_server.filters.parsing import parse
from tailrace_server.filters.tree import asks_null
from tailrace_server.typed.misfits import ValueMisfit
from tailrace_server.typed.reader import ColumnReader
from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.unavailable import unavailable
from tailrace_server.wal.schema.restating import first_stated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tailrace.schema import Schema
    from tailrace_server.wal.files.definition_documents import ViewDocument
    from tailrace_server.wal.segment.reader import BatchHead
    from tailrace_server.wal.state.entity_names import EntityNames
    from tailrace_server.wal.state.view import LogView


class RowsInView(NamedTuple):
    """Whether the rows of some records are in a view, each of shape (records,)."""

    before: NDArray[np.bool_]
    after: NDArray[np.bool_]


class _Verdicts(NamedTuple):
    """What the condition says of some images, each of shape (images,)."""

    is_true: NDArray[np.bool_]
    is_open: NDArray[np.bool_]
    """A value is missing without which nobody can say."""


class ViewChanges:
    """Judges the records of one entity type. Use it from one thread at a time."""

    def __init__(self, view: LogView, names: EntityNames, schema: Schema, asked: ViewDocument):
        """Prepare to judge.

        Args:
            view: The log.
            names: The entity type.
            schema: The newest one.
            asked: The view, none of whose columns has been dropped.
        """
        self._view, self._names, self._asked = view, names, asked
        columns = view.schema_of(asked.version).columns(asked.entity_type)
        self.columns = {each.id: each.name for each in columns if each.name in asked.columns}
        """Id of each column that it shows → its name there; empty: all."""
        self.asked: frozenset[int] = frozenset()
        """Ids of the columns in its condition."""
        tree = parse(asked.where) if asked.where else None
        self._filter = None if tree is None else bind(tree, columns, {})
        self._asks_null = tree is not None and asks_null(tree)
        if self._filter is not None:
            self.asked = frozenset(each.id for each in self._filter.columns)
        self._has_key = any(each.key for each in columns)
        self._reader = ColumnReader(
            self._filter.columns if self._filter else (),
            stated=first_stated(view.schemas()),
            placeholders=schema.placeholders,
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
        schemas, which_schema = self._view.schemas_of(head.versions[rows])
        filled = self._filled(head, rows, before, after, schemas, which_schema)
        masks = [
            self._mask(head, rows, images, schemas, which_schema) for images in (before, filled)
        ]
        # Of a removal perhaps the key alone was sent: NULL says nothing then, unless it is known to be whole.
        removed = keyed & (operations[rows] == Operation.REMOVE) & self._has_key
        if removed.any():
            removed &= ~self._whole(head, rows)
            lacking = np.flatnonzero(removed & masks[0].is_open)
            if len(lacking):
                raise self._refused(head, int(rows[lacking[0]]), "send the whole row before")
        return RowsInView(masks[0].is_true & was_there, masks[1].is_true & keyed & upsert)

    def _whole(self, head: BatchHead, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return of which of some records the image is known to be whole, if they are removals."""
        found = np.zeros(len(rows), np.bool_)
        codes, known = head.type_codes[rows], self._view.whole_removals
        for code in np.unique(codes).tolist():
            mine = codes == code
            found[mine] = known.of(head.entity_types[code], head.versions[rows[mine]])
        return found

    def _mask(
        self,
        head: BatchHead,
        rows: NDArray[np.int64],
        images: pa.BinaryArray,
        schemas: list[Schema],
        which: NDArray[np.int64],
    ) -> _Verdicts:
        assert self._filter is not None
        written = [*map(self._names.columns_in, schemas)]
        try:
            batch = self._reader.read_mixed(images, written, which).batch
        except ValueMisfit as error:
            at = self._at(head, int(rows[error.misfit.row]))
            raise InvalidRequest(f"view {self._asked.name}, {at}: {error}") from None
        mask = self._filter.mask.of(batch)
        is_open = reduce(pc.or_, (column.is_null() for column in batch.columns))
        if not self._asks_null:
            is_open = pc.and_(is_open, mask.is_null())
        told = (pc.fill_null(mask, False), is_open)
        return _Verdicts(*(each.to_numpy(zero_copy_only=False) for each in told))

    def _filled(
        self,
        head: BatchHead,
        rows: NDArray[np.int64],
        before: pa.BinaryArray,
        after: pa.BinaryArray,
        schemas: list[Schema],
        which: NDArray[np.int64],
    ) -> pa.BinaryArray:
        """Return images after with the values that were not sent taken from those before."""
        needed = [
            [each.name for each in self._names.columns_in(schema) if each.id in self.asked]
            for schema in schemas
        ]
        placeholders = [unavailable(schema.placeholders) for schema in schemas]
        found = after.to_pylist()
        pairs = enumerate(zip(before.to_pylist(), after.to_pylist(), which.tolist(), strict=True))
        for row, (old, new, place) in pairs:
            tells = placeholders[place]
            if not any(image is not None and tells.may_be_in(image) for image in (old, new)):
                continue
            known = {} if old is None else decode_members(old)
            members = {} if new is None else decode_members(new)
            for name in needed[place]:
                value = members.get(name)
                if value is not None and tells.is_one(bytes(value)):
                    members[name] = known.get(name, value)
                if any(
                    tells.is_one(bytes(each[name])) for each in (known, members) if name in each
                ):
                    raise self._refused(head, int(rows[row]), f"send {name!r}")
            if new is not None:
                found[row] = msgspec.json.encode(members)
        return pa.array(found, pa.binary())

    def _at(self, head: BatchHead, row: int) -> str:
        return f"{head.versions[row]}:{head.indexes[row]}"

    def _refused(self, head: BatchHead, row: int, what: str) -> InvalidRequest:
        return InvalidRequest(
            f"view {self._asked.name}, {self._at(head, row)}: its source did not {what}, so nobody knows "
            "whether the row was in; ingest with --images full, which keeps it"
        )
