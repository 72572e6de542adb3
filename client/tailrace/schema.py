"""A catalog as its server lists it, and the columns of its entity types as of one version.

A column keeps its place in its entity type for ever: new ones are appended, a rename is done in place, and one
that the source has dropped stays where it is, marked. So its ordinal never changes, and its ``id`` not even
when the entity type is renamed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from tailrace.criteria import ContainerType

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from tailrace.position import Position, TimestampMicros


@dataclass(frozen=True, slots=True)
class Catalog:
    """One catalog at the moment of the answer."""

    name: str
    uuid: UUID
    """Identity of its log."""
    oldest: Position
    """Oldest retained position."""
    published: int
    """Highest version that readers see, 0 for none."""
    committed: int
    """Highest durable version; those above ``published`` wait for their publication."""
    newest_timestamp: TimestampMicros
    """Commit timestamp of the newest published version, 0 for none."""


class Origin(StrEnum):
    """The source of the knowledge of a column. Only what is inferred is widened by the values that come."""

    DECLARED = "declared"
    """From a mapping."""
    DEBEZIUM = "debezium"
    """The ``schema`` block of a Debezium message."""
    TABLE = "table"
    """The source's own table."""
    INFERRED = "inferred"
    """The values seen so far: true of them, and no promise."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an entity type. Its place in the type's tuple gives the ordinal: 1 + place."""

    name: str
    role: ContainerType = ContainerType.ATTRIBUTE
    sql_type: str | None = None
    """As SQL writes it: ``BIGINT``, ``DECIMAL(10,2)``; None where it is not known."""
    encoding: str = "json"
    """How the images' text encodes a value: ``json``, ``debezium.Date``, ``base64``, … (docs/schemas.md)."""
    nullable: bool = True
    """True if a value may be null or absent."""
    key: int = 0
    """Place in the primary key, from 1; 0 where it is no part of it."""
    origin: Origin = Origin.INFERRED
    id: int = 0
    """Identity in the catalog, from 1, never used again; a rename keeps it. 0 = not given yet."""
    dropped: bool = False
    """True if the source has it no more. Older records, and late ones, still do."""

    @property
    def inferred(self) -> bool:
        """True if it was seen in the data rather than declared."""
        return self.origin is Origin.INFERRED


@dataclass(frozen=True, slots=True)
class Schema:
    """Entity types and their columns. Columns are only ever appended, so ordinals are stable."""

    id: int = 0
    """Number of the schema in its log, from 1; 0 is the empty schema that every log begins with."""
    entity_types: dict[str, tuple[Column, ...]] = field(default_factory=dict)
    placeholders: tuple[str, ...] = ()
    """The placeholders in images for a value that the source did not send, beside Debezium's default."""

    def ordinals(self, entity_type: str) -> dict[str, int]:
        """Return column name → ordinal of an entity type; empty where it is not known."""
        columns = self.entity_types.get(entity_type, ())
        return {column.name: ordinal for ordinal, column in enumerate(columns, 1)}

    def columns(self, entity_type: str) -> tuple[Column, ...]:
        """Return the columns that an entity type has now, without the dropped; empty where it is not known."""
        return tuple(
            column for column in self.entity_types.get(entity_type, ()) if not column.dropped
        )

    def former_names(
        self, entity_type: str, earlier: Iterable[Schema], *, shared: bool = False
    ) -> dict[int, tuple[str, ...]]:
        """Return, by the id of a column of an entity type, the other names that it has had, newest first.

        A name that two columns of the type have had says which only together with the version, and is left out
        unless ``shared``.

        Args:
            entity_type: Its name now.
            earlier: Schemas of the same log, oldest first.
            shared: True to return also the names that another column of the type has had.
        """
        columns = self.entity_types.get(entity_type, ())
        now = {column.id: column.name for column in columns if column.id}
        bearers: dict[str, set[int]] = {}
        for schema in (*earlier, self):
            for each in schema.entity_types.values():
                for column in each:
                    if column.id in now:
                        bearers[column.name] = bearers.pop(column.name, set()) | {column.id}
        return {
            id: tuple(
                name
                for name in reversed(bearers)
                if name != current and (id in bearers[name] if shared else bearers[name] == {id})
            )
            for id, current in now.items()
        }

    def key_columns(self, entity_type: str) -> tuple[str, ...]:
        """Return the names of the key's columns, in its order; empty where it is not known."""
        keys = [column for column in self.columns(entity_type) if column.key]
        return tuple(column.name for column in sorted(keys, key=lambda column: column.key))


@dataclass(frozen=True, slots=True)
class SchemaSpan:
    """A schema, and versions that were written with it: all from ``since`` to ``until``, inclusive."""

    catalog_uuid: UUID
    """The log that the versions are of."""
    schema: Schema
    since: int
    until: int
    """The version before the next change, or the newest published; 0: a server that does not say."""
