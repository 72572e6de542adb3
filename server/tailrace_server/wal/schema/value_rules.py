"""The rules for values and keys of rows that follow from a catalog's columns, for every way into the log.

A column has a stated type if a mapping, a table's schema or a source states it. Values that such a type cannot
hold would make readers fail later. If the key's columns are known, the key of a row must be the text of their
values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tailrace_server.wal.record.columns import multiplicity_of
from tailrace_server.wal.record.keys import key_text
from tailrace_server.wal.schema.mapping import DeclaredColumn, DeclaredType, SchemaMapping

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.schema import Schema

_NULL = msgspec.Raw(b"null")


class ValueRules:
    """Checks rows of entity types with stated columns. It can be pickled."""

    def __init__(self, schema: Schema, mapping: SchemaMapping | None = None) -> None:
        """Combine the columns of a schema with the declarations of a mapping, which take precedence."""
        mapping = mapping or SchemaMapping()
        stated = {
            name: _stated(schema, name, mapping.entity_types.get(name))
            for name in {*schema.entity_types, *mapping.entity_types}
        }
        self._mappings = (mapping, SchemaMapping(stated, "the catalog's schema"))
        self._types = {*mapping.entity_types}
        self._types |= {name for name, each in stated.items() if each.columns or each.key}

    def concern(self, entity_type: str) -> bool:
        """Return True if rows of an entity type must be checked one by one."""
        return entity_type in self._types

    def fault_of(
        self,
        entity_type: str,
        primary_key: str | None,
        before: Mapping[str, msgspec.Raw],
        after: Mapping[str, msgspec.Raw],
        *,
        change: bytes | None,
    ) -> tuple[str, str] | None:
        """Return the column of a row that breaks a rule, and the reason; None if none does.

        Args:
            entity_type: Entity type of the row.
            primary_key: Key of the row; None for a truncate.
            before: Columns of the image before; empty if there is none.
            after: Columns of the image after; empty if there is none.
            change: Image ``change`` of the row. A row with a count in it is its own key.
        """
        # A column that is not nullable now may have been nullable before.
        sent = {name: value for name, value in before.items() if value != _NULL}
        for name, image in (("after", after), ("before", sent)):
            for mapping in self._mappings if image else ():
                fault = mapping.fault_of(entity_type, image)
                if fault is not None:
                    return name, fault
        if primary_key is None or (change is not None and multiplicity_of(change) is not None):
            return None
        names = self._mappings[1].entity_types[entity_type].key
        for name, image in (("after", after), ("before", before)):
            # The image of a removal may have only some columns of the row.
            if image and names and all(each in image for each in names):
                text = key_text([image[each] for each in names])
                if text is not None and text != primary_key:
                    shown = ", ".join(names)
                    return (
                        name,
                        f"its key ({shown}) is {text!r}, and primary_key is {primary_key!r}",
                    )
        return None


def _stated(schema: Schema, entity_type: str, declared: DeclaredType | None) -> DeclaredType:
    """Return the columns with types in a schema but not in a mapping, and the columns of the key."""
    declared = declared or DeclaredType()
    before = entity_type if entity_type in schema.entity_types else declared.renamed_from
    known = schema.columns(before or entity_type)
    # Leave out columns that the mapping renames or declares, as the mapping's rules hold for them, and columns
    # that were dropped.
    renamed = {each.renamed_from for each in declared.columns.values()}
    columns = {
        column.name: DeclaredColumn(column.sql_type, column.encoding, nullable=column.nullable)
        for column in known
        if not (column.inferred or column.dropped or column.sql_type is None)
        and column.name not in renamed
        and column.name not in declared.columns
    }
    return DeclaredType(columns, declared.key or schema.key_columns(before or entity_type))
