"""What a change is to a view: its row enters, stays or leaves, as the row before and after says."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.filters.binding import bind
from tailrace_server.filters.parsing import parse
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
        self._filter = bind(parse(asked.where), columns, {}) if asked.where else None
        if self._filter is not None:
            self.asked = frozenset(each.id for each in self._filter.columns)
        self._reader = ColumnReader(
            self._filter.columns if self._filter else (),
            stated=first_stated(view.schemas()),
            placeholders=schema.placeholders,
        )

    def judged(
        self, head: BatchHead, rows: NDArray[np.int64], bodies: Mapping[str, pa.BinaryArray]
    ) -> RowsInView:
        """Return whether rows are in, before and after; a truncate is neither.

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
        found = [
            self._mask(head, rows, images, schemas, which_schema) for images in (before, filled)
        ]
        return RowsInView(found[0] & was_there, found[1] & keyed & upsert)

    def _mask(
        self,
        head: BatchHead,
        rows: NDArray[np.int64],
        images: pa.BinaryArray,
        schemas: list[Schema],
        which: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        assert self._filter is not None
        written = [*map(self._names.columns_in, schemas)]
        try:
            batch = self._reader.read_mixed(images, written, which).batch
        except ValueMisfit as error:
            at = self._at(head, int(rows[error.misfit.row]))
            raise InvalidRequest(f"view {self._asked.name}, {at}: {error}") from None
        mask: NDArray[np.bool_] = pc.fill_null(self._filter.mask.of(batch), False).to_numpy(
            zero_copy_only=False
        )
        return mask

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
