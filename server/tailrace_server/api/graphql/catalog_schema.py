"""A catalog's GraphQL schema as a value, and functions that read column values from images."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from graphql import GraphQLInputObjectType, GraphQLInterfaceType, GraphQLObjectType

from tailrace.errors import InvalidRequest
from tailrace_server.api.graphql.arguments import WHERE
from tailrace_server.api.graphql.errors import ValueUnfit
from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.unavailable import unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import strawberry
    from graphql import GraphQLSchema

    from tailrace.schema import Column, Schema
    from tailrace_server.api.graphql.arguments import Scope, TypedCondition, WhereType
    from tailrace_server.api.graphql.column_readings import ColumnReading

_OWN_KINDS: Final = (GraphQLObjectType, GraphQLInterfaceType, GraphQLInputObjectType)
"""Kinds of types that Strawberry creates for each schema; they make up most of its memory."""

ColumnNames = tuple[str, ...]
"""The name of a column, then its names in older images, newest first."""


def row_of(image: bytes) -> dict[str, msgspec.Raw]:
    """Return the members of an image as raw JSON, by name.

    Raises:
        ValueUnfit: The image is not a JSON object, or is nested too deeply.
    """
    try:
        return decode_members(image)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ValueUnfit("the image is not a JSON object") from None
    except RecursionError:  # The log has accepted the image, but here the stack is already deeper.
        raise ValueUnfit("the image is nested too deeply") from None


def unavailable_in(images: Iterable[bytes | None], schema: Schema) -> list[str]:
    """Return the columns whose values the source did not send, without duplicates, in order of appearance."""
    not_sent = unavailable(schema.placeholders)
    found: dict[str, None] = {}
    for image in images:
        if image is not None and not_sent.may_be_in(image):
            try:
                members = row_of(image)
            except ValueUnfit:
                continue  # The fields that return the image report this error.
            found |= {name: None for name, raw in members.items() if not_sent.is_one(bytes(raw))}
    return [*found]


class VersionedRow(NamedTuple):
    """The members of an image, with the columns as of its version, which define how values are encoded."""

    members: Mapping[str, msgspec.Raw]
    columns: Mapping[str, Column]
    """The columns by their names in the image's version."""

    def value(self, names: ColumnNames, reading: ColumnReading) -> object:
        """Return the value of a column as a resolver returns it; None if the row has no value.

        Args:
            names: The names of the column, newest first.
            reading: The conversion of the column's values.

        Raises:
            ValueUnfit: The field's scalar cannot represent the value.
        """
        for name in names:
            if name in self.members and reading.is_of(self.columns.get(name)):
                return reading.value(bytes(self.members[name]), self.columns.get(name))
        return None


def columns_by_name(schema: Schema, entity_type: str) -> dict[str, Column]:
    """Return the columns of an entity type in a schema by name, including dropped ones."""
    return {column.name: column for column in schema.entity_types.get(entity_type, ())}


@dataclass(frozen=True, slots=True)
class RowType:
    """The GraphQL type of an entity type's row, as a value; equal for equal columns."""

    name: str
    """Name of the GraphQL type."""
    entity_type: str
    fields: Mapping[str, tuple[ColumnNames, ColumnReading]]
    """GraphQL field → names of the column, and the conversion of its values."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class CatalogSchema:
    """A GraphQL schema, with tables that map its fields to the catalog.

    The types of graphql-core and their schema refer to each other: tens of thousands of objects in reference
    cycles. When this object is garbage-collected, ``core`` and ``strawberry`` are emptied to break the cycles.
    So other objects must not keep them without this object.
    """

    strawberry: strawberry.Schema
    core: GraphQLSchema
    """The graphql-core schema of ``strawberry``."""
    scopes: Mapping[str, Scope]
    """Subscription field → part of the catalog that it covers."""
    histories: Mapping[str, Scope]
    """Field of history → part of the catalog that it covers."""
    tables: Mapping[str, str]
    """Field of a table or of one row → entity type."""
    rows: Mapping[str, RowType]
    """Type of a change → type of its row; the untyped change has no entry."""
    types: Mapping[str, tuple[type, type, type]]
    """Type of a change → Strawberry's classes of change, connection and table; schemas may share them."""
    wheres: Mapping[str, WhereType]
    """Entity type → the fields of the argument ``where``."""
    stems: frozenset[str]
    """The stems of the entity types in this schema; in a large catalog, only those named by documents."""

    def condition(
        self, entity_type: str | None, arguments: Mapping[str, Any]
    ) -> TypedCondition | None:
        """Return the condition of a field's argument ``where``; None if the argument is absent.

        Raises:
            InvalidRequest: The argument, or a part of it, is null or has no test; the error contains its path.
        """
        if entity_type is None or WHERE not in arguments:
            return None
        value = arguments[WHERE]
        if value is None:
            raise InvalidRequest(f"{WHERE}: null is not a condition; leave it out to get all rows")
        return self.wheres[entity_type].condition(value)

    def __post_init__(self) -> None:
        """Have the schema emptied when this object is garbage-collected."""
        weakref.finalize(self, _take_apart, self.strawberry, self.core)


def _take_apart(made: strawberry.Schema, core: GraphQLSchema) -> None:
    """Empty an unused schema to break its reference cycles; objects shared by all schemas stay intact."""
    for name, kind in core.type_map.items():
        if not name.startswith("__") and isinstance(kind, _OWN_KINDS):
            vars(kind).clear()
    converter = made.schema_converter
    converter.type_map.clear()
    for each in (core, converter, made):
        vars(each).clear()
