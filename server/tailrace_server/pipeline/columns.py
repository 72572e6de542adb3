"""Which columns an entity type has, told from the images that pass.

Columns are numbered by when they were first seen: in the order of ``after``, else of ``before``. A
task knows what the catalog knew when the batch began and reports what it saw beyond that, each with
the transaction of its segment; the driver puts the reports of all tasks together in version order
and makes one schema for each transaction that brings something new.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tailrace.schema import Column, Schema
from tailrace_server.pipeline.images import members

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Sighting(NamedTuple):
    """A column seen for the first time."""

    version: int
    """Relative to the segment, or to the commit where several segments are put together."""
    entity_type: str
    name: str | None
    """None for an entity type that showed no column yet."""


class ColumnInference:
    """Collects the columns of images; one for each segment."""

    def __init__(self, known: Mapping[str, Iterable[str]]) -> None:
        """Take the columns that need no report, by entity type."""
        self._known = {entity_type: set(names) for entity_type, names in known.items()}
        self.sightings: list[Sighting] = []

    def observe(
        self,
        version: int,
        entity_type: str,
        image: bytes | None,
        names: Iterable[str] = (),
    ) -> None:
        """Look at one image, and at names that need not be in it."""
        known = self._known.get(entity_type)
        if known is None:
            known = self._known[entity_type] = set()
            self.sightings.append(Sighting(version, entity_type, None))
        found = list(members(image)) if image is not None else []
        found.extend(names)
        for name in found:
            if name not in known:
                known.add(name)
                self.sightings.append(Sighting(version, entity_type, name))


def known_columns(schema: Schema) -> dict[str, tuple[str, ...]]:
    """Return the columns of a schema in the form that tasks take."""
    return {
        entity_type: tuple(column.name for column in columns)
        for entity_type, columns in schema.entity_types.items()
    }


def evolve(schema: Schema, sightings: Iterable[Sighting]) -> list[tuple[int, Schema]]:
    """Return the schemas that sightings lead to, each with the first version that it holds for.

    Args:
        schema: The newest one of the catalog.
        sightings: Sorted by version; repeats are ignored.
    """
    schemas: list[tuple[int, Schema]] = []
    newest = schema
    for version, entity_type, name in sightings:
        columns = newest.entity_types.get(entity_type)
        if columns is not None and (name is None or any(c.name == name for c in columns)):
            continue
        columns = (*(columns or ()), *(() if name is None else (Column(name),)))
        began = bool(schemas) and schemas[-1][0] == version
        newest = replace(
            newest,
            id=newest.id if began else newest.id + 1,
            entity_types={**newest.entity_types, entity_type: columns},
        )
        if began:
            schemas.pop()
        schemas.append((version, newest))
    return schemas
