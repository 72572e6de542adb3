"""SCHEMA records: the form of schema changes in the log, and their insertion into segments.

Each entity type that changes has one record, after the lead of the first transaction that needs the change::

    index 0   the lead; its counts include the SCHEMA records, "schema_changes" is their number.
          1   area SCHEMA, operation UPSERT, entity type "order", no key, the first change
          …   further entity types, in the order of the schema
          n   the transaction's own records, which would begin at 1 otherwise

    before    {"entity_type": …, "columns": [{"id", "name", "role", "sql_type", "encoding", "nullable", "key",
              "origin"[, "dropped"]}, …]}, columns by ordinal; null for a new entity type
    after     the same, as of this version
    change    {"changes": [{"what": …, …}, …]}: see `_column_changes`
    changed   names of the columns that are new or have changed; null for a new entity type

The record that renames an entity type has the old name as its entity type; all later records have the new name.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import orjson
import pyarrow as pa

from tailrace.criteria import Area, Operation
from tailrace.errors import LogError
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.record.columns import TEXT_SCHEMA, decode_members
from tailrace_server.wal.segment.writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tailrace.schema import Column, Schema
    from tailrace_server.wal.files.object_store import OpenObject
    from tailrace_server.wal.segment.writer import SegmentReceipt


class ObjectFile(io.RawIOBase):
    """A file object for Arrow that reads an object of the store. Not thread-safe.

    Close it: Arrow may hold a reference longer than its reader exists.
    """

    def __init__(self, object: OpenObject) -> None:
        """Begin at byte 0."""
        super().__init__()
        self._object: OpenObject | None = object
        """The object; None after ``close``."""
        self._place = 0

    def close(self) -> None:
        """Release the object."""
        self._object = None
        super().close()

    def readable(self) -> bool:
        """Return True: the object can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: any place can be read."""
        return True

    def tell(self) -> int:
        """Return the offset of the next byte to read."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the offset, relative to the beginning, the present offset, or the end; return the new offset."""
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._open().size()}
        self._place = starts[whence] + offset
        return self._place

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, at most ``size``; all remaining bytes if ``size`` is negative."""
        if size < 0:
            size = max(0, self._open().size() - self._place)
        data = bytearray(size)
        length = self._open().read_into(memoryview(data), self._place)
        self._place += length
        return bytes(memoryview(data)[:length])

    def _open(self) -> OpenObject:
        if self._object is None:
            raise ValueError("the object is closed")
        return self._object


SUFFIX: Final = "-schema"
"""Suffix of the name of a segment with inserted schema records."""


class SchemaRecord(NamedTuple):
    """The change of one entity type, as the columns of a SCHEMA record."""

    entity_type: str
    """The entity type's name before the change; its only name if it is new."""
    changed: tuple[str, ...] | None
    change: bytes
    before: bytes | None
    after: bytes


def schema_records(before: Schema, after: Schema) -> list[SchemaRecord]:
    """Return the records of the changes between two schemas, in the order of the entity types."""
    if before is after:
        return []
    # Identify an entity type by the id of its first column, as its name may change.
    names_before = {columns[0].id: name for name, columns in before.entity_types.items() if columns}
    records = []
    for name, columns in after.entity_types.items():
        was = names_before.get(columns[0].id, name) if columns else name
        columns_before = before.entity_types.get(was)
        if columns_before and columns_before[0].id != columns[0].id:
            columns_before = (
                None  # the name belonged to another entity type, which has been renamed
            )
        if (was, columns_before) != (name, columns):
            records.append(_record(was, columns_before, name, columns))
    return records


def _record(
    was: str, before: tuple[Column, ...] | None, name: str, after: tuple[Column, ...]
) -> SchemaRecord:
    if before is None:
        changes: list[dict[str, Any]] = [{"what": "entity_type_added"}]
        changes += [{"what": "column_added", "column": column.name} for column in after]
        return SchemaRecord(
            name, None, orjson.dumps({"changes": changes}), None, entity_type_text(name, after)
        )
    changes = [] if was == name else [{"what": "entity_type_renamed", "from": was, "to": name}]
    changed = []
    for place, column in enumerate(after):
        column_before = before[place] if place < len(before) else None
        found = list(_column_changes(column_before, column))
        if found:
            changed.append(column.name)
            changes += found
    return SchemaRecord(
        was,
        tuple(changed),
        orjson.dumps({"changes": changes}),
        entity_type_text(was, before),
        entity_type_text(name, after),
    )


def _column_changes(before: Column | None, after: Column) -> Iterator[dict[str, Any]]:
    """Yield the changes of a column, as members of the list in a record's ``change``.

    The changes are ``column_added``; ``column_renamed`` with ``from``; ``column_dropped``; ``column_restored``,
    if a dropped column returns; and ``column_changed`` with ``from`` and ``to`` of each property that differs,
    such as a wider type or a newly declared role.
    """
    if before is None:
        yield {"what": "column_added", "column": after.name}
        return
    if before.name != after.name:
        yield {"what": "column_renamed", "column": after.name, "from": before.name}
    if before.dropped != after.dropped:
        yield {
            "what": "column_dropped" if after.dropped else "column_restored",
            "column": after.name,
        }
    was, now = column_members(before), column_members(after)
    other = [name for name in now if name not in ("name", "dropped") and was.get(name) != now[name]]
    if other:
        yield {
            "what": "column_changed",
            "column": after.name,
            "from": {name: was[name] for name in other},
            "to": {name: now[name] for name in other},
        }


def column_members(column: Column) -> dict[str, Any]:
    """Return a column as a JSON object."""
    members: dict[str, Any] = {
        "id": column.id,
        "name": column.name,
        "role": column.role.name,
        "sql_type": column.sql_type,
        "encoding": column.encoding,
        "nullable": column.nullable,
        "key": column.key,
        "origin": column.origin.value,
    }
    if column.dropped:
        members["dropped"] = True
    return members


def entity_type_text(name: str, columns: Sequence[Column]) -> bytes:
    """Return an entity type as the JSON text of a record's body."""
    return orjson.dumps(
        {"entity_type": name, "columns": [column_members(column) for column in columns]}
    )


def record_rows(version: int, records: Sequence[SchemaRecord]) -> Iterator[tuple[Any, ...]]:
    """Yield records as rows of a segment, with indexes from 1; columns as in ``LogWriter``'s buffer."""
    for index, record in enumerate(records, 1):
        yield (
            version,
            index,
            int(Area.SCHEMA),
            int(Operation.UPSERT),
            record.entity_type,
            None,
            record.changed,
            record.change,
            record.before,
            record.after,
        )


def insert_schema_records(
    catalog: Path,
    receipts: Sequence[SegmentReceipt],
    before: Schema,
    schemas: Sequence[tuple[int, Schema]],
) -> list[SegmentReceipt]:
    """Insert the records of a commit's schema changes into its segments; return the receipts of all segments.

    Tasks write segments in parallel, and no task knows which of them sees a column first. So the records are
    inserted once all tasks have reported. Only segments in which a schema begins are rewritten, which becomes
    rare once a catalog has its columns.

    Args:
        catalog: The catalog's folder.
        receipts: Segments in the order of their transactions; each transaction is in one segment.
        before: The schema before the commit.
        schemas: Pairs of a version relative to the commit and the schema that begins there, ascending.

    Raises:
        LogFull: The file system is full.
    """
    by_version = {}
    for version, schema in schemas:
        by_version[version] = schema_records(before, schema)
        before = schema
    done = []
    start = 0
    for receipt in receipts:
        assert not receipt.continues, receipt.path
        stop = start + receipt.transactions
        own = {v - start: records for v, records in by_version.items() if start <= v < stop}
        done.append(_with_records(catalog, receipt, own) if own else receipt)
        start = stop
    return done


def _with_records(
    catalog: Path, receipt: SegmentReceipt, by_version: Mapping[int, Sequence[SchemaRecord]]
) -> SegmentReceipt:
    """Rewrite a segment with records after the leads of some versions; delete the old file."""
    store, old = LocalFiles(catalog), catalog / receipt.path
    file = store.open(receipt.path)
    if file is None:
        raise LogError(f"segment {receipt.path} is missing")
    # The commit does not name a segment yet, so the old file can be deleted once the new one is durable.
    with (
        SegmentWriter(old.with_name(f"{old.stem}{SUFFIX}{old.suffix}")) as segment,
        ObjectFile(file) as opened,
        pa.ipc.open_file(opened) as reader,
    ):
        for place in range(reader.num_record_batches):
            for part in _parts(reader.get_batch(place), by_version):
                segment.write(part)
        written = segment.close()
    store.delete(receipt.path)
    return written


def _parts(
    batch: pa.RecordBatch, by_version: Mapping[int, Sequence[SchemaRecord]]
) -> Iterator[pa.RecordBatch]:
    """Yield a batch in parts, with the records of its versions in between."""
    # 1. Most batches have no version with a schema change: yield them unchanged.
    versions = batch.column("version")
    first, last = versions[0].as_py(), versions[-1].as_py()
    if not any(first <= version <= last for version in by_version):
        yield batch
        return
    # 2. Shift the indexes of all mutations by the number of records inserted before them. A lead keeps index 0.
    listed = versions.to_pylist()
    shift = pa.array([len(by_version.get(version, ())) for version in listed], pa.int32())
    indexes = batch.column("index")
    moved = pa.compute.if_else(
        pa.compute.equal(indexes, 0), indexes, pa.compute.add(indexes, shift)
    )
    place = batch.schema.get_field_index("index")
    moved_batch = batch.set_column(place, batch.schema.field(place), moved)
    # 3. Cut the batch at each lead that gets records. Replace that lead, since its counts change. ``start`` is
    #    the first row that was not yielded yet. A version whose lead is in an earlier batch only needs the
    #    shift.
    start = 0
    leads = zip(listed, indexes.to_pylist(), strict=True)
    for row, (version, index) in enumerate(leads):
        records = by_version.get(version) if index == 0 else None
        if not records:
            continue
        if row > start:
            yield moved_batch.slice(start, row - start)
        start = row + 1
        lead = lead_with_schema_changes(batch.column("after")[row].as_py(), records)
        area, operation = int(Area.INFRASTRUCTURE), int(Operation.TRANSACTION)
        lead_row = (version, 0, area, operation, None, None, None, None, None, lead)
        rows = [lead_row, *record_rows(version, records)]
        yield rows_batch(rows)
    if start < batch.num_rows:
        yield moved_batch.slice(start)


def rows_batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return rows as a record batch for `SegmentWriter.write`."""
    columns = zip(*rows, strict=True)
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, TEXT_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=TEXT_SCHEMA)


def lead_with_schema_changes(lead: bytes, records: Sequence[SchemaRecord]) -> bytes:
    """Return a lead's ``after`` whose counts include schema records; other members stay byte for byte."""
    members: dict[str, Any] = dict(decode_members(lead))
    if "counts" in members:
        counts = orjson.loads(bytes(members["counts"]))
        for record in records:
            counts[record.entity_type] = counts.get(record.entity_type, 0) + 1
        members["counts"] = counts
    if "mutation_count" in members:
        members["mutation_count"] = orjson.loads(bytes(members["mutation_count"])) + len(records)
    return msgspec.json.encode({**members, "schema_changes": len(records)})
