"""The description of a catalog, and the columns of its entity types as of one version.

A column keeps its place in its entity type for ever: new columns are appended, a renamed column stays in its
place, and so does a dropped column, which is marked. So the ordinal of a column never changes. Its ``id`` does
not change either, not even if the entity type is renamed.
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
    """The description of a catalog at the time of the answer."""

    name: str
    uuid: UUID
    """Identity of the catalog's log."""
    oldest: Position
    """Oldest retained position."""
    published: int
    """Highest version that readers can see; 0 if there is none."""
    committed: int
    """Highest durable version; versions above ``published`` wait for their publication."""
    newest_timestamp: TimestampMicros
    """Commit time of the newest published version; 0 if there is none."""


class Origin(StrEnum):
    """The source of a column's type. Only an inferred type is widened if later values do not fit."""

    DECLARED = "declared"
    """The mapping of the ingest."""
    DEBEZIUM = "debezium"
    """The ``schema`` block of a Debezium message."""
    TABLE = "table"
    """The definition of the source's table."""
    INFERRED = "inferred"
    """The values seen so far. Later values may have another type."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an entity type. Its place in the type's tuple gives the ordinal: 1 + place."""

    name: str
    role: ContainerType = ContainerType.ATTRIBUTE
    sql_type: str | None = None
    """Type in SQL, such as ``BIGINT`` or ``DECIMAL(10,2)``; None if it is unknown."""
    encoding: str = "json"
    """Encoding of the values in images: ``json``, ``debezium.Date``, ``base64``, … (docs/schemas.md)."""
    nullable: bool = True
    """True if a value may be null or absent."""
    key: int = 0
    """Place of the column in the primary key, from 1; 0 if it is not part of the key."""
    origin: Origin = Origin.INFERRED
    id: int = 0
    """Identity of the column in the catalog, from 1; renames do not change it, and it is never reused. 0 = not
    assigned yet."""
    dropped: bool = False
    """True if the source has dropped the column. Older records and late ones still have it."""

    @property
    def inferred(self) -> bool:
        """True if the column was seen in the data rather than declared."""
        return self.origin is Origin.INFERRED


@dataclass(frozen=True, slots=True)
class Schema:
    """Entity types and their columns. Columns are only appended, so their ordinals are stable."""

    id: int = 0
    """Number of the schema in its log, from 1; 0 is the empty schema that every log begins with."""
    entity_types: dict[str, tuple[Column, ...]] = field(default_factory=dict)
    placeholders: tuple[str, ...] = ()
    """Placeholders in images for values that the source did not send, in addition to Debezium's default."""

    def ordinals(self, entity_type: str) -> dict[str, int]:
        """Return the ordinals of an entity type's columns by name; empty if the type is unknown."""
        columns = self.entity_types.get(entity_type, ())
        return {column.name: ordinal for ordinal, column in enumerate(columns, 1)}

    def columns(self, entity_type: str) -> tuple[Column, ...]:
        """Return the columns of an entity type, without dropped ones; empty if the type is unknown."""
        return tuple(
            column for column in self.entity_types.get(entity_type, ()) if not column.dropped
        )

    def former_names(
        self, entity_type: str, earlier: Iterable[Schema], *, shared: bool = False
    ) -> dict[int, tuple[str, ...]]:
        """Return the former names of an entity type's columns, newest first, by the id of the column.

        A name that two columns of the type have had identifies a column only together with a version. Such
        names are left out unless ``shared``.

        Args:
            entity_type: Current name of the entity type.
            earlier: Earlier schemas of the same log, oldest first.
            shared: True to also return names that another column of the type has had.
        """
        # Follow columns by id through all entity types, since the type may have had another name.
        columns = self.entity_types.get(entity_type, ())
        now = {column.id: column.name for column in columns if column.id}
        bearers: dict[str, set[int]] = {}
        for schema in (*earlier, self):
            for each in schema.entity_types.values():
                for column in each:
                    # Insert a name anew each time, so that the dict is in the order of last use.
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
        """Return the names of the primary key's columns, in key order; empty if the key is unknown."""
        keys = [column for column in self.columns(entity_type) if column.key]
        return tuple(column.name for column in sorted(keys, key=lambda column: column.key))


@dataclass(frozen=True, slots=True)
class SchemaSpan:
    """A schema and the versions that have it: all from ``since`` to ``until``, inclusive."""

    catalog_uuid: UUID
    """Identity of the log that has these versions."""
    schema: Schema
    since: int
    until: int
    """The version before the next change of the schema, or the newest published version; 0 if an older server
    does not send it."""
