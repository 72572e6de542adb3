"""A schema that grows: what was seen of columns goes in, the schema as of a version comes out.

Three voices speak of a column, the first that does wins: what a mapping declares, what the source announces
with its rows, what the values show. Only the last is widened as values come. A change that the type known so
far cannot hold is a `SchemaConflict`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest, TailraceError
from tailrace.schema import Column, Origin, Schema
from tailrace_server.wal.schema.column_types import joined, may_become, widened
from tailrace_server.wal.schema.mapping import DeclaredColumn, SchemaMapping

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace_server.wal.schema.mapping import DeclaredType


class SchemaConflict(TailraceError):
    """A source announces a column in a way that what is known of it cannot hold. The source's doing."""

    code = "SCHEMA_CONFLICT"

    def __init__(self, entity_type: str, column: str, before: str, after: str) -> None:
        """Keep both types."""
        super().__init__(
            f"column {column} of {entity_type} is {before}, and the source now announces {after}, "
            "which is neither the same nor wider; declare a type that holds both to take it"
        )
        self.entity_type = entity_type
        self.column = column
        self.before = before
        self.after = after

    def figures(self) -> dict[str, str]:
        """Return entity type, column and both types."""
        return {
            "entity_type": self.entity_type,
            "column": self.column,
            "before": self.before,
            "after": self.after,
        }


@dataclass(frozen=True, slots=True)
class Announced:
    """The columns of an entity type as its source lists them."""

    columns: tuple[tuple[str, str | None, str, bool], ...]
    """Name, SQL type, encoding, nullable; all there are."""
    key: tuple[str, ...] = ()
    """Names of the key's columns; empty where the source does not say."""
    origin: Origin = Origin.DEBEZIUM
    """Who says so."""


class SchemaBuilder:
    """Takes columns in the order in which they are seen; see `tailrace.schema` for what stays put."""

    def __init__(self, schema: Schema, mapping: SchemaMapping | None = None) -> None:
        """Go on from a schema, under a mapping."""
        self._schema = schema
        self._mapping = mapping or SchemaMapping()
        self._types = {name: list(columns) for name, columns in schema.entity_types.items()}
        self._places = {
            name: {column.name: place for place, column in enumerate(columns)}
            for name, columns in schema.entity_types.items()
        }
        ids = [column.id for columns in schema.entity_types.values() for column in columns]
        self._next_id = 1 + max(ids, default=0)
        self._changed = False
        self._under_mapping: set[str] = set()

    def see(self, entity_type: str, columns: Iterable[tuple[str, str | None]] = ()) -> None:
        """Take columns of an image, each with the type that its value tells; none make the type known.

        Raises:
            InvalidRequest: The mapping declares what the columns cannot become.
        """
        self._begin(entity_type)
        for name, sql_type in columns:
            place = self._place(entity_type, name)
            if place is None:
                self._append(entity_type, Column(name, sql_type=sql_type))
                continue
            column = self._types[entity_type][place]
            wider = widened(column.sql_type, sql_type) if column.inferred else column.sql_type
            dropped = column.dropped and self._is_dropped(entity_type, name)
            self._put(entity_type, place, replace(column, sql_type=wider, dropped=dropped))

    def announce(self, entity_type: str, announced: Announced) -> None:
        """Take the columns that the source lists; those it lists no more are dropped.

        Raises:
            SchemaConflict: One cannot be what it was before; the builder is not to be used any more.
            InvalidRequest: As ``see``.
        """
        self._begin(entity_type)
        listed = set()
        for name, sql_type, encoding, nullable in announced.columns:
            listed.add(name)
            key = announced.key.index(name) + 1 if name in announced.key else 0
            place = self._place(entity_type, name)
            if place is None:
                column = Column(name, sql_type=sql_type, encoding=encoding, nullable=nullable)
                self._append(entity_type, replace(column, key=key, origin=announced.origin))
                continue
            column = self._types[entity_type][place]
            dropped = column.dropped and self._is_dropped(entity_type, name)
            column = replace(column, dropped=dropped, key=key or column.key)
            if column.origin is not Origin.DECLARED:
                listed_now = (sql_type, encoding, nullable, announced.origin)
                column = _announced(entity_type, column, *listed_now)
            self._put(entity_type, place, column)
        for place, column in enumerate(self._types[entity_type]):
            if column.name not in listed and column.origin is announced.origin:
                self._put(entity_type, place, replace(column, dropped=True))

    def check_declared(self, entity_type: str) -> None:
        """Refuse a mapping that names a column which an entity type does not have.

        Raises:
            InvalidRequest: It does.
        """
        declared = self._mapping.entity_types.get(entity_type)
        if declared is None:
            return
        places = self._places.get(entity_type, {})
        there = f"it has {', '.join(places) or 'none'}"
        for name in declared.key:
            if name not in places:
                raise InvalidRequest(
                    f"{self._mapping.where(entity_type)}.key: {entity_type} has no column {name}, {there}"
                )
        for name, column in declared.columns.items():
            if name not in places and not column.optional and not column.dropped:
                raise InvalidRequest(
                    f"{self._mapping.where(entity_type, name)}: {entity_type} has no such column, {there}; "
                    "correct the name, or say optional = true if rows may be without it"
                )

    def in_order(self, entity_type: str, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Return names of columns in the order of the schema."""
        if names is None or len(names) < 2:
            return names
        places = self._places[entity_type]
        return tuple(sorted(names, key=lambda name: places.get(name, len(places))))

    def schema(self) -> Schema:
        """Return the schema so far, the same object as before where nothing is new; writing gives its id."""
        if self._changed:
            self._changed = False
            self._schema = Schema(
                entity_types={name: tuple(columns) for name, columns in self._types.items()}
            )
        return self._schema

    def _begin(self, entity_type: str) -> None:
        """Make an entity type known, and what the mapping says of it true."""
        if entity_type in self._under_mapping:
            return
        self._under_mapping.add(entity_type)
        declared = self._mapping.entity_types.get(entity_type)
        if entity_type not in self._types:
            self._changed = True
            if declared is None or not self._rename(declared.renamed_from, entity_type):
                self._types[entity_type] = []
                self._places[entity_type] = {}
        if declared is not None:
            self._declare(entity_type, declared)

    def _rename(self, before: str | None, after: str) -> bool:
        """Give an entity type another name, in its place; return whether there was one to rename."""
        if before is None or not self._types.get(before):
            return False
        self._types = {
            after if name == before else name: columns for name, columns in self._types.items()
        }
        self._places[after] = self._places.pop(before)
        return True

    def _declare(self, entity_type: str, declared: DeclaredType) -> None:
        for name, column in declared.columns.items():
            if name in self._places[entity_type]:
                place = self._places[entity_type][name]
                known = self._types[entity_type][place]
                self._put(entity_type, place, self._declared(entity_type, known, column))
        for place, known in enumerate(self._types[entity_type]):
            if known.name in declared.key:
                key = declared.key.index(known.name) + 1
                self._put(entity_type, place, replace(known, key=key))

    def _declared(self, entity_type: str, column: Column, declared: DeclaredColumn) -> Column:
        """Return a column as a mapping has it."""
        column = replace(
            column,
            role=column.role if declared.role is None else declared.role,
            nullable=column.nullable if declared.nullable is None else declared.nullable,
            dropped=declared.dropped or column.dropped,
        )
        if declared.sql_type is None:
            return column
        encoding = declared.encoding or "json"
        wanted = (declared.sql_type, encoding)
        if column.inferred:
            fits = may_become(column.sql_type, *wanted)
        else:
            fits = joined((column.sql_type, column.encoding), wanted) == wanted
        if not fits:
            raise InvalidRequest(
                f"{self._mapping.where(entity_type, column.name)}: {declared.sql_type} in encoding {encoding} "
                f"cannot hold what the column is, {column.sql_type} in encoding {column.encoding} "
                f"({column.origin.value}); declare that or a wider type"
            )
        return replace(
            column, sql_type=declared.sql_type, encoding=encoding, origin=Origin.DECLARED
        )

    def _place(self, entity_type: str, name: str) -> int | None:
        """Return a column's place; one that the mapping renames takes its new name when that is first seen."""
        places = self._places[entity_type]
        place = places.get(name)
        declared = self._declaration(entity_type, name)
        if place is None and declared is not None and declared.renamed_from in places:
            place = places[name] = places.pop(declared.renamed_from or "")
            column = replace(self._types[entity_type][place], name=name, dropped=False)
            self._put(entity_type, place, self._declared(entity_type, column, declared))
        return place

    def _declaration(self, entity_type: str, name: str) -> DeclaredColumn | None:
        declared = self._mapping.entity_types.get(entity_type)
        return None if declared is None else declared.columns.get(name)

    def _is_dropped(self, entity_type: str, name: str) -> bool:
        """Whether the mapping says that a column is dropped, whatever still comes of it."""
        declared = self._declaration(entity_type, name)
        return declared is not None and declared.dropped

    def _append(self, entity_type: str, column: Column) -> None:
        columns = self._types[entity_type]
        self._places[entity_type][column.name] = len(columns)
        declared = self._mapping.entity_types.get(entity_type)
        if declared is not None and column.name in declared.key:
            column = replace(column, key=declared.key.index(column.name) + 1)
        if declared is not None and column.name in declared.columns:
            if declared.columns[column.name].sql_type is not None:
                # What else was said of it is no bound: nothing has been written under that.
                column = replace(column, sql_type=None, origin=Origin.INFERRED)
            column = self._declared(entity_type, column, declared.columns[column.name])
        columns.append(replace(column, id=self._next_id))
        self._next_id += 1
        self._changed = True

    def _put(self, entity_type: str, place: int, column: Column) -> None:
        columns = self._types[entity_type]
        if columns[place] != column:
            columns[place] = column
            self._changed = True


def _announced(
    entity_type: str,
    column: Column,
    sql_type: str | None,
    encoding: str,
    nullable: bool,
    origin: Origin,
) -> Column:
    """Return a column as its source now announces it, or as wide as it was."""
    if column.inferred:
        return replace(
            column, sql_type=sql_type, encoding=encoding, nullable=nullable, origin=origin
        )
    both = joined((column.sql_type, column.encoding), (sql_type, encoding))
    if both is None:
        raise SchemaConflict(
            entity_type,
            column.name,
            f"{column.sql_type} ({column.encoding})",
            f"{sql_type} ({encoding})",
        )
    return replace(column, sql_type=both[0], encoding=both[1], nullable=column.nullable or nullable)
