"""The columns that a writer's mutations have shown, and the schema that they lead to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.wal.record.unavailable import DEFAULT
from tailrace_server.wal.schema.builder import SchemaBuilder
from tailrace_server.wal.schema.column_types import TypeInference
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.schema.records import schema_records
from tailrace_server.wal.schema.value_rules import ValueRules

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from tailrace.schema import Schema
    from tailrace_server.wal.schema.records import SchemaRecord


class ShownColumns:
    """Follows the schema of a log from transaction to transaction."""

    def __init__(self, schema: Schema, mapping: SchemaMapping | None) -> None:
        """Continue from a schema; ``mapping`` declares columns."""
        self.schema = schema
        """That of the transaction finished last."""
        self._mapping = mapping or SchemaMapping()
        self.rules = ValueRules(schema, mapping)
        """Those for the values and keys of rows."""
        self._builder = SchemaBuilder(schema, mapping)
        self._inference = TypeInference(DEFAULT)
        self.entity_types: set[str] = set()
        """Those noted since the schema was last restored."""

    def note(
        self, entity_type: str, images: Iterable[bytes | None], names: Sequence[str] = ()
    ) -> None:
        """Take the columns that a mutation shows: those of its images, then others that it names.

        Raises:
            InvalidRequest: The mapping declares what they cannot become.
        """
        builder = self._builder
        builder.see(entity_type)
        self.entity_types.add(entity_type)
        for image in images:
            if image is not None and (found := self._inference.unseen(entity_type, image)):
                builder.see(entity_type, found)
        if names:
            builder.see(entity_type, [(name, None) for name in names])

    def teaches(self, image: bytes) -> bool:
        """Return True if an image shows the types of all its values: it contains no placeholder."""
        return not DEFAULT.may_be_in(image)

    def may_rename(self, entity_types: Collection[str]) -> bool:
        """Return True if the mapping renames columns of one of some entity types."""
        return any(
            column.renamed_from is not None
            for entity_type in entity_types
            if (declared := self._mapping.entity_types.get(entity_type)) is not None
            for column in declared.columns.values()
        )

    def in_order(self, entity_type: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return column names in the order of the schema, as `SchemaBuilder.in_order`."""
        return self._builder.in_order(entity_type, names) or ()

    def changes(self) -> list[SchemaRecord]:
        """Return what was noted since the last transaction as records of schema changes."""
        return schema_records(self.schema, self._builder.schema())

    def finish(self) -> Schema:
        """Mark the schema so far as that of a finished transaction; return the schema."""
        self.schema = self._builder.schema()
        return self.schema

    def restore(self, schema: Schema) -> None:
        """Forget what refused transactions have shown: a schema has no columns that no record shows.

        Args:
            schema: That of the last transaction which is not refused.
        """
        self.schema = schema
        self._builder = SchemaBuilder(schema, self._mapping)
        self._inference.forget()
        self.entity_types.clear()
