"""The columns that occur in a writer's mutations, and the schema that follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.schema import Schema
from tailrace_server.wal.record.unavailable import DEFAULT
from tailrace_server.wal.schema.builder import SchemaBuilder
from tailrace_server.wal.schema.column_types import TypeInference
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.schema.records import schema_records
from tailrace_server.wal.schema.value_rules import ValueRules

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from tailrace_server.wal.schema.builder import Announced
    from tailrace_server.wal.schema.records import SchemaRecord


class ShownColumns:
    """Tracks the schema of a log from transaction to transaction."""

    def __init__(
        self, schema: Schema, mapping: SchemaMapping | None, *, announces: bool = False
    ) -> None:
        """Continue a schema.

        Args:
            schema: Schema of the log so far.
            mapping: Declares columns.
            announces: True if the source announces columns; their types are then no rules for values.
        """
        self.schema = schema
        """Schema as of the last finished transaction."""
        self._mapping = mapping or SchemaMapping()
        self.rules = ValueRules(Schema() if announces else schema, mapping)
        """Rules for values and keys of rows."""
        self._builder = SchemaBuilder(schema, mapping)
        self._inference = TypeInference(DEFAULT)
        self._announced: dict[str, Announced] = {}
        """Announcements since the last finished transaction."""
        self.entity_types: set[str] = set()
        """Entity types noted since the schema was last rolled back."""

    @property
    def coming(self) -> Schema:
        """Schema with which the next transaction begins: the present one with all announced columns."""
        return self._builder.schema()

    def announce(self, entity_type: str, announced: Announced) -> None:
        """Note the columns that a source announces; they count from the next transaction on."""
        self._announced[entity_type] = announced
        self._builder.announce(entity_type, announced)
        self.entity_types.discard(entity_type)

    def note(
        self, entity_type: str, images: Iterable[bytes | None], names: Sequence[str] = ()
    ) -> None:
        """Note the columns of a mutation: those of its images, then further columns that it names.

        Raises:
            InvalidRequest: The mapping declares a type that the columns cannot have.
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
        """Return True if the mapping renames a column of any of these entity types."""
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
        """Return the schema changes noted since the last transaction, as records."""
        return schema_records(self.schema, self._builder.schema())

    def finish(self) -> Schema:
        """Finish a transaction; return the schema as of its end."""
        self.schema = self._builder.schema()
        self._announced.clear()
        return self.schema

    def restore(self, schema: Schema) -> None:
        """Roll back the columns of refused transactions: a schema must not have columns that no record has.

        Args:
            schema: Schema as of the last accepted transaction.
        """
        self.schema = schema
        self._builder = SchemaBuilder(schema, self._mapping)
        for entity_type, announced in self._announced.items():
            self._builder.announce(entity_type, announced)
        self._inference.forget()
        self.entity_types.clear()
