"""The fillings of commits: the last images that they need, from `wal.last_images`, and the rows that expired.

An expired row has no image in the log. But the source may still have the row, and may change or remove it
later, so expired keys are looked up, too (`expired_keys`). A commit that is repeated after a crash gets the
same images, since a look-up reads all committed records.

A large batch is written in tasks only if none of its images has to be filled (`needs_last_image`). An image is
filled from earlier versions, so these must be written first, by the driver.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.catalog.whole_images import EXPIRED, Filling
from tailrace_server.pipeline.input.change import DELETE, UPDATE
from tailrace_server.units import format_bytes
from tailrace_server.wal.base.winners import batch_and_row
from tailrace_server.wal.committed_reads import last_records, read_keys
from tailrace_server.wal.last_images import LastImages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tailrace.schema import Schema
    from tailrace_server.pipeline.catalog.columns import CurrentColumns
    from tailrace_server.pipeline.input.change import Change
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.last_images import KnownImage, RowName
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


class Fillings:
    """The fillings of one catalog's commits, and the last images that they need. Not thread-safe."""

    def __init__(
        self, writer: CatalogWriter, settings: IngestSettings, images: LastImages | None = None
    ) -> None:
        """Begin without a filling.

        Args:
            writer: The catalog's writer.
            settings: The settings of the ingest, with the entity types whose images are filled.
            images: The cache of last images; None: an empty one.

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
        self._mapping = mapping
        self.images = images or LastImages(writer, mapping, settings.source.unavailable)
        """The last images, as far as they are cached."""

    def begin(self, columns: CurrentColumns) -> Filling:
        """Return the filling of a commit.

        Args:
            columns: The columns at the present point of the commit.
        """
        found: dict[RowName, KnownImage | None] = {}

        def look_up(changes: Iterable[Change]) -> None:
            found.clear()
            found.update(self._found(changes))

        def before(row: RowName) -> KnownImage | None:
            if row in self.images:
                return self.images[row]
            # Rare: an image lacks a listed column entirely, which `needs_last_image` does not check.
            if row not in found:
                found.update(self.images.find(row[0], (row[1],)))
            return found[row]

        return Filling(self._settings, before, columns, self.images.restating(), look_up)

    def _found(self, changes: Iterable[Change]) -> dict[RowName, KnownImage | None]:
        """Return the last images that some changes need and that are not cached: one pass over base and log.

        Raises:
            LogCorrupted: A part of base or log that is read is damaged.
            SegmentMissing: Upkeep replaced the segments in each of several attempts.
        """
        wanted: dict[str, set[str]] = defaultdict(set)
        for change in changes:
            entity_type = change.entity_type or ""
            if needs_last_image(change, self._settings):
                row = (entity_type, change.old_key or change.primary_key or "")
                if row not in self.images:
                    wanted[entity_type].add(row[1])
        found: dict[RowName, KnownImage | None] = {}
        for entity_type, keys in wanted.items():
            found.update(self.images.find(entity_type, keys))
            # A row without an image is new or has expired. Only the latter changes how a change is filled.
            if self._settings.time_to_live(entity_type) is not None:
                gone = sorted(key for key in keys if found[entity_type, key] is None)
                found.update(
                    ((entity_type, key), EXPIRED) for key in self._expired(entity_type, gone)
                )
        return found

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
            self.images.clear()
            return
        # If the commit has several schemas, the schema of each image is unknown here. Then cache none of them;
        # the next look-up reads them from the log.
        one_schema = all(version == 0 for version, _ in schemas)
        self.images.drop_types(filling.truncated)
        for row in filling.rows:
            self.images.drop(row)
        if one_schema:
            types = newest.entity_types
            self.images.keep(
                (row, known and known._replace(columns=types[row[0]]))
                for row, known in filling.rows.items()
                if row[0] in types
            )

    def _expired(self, entity_type: str, keys: Sequence[str]) -> set[str]:
        """Return the keys whose rows have expired."""
        nothing: set[str] = set()
        portions = read_keys(self._writer, self._mapping, entity_type, keys, expired_keys, nothing)
        return nothing.union(*(found for _, found in portions))


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


def check_fill(image_bytes: int, settings: IngestSettings) -> None:
    """Check that the last images of a batch's rows, which are held while it is written, fit into memory.

    Args:
        image_bytes: Size of the batch's images.
        settings: The settings of the ingest.

    Raises:
        InvalidRequest: The images exceed ``batch_bytes``.
    """
    if image_bytes > settings.batch_bytes:
        raise InvalidRequest(
            "images are filled in one process, and those of the next batch have "
            f"{format_bytes(image_bytes)}, above --batch-bytes, {format_bytes(settings.batch_bytes)}: "
            f"give --batch-bytes {image_bytes}B if that fits in memory, or smaller files, or ingest "
            "these files with --images as-sent"
        )
