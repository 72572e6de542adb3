"""A schema that grows: what was seen of columns goes in, the schema as of a version comes out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.schema import Column, Schema
from tailrace_server.wal.column_types import widened

if TYPE_CHECKING:
    from collections.abc import Iterable


class SchemaBuilder:
    """Takes columns in the order in which they are seen; see `tailrace.schema` for what stays put."""

    def __init__(self, schema: Schema) -> None:
        """Go on from a schema."""
        self._schema = schema
        self._types = {name: list(columns) for name, columns in schema.entity_types.items()}
        self._places = {
            name: {column.name: place for place, column in enumerate(columns)}
            for name, columns in schema.entity_types.items()
        }
        ids = [column.id for columns in schema.entity_types.values() for column in columns]
        self._next_id = 1 + max(ids, default=0)
        self._changed = False

    def see(
        self, entity_type: str, columns: Iterable[tuple[str, str | None]] = ()
    ) -> None:
        """Take columns of an image, each with the type that its value tells; none make the type known."""
        known = self._types.get(entity_type)
        if known is None:
            known = self._types[entity_type] = []
            self._places[entity_type] = {}
            self._changed = True
        places = self._places[entity_type]
        for name, sql_type in columns:
            place = places.get(name)
            if place is None:
                self._append(entity_type, Column(name, sql_type=sql_type))
                continue
            column = known[place]
            wider = widened(column.sql_type, sql_type) if column.inferred else column.sql_type
            if column.dropped or wider != column.sql_type:
                known[place] = replace(column, sql_type=wider, dropped=False)
                self._changed = True

    def in_order(self, entity_type: str, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Return names of columns in the order of the schema."""
        if names is None or len(names) < 2:
            return names
        places = self._places[entity_type]
        return tuple(sorted(names, key=lambda name: places.get(name, len(places))))

    def schema(self) -> Schema:
        """Return the schema so far: the same object as before where nothing is new. Its id is given on writing."""
        if self._changed:
            self._changed = False
            self._schema = Schema(
                entity_types={name: tuple(columns) for name, columns in self._types.items()}
            )
        return self._schema

    def _append(self, entity_type: str, column: Column) -> None:
        columns = self._types[entity_type]
        self._places[entity_type][column.name] = len(columns)
        columns.append(replace(column, id=self._next_id))
        self._next_id += 1
        self._changed = True



