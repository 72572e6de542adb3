"""schemas/<id>.json as a typed value: a whole schema, or its difference from the previous schema.

A schema is written for each version that changes it. If every file had a whole schema, the files of a catalog
would grow with the square of its entity types. So most files have a difference. A whole schema is written once
the differences since the last whole one have as many bytes as that (docs/adr/0026).
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from tailrace.criteria import ContainerType
from tailrace.schema import Column, Origin, Schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WHOLE: Final = 1
DIFFERENCE: Final = 2
"""Format version of a difference: readers without support for it must not read one as a whole schema."""


class ColumnDocument(Struct, frozen=True):
    """A column of a schema; same fields as `tailrace.schema.Column`."""

    name: str
    role: str
    sql_type: str | None
    encoding: str
    nullable: bool = True
    key: int = 0
    origin: Origin = Origin.INFERRED
    id: int = 0
    dropped: bool = False

    @classmethod
    def of(cls, column: Column) -> ColumnDocument:
        """Return the document of a column."""
        return cls(
            name=column.name,
            role=column.role.name,
            sql_type=column.sql_type,
            encoding=column.encoding,
            nullable=column.nullable,
            key=column.key,
            origin=column.origin,
            id=column.id,
            dropped=column.dropped,
        )

    def column(self, id: int) -> Column:
        """Return the described column, with the given id."""
        return Column(
            name=self.name,
            role=ContainerType[self.role],
            sql_type=self.sql_type,
            encoding=self.encoding,
            nullable=self.nullable,
            key=self.key,
            origin=self.origin,
            id=id,
            dropped=self.dropped,
        )


class SchemaDocument(Struct, frozen=True, omit_defaults=True):
    """schemas/<id>.json: the columns of every entity type of the catalog, or of the changed ones only."""

    format_version: int
    id: int
    entity_types: dict[str, list[ColumnDocument]]
    placeholders: tuple[str, ...] = ()
    """Placeholders for unsent values in images, in addition to Debezium's default."""
    parent: int = 0
    """Id of the previous schema, whose other entity types are unchanged; 0 if this schema is whole."""

    @classmethod
    def of(cls, schema: Schema, id: int) -> SchemaDocument:
        """Return the document of a whole schema, with the given id."""
        return cls(_WHOLE, id, _documents(schema.entity_types), schema.placeholders)

    @classmethod
    def after(cls, before: Schema, schema: Schema, id: int) -> SchemaDocument | None:
        """Return the document of a difference from the schema ``before``; None if a whole schema is needed."""
        differing = difference(before, schema)
        if before.id == 0 or differing is None or before.placeholders != schema.placeholders:
            return None
        if any(column.id == 0 for columns in differing.values() for column in columns):
            return None
        return cls(DIFFERENCE, id, _documents(differing), schema.placeholders, before.id)

    def schema(self, before: Schema) -> Schema:
        """Return the described schema; its unchanged columns are the same objects as in ``before``.

        Raises:
            KeyError: A column has an unknown role.
        """
        # Documents of old versions have no column ids. Entity types and columns were only ever appended then,
        # so their places serve as ids.
        described = {
            entity_type: _shared(
                [
                    column.column(column.id or (number << 20) + place)
                    for place, column in enumerate(columns, 1)
                ],
                before.entity_types.get(entity_type, ()),
            )
            for number, (entity_type, columns) in enumerate(self.entity_types.items())
        }
        if self.parent:
            described = before.entity_types | described
        return Schema(self.id, described, self.placeholders)


def difference(before: Schema, schema: Schema) -> dict[str, tuple[Column, ...]] | None:
    """Return the new and changed entity types of a schema; None if a difference cannot describe the schema.

    A difference can, if the entity types of ``before`` are all present in the same order, and new ones follow.
    """
    if any(old != new for old, new in zip(before.entity_types, schema.entity_types, strict=False)):
        return None
    if len(before.entity_types) > len(schema.entity_types):
        return None
    known = before.entity_types
    return {
        entity_type: columns
        for entity_type, columns in schema.entity_types.items()
        if known.get(entity_type) is not columns and known.get(entity_type) != columns
    }


def _documents(
    entity_types: Mapping[str, Sequence[Column]],
) -> dict[str, list[ColumnDocument]]:
    return {
        entity_type: [ColumnDocument.of(column) for column in columns]
        for entity_type, columns in entity_types.items()
    }


def _shared(columns: Sequence[Column], known: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return columns as a tuple that reuses equal columns of ``known``, or as ``known`` if all are equal."""
    mine = tuple(
        old if old == new else new for old, new in zip_longest(known, columns) if new is not None
    )
    return known if mine == known else mine
