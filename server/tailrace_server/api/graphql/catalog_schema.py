"""A catalog's GraphQL schema as a value, and how columns are read from an image."""

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
"""Kinds of types that Strawberry makes anew for each schema, and that make up nearly all of it."""

ColumnNames = tuple[str, ...]
"""The name of a column, and those that it had in older images, newest first."""


def row_of(image: bytes) -> dict[str, msgspec.Raw]:
    """Return the members of an image.

    Raises:
        ValueUnfit: It is no JSON object, or one that is nested too deep.
    """
    try:
        return decode_members(image)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ValueUnfit("the image is no JSON object") from None
    except RecursionError:  # how deep is too deep depends on the caller: the log has accepted it
        raise ValueUnfit("the image is nested too deep") from None


def unavailable_in(images: Iterable[bytes | None], schema: Schema) -> list[str]:
    """Return the columns whose values the source did not send, each once, in the order of the images."""
    not_sent = unavailable(schema.placeholders)
    found: dict[str, None] = {}
    for image in images:
        if image is not None and not_sent.may_be_in(image):
            try:
                members = row_of(image)
            except ValueUnfit:
                continue  # which the fields that show the image say
            found |= {name: None for name, raw in members.items() if not_sent.is_one(bytes(raw))}
    return [*found]


class VersionedRow(NamedTuple):
    """An image, and what its values are written in."""

    members: Mapping[str, msgspec.Raw]
    columns: Mapping[str, Column]
    """By the names that they have in the image's version."""

    def value(self, names: ColumnNames, reading: ColumnReading) -> object:
        """Return a column's value as a resolver returns it; None where the row has none.

        Raises:
            ValueUnfit: As `ColumnReading.of`.
        """
        for name in names:
            if name in self.members and reading.is_of(self.columns.get(name)):
                return reading.value(bytes(self.members[name]), self.columns.get(name))
        return None


def columns_by_name(schema: Schema, entity_type: str) -> dict[str, Column]:
    """Return the columns of an entity type in a schema, dropped ones too."""
    return {column.name: column for column in schema.entity_types.get(entity_type, ())}


@dataclass(frozen=True, slots=True)
class RowType:
    """An entity type's row."""

    name: str
    entity_type: str
    fields: Mapping[str, tuple[ColumnNames, ColumnReading]]
    """GraphQL name → the column's names and how its values come."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class CatalogSchema:
    """A GraphQL schema with what the compiler of selections must know of it.

    The types of graphql-core refer to each other and to their schema: tens of thousands of objects in a cycle.
    So nothing keeps ``core`` or ``strawberry`` without this object: with it, they are taken apart.
    """

    strawberry: strawberry.Schema
    core: GraphQLSchema
    """The same as graphql-core has it."""
    scopes: Mapping[str, Scope]
    """Subscription field → what it is about."""
    histories: Mapping[str, Scope]
    """Field of history → what it is about."""
    tables: Mapping[str, str]
    """Field of a table, or of one row of it → its entity type."""
    rows: Mapping[str, RowType]
    """Type of a change → type of its row; the untyped one has none."""
    types: Mapping[str, tuple[type, type, type]]
    """Type of a change → what Strawberry has of it, its connection and its table; a later schema may share."""
    wheres: Mapping[str, WhereType]
    """Entity type → what the argument ``where`` of its fields means."""
    stems: frozenset[str]
    """The stems of the entity types that it has; of a catalog with very many, those that documents name."""

    def condition(
        self, entity_type: str | None, arguments: Mapping[str, Any]
    ) -> TypedCondition | None:
        """Return the condition of the argument ``where`` of a field; None: the field was given none.

        Raises:
            InvalidRequest: The argument, or a part of it, is null or has no test; names the place.
        """
        if entity_type is None or WHERE not in arguments:
            return None
        value = arguments[WHERE]
        if value is None:
            raise InvalidRequest(
                f"{WHERE}: null is no condition; leave it out where all rows are meant"
            )
        return self.wheres[entity_type].condition(value)

    def __post_init__(self) -> None:
        """See to what is in cycles."""
        weakref.finalize(self, _take_apart, self.strawberry, self.core)


def _take_apart(made: strawberry.Schema, core: GraphQLSchema) -> None:
    """Empty a schema that is no longer used; scalars, and what graphql-core has for all schemas, stay."""
    for name, kind in core.type_map.items():
        if not name.startswith("__") and isinstance(kind, _OWN_KINDS):
            vars(kind).clear()
    converter = made.schema_converter
    converter.type_map.clear()
    for each in (core, converter, made):
        vars(each).clear()
