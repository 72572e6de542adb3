"""The columns of entity types, inferred from images.

Columns are numbered by when they were first seen: in the order of ``after``, else of ``before``. A task knows
the columns that the catalog had when the batch began. It reports those beyond, each with the transaction in
its segment. The driver puts the reports of all tasks together in version order, and makes one schema for each
transaction that brings something new.

Schemas follow from the images of a commit once all are written. `CurrentColumns` has the columns earlier, in
the middle of a commit: an image of an older version must be restated in the columns of the version that needs
it.
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
"""Type of a known column that values do not widen."""

KnownColumns = dict[str, dict[str, str | None]]
"""Entity type → column → its type, or FIXED; these columns need no report."""


class Sighting(NamedTuple):
    """A column seen for the first time, or with a value that its type does not hold."""

    version: int
    """Relative to the segment, or to the commit where several segments are put together."""
    entity_type: str
    name: str | None
    """None for an entity type that showed no column yet."""
    sql_type: str | None = None
    """Inferred from the value; None where it shows none."""
    columns: str | None = None
    """The source's list of the columns of the entity type (`column_listing`)."""
    late: bool = False
    """True if the listing came with late rows, and says only how these are written."""


class ColumnInference:
    """Collects the columns of images; one for each segment."""

    def __init__(
        self,
        known: Mapping[str, Mapping[str, str | None]],
        unavailable: Unavailable = DEFAULT,
    ) -> None:
        """Begin.

        Args:
            known: The columns that need no report, by entity type.
            unavailable: Tells values that the source did not send.
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
        """Report the new columns of an image, and of names that need not be in it."""
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
            before = known.get(name, "")
            if before == "":
                known[name] = sql_type
            elif before == FIXED or (wider := widened(before, sql_type)) == before:
                continue
            else:
                known[name] = wider
            self.sightings.append(Sighting(version, entity_type, name, sql_type))

    def announce(self, version: int, entity_type: str, columns: str, *, late: bool = False) -> None:
        """Report what the source lists as the columns of an entity type; ``late`` as in `Sighting`."""
        if self._announced.get(entity_type) != (columns, late):
            self._announced[entity_type] = columns, late
            self.sightings.append(Sighting(version, entity_type, None, None, columns, late))


def known_columns(schema: Schema, untouched: Collection[str] = ()) -> KnownColumns:
    """Return the columns of a schema in the form that tasks take.

    Left out are dropped columns, which are reported when they are seen again, and the entity types in
    ``untouched``: a mapping declares columns of theirs that the schema does not have yet.
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
    """Tell a builder what was sighted."""
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
    """Return the schemas that sightings lead to, each with the first version that it holds for.

    Args:
        schema: The newest one of the catalog.
        sightings: Sorted by version; repeats are ignored.
        mapping: The columns that are declared.
        placeholders: The replacements, in images, of values that were not sent, from the first version on.

    Raises:
        InvalidRequest: The mapping names a column that is not there, or lets rows expire by one that says no
            moments.
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
    for entity_type, names in shown.items():
        if len(names) > max(1, len(newest.key_columns(entity_type))):  # more than a removal shows
            builder.check_declared(entity_type)
            check_times(mapping, newest, entity_type)
    return schemas


Columns = tuple["Column", ...]
"""The columns of an entity type, dropped ones included."""


class CurrentColumns:
    """Follows what is sighted. Ids of columns that it adds hold for it alone."""

    def __init__(
        self, schema: Schema, mapping: SchemaMapping | None, sightings: Sequence[Sighting]
    ) -> None:
        """Begin.

        Args:
            schema: The newest one of the catalog.
            mapping: The columns that are declared.
            sightings: What is sighted, in its order; the list grows.
        """
        self._builder = SchemaBuilder(schema, mapping)
        self._sightings = sightings
        self._taken = 0
        self._shown: dict[str, set[str]] = {}
        """Entity type → the columns that images have shown."""

    def of(self, entity_type: str, names: Collection[str]) -> Columns:
        """Return the columns of an entity type by what is sighted so far, and by an image's own columns."""
        for sighting in self._sightings[self._taken :]:
            take(self._builder, sighting)
            self._shown.pop(sighting.entity_type, None)  # a listing may have dropped what was shown
        self._taken = len(self._sightings)
        # A column that is seen for the first time may be one that is called otherwise now, and a dropped one
        # that is seen is not dropped.
        shown = self._shown.setdefault(entity_type, set())
        if not shown or not shown.issuperset(names):
            shown.update(names)
            self._builder.see(entity_type, [(name, None) for name in names])
        return self._builder.schema().entity_types[entity_type]
