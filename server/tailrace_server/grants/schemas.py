"""Schemas without the entity types and columns that are not granted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tailrace_server.grants.grant import Columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.schema import Schema
    from tailrace_server.grants.grant import Allowance
    from tailrace_server.wal.state.schema_history import Schemas
    from tailrace_server.wal.state.view import LogView


def granted_view(view: LogView, allowances: Sequence[Allowance]) -> LogView:
    """Return a view whose schemas have only what is granted; ``view`` itself if everything is granted."""
    if any(each.entity_types is None and each.columns.are_all for each in allowances):
        return view
    unknown = tuple(
        name for name in view.unknown_changes if any(each.takes_type(name) for each in allowances)
    )
    # Keys and actions do not change the schema: ten thousand principals with a key each share one view.
    part = frozenset((each.entity_types, each.columns) for each in allowances)
    return view.with_schemas(part, partial(_GrantedSchemas, allowances=allowances), unknown)


def granted_schema(schema: Schema, allowances: Sequence[Allowance]) -> Schema:
    """Return the granted part of a schema.

    Ordinals of captures count hidden columns too, so a column's index in the result is not its ordinal.
    """
    types = {}
    for name, columns in schema.entity_types.items():
        shown = Columns(listed=True)
        for each in allowances:
            if each.takes_type(name):
                shown |= each.columns
        kept = tuple(column for column in columns if shown.shows(column.name))
        if kept:
            types[name] = kept
    return replace(schema, entity_types=types)


class _GrantedSchemas:
    """The schemas of a view, each narrowed to what is granted on access."""

    def __init__(self, schemas: Schemas, allowances: Sequence[Allowance]) -> None:
        self._schemas = schemas
        self._allowances = allowances
        self._last: tuple[Schema, Schema] | None = None
        """Cache of the last result: a schema and its granted part."""

    def at(self, version: int) -> Schema:
        return self._granted(self._schemas.at(version))

    def span(self, version: int) -> tuple[int, int | None]:
        return self._schemas.span(version)

    def up_to(self, version: int) -> Iterator[Schema]:
        return map(self._granted, self._schemas.up_to(version))

    def had_entity_type(self, name: str, version: int) -> bool:
        takes = any(each.takes_type(name) for each in self._allowances)
        return takes and self._schemas.had_entity_type(name, version)

    def _granted(self, schema: Schema) -> Schema:
        # Callers read versions of one schema one after the other, so one cached result is enough.
        if self._last is None or self._last[0] is not schema:
            self._last = schema, granted_schema(schema, self._allowances)
        return self._last[1]
