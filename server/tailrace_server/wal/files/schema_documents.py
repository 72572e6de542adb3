"""schemas/<id>.json as a typed value: all columns of a catalog, or what differs from the schema before.

A schema is written for each version that changes it. Were each one whole, the files of a catalog would grow
with the square of its entity types. So most hold a difference, and a whole one is written when the
differences since the last come to as many bytes as that (docs/adr/0026).
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
"""Format version of a difference. Readers that do not know it must not take one for a whole schema."""


class ColumnDocument(Struct, frozen=True):
    """A column of a schema; the fields of `tailrace.schema.Column`."""

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
        """Return the column that it describes, under an id."""
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
    """schemas/<id>.json: the columns of every entity type of the catalog, or of those that differ."""

    format_version: int
    id: int
    entity_types: dict[str, list[ColumnDocument]]
    placeholders: tuple[str, ...] = ()
    """The placeholders in images for values that were not sent, beside Debezium's default."""
    parent: int = 0
    """Id of the schema before, which has all entity types that are not named here; 0 if it is whole."""

    @classmethod
    def of(cls, schema: Schema, id: int) -> SchemaDocument:
        """Return the document of a whole schema, under an id."""
        return cls(_WHOLE, id, _documents(schema.entity_types), schema.placeholders)

    @classmethod
    def after(cls, before: Schema, schema: Schema, id: int) -> SchemaDocument | None:
        """Return the document of what differs from the schema before; None where only a whole one says it."""
        differing = difference(before, schema)
        if before.id == 0 or differing is None or before.placeholders != schema.placeholders:
            return None
        if any(column.id == 0 for columns in differing.values() for column in columns):
            return None
        return cls(DIFFERENCE, id, _documents(differing), schema.placeholders, before.id)

    def schema(self, before: Schema) -> Schema:
        """Return the schema that it describes; what is equal in the one before is shared with that.

        Raises:
            KeyError: A column has a role that there is not.
        """
        # Columns written before they had ids: both orders only ever grew, so the places are ids.
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
    """Return the entity types of a schema that are new or not as before; None where that does not give it back.

    It does if the types of before are all there, in their order, and new ones follow.
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
    """Return columns as a tuple, those that are known by the objects that are known, and so the whole."""
    mine = tuple(
        old if old == new else new for old, new in zip_longest(known, columns) if new is not None
    )
    return known if mine == known else mine
