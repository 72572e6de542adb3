"""The columns of a catalog's entity types, as of one version."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.criteria import ContainerType


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an entity type. Its place in the type's tuple gives the ordinal: 1 + place."""

    name: str
    role: ContainerType = ContainerType.ATTRIBUTE
    sql_type: str | None = None
    """None where it is not known."""
    encoding: str = "json"
    """How the images' text encodes a value: ``json``, ``debezium.Date``, ``base64``, …"""
    inferred: bool = True
    """Seen in the data rather than declared."""


@dataclass(frozen=True, slots=True)
class Schema:
    """Entity types and their columns. Columns are only ever appended, so ordinals are stable."""

    id: int = 0
    """Number of the schema in its log, from 1; 0 is the empty schema that every log begins with."""
    entity_types: dict[str, tuple[Column, ...]] = field(default_factory=dict)

    def ordinals(self, entity_type: str) -> dict[str, int]:
        """Return column name → ordinal of an entity type; empty where it is not known."""
        columns = self.entity_types.get(entity_type, ())
        return {column.name: ordinal for ordinal, column in enumerate(columns, 1)}
