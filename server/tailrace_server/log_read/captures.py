"""The records of the log as they are: the shape ``captures``, which has all entity types and also schemas.

==================  ============  =======================================================================
column              type
==================  ============  =======================================================================
``version``         int64
``index``           int32         place of the record in its version; the lead record has 0
``timestamp``       timestamp     commit time; null if the log no longer has it
``area``            string        ``schema``, ``data``, ``infrastructure``
``operation``       string        ``upsert``, ``remove``, ``transaction``, ``expire``
``entity_type``     string        null for a lead record
``primary_key``     string        null for a lead record, a schema and a truncate
``changed``         list<string>  names of the changed columns of an update, else null
``change``          string        JSON
``before``          string        JSON, as the source sent it
``after``           string        JSON, as the source sent it
``cursor``          string        the position that continues after the record
==================  ============  =======================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area, Operation
from tailrace.errors import InvalidRequest
from tailrace.errors.requests import nearest
from tailrace_server.log_read.row_columns import cursor_texts, names_of, refuse_alike
from tailrace_server.sql.scans import resumed
from tailrace_server.sql.typed_rows import TIMESTAMP
from tailrace_server.wal.record.columns import BODY_COLUMNS
from tailrace_server.wal.segment.parallel import are_between

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from tailrace.position import Position
    from tailrace_server.log_read.request import ReadRequest
    from tailrace_server.log_read.served_rows import ServedRecords
    from tailrace_server.sql.scans import LogSource
    from tailrace_server.wal.segment.reader import BatchHead
    from tailrace_server.wal.segment.refs import BatchRef
    from tailrace_server.wal.state.entity_names import EntityNames
    from tailrace_server.wal.state.view import LogView

_SCHEMA: Final = pa.schema(
    [
        ("version", pa.int64()),
        ("index", pa.int32()),
        ("timestamp", TIMESTAMP),
        ("area", pa.string()),
        ("operation", pa.string()),
        ("entity_type", pa.string()),
        ("primary_key", pa.string()),
        ("changed", pa.list_(pa.string())),
        *((name, pa.string()) for name in BODY_COLUMNS),
        ("cursor", pa.string()),
    ]
)


def _names_of(kind: type[Area | Operation]) -> pa.StringArray:
    """Return the names of an enum's members by number."""
    by_number = {each.value: each.name.lower() for each in kind}
    return pa.array([by_number.get(number) for number in range(max(by_number) + 1)], pa.string())


_AREAS: Final = _names_of(Area)
_OPERATIONS: Final = _names_of(Operation)


class CaptureScan:
    """The scan of the records between two positions, both exclusive; it is iterated once."""

    def __init__(
        self, source: LogSource, request: ReadRequest, version: int, span: tuple[Position, Position]
    ) -> None:
        """Prepare to read.

        Args:
            source: The log.
            request: The read.
            version: The version whose schema has the request's entity type.
            span: The positions just before the first and just after the last record.

        Raises:
            InvalidRequest: A requested column does not exist, or is named twice.
        """
        self._source, self._span = source, span
        self._names: EntityNames | None = None
        if request.entity_type is not None:
            self._names = names_of(source.view, request.entity_type, version)
        names = _SCHEMA.names if request.columns is None else request.columns
        for name in names:
            if name not in _SCHEMA.names:
                raise InvalidRequest(
                    f"captures have no column {name!r}{nearest(name, _SCHEMA.names)}"
                )
        refuse_alike(request, names)
        self.schema = pa.schema([_SCHEMA.field(name) for name in names])
        """The Arrow schema of the batches."""
        self._bodies = tuple(each for each in BODY_COLUMNS if each in names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches, each when it is requested."""
        yield from resumed(self._source, self._span[0], self._behind)

    def _behind(
        self, view: LogView, done: Position
    ) -> Iterator[tuple[pa.RecordBatch | None, Position]]:
        """Yield the records after a position, each batch with its last position."""
        end = self._span[1]
        for place in range(view.find(done), len(view)):
            ref = view.batch(place)
            if ref.first >= end:
                return
            yield self._of(view, ref, done), ref.last

    def _of(self, view: LogView, ref: BatchRef, done: Position) -> pa.RecordBatch | None:
        reader, end = self._source.reader, self._span[1]
        head = reader.head(ref)
        mine = np.ones(ref.rows, np.bool_)
        if ref.first <= done or ref.last >= end:
            mine &= are_between(head.versions, head.indexes, done, end)
        if self._names is not None:
            mine &= self._names.rows_in(view, head.type_codes, head.entity_types, head.versions)
        rows = np.flatnonzero(mine)
        if not len(rows):
            return None
        if self._bodies and view.bodies.may_be_in(ref):
            view.bodies.refuse(head, rows)
        bodies = reader.body(ref, self._bodies) if self._bodies else {}
        batch = self._batch(view, head, bodies)
        return batch if len(rows) == len(batch) else batch.take(pa.array(rows))

    def _batch(
        self, view: LogView, head: BatchHead | ServedRecords, bodies: Mapping[str, pa.BinaryArray]
    ) -> pa.RecordBatch:
        arrays = []
        for field in self.schema:
            match field.name:
                case "version":
                    arrays.append(pa.array(head.versions))
                case "index":
                    arrays.append(pa.array(head.indexes))
                case "timestamp":
                    arrays.append(_times(view, head.versions))
                case "area":
                    arrays.append(_AREAS.take(pa.array(head.areas)))
                case "operation":
                    arrays.append(_OPERATIONS.take(pa.array(head.operations)))
                case "entity_type":
                    codes = pa.array(head.type_codes, mask=head.type_codes < 0)
                    arrays.append(pa.array(head.entity_types, pa.string()).take(codes))
                case "primary_key":
                    arrays.append(head.primary_keys)
                case "changed":
                    arrays.append(head.changed.cast(field.type))
                case "cursor":
                    arrays.append(cursor_texts(view, head.versions, head.indexes))
                case name:
                    arrays.append(pc.cast(bodies[name], pa.string()))
        return pa.record_batch(arrays, schema=self.schema)


def _times(view: LogView, versions: NDArray[np.int64]) -> pa.Array:
    found = view.known_timestamps_of(versions)
    return pa.array(found, mask=found == 0).view(TIMESTAMP)
