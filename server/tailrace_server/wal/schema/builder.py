"""Builder of a schema: it collects columns as they occur, and returns the schema as of each version.

A column's type has one of three origins, in the order of precedence: the mapping declares it, the source
announces it with its rows, or it is inferred from values. Only an inferred type is widened by further values.

A stated type (declared or announced) holds for the versions that were written with it, so the next type may be
any other: values of older versions are read by their own schema. An announced type changes nothing if its
values read the same in the known type, such as a narrower type of the same encoding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest
from tailrace.schema import Column, Origin, Schema
from tailrace_server.wal.schema.column_types import joined, widened
from tailrace_server.wal.schema.mapping import DeclaredColumn, SchemaMapping

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace_server.wal.schema.mapping import DeclaredType


@dataclass(frozen=True, slots=True)
class Announced:
    """The columns of an entity type, as announced by its source."""

    columns: tuple[tuple[str, str | None, str, bool], ...]
    """Name, SQL type, encoding and nullability of every column that the source has."""
    key: tuple[str, ...] = ()
    """Names of the key's columns; empty if the source does not announce them."""
    origin: Origin = Origin.DEBEZIUM
    """Origin of the announced columns."""


class SchemaBuilder:
    """Collects columns as they occur. `tailrace.schema` lists the properties of a column that never change."""

    def __init__(self, schema: Schema, mapping: SchemaMapping | None = None) -> None:
        """Continue a schema.

        Args:
            schema: The schema so far.
            mapping: Declarations of the catalog's owner; None: no declarations.
        """
        self._schema = schema
        self._mapping = mapping or SchemaMapping()
        self._placeholders = schema.placeholders
        self._types = {name: list(columns) for name, columns in schema.entity_types.items()}
        self._places = {  # entity type → name of a column → its place in ``_types``
            name: {column.name: place for place, column in enumerate(columns)}
            for name, columns in schema.entity_types.items()
        }
        ids = [column.id for columns in schema.entity_types.values() for column in columns]
        self._next_id = 1 + max(ids, default=0)
        self._changed = False
        self._late: dict[str, set[str]] = {}
        """Entity type → columns of its last announcement, if that came with late rows."""
        self._mapped: set[str] = set()
        """Entity types to which the mapping has been applied."""

    def see(self, entity_type: str, columns: Iterable[tuple[str, str | None]] = ()) -> None:
        """Add the columns of an image with their types; without columns, add only the entity type."""
        self._ensure_mapped(entity_type)
        for name, sql_type in columns:
            place = self._place(entity_type, name)
            is_late = name in self._late.get(entity_type, ())
            if place is None or (not is_late and self._is_added_again(entity_type, place)):
                self._append(entity_type, Column(name, sql_type=sql_type))
                continue
            column = self._types[entity_type][place]
            wider = widened(column.sql_type, sql_type) if column.inferred else column.sql_type
            dropped = column.dropped and (is_late or self._is_dropped(entity_type, name))
            self._put(entity_type, place, replace(column, sql_type=wider, dropped=dropped))

    def know_placeholders(self, texts: Iterable[str]) -> None:
        """Add the placeholders that images have in place of values that the source did not send."""
        known = tuple(dict.fromkeys((*self._placeholders, *texts)))
        self._changed |= known != self._placeholders
        self._placeholders = known

    def announce(self, entity_type: str, announced: Announced, *, late: bool = False) -> None:
        """Add the columns that the source announces, and drop those that it no longer announces.

        Args:
            entity_type: Entity type of the columns.
            announced: The announced columns.
            late: True if they describe rows that came late. The announcement then states the types of these
                rows. It does not drop or restore columns, as the source may have changed them since.
        """
        self._ensure_mapped(entity_type)
        # 1. Add each new announced column; give each known one its announced type.
        listed = set()
        for name, sql_type, encoding, nullable in announced.columns:
            listed.add(name)
            key = announced.key.index(name) + 1 if name in announced.key else 0
            place = self._place(entity_type, name)
            if place is None or (not late and self._is_added_again(entity_type, place)):
                column = Column(name, sql_type=sql_type, encoding=encoding, nullable=nullable)
                self._append(entity_type, replace(column, key=key, origin=announced.origin))
                continue
            column = self._types[entity_type][place]
            dropped = column.dropped and (late or self._is_dropped(entity_type, name))
            column = replace(column, dropped=dropped, key=key or column.key)
            # A declared type takes precedence over an announced one. Key and ``dropped`` come from the source.
            if not self._declares_type(entity_type, name):
                column = _with_announcement(
                    column, sql_type, encoding, nullable=nullable, origin=announced.origin
                )
            self._put(entity_type, place, column)
        # Late rows may have values of columns that the source has dropped since: they must not restore the
        # columns.
        self._late[entity_type] = listed if late else set()
        if late:
            return
        # 2. Drop the columns that this origin announced before and no longer does. The source cannot drop
        #    columns that are known only from a mapping or from values.
        for place, column in enumerate(self._types[entity_type]):
            if column.name not in listed and column.origin is announced.origin:
                self._put(entity_type, place, replace(column, dropped=True))

    def check_declared(self, entity_type: str) -> None:
        """Check that an entity type has all columns that the mapping names.

        Raises:
            InvalidRequest: A column is missing; the error names it.
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
                    f"{self._mapping.where(entity_type, name)}: {entity_type} has no such column, "
                    f"{there}; correct the name, or set optional = true if rows may lack the "
                    "column"
                )

    def in_order(self, entity_type: str, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Return column names in the order of the schema; unknown names come last."""
        if names is None or len(names) < 2:
            return names
        places = self._places[entity_type]
        return tuple(sorted(names, key=lambda name: places.get(name, len(places))))

    def schema(self) -> Schema:
        """Return the schema so far, without an id; the same object as before if nothing has changed."""
        if self._changed:
            self._changed = False
            self._schema = Schema(
                entity_types={name: tuple(columns) for name, columns in self._types.items()},
                placeholders=self._placeholders,
            )
        return self._schema

    def _ensure_mapped(self, entity_type: str) -> None:
        """Add an entity type if it is new, and apply the mapping to it, once."""
        if entity_type in self._mapped:
            return
        self._mapped.add(entity_type)
        declared = self._mapping.entity_types.get(entity_type)
        # Rename first: the declarations apply to the columns that the entity type had under its old name.
        if entity_type not in self._types:
            self._changed = True
            if declared is None or not self._rename(declared.renamed_from, entity_type):
                self._types[entity_type] = []
                self._places[entity_type] = {}
        if declared is not None:
            self._declare(entity_type, declared)

    def _rename(self, before: str | None, after: str) -> bool:
        """Rename an entity type in its place in the schema; return True if the old name existed."""
        if before is None or not self._types.get(before):
            return False
        self._types = {
            after if name == before else name: columns for name, columns in self._types.items()
        }
        self._places[after] = self._places.pop(before)
        return True

    def _declare(self, entity_type: str, declared: DeclaredType) -> None:
        """Apply a declaration to the known columns; `_append` and `_place` apply it to later columns."""
        for name, column in declared.columns.items():
            if name in self._places[entity_type]:
                place = self._places[entity_type][name]
                known = self._types[entity_type][place]
                self._put(entity_type, place, self._with_declaration(known, column))
        for place, known in enumerate(self._types[entity_type]):
            if known.name in declared.key:
                key = declared.key.index(known.name) + 1
                self._put(entity_type, place, replace(known, key=key))

    def _with_declaration(self, column: Column, declared: DeclaredColumn) -> Column:
        """Return a column with the properties that a mapping declares.

        Any type may be declared: it holds from now on, and each new value is checked against it.
        """
        column = replace(
            column,
            role=column.role if declared.role is None else declared.role,
            nullable=column.nullable if declared.nullable is None else declared.nullable,
            dropped=declared.dropped or column.dropped,
        )
        if declared.sql_type is None:
            return column
        return replace(
            column,
            sql_type=declared.sql_type,
            encoding=declared.encoding or "json",
            origin=Origin.DECLARED,
        )

    def _place(self, entity_type: str, name: str) -> int | None:
        """Return a column's place; None if it is new. The first use of a new name does the declared rename."""
        places = self._places[entity_type]
        place = places.get(name)
        declared = self._declaration(entity_type, name)
        # Do not rename earlier: until then rows with the old name may come, which would add the old column
        # again.
        if place is None and declared is not None and declared.renamed_from in places:
            place = places[name] = places.pop(declared.renamed_from or "")
            column = replace(self._types[entity_type][place], name=name, dropped=False)
            self._put(entity_type, place, self._with_declaration(column, declared))
        return place

    def _declaration(self, entity_type: str, name: str) -> DeclaredColumn | None:
        declared = self._mapping.entity_types.get(entity_type)
        return None if declared is None else declared.columns.get(name)

    def _declares_type(self, entity_type: str, name: str) -> bool:
        declared = self._declaration(entity_type, name)
        return declared is not None and declared.sql_type is not None

    def _is_dropped(self, entity_type: str, name: str) -> bool:
        """Return True if the mapping declares a column dropped, even if the source still sends its values."""
        declared = self._declaration(entity_type, name)
        return declared is not None and declared.dropped

    def _is_added_again(self, entity_type: str, place: int) -> bool:
        """Return True if a column that occurs was dropped before, so that it is a new column of the same name.

        A source that drops a column forgets its values. So the new column has no values yet in rows that have
        not changed since. The dropped column keeps its place and id for the rows of older versions. The mapping
        can declare that the two are the same column.
        """
        column = self._types[entity_type][place]
        declared = self._declaration(entity_type, column.name)
        return column.dropped and (
            declared is None or not (declared.dropped or declared.same_when_added_again)
        )

    def _append(self, entity_type: str, column: Column) -> None:
        """Add a new column in the last place, with the next id."""
        columns = self._types[entity_type]
        self._places[entity_type][column.name] = len(columns)
        declared = self._mapping.entity_types.get(entity_type)
        if declared is not None and column.name in declared.key:
            column = replace(column, key=declared.key.index(column.name) + 1)
        if declared is not None and column.name in declared.columns:
            column = self._with_declaration(column, declared.columns[column.name])
        columns.append(replace(column, id=self._next_id))
        self._next_id += 1
        self._changed = True

    def _put(self, entity_type: str, place: int, column: Column) -> None:
        """Replace a column, and note the change if it differs."""
        columns = self._types[entity_type]
        if columns[place] != column:
            columns[place] = column
            self._changed = True


def _with_announcement(
    column: Column, sql_type: str | None, encoding: str, *, nullable: bool, origin: Origin
) -> Column:
    """Return a column with its announced type; keep the known type if it reads announced values the same."""
    stated = replace(column, sql_type=sql_type, encoding=encoding, nullable=nullable, origin=origin)
    if column.inferred:
        return stated
    known = (column.sql_type, column.encoding)
    nullable = nullable or column.nullable
    if joined(known, (sql_type, encoding)) == known:
        return replace(column, nullable=nullable)
    return replace(stated, nullable=nullable)
