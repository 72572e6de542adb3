"""The rows of a table as of one version; each was written with its own schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.schema import Schema
from tailrace.typed.schemas import KnownSchemas

if TYPE_CHECKING:
    from uuid import UUID

    from tailrace.typed.row_reader import RowReader
    from tailrace.typed.schemas import Ask


class TypedState:
    """Knows what reads the rows of a table, by the version that they came with."""

    def __init__(
        self, catalog: str, catalog_uuid: UUID, entity_type: str, version: int, ask: Ask
    ) -> None:
        """Keep what is read.

        Args:
            catalog: Its name.
            catalog_uuid: Its log.
            entity_type: The name of the table as of the version that is read.
            version: That version.
            ask: Asks for the schema of a version.
        """
        self._entity_type = entity_type
        self._version = version
        self._ids: frozenset[int] | None = None
        """Of its columns, which tell the table where it has another name; None: not asked yet."""
        self._schemas = KnownSchemas(catalog, catalog_uuid, ask, part_of=self._part_of)

    async def reader(self, version: int) -> RowReader:
        """Return what reads a row that came with a version; raises as `KnownSchemas.reader`."""
        if self._ids is None:
            await self._schemas.schema(self._version)
        return await self._schemas.reader(version, self._entity_type)

    def _part_of(self, schema: Schema) -> Schema:
        """Return the columns of the table in a schema, under its name as of the version that is read."""
        columns = schema.entity_types.get(self._entity_type, ())
        if self._ids is None:
            self._ids = frozenset(column.id for column in columns if column.id)
        elif self._ids:
            columns = ()
            for each in schema.entity_types.values():
                if any(column.id in self._ids for column in each):
                    columns = each
        return Schema(schema.id, {self._entity_type: columns}, schema.placeholders)
