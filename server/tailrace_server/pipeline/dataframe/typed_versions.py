"""Versions of the catalog from sorted changes: the records of a write of typed rows, and their segment.

The changes of a key in one version are one record:

=====================================  =================================================
changes                                record
=====================================  =================================================
``insert``, ``upsert``                 UPSERT
``update_preimage`` and ``_postimage`` UPSERT with the old image
``delete`` and ``insert``              UPSERT with the old image
``delete``                             REMOVE with the old image
anything else                          refused: a half without its other one, a repeated key
=====================================  =================================================

With ``images=full`` an old image that the changes lack is the newest one in the log. In a snapshot, rows that
equal the newest ones make no record, and rows of the log that the snapshot lacks are removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.dataframe.newest_rows import old_rows
from tailrace_server.pipeline.dataframe.runs import followed
from tailrace_server.pipeline.dataframe.typed_rows import (
    DELETE,
    INSERT,
    KIND_NAMES,
    POSTIMAGE,
    PREIMAGE,
    UPSERT,
)
from tailrace_server.wal.base.state_rows import StatePlace
from tailrace_server.wal.columnar import TransactionRecords
from tailrace_server.wal.record.columns import TEXT_SCHEMA, lead_text
from tailrace_server.wal.record.image_differences import differences_of
from tailrace_server.wal.record.input_rows import InputRows
from tailrace_server.wal.record.keys import key_hashes, type_seed
from tailrace_server.wal.segment.carried import BYTES_MAX, ROWS_MAX, carried_segment
from tailrace_server.wal.segment.writer import SegmentWriter, with_dictionary
from tailrace_server.wal.state.whole_removals import removals_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from tailrace_server.pipeline.dataframe.change_tally import SourceVersions
    from tailrace_server.pipeline.dataframe.newest_rows import NewestRows
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.schema.records import SchemaRecord
    from tailrace_server.wal.segment.carried import CarriedSegment
    from tailrace_server.wal.segment.writer import SegmentReceipt

_HELD_BYTES: Final = 32 << 20
"""Size of records that are held until their number is known; for more, the changes are read a second time."""
_LOOKED_UP_MAX: Final = 16_384
"""The most changes of a write whose old images are looked up by key; for more, all rows are read once."""
_OLD, _NEW = (
    np.isin(np.arange(len(KIND_NAMES)), kinds)
    for kinds in ((DELETE, PREIMAGE), (INSERT, POSTIMAGE, UPSERT))
)
"""Kind → True if a change of that kind has the old image, or the new one."""


class ChangeRecords(NamedTuple):
    """Records of sorted changes, as columns of equal length."""

    versions: npt.NDArray[np.int64]
    """Version of the source."""
    types: npt.NDArray[np.int64]
    """Place of the entity type in the sorted names of the write."""
    hashes: npt.NDArray[np.uint64]
    keys: pa.StringArray
    before: pa.BinaryArray
    after: pa.BinaryArray
    """Null: the record is a removal."""

    def taken(self, rows: npt.NDArray[np.int64]) -> ChangeRecords:
        """Return some of the records, in the given order."""
        chosen = pa.array(rows)
        return ChangeRecords(
            self.versions[rows],
            self.types[rows],
            self.hashes[rows],
            self.keys.take(chosen),
            self.before.take(chosen),
            self.after.take(chosen),
        )

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(each.nbytes for each in self)


_NO_RECORDS: Final = ChangeRecords(
    *(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint64)),
    *(pa.nulls(0, kind) for kind in (pa.string(), pa.binary(), pa.binary())),
)


def paired(changes: pa.RecordBatch, names: Sequence[str], key: Sequence[str]) -> ChangeRecords:
    """Return the records of sorted changes, with all changes of each key.

    Args:
        changes: The changes.
        names: The sorted names of the entity types.
        key: The columns of the key, for errors.

    Raises:
        InvalidRequest: Changes of a key do not make a record. The error names column, entity type, key and
            version.
    """
    # 1. Find the changes of each key, and refuse groups that are no record.
    kinds = changes.column("kind").to_numpy()
    starts = np.flatnonzero(np.concatenate([[True], ~followed(changes)]))
    stops = np.append(starts[1:], changes.num_rows)
    first, last = kinds[starts], kinds[stops - 1]
    single = (stops - starts == 1) & (first != PREIMAGE) & (first != POSTIMAGE)
    double = (stops - starts == 2) & _OLD[first] & (last == first + 2)
    if not (single | double).all():
        at = int(np.argmin(single | double))
        group = changes.slice(int(starts[at]), int(stops[at] - starts[at]))
        numbers = (group.column(name)[0].as_py() for name in ("type", "primary_key", "version"))
        place, text, version = numbers
        found = [KIND_NAMES[kind] for kind in group.column("kind").to_pylist()]
        raise refused(key, names[place], text, version, found)
    # 2. The first change has the old image, the last one the new image. Take copies only where they differ.
    images = changes.column("image")
    has_old, has_new = _OLD[first], _NEW[last]
    numbers = (changes.column(name).to_numpy() for name in ("version", "type", "key_hash"))
    versions, types, hashes = (each[starts] for each in numbers)
    keys = changes.column("primary_key")
    if len(starts) < changes.num_rows:
        keys = keys.take(pa.array(starts))
    return ChangeRecords(
        versions,
        types.astype(np.int64),
        hashes,
        keys,
        _chosen(images, starts, has_old),
        _chosen(images, stops - 1, has_new),
    )


def _chosen(
    images: pa.BinaryArray, rows: npt.NDArray[np.int64], has: npt.NDArray[np.bool_]
) -> pa.BinaryArray:
    """Return the images of some rows; null where ``has`` is False."""
    if not has.any():
        return pa.nulls(len(rows), pa.binary())
    if has.all() and len(rows) == len(images):
        return images
    return images.take(pa.array(rows, mask=None if has.all() else ~has))


def refused(
    columns: Sequence[str], entity_type: str, key: str, version: int, kinds: Sequence[str]
) -> InvalidRequest:
    """Return the error of changes of one key that make no record.

    Args:
        columns: The columns of the key.
        entity_type: Name of the entity type.
        key: Text of the key.
        version: Version of the source.
        kinds: The kinds of the changes.
    """
    where = f"column {', '.join(columns)} of {entity_type}, key {key!r}"
    where += f", version {version} of the source" if version else ""
    halves = {"update_preimage": "update_postimage", "update_postimage": "update_preimage"}
    if len(kinds) == 1:
        return InvalidRequest(
            f"{where}: {kinds[0]} has no {halves[kinds[0]]}; write both rows of an update"
        )
    return InvalidRequest(
        f"{where}: the key has {len(kinds)} rows ({', '.join(kinds)}) in one version; a version has one "
        "row of a key, or the two halves of an update"
    )


class StateComparison:
    """The comparison of a write of one version with the newest rows of the log."""

    def __init__(
        self,
        newest: Callable[[str, Sequence[str] | None], NewestRows],
        names: Sequence[str],
        versions: SourceVersions,
        *,
        snapshot: bool,
    ) -> None:
        """Begin before the first record.

        Args:
            newest: Returns the newest rows of an entity type: those of some keys, or all.
            names: The sorted names of the entity types.
            versions: The versions of the changes: one, or none if there are no changes.
            snapshot: True if the records are all rows of the entity types.
        """
        self._newest, self._names, self._snapshot = newest, names, snapshot
        self._version = int(versions.numbers[0]) if len(versions.numbers) else 0
        self._looks_up = not snapshot and versions.rows <= _LOOKED_UP_MAX

    def completed(self, records: Iterable[ChangeRecords]) -> Iterator[ChangeRecords]:
        """Yield the records with old images; of a snapshot, only its differences.

        Raises:
            InvalidRequest: A row of a snapshot has an old image.
        """
        place, rows = -1, None
        for window in records:
            # A window may have several entity types, each sorted by (key hash, key).
            for each in np.unique(window.types).tolist():
                at = np.flatnonzero(window.types == each)
                some = window if len(at) == len(window.types) else window.taken(at)
                if each != place or self._looks_up:
                    if rows is not None:
                        yield from self._removed(place, rows)
                    keys = some.keys.to_pylist() if self._looks_up else None
                    place, rows = each, self._newest(self._names[each], keys)
                assert rows is not None
                yield from self._compared(some, rows)
        if rows is not None:
            yield from self._removed(place, rows)
        elif self._snapshot:
            for place, name in enumerate(self._names):
                yield from self._removed(place, self._newest(name, None))

    def _compared(self, window: ChangeRecords, rows: NewestRows) -> Iterator[ChangeRecords]:
        if self._snapshot and window.before.null_count < len(window.keys):
            row = int(np.argmax(window.before.is_valid().to_numpy(zero_copy_only=False)))
            raise InvalidRequest(
                f"{self._names[window.types[row]]}, key {window.keys[row].as_py()!r}: a snapshot has the "
                "rows that exist, without deletes and preimages; leave out the column _change_type"
            )
        known = rows.until(StatePlace(int(window.hashes[-1]), window.keys[-1].as_py()))
        old = old_rows(known, window.hashes, window.keys)
        images = known.images.take(pa.array(old, mask=old < 0))
        window = window._replace(before=pc.coalesce(window.before, images))
        if not self._snapshot:
            yield window
            return
        # Equal texts are equal rows. Other rows are compared column by column: another writer may have put
        # the same values into another order.
        differ = pc.fill_null(pc.not_equal(window.before, window.after), True)
        at = np.flatnonzero(differ.to_numpy(zero_copy_only=False))
        some = window.taken(at)
        changed = differences_of(some.before, some.after).changed
        counts = pc.fill_null(pc.list_value_length(changed), 1).to_numpy()
        if (counts > 0).any():
            yield some if (counts > 0).all() else some.taken(np.flatnonzero(counts > 0))
        gone = np.ones(len(known), np.bool_)
        gone[old[old >= 0]] = False
        if gone.any():
            yield self._removals(int(window.types[0]), known.taken(np.flatnonzero(gone)))

    def _removed(self, place: int, rows: NewestRows) -> Iterator[ChangeRecords]:
        if self._snapshot:
            for known in rows.rest():
                yield self._removals(place, known)

    def _removals(self, place: int, rows: StateRows) -> ChangeRecords:
        count = len(rows)
        return ChangeRecords(
            np.full(count, self._version, np.int64),
            np.full(count, place, np.int64),
            rows.key_hashes,
            rows.primary_keys,
            rows.images,
            pa.nulls(count, pa.binary()),
        )


@dataclass
class WrittenVersions:
    """The versions of a write as segments."""

    segments: list[SegmentReceipt | CarriedSegment] = field(default_factory=list)
    """Empty: there are no versions, as in a snapshot without differences."""
    records: int = 0
    """Number of records in the segments."""
    removals: dict[str, bool] = field(default_factory=dict)
    """Entity types with removed rows → True if the image of a removed row lacks values."""


class VersionsWriter:
    """Writes the versions of one commit."""

    def __init__(
        self,
        path: Path,
        versions: SourceVersions,
        schema_records: Sequence[SchemaRecord],
        *,
        renamed: bool,
    ) -> None:
        """Prepare to write.

        Args:
            path: The segment's file, if the versions do not fit into the commit's entry.
            versions: The versions of the changes.
            schema_records: The changes of the schema, which are part of the first version.
            renamed: True if keys were hashed under earlier names of the entity types.
        """
        self._path, self._versions, self._names = path, versions, versions.names
        self._schema_records = schema_records
        self._seeds = (
            np.array([type_seed(name) for name in self._names], np.uint64) if renamed else None
        )
        self._written: tuple[int, int] = (-1, 0)
        """Number in the commit of the last version that was written, and its records so far, lead included."""
        self._removals: dict[str, bool] = {}

    def write(
        self, records: Callable[[], Iterator[ChangeRecords]], *, exact: bool, elsewhere: int
    ) -> WrittenVersions:
        """Write all records, in the order of versions.

        Args:
            records: Returns the records from the first on. It is called once or twice.
            exact: True if each change that is no preimage is one record.
            elsewhere: Number of records of the only version that follow in segments of the tasks.

        Raises:
            InvalidRequest: A record is refused.
            LogFull: There is no space.
        """
        # 1. The lead of a version comes first and counts its records. If the tasks do not know how many there
        #    are, count them: hold them if they are few, else make them again.
        held = None if exact else self._counted(records)
        found = records() if held is None else iter(held)
        total = int(self._versions.records.sum())
        if not total:
            for _ in found:  # preimages alone make no record: they are refused as they are read
                pass
            return WrittenVersions()
        # 2. Few records are part of the commit's entry; then no file has to be made durable.
        total += len(self._versions.numbers) + len(self._schema_records) - elsewhere
        if elsewhere:
            found = chain(found, [_NO_RECORDS])  # the tasks may have all records, but not the lead
        batches: Iterable[pa.RecordBatch] = chain.from_iterable(map(self._batches, found))
        if total <= ROWS_MAX:
            batches = [*batches]
            if sum(batch.nbytes for batch in batches) <= BYTES_MAX:
                return WrittenVersions([_carried(batches)], total, self._removals)
        with SegmentWriter(self._path) as segment:
            for batch in batches:
                segment.write(batch)
            return WrittenVersions([segment.close()], total, self._removals)

    def _counted(
        self, records: Callable[[], Iterator[ChangeRecords]]
    ) -> list[ChangeRecords] | None:
        """Count the records; return them if they are few enough to be held, else None."""
        held: list[ChangeRecords] | None = []
        size = 0
        self._versions.forget_records()
        for window in records():
            self._versions.count_records(window.versions, window.types)
            size += window.nbytes
            held = [*held, window] if held is not None and size <= _HELD_BYTES else None
        return held

    def _batches(self, window: ChangeRecords) -> list[pa.RecordBatch]:
        """Return the records of the log for a window: leads, changes of the schema, and rows."""
        # 1. The columns that follow from the images.
        operations = np.full(len(window.keys), Operation.UPSERT, np.uint8)
        if window.after.null_count:
            removed = window.after.is_null().to_numpy(zero_copy_only=False)
            operations[removed] = Operation.REMOVE
            found = removals_in(self._names, window.types, operations, window.keys, window.before)
            for name, lacking in found.items():
                self._removals[name] = lacking or self._removals.get(name, False)
        differences = differences_of(window.before, window.after)
        changed = with_dictionary(differences.changed, pa.array(differences.names, pa.string()))
        # 2. The transactions of the window. The first one may have begun in the window before.
        versions = window.versions if len(window.versions) else self._versions.numbers
        starts = np.flatnonzero(np.diff(versions, prepend=versions[0] - 1))
        numbers = np.searchsorted(self._versions.numbers, versions[starts])
        first = int(numbers[0])
        last, written = self._written
        written = written if first == last else 0
        chosen = pa.array(numbers)
        ids, times = (
            each.take(chosen).to_pylist() for each in (self._versions.ids, self._versions.times)
        )
        rows = InputRows(
            self._names,
            window.types,
            window.keys,
            operations,
            changed,
            differences.change,
            window.before,
            window.after,
            starts,
            ids,
            times,
        )
        own = {0: [*self._schema_records]} if first == 0 and not written else {}
        own = own if self._schema_records else {}

        def text(place: int, _: Mapping[str, int], changes: Sequence[SchemaRecord]) -> bytes:
            counts = self._versions.counts_of(first + place)
            return _lead(counts, ids[place], times[place], changes)

        hashes = window.hashes
        if self._seeds is not None:
            hashes = key_hashes(self._seeds[window.types], window.keys)
        records = TransactionRecords(
            *(rows, hashes, changed, differences.change, first, own, text, written)
        ).batches()
        # 3. Note where the window ends.
        count = len(window.keys) - int(starts[-1])
        last = first + len(numbers) - 1
        if len(numbers) > 1 or not written:
            written = 1 + (0 if last else len(self._schema_records))
        self._written = last, written + count
        return records


def _lead(
    counts: Mapping[str, int],
    transaction_id: str | None,
    timestamp: int | None,
    changes: Sequence[SchemaRecord],
) -> bytes:
    total = sum(counts.values())
    # Records of the schema are counted, but are no rows of the source.
    counts = {**counts}
    for each in changes:
        counts[each.entity_type] = counts.get(each.entity_type, 0) + 1
    extras = {"schema_changes": len(changes)} if changes else {}
    return lead_text(
        transaction_id=transaction_id,
        counts=counts,
        source_count=total,
        source_timestamp=timestamp,
        **extras,
    )


def _carried(batches: Sequence[pa.RecordBatch]) -> CarriedSegment:
    columns: list[list[object]] = [[] for _ in TEXT_SCHEMA]
    for batch in batches:
        for column, each in zip(columns, TEXT_SCHEMA, strict=True):
            column += batch.column(each.name).to_pylist()
    return carried_segment(columns)
