"""The interface of an object that knows the schemas of a log's versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.schema import Schema


class Schemas(Protocol):
    """The schemas of a log: ``SchemaHistory``, or a part of each."""

    def at(self, version: int) -> Schema:
        """Return the schema that a version was written with; the empty one before the first."""

    def span(self, version: int) -> tuple[int, int | None]:
        """Return the first version with a version's schema, and the first with the next; None: none yet."""

    def up_to(self, version: int) -> Iterator[Schema]:
        """Yield the schemas that begin up to a version, oldest first."""

    def had_entity_type(self, name: str, version: int) -> bool:
        """Return whether a schema that begins up to a version has an entity type."""


class HasSchemas(Protocol):
    """A view of a log, or whatever else knows the schemas of its versions."""

    def schema_of(self, version: int) -> Schema:
        """Return the schema that a version was written with."""


class PublishedSchemas(HasSchemas, Protocol):
    """A view of a log: the schemas of its versions, up to the newest published one."""

    @property
    def published(self) -> int:
        """Highest version that may be seen."""
