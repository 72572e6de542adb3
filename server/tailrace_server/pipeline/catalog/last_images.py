"""The last image of each row as of the newest commit, from a cache or else from base and log.

The catalog has one writer, so the cached images of its own commits are still valid at its next commit. The
cache is bounded. The keys that it lacks are looked up in the log, all keys of a commit at once. A look-up reads
all committed records, published or not. So a commit that is repeated after a crash gets the same images.

An expired row has no image in the log. But the source may still have the row, and may change or remove it
later, so expired keys are looked up, too (`expired_keys`).

A large batch is written in tasks only if none of its images has to be filled (`lacks_images`). An image is
filled from earlier versions, so these must be written first, by the driver.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.catalog.committed_reads import last_records, read_keys
from tailrace_server.pipeline.catalog.whole_images import EXPIRED, Filling, KnownImage, Restating
from tailrace_server.pipeline.input.change import CHANGE, DELETE, UPDATE, from_table
from tailrace_server.units import format_bytes
from tailrace_server.wal.base.reading import last_known
from tailrace_server.wal.base.winners import batch_and_row
from tailrace_server.wal.schema.restating import first_stated
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from tailrace.schema import Column, Schema
    from tailrace_server.pipeline.catalog.columns import Columns, CurrentColumns
    from tailrace_server.pipeline.catalog.whole_images import RowName
    from tailrace_server.pipeline.input.change import Change
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.pipeline.transactions.tally import Tally
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.state.view import LogView


def expired_keys(
    view: LogView, reader: BatchReader, entity_type: str, keys: Sequence[str]
) -> set[str]:
    """Return the keys whose last record in the log is an EXPIRE.

    Args:
        view: A view of the log, with all of its schemas.
        reader: A reader of the log's batches.
        entity_type: Name of the entity type in the newest schema of the view.
        keys: The keys to check, at most as many as one fold can hold in memory.

    Raises:
        LogCorrupted: A batch that is read is damaged.
        SegmentMissing: Upkeep has replaced a segment.
    """
    if not keys:
        return set()
    found = last_records(view, reader, entity_type, keys).winners
    # The fold works on hashes, so it may return keys that were not requested.
    ours = pc.is_in(found.keys, pa.array(keys, found.keys.type)).to_numpy(zero_copy_only=False)
    last = found.taken(np.flatnonzero(ours & ~found.lives))
    batches, rows = batch_and_row(last.places)
    return {
        key
        for key, batch, row in zip(last.keys.to_pylist(), batches.tolist(), rows, strict=True)
        if reader.head(view.batch(batch)).operations[row] == Operation.EXPIRE
    }


_KEPT_BYTES: Final = 64 << 20
_ROW_BYTES: Final = 300
"""Estimated memory of a cached row, in bytes, without its key and image."""


class LastImages:
    """The last images of one catalog's rows, for its writer. Not thread-safe."""

    def __init__(
        self, writer: CatalogWriter, settings: IngestSettings, kept_bytes: int = _KEPT_BYTES
    ) -> None:
        """Begin with an empty cache.

        Args:
            writer: The catalog's writer.
            settings: The settings of the ingest, with the entity types whose images are filled.
            kept_bytes: Approximate maximum size of the cache.

        Raises:
            InvalidRequest: The settings request whole images or a time to live for a table without a key.
        """
        mapping = settings.mapping
        for name, declared in () if mapping is None else mapping.entity_types.items():
            if declared.whole_images and settings.source.counts(name):
                assert mapping is not None
                expires = declared.time_to_live is not None
                what, advice = ("ttl", "") if expires else ("images", ", or write as-sent")
                raise InvalidRequest(
                    f"{mapping.where(name)}.{what}: the rows of {name} have no key (--keyless), "
                    f"so their earlier images cannot be found: leave it out{advice}"
                )
        self._writer = writer
        self._settings = settings
        self._makes_whole = settings.makes_whole
        self._mapping = mapping
        self._unavailable = settings.source.unavailable
        self._record_bytes_max = settings.max_record_bytes
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[RowName, KnownImage | None] = OrderedDict()
        self._size = 0
        self._stated: tuple[int, Mapping[int, Column]] = (0, {})
        """Id of the newest schema that was read, and by column id, each column in its first form that was not
        inferred."""

    def begin(self, changes: Iterable[Change], columns: CurrentColumns) -> Filling:
        """Return the filling of a commit; look up the last images of its rows.

        Args:
            changes: All changes that the commit releases.
            columns: The columns at the present point of the commit.

        Raises:
            LogCorrupted: A part of base or log that is read is damaged.
            SegmentMissing: Upkeep replaced the segments in each of several attempts.
        """
        # 1. Look up at once all rows that need their last image and are not cached: one pass over base and log.
        wanted: dict[str, set[str]] = defaultdict(set)
        for change in changes:
            entity_type = change.entity_type or ""
            if needs_last_image(change, self._settings):
                row = (entity_type, change.old_key or change.primary_key or "")
                if row not in self._kept:
                    wanted[entity_type].add(row[1])
        found: dict[RowName, KnownImage | None] = {}
        for entity_type, keys in wanted.items():
            found.update(self._found(entity_type, keys))
            # 2. A row without an image is new or has expired. Only the latter changes how a change is filled.
            if self._settings.time_to_live(entity_type) is not None:
                gone = sorted(key for key in keys if found[entity_type, key] is None)
                found.update(
                    ((entity_type, key), EXPIRED) for key in self._expired(entity_type, gone)
                )

        def before(row: RowName) -> KnownImage | None:
            if row in self._kept:
                self._kept.move_to_end(row)
                return self._kept[row]
            # Rare: an image lacks a listed column entirely, which `needs_last_image` does not check.
            if row not in found:
                found.update(self._found(row[0], (row[1],)))
            return found[row]

        return Filling(
            self._settings,
            before,
            columns,
            Restating(self._first_stated, self._unavailable),
        )

    def keep(
        self, filling: Filling | None, schemas: Sequence[tuple[int, Schema]], newest: Schema
    ) -> None:
        """Update the cache after a commit.

        Args:
            filling: The filling of the commit; None if tasks wrote it, so that its images are unknown here.
            schemas: The schemas that began in the commit, each with its first version relative to the commit.
            newest: The schema after the commit.
        """
        if filling is None:
            self._kept.clear()
            self._size = 0
            return
        # If the commit has several schemas, the schema of each image is unknown here. Then cache none of them;
        # the next look-up reads them from the log.
        one_schema = all(version == 0 for version, _ in schemas)
        if filling.truncated:
            for row in [row for row in self._kept if row[0] in filling.truncated]:
                self._drop(row)
        for row, known in filling.rows.items():
            self._drop(row)
            columns = newest.entity_types.get(row[0]) if one_schema else None
            if columns is None:
                continue
            if known is not None:
                known = known._replace(columns=columns)
            self._kept[row] = known
            self._size += _size(row, known)
        self._make_room()

    def stated_now(
        self, view: LogView, name: str, rows: StateRows
    ) -> list[tuple[str, bytes | None]]:
        """Return the keys and images of rows, the images converted to the newest columns of a view.

        Args:
            view: A view of the log, with all of its schemas.
            name: Name of the entity type in the newest schema of the view.
            rows: Rows of the entity type.
        """
        restating = Restating(self._first_stated, self._unavailable)
        columns = view.schema_of(view.published).entity_types[name]
        known = _known(view, name, rows)
        return [
            (key, restating.now(known[key], columns, ()) if key in known else None)
            for key in rows.primary_keys.to_pylist()
        ]

    def have_expired(self, entity_type: str, keys: Iterable[str]) -> None:
        """Update the cache after rows have expired."""
        for key in keys:
            row = (entity_type, key)
            self._drop(row)
            self._kept[row] = EXPIRED
            self._size += _size(row, EXPIRED)
        self._make_room()

    def _make_room(self) -> None:
        # The cache is ordered by last use, so the least recently used row is dropped first.
        while self._size > self._kept_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, row: RowName) -> None:
        if row in self._kept:
            self._size -= _size(row, self._kept.pop(row))

    def _found(
        self, entity_type: str, keys: Iterable[str]
    ) -> Iterator[tuple[RowName, KnownImage | None]]:
        """Yield the name of each row with its last image in the log; None if there is none."""
        nothing: dict[str, KnownImage] = {}
        portions = read_keys(
            self._writer, self._mapping, entity_type, sorted(keys), _images_of, nothing
        )
        for some, known in portions:
            for key in some:
                yield (entity_type, key), known.get(key)

    def _expired(self, entity_type: str, keys: Sequence[str]) -> set[str]:
        """Return the keys whose rows have expired."""
        nothing: set[str] = set()
        portions = read_keys(self._writer, self._mapping, entity_type, keys, expired_keys, nothing)
        return nothing.union(*(found for _, found in portions))

    def _first_stated(self) -> Mapping[int, Column]:
        view = self._writer.log.committed_view()
        newest = view.schema_of(view.published).id
        if newest != self._stated[0]:
            self._stated = newest, first_stated(view.schemas())
        return self._stated[1]


def _images_of(
    view: LogView, reader: BatchReader, name: str, keys: Sequence[str]
) -> dict[str, KnownImage]:
    """Return key → last image; keys without an image in the log are left out."""
    return _known(view, name, last_known(view, reader, name).rows_of(keys))


def _known(view: LogView, name: str, rows: StateRows) -> dict[str, KnownImage]:
    """Return key → image, with the columns of the image's version."""
    names = EntityNames(view.schema_of(view.published), name)
    columns: dict[int, Columns] = {}
    known: dict[str, KnownImage] = {}
    texts = zip(rows.primary_keys.to_pylist(), rows.images.to_pylist(), strict=True)
    for (key, text), version in zip(texts, rows.versions.tolist(), strict=True):
        if text is not None:
            schema = view.schema_of(version)
            if schema.id not in columns:
                columns[schema.id] = schema.entity_types[names.name_in(schema) or name]
            known[key] = KnownImage(text, columns[schema.id])
    return known


def needs_last_image(change: Change, settings: IngestSettings) -> bool:
    """Return True if the last image of a change's row may be needed to fill the change.

    The change may lack values, or its row may have expired.
    """
    entity_type = change.entity_type or ""
    if not settings.makes_whole(entity_type):
        return False
    if change.operation == DELETE or change.old_key is not None:
        return True
    if change.operation != UPDATE:
        return False
    unavailable = settings.source.unavailable
    return (
        change.before is None
        or settings.time_to_live(entity_type) is not None
        or any(
            image is not None and unavailable.may_be_in(image)
            for image in (change.before, change.after)
        )
    )


def _size(row: RowName, known: KnownImage | None) -> int:
    return _ROW_BYTES + len(row[0]) + len(row[1]) + (0 if known is None else len(known.text))


_COUNTS: Final = pa.schema([pa.field("lacking", pa.int64()), pa.field("bytes", pa.int64())])


def lacks_images(
    open_tallies: Mapping[str, Tally], settings: IngestSettings, decoded: DataFrame
) -> bool:
    """Return True if images of a batch may have to be filled, so that the driver has to write its versions.

    Args:
        open_tallies: The tallies of open transactions. If they have any row, the result is True, because the
            missing values of pending rows are unknown.
        settings: The settings of the ingest.
        decoded: The decoded batch, in `CHANGE_SCHEMA`.

    Raises:
        InvalidRequest: The driver would have to write the batch, but it exceeds ``batch_bytes``.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = ["entity_type", "operation", "primary_key", "old_key", "before", "after"]
    rows = decoded.where(decoded["kind"] == CHANGE).select(*columns)
    counts = rows.mapInArrow(counter_of(settings), from_arrow_schema(_COUNTS)).toArrow().to_pylist()
    total = sum(each["bytes"] for each in counts)
    waiting = any(tally.rows for tally in open_tallies.values())
    if not waiting and not any(each["lacking"] for each in counts):
        return False
    if total > settings.batch_bytes:
        raise InvalidRequest(
            "images are filled in one process, and those of the next batch have "
            f"{format_bytes(total)}, above --batch-bytes, {format_bytes(settings.batch_bytes)}: "
            f"give --batch-bytes {total}B if that fits in memory, or smaller files, or ingest "
            "these files with --images as-sent"
        )
    return True


def counter_of(
    settings: IngestSettings,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for tasks: it counts the changes that may lack values, and the bytes of all images."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lacking = size = 0
        for batch in batches:
            size += batch.column("before").nbytes + batch.column("after").nbytes
            lacking += sum(needs_last_image(change, settings) for change in from_table(batch))
        yield pa.RecordBatch.from_arrays(
            [pa.array([lacking], pa.int64()), pa.array([size], pa.int64())], schema=_COUNTS
        )

    return count
