"""A catalog's GraphQL schema as a value, and how columns are read from an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tailrace_server.api.graphql.errors import ValueUnfit
from tailrace_server.wal.record.columns import decode_members

if TYPE_CHECKING:
    from collections.abc import Mapping

    import strawberry
    from graphql import GraphQLSchema

    from tailrace_server.api.graphql.arguments import Scope
    from tailrace_server.api.graphql.scalars import ColumnForm

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


def value_of(row: Mapping[str, msgspec.Raw], names: ColumnNames) -> msgspec.Raw | None:
    """Return a column's value in a row; None where it has none."""
    return next((row[name] for name in names if name in row), None)


@dataclass(frozen=True, slots=True)
class RowType:
    """An entity type's row."""

    name: str
    entity_type: str
    fields: Mapping[str, tuple[ColumnNames, ColumnForm]]
    """GraphQL name → the column's names and how its values come."""


@dataclass(frozen=True, slots=True)
class CatalogSchema:
    """A GraphQL schema with what the compiler of selections must know of it."""

    strawberry: strawberry.Schema
    core: GraphQLSchema
    """The same as graphql-core has it."""
    scopes: Mapping[str, Scope]
    """Subscription field → what it is about."""
    rows: Mapping[str, RowType]
    """Type of a change → type of its row; the untyped one has none."""
