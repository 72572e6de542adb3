"""Scans whose rows have the columns of the table at the top level: change rows, and rows of a state.

===================  ================================================================================
record               change rows
===================  ================================================================================
insert               ``insert`` with the row after
update               ``update_preimage`` with the row before, ``update_postimage`` with the row after;
                     without a row before in the log, only ``update_postimage``
removal, expiry      ``delete`` with the row before
``diff`` of d rows   in a table without a key: d times ``insert``, or -d times ``delete``
===================  ================================================================================

If a row lacks the value of a key column, as a removal without a before-image does, the column has the value
of the primary key. All rows of a record have its position, the cursor that continues after it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import InvalidRequest
from tailrace.errors.requests import nearest
from tailrace.position import END
from tailrace_server.sql.pushdown import change_codes
from tailrace_server.sql.scans import StatementScan
from tailrace_server.sql.statements import Bounds, TableUse
from tailrace_server.sql.typed_rows import MISFITS, TIMESTAMP, misfits_array
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.wal.base.winners import Wanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace.position import Position
    from tailrace.schema import Column
    from tailrace_server.log_read.request import ReadRequest
    from tailrace_server.sql.scans import LogSource
    from tailrace_server.wal.base.reading import TableState
    from tailrace_server.wal.base.state_rows import StatePlace, StateRows
    from tailrace_server.wal.segment.parallel import RecordColumns
    from tailrace_server.wal.state.view import LogView

POSITION: Final = "_position"
OF_STATE: Final = {"_commit_version": pa.int64(), "_commit_timestamp": TIMESTAMP}
"""The columns of a state in addition to those of its table."""
OF_CHANGES: Final = {"_change_type": pa.string(), **OF_STATE, POSITION: pa.string()}
"""The columns of change rows in addition to those of their table."""
_INSERT, _UPDATE, _DELETE, _EXPIRE, _TRUNCATE = range(5)
"""The results of ``change_codes``."""
_TYPES: Final = pa.array(["insert", "update_preimage", "update_postimage", "delete"])


class ChangeRowScan(StatementScan):
    """The scan of change rows between two positions, both exclusive."""

    def __init__(
        self, source: LogSource, request: ReadRequest, version: int, span: tuple[Position, Position]
    ) -> None:
        """Prepare to read.

        Args:
            source: The log.
            request: The read.
            version: The version whose schema gives the columns.
            span: The positions just before the first and just after the last record.
        """
        self._request, self._span = request, span
        bounds = Bounds(0, version)
        use = TableUse("", request.entity_type or "", version, bounds, None, request.keys)
        super().__init__(source, use, lambda: False, request.on_misfit)

    def _range(self) -> tuple[Position, Position]:
        return self._span

    def _needed(self, every: tuple[Column, ...]) -> tuple[Column, ...]:
        return needed_columns(self._request, every)

    def _arrow_schema(self) -> pa.Schema:
        return rows_schema(self._request, self._typed.schema, OF_CHANGES)

    def _parts(self, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        # A record batch is in memory as a whole, so its rows need no smaller parts.
        return iter([rows] if len(rows) else [])

    @cached_property
    def _images(self) -> tuple[str, ...]:
        return ("before", "after")

    def _change_batches(
        self, head: RecordColumns, rows: NDArray[np.int64], bodies: Mapping[str, pa.BinaryArray]
    ) -> Iterator[pa.RecordBatch]:
        codes = change_codes(head, rows)
        if (codes == _TRUNCATE).any():
            raise InvalidRequest("a truncate")
        before, after = (_taken(bodies[each], rows) for each in ("before", "after"))
        # 1. Each record gives up to two rows, of its images before and after, in this order.
        gives = np.empty((len(rows), 2), np.bool_)
        gives[:, 1] = codes <= _UPDATE
        gives[:, 0] = codes >= _DELETE
        gives[:, 0] |= (codes == _UPDATE) & before.is_valid().to_numpy(zero_copy_only=False)
        places = np.flatnonzero(gives)
        record, is_after = places >> 1, (places & 1).astype(np.bool_)
        images = _picked(before, after, record, is_after)
        types = np.where(codes[record] >= _DELETE, 3, codes[record] * (1 + is_after))
        yield self._typed_rows(head, rows[record], images, types)

    def _typed_rows(
        self,
        head: RecordColumns,
        rows: NDArray[np.int64],
        images: pa.BinaryArray,
        types: NDArray[np.int64],
    ) -> pa.RecordBatch:
        versions, indexes = head.versions[rows], head.indexes[rows]
        typed, misfits = self._typed.read(
            images, versions, indexes, None, with_misfits=self._with_misfits
        )
        arrays = dict(zip(typed.schema.names, typed.columns, strict=True))
        for name in self.schema.names:
            match name:
                case "_change_type":
                    arrays[name] = _TYPES.take(pa.array(types))
                case "_commit_version":
                    arrays[name] = pa.array(versions)
                case "_commit_timestamp":
                    arrays[name] = self._times(versions)
                case "_position":
                    arrays[name] = cursor_texts(self._view, versions, indexes)
                case "_misfits":
                    arrays[name] = misfits_array(len(rows), misfits)
        return pa.record_batch([arrays[each] for each in self.schema.names], schema=self.schema)


class StateRowScan(StatementScan):
    """The scan of the rows of a state whose keys have hashes in a range."""

    def __init__(
        self, source: LogSource, request: ReadRequest, version: int, hashes: tuple[int, int]
    ) -> None:
        """Prepare to read.

        Args:
            source: The log.
            request: The read.
            version: The version of the state.
            hashes: The first and the end (exclusive) of the range of key hashes.
        """
        self._request, self._hashes = request, Wanted(*hashes)
        use = TableUse("", request.entity_type or "", version, None, None, request.keys)
        super().__init__(source, use, lambda: False, request.on_misfit)

    def _needed(self, every: tuple[Column, ...]) -> tuple[Column, ...]:
        return needed_columns(self._request, every)

    def _arrow_schema(self) -> pa.Schema:
        return rows_schema(self._request, self._typed.schema, OF_STATE)

    def _state_parts(self, table: TableState, behind: StatePlace | None) -> Iterable[StateRows]:
        if self.use.keys is None:
            return table.parts(behind, self._hashes)
        return super()._state_parts(table, behind)

    def _state_batch(self, rows: StateRows) -> pa.RecordBatch:
        typed, misfits = self._typed.read(
            *(rows.images, rows.versions, rows.indexes, rows.primary_keys),
            with_misfits=self._with_misfits,
        )
        arrays = dict(zip(typed.schema.names, typed.columns, strict=True))
        more = {
            "_commit_version": lambda: pa.array(rows.versions),
            "_commit_timestamp": lambda: self._times(rows.versions),
            MISFITS: lambda: misfits_array(len(rows), misfits),
        }
        arrays |= {name: more[name]() for name in self.schema.names if name not in arrays}
        return pa.record_batch([arrays[each] for each in self.schema.names], schema=self.schema)


def needed_columns(request: ReadRequest, every: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns of the table that a read needs: those named, or all that are not dropped.

    Args:
        request: The read.
        every: The columns of the table, also dropped ones.
    """
    if request.columns is None or wants_misfits(request):
        return tuple(each for each in every if not each.dropped)
    by_name = {each.name: each for each in every}
    return tuple(by_name[name] for name in request.columns if name in by_name)


def wants_misfits(request: ReadRequest) -> bool:
    """Return True if the result has the column ``_misfits``."""
    is_named = request.columns is None or MISFITS in request.columns
    return is_named and request.on_misfit is OnMisfit.NULL


def rows_schema(
    request: ReadRequest, columns: pa.Schema, own: Mapping[str, pa.DataType]
) -> pa.Schema:
    """Return the schema of the rows of a read.

    Args:
        request: The read.
        columns: The fields of the needed columns of the table.
        own: The columns that the shape adds.

    Raises:
        InvalidRequest: A requested column does not exist; or two names are equal or differ only by case.
    """
    more = [pa.field(*each) for each in own.items()]
    if request.on_misfit is OnMisfit.NULL:
        more.append(pa.field(MISFITS, pa.string()))
    fields = [*columns, *more]
    if request.columns is not None:
        by_name = {each.name: each for each in fields}
        for name in request.columns:
            if name not in by_name:
                raise InvalidRequest(
                    f"{request.entity_type} has no column {name!r}{nearest(name, by_name)}"
                )
        fields = [by_name[name] for name in request.columns]
    folded: dict[str, str] = {}
    for name in (each.name for each in fields):
        first = folded.setdefault(name.lower(), name)
        if first is name:
            continue
        raise InvalidRequest(
            f"{request.entity_type} has the columns {first!r} and {name!r}, which readers that ignore case "
            "cannot tell apart: name the wanted ones in columns, or rename one"
        )
    return pa.schema(fields)


def cursor_texts(
    view: LogView, versions: NDArray[np.int64], indexes: NDArray[np.int32]
) -> pa.StringArray:
    """Return, for each record, the text of the cursor that continues after it (`LogView.cursor`)."""
    times = view.known_timestamps_of(versions)
    known = pa.array(times, mask=times == 0).cast(pa.string())
    texts = ["1", view.uuid.hex, pa.array(versions).cast(pa.string())]
    texts += [pa.array(indexes).cast(pa.string()), str(END), known]
    return pc.binary_join_element_wise(*texts, ".", null_handling="skip")


def _taken(images: pa.BinaryArray, rows: NDArray[np.int64]) -> pa.BinaryArray:
    """Return some images of a batch; neighbours are not copied."""
    first, count = int(rows[0]), len(rows)
    if int(rows[-1]) - first + 1 == count:  # the rows rise
        return images.slice(first, count)
    return images.take(pa.array(rows))


def _picked(
    before: pa.BinaryArray,
    after: pa.BinaryArray,
    record: NDArray[np.int64],
    is_after: NDArray[np.bool_],
) -> pa.BinaryArray:
    """Return the image before or after of each record."""
    if is_after.all() and len(record) == len(after):
        return after
    if not is_after.any() and len(record) == len(before):
        return before
    return pa.concat_arrays([before, after]).take(pa.array(record + is_after * len(before)))
