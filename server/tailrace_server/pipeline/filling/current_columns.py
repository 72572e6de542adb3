"""The columns of entity types while a commit is made, before its schemas are.

Schemas follow from the images of a commit once all are written. An image from before has to be stated in the
columns that hold where it is needed, so these are followed here, by the same builder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.pipeline.columns import take
from tailrace_server.wal.schema.builder import SchemaBuilder

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tailrace.schema import Column, Schema
    from tailrace_server.pipeline.columns import Sighting
    from tailrace_server.wal.schema.mapping import SchemaMapping

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
