"""The columns of entity types, inferred from images.

Columns are numbered in the order of their first appearance, in ``after`` or else in ``before``. A task knows
the columns that the catalog had when the batch began. It reports each additional column as a *sighting*, with
the version in its segment. The driver merges the sightings of all tasks in version order, and makes a new
schema for each version that adds something.

The schemas of a commit are known only after all of its images are written. `CurrentColumns` gives the columns
earlier, while a commit is built: an image of an older version must be restated in the columns of the version
that needs it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace_server.pipeline.catalog.due_times import check_times
from tailrace_server.pipeline.input.column_listing import announced
from tailrace_server.wal.record.unavailable import DEFAULT
from tailrace_server.wal.schema.builder import SchemaBuilder
from tailrace_server.wal.schema.column_types import TypeInference, widened

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tailrace.schema import Column, Schema
    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.mapping import SchemaMapping

FIXED: Final = "*"
"""Marker in place of a column's type: the type is declared or listed, and values never widen it."""

KnownColumns = dict[str, dict[str, str | None]]
"""Entity type → column → its type, or FIXED; tasks do not report these columns."""


class Sighting(NamedTuple):
    """A report of a new entity type, a new column, a value that its column's type cannot hold, or a listing."""

    version: int
    """Version relative to the segment; in a `WrittenPlan`, relative to the commit."""
    entity_type: str
    name: str | None
    """The column; None for a new entity type, or for a listing."""
    sql_type: str | None = None
    """The type inferred from the value; None if the value implies none, such as null."""
    columns: str | None = None
    """The source's listing of the entity type's columns (`column_listing`); None if this is no listing."""
    late: bool = False
    """True if the listing arrived with late rows; it then describes only the encoding of these rows."""


class ColumnInference:
    """Collects the columns of images; one for each segment."""

    def __init__(
        self,
        known: Mapping[str, Mapping[str, str | None]],
        unavailable: Unavailable = DEFAULT,
    ) -> None:
        """Begin with the known columns.

        Args:
            known: The columns that are not reported (`KnownColumns`).
            unavailable: Recognizes placeholders for values that the source did not send.
        """
        self._known = {entity_type: dict(columns) for entity_type, columns in known.items()}
        self._types = TypeInference(unavailable)
        self._announced: dict[str, tuple[str, bool]] = {}
        self.sightings: list[Sighting] = []

    def observe(
        self,
        version: int,
        entity_type: str,
        image: bytes | None,
        names: Iterable[str] = (),
    ) -> None:
        """Report the new columns in an image and in ``names``; the names need not be in the image."""
        known = self._known.get(entity_type)
        if known is None:
            known = self._known[entity_type] = {}
            self.sightings.append(Sighting(version, entity_type, None))
        names = tuple(names)
        found = (
            [(name, None) for name in names]
            if image is None
            else self._types.unseen(entity_type, image, names)
        )
        for name, sql_type in found:
            # "" is a new column; None is a known column that has shown only nulls so far.
            before = known.get(name, "")
            if before == "":
                known[name] = sql_type
            elif before == FIXED or (wider := widened(before, sql_type)) == before:
                continue
            else:
                known[name] = wider
            self.sightings.append(Sighting(version, entity_type, name, sql_type))

    def announce(self, version: int, entity_type: str, columns: str, *, late: bool = False) -> None:
        """Report the source's listing of an entity type's columns; ``late`` is as in `Sighting`."""
        if self._announced.get(entity_type) != (columns, late):
            self._announced[entity_type] = columns, late
            self.sightings.append(Sighting(version, entity_type, None, None, columns, late))


def known_columns(schema: Schema, untouched: Collection[str] = ()) -> KnownColumns:
    """Return the columns of a schema that tasks do not have to report.

    Dropped columns are left out, so that tasks report them when they appear again. The entity types in
    ``untouched`` are left out, because the schema lacks the columns that the mapping declares for them.
    """
    return {
        entity_type: {
            column.name: column.sql_type if column.inferred else FIXED
            for column in columns
            if not column.dropped
        }
        for entity_type, columns in schema.entity_types.items()
        if entity_type not in untouched
    }


def take(builder: SchemaBuilder, sighting: Sighting) -> None:
    """Apply a sighting to a schema builder."""
    name, entity_type = sighting.name, sighting.entity_type
    if sighting.columns is not None:
        builder.announce(entity_type, announced(sighting.columns), late=sighting.late)
    else:
        builder.see(entity_type, () if name is None else ((name, sighting.sql_type),))


def evolve(
    schema: Schema,
    sightings: Iterable[Sighting],
    mapping: SchemaMapping | None = None,
    placeholders: Iterable[str] = (),
) -> list[tuple[int, Schema]]:
    """Return the schemas that follow from sightings, each with its first version relative to the commit.

    Args:
        schema: The newest schema of the catalog.
        sightings: The sightings, sorted by version; repeats are ignored.
        mapping: The declared columns.
        placeholders: The placeholders in images of values that were not sent, from the first version on.

    Raises:
        InvalidRequest: The mapping names a column that does not exist, or a time-to-live column whose values
            are not times.
    """
    schemas: list[tuple[int, Schema]] = []
    builder = SchemaBuilder(schema, mapping)
    builder.know_placeholders(placeholders)
    newest, id = schema, schema.id

    def finish_version(version: int) -> None:
        nonlocal newest, id
        grown = builder.schema()
        if grown is not newest:
            id += 1
            newest = grown
            schemas.append((version, replace(grown, id=id)))

    version = 0
    shown: dict[str, set[str]] = {}
    for sighting in sightings:
        if sighting.version != version:
            finish_version(version)
            version = sighting.version
        take(builder, sighting)
        if sighting.name is not None:
            shown.setdefault(sighting.entity_type, set()).add(sighting.name)
    finish_version(version)
    # Check the mapping's names only for entity types that have shown a whole row: a removal has only the key.
    for entity_type, names in shown.items():
        if len(names) > max(1, len(newest.key_columns(entity_type))):
            builder.check_declared(entity_type)
            check_times(mapping, newest, entity_type)
    return schemas


Columns = tuple["Column", ...]
"""The columns of an entity type, including dropped ones."""


class CurrentColumns:
    """The columns of entity types at the present point of a commit.

    The ids of new columns are provisional: they are valid only in this object.
    """

    def __init__(
        self, schema: Schema, mapping: SchemaMapping | None, sightings: Sequence[Sighting]
    ) -> None:
        """Begin with the columns of a schema.

        Args:
            schema: The newest schema of the catalog.
            mapping: The declared columns.
            sightings: The list to which the commit appends its sightings; it is read at each call.
        """
        self._builder = SchemaBuilder(schema, mapping)
        self._sightings = sightings
        self._taken = 0
        self._shown: dict[str, set[str]] = {}
        """Entity type → the columns that images have shown."""

    def of(self, entity_type: str, names: Collection[str]) -> Columns:
        """Return the columns of an entity type, by the sightings so far and by the columns of an image."""
        for sighting in self._sightings[self._taken :]:
            take(self._builder, sighting)
            self._shown.pop(sighting.entity_type, None)  # a listing may have dropped what was shown
        self._taken = len(self._sightings)
        # Give the image's columns to the builder, too: a new column may be a renamed one, and a dropped column
        # that appears again is not dropped.
        shown = self._shown.setdefault(entity_type, set())
        if not shown or not shown.issuperset(names):
            shown.update(names)
            self._builder.see(entity_type, [(name, None) for name in names])
        return self._builder.schema().entity_types[entity_type]
