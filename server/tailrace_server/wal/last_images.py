"""The last image of each row as of the newest commit, for a writer: from a cache, or else from base and log.

The catalog has one writer, so the cached images of its own commits are still valid at its next commit. The
cache is bounded. The keys that it lacks are looked up in the log, all keys of a commit at once. A look-up reads
all committed records, published or not.

Columns may have been renamed, altered or dropped since the last image. Readers decode both images of a record
by the schema of its version (docs/adr/0026). So `Restating` converts the last image to the columns of that
version::

    then    {"id":1,"cost":"AfQ=","old":7}      cost in decimal.bytes(2)
    now     {"id":1,"price":"w1A="}             price in decimal.bytes(4); old is dropped

A value without an exact form in the new columns counts as not sent. All other values keep their texts.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace_server.wal.base.reading import last_known
from tailrace_server.wal.committed_reads import read_keys
from tailrace_server.wal.record.images import hidden, members, renamed
from tailrace_server.wal.record.unavailable import DEFAULT
from tailrace_server.wal.schema.restating import (
    conversion_of,
    first_stated,
    read_as,
    restated_image,
)
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from tailrace.schema import Column
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.mapping import SchemaMapping
    from tailrace_server.wal.schema.restating import Conversions
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.state.view import LogView

    Columns = tuple[Column, ...]
    """The columns of an entity type, including dropped ones."""

RowName = tuple[str, str]
"""Entity type and key."""


class KnownImage(NamedTuple):
    """An image, with the columns that its entity type had when the image was written."""

    text: bytes
    columns: Columns


class _Way(NamedTuple):
    """The steps that convert images from one set of columns to another."""

    conversions: Conversions
    names: Mapping[str, str]
    """Renamed columns: old name → new name."""
    dropped: Collection[str]
    """Old names of the dropped columns."""
    added_again: Collection[str]
    """The names in ``dropped`` that a new column has now; the old value does not belong to the new column."""


class Restating:
    """The conversion of images to later columns; caches the steps for each pair of column sets."""

    def __init__(
        self, stated: Callable[[], Mapping[int, Column]], unavailable: Unavailable
    ) -> None:
        """Begin with an empty cache.

        Args:
            stated: Returns, by id, each column of the log in its first form that was not inferred
                (`restating.first_stated`).
            unavailable: Recognizes placeholders for values that the source did not send.
        """
        self._stated = stated
        self._unavailable = unavailable
        self._ways: dict[tuple[int, int], tuple[Columns, Columns, _Way | None]] = {}
        """Cached steps, by the `id` of both column sets. The value references both sets, so that no other
        object can get the same `id`."""

    def now(self, image: KnownImage, columns: Columns, kept: Collection[str]) -> bytes:
        """Return the text of an image, converted to other columns.

        Args:
            image: The image.
            columns: The columns to convert to.
            kept: Names of columns to keep even if they are dropped, because rows still arrive with them.
        """
        if image.columns is columns:
            return image.text
        key = (id(image.columns), id(columns))
        if key not in self._ways:
            way = None if image.columns == columns else self._way(image.columns, columns)
            self._ways[key] = image.columns, columns, way
        way = self._ways[key][2]
        text = image.text
        if way is None:
            return text
        if way.conversions:
            text, inexact = restated_image(text, way.conversions, self._unavailable)
            text = hidden(text, inexact)
        # Remove dropped columns, except those that rows still have. If a new column has the same name, remove
        # the old value in any case: it is not the new column's.
        gone = [name for name in way.dropped if name not in kept or name in way.added_again]
        if way.names or any(name in members(text) for name in gone):
            text = renamed(text, way.names, without=gone)
        return text

    def _way(self, then: Columns, now: Columns) -> _Way | None:
        known = {column.id: column for column in now}
        pairs = [(column, known.get(column.id, column)) for column in then]
        # A value of an inferred column is decoded by the type that was declared later. To look that up reads
        # all schemas of the log, so do it only if needed.
        later = any(column.inferred and not current.inferred for column, current in pairs)
        stated = self._stated() if later else {}
        conversions: Conversions = {}
        names: dict[str, str] = {}
        dropped = []
        for column, current in pairs:
            if current.name != column.name:
                names[column.name] = current.name
            if current.dropped and not column.dropped:
                dropped.append(column.name)
                continue
            first = stated.get(column.id)
            if first is None and not current.inferred:
                first = current  # it is stated in this commit
            read = read_as(column, first)
            conversion = conversion_of(read, (current.sql_type, current.encoding))
            if conversion is not None:
                conversions[column.name] = conversion
        living = {column.name for column in now if not column.dropped}
        again = living.intersection(dropped)
        return _Way(conversions, names, dropped, again) if conversions or names or dropped else None


_KEPT_BYTES: Final = 64 << 20
_ROW_BYTES: Final = 300
"""Estimated memory of a cached row, in bytes, without its key and image."""


class LastImages:
    """The last images of one catalog's rows, for its writer. Not thread-safe."""

    def __init__(
        self,
        writer: CatalogWriter,
        mapping: SchemaMapping | None,
        unavailable: Unavailable = DEFAULT,
        kept_bytes: int = _KEPT_BYTES,
    ) -> None:
        """Begin with an empty cache.

        Args:
            writer: The catalog's writer.
            mapping: The declared columns; the mapping may rename entity types.
            unavailable: Recognizes placeholders for values that the source did not send.
            kept_bytes: Approximate maximum size of the cache.
        """
        self._writer = writer
        self._mapping = mapping
        self._unavailable = unavailable
        self._kept_bytes = kept_bytes
        self.rows: OrderedDict[RowName, KnownImage | None] = OrderedDict()
        """The cached rows, the last kept one last; None: the row does not exist."""
        self._size = 0
        self._stated: tuple[int, Mapping[int, Column]] = (0, {})
        """Id of the newest schema that was read, and by column id, each column in its first form that was not
        inferred."""

    def __contains__(self, row: RowName) -> bool:
        return row in self.rows

    def __getitem__(self, row: RowName) -> KnownImage | None:
        """Return the cached image of a row; None if the row does not exist."""
        self.rows.move_to_end(row)
        return self.rows[row]

    def find(
        self, entity_type: str, keys: Iterable[str]
    ) -> Iterator[tuple[RowName, KnownImage | None]]:
        """Yield the name of each row with its last image in the log; None if there is none.

        Raises:
            LogCorrupted: A part of base or log that is read is damaged.
            SegmentMissing: Upkeep replaced the segments in each of several attempts.
        """
        nothing: dict[str, KnownImage] = {}
        portions = read_keys(
            self._writer, self._mapping, entity_type, sorted(keys), _images_of, nothing
        )
        for some, known in portions:
            for key in some:
                yield (entity_type, key), known.get(key)

    def keep(self, images: Iterable[tuple[RowName, KnownImage | None]]) -> None:
        """Add the images of a commit to the cache; drop those that were used least recently."""
        rows = self.rows
        for row, known in images:
            if row in rows:
                self._size -= _size(row, rows.pop(row))
            rows[row] = known
            self._size += _size(row, known)
        while self._size > self._kept_bytes:
            self.drop(next(iter(self.rows)))

    def drop(self, row: RowName) -> None:
        """Remove a row from the cache, if it is there."""
        if row in self.rows:
            self._size -= _size(row, self.rows.pop(row))

    def drop_types(self, entity_types: Collection[str]) -> None:
        """Remove all rows of some entity types from the cache."""
        if entity_types:
            for row in [row for row in self.rows if row[0] in entity_types]:
                self.drop(row)

    def clear(self) -> None:
        """Empty the cache."""
        self.rows.clear()
        self._size = 0

    def restating(self) -> Restating:
        """Return a new conversion of images to later columns."""
        return Restating(self._first_stated, self._unavailable)

    def stated_now(
        self, view: LogView, name: str, rows: StateRows
    ) -> list[tuple[str, bytes | None]]:
        """Return the keys and images of rows, the images converted to the newest columns of a view.

        Args:
            view: A view of the log, with all of its schemas.
            name: Name of the entity type in the newest schema of the view.
            rows: Rows of the entity type.
        """
        columns = view.schema_of(view.published).entity_types[name]
        images = restated_images(view, name, rows, columns, self.restating())
        return list(zip(rows.primary_keys.to_pylist(), images.to_pylist(), strict=True))

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
    rows = last_known(view, reader, name).rows_of(keys)
    found, images = rows.primary_keys.to_pylist(), rows.images.to_pylist()
    return {
        found[row]: KnownImage(image, columns)
        for columns, places in _columns_of(view, name, rows)
        for row in places.tolist()
        if (image := images[row]) is not None
    }


def restated_images(
    view: LogView, name: str, rows: StateRows, columns: Columns, restating: Restating
) -> pa.BinaryArray:
    """Return the images of rows of an entity type, converted to the given columns."""
    images: list[bytes | None] | None = None
    for then, places in _columns_of(view, name, rows):
        # Usually the columns are the same. Otherwise each image is converted.
        if then != columns:
            images = rows.images.to_pylist() if images is None else images
            for row in places.tolist():
                if (image := images[row]) is not None:
                    images[row] = restating.now(KnownImage(image, then), columns, ())
    return rows.images if images is None else pa.array(images, pa.binary())


def _columns_of(
    view: LogView, name: str, rows: StateRows
) -> Iterator[tuple[Columns, npt.NDArray[np.int64]]]:
    """Yield the columns of rows, each with the places of the rows whose versions have them."""
    names = EntityNames(view.schema_of(view.published), name)
    schemas, places = view.schemas_of(rows.versions)
    for place, schema in enumerate(schemas):
        yield schema.entity_types[names.name_in(schema) or name], np.flatnonzero(places == place)


def _size(row: RowName, known: KnownImage | None) -> int:
    return _ROW_BYTES + len(row[0]) + len(row[1]) + (0 if known is None else len(known.text))
